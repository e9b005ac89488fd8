/* exchange: ranks that meet at a store and only read each other's keys, so that they may be on any number of machines.
 * Uses the launcher's store if it has one, otherwise rank 0's.
 *
 * usage: exchange leave | stay | fail RANK [ATTEMPT]     (what ranks do once all have read all keys)
 *
 * fail: in attempt ATTEMPT (0) rank RANK exits with 7 and the others stay; in other attempts all leave */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../check.h"
#include "cairn/store.h"

static int rank, size, attempt;

static int number(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

static const char *key(const char *what, int of_rank) {
    static char text[64];
    snprintf(text, sizeof(text), "exchange/%d/%s/%d", attempt, what, of_rank);
    return text;
}

/* The job's, "" without. */
static const char *secret(void) {
    static char text[128];
    const char *path = getenv("CAIRN_JOB_SECRET_FILE");
    FILE *f = path ? fopen(path, "re") : NULL;
    if (f && !fgets(text, sizeof(text), f)) text[0] = '\0';
    if (f) fclose(f);
    text[strcspn(text, "\n")] = '\0';
    return text;
}

static void join(int serves, cairn_store **store) {
    const char *timeout = getenv("CAIRN_TIMEOUT"), *proof = secret();
    MUST_OK(cairn_tcp_store_create(getenv("MASTER_ADDR"), number("MASTER_PORT"),
                                   cairn_tcp_store_options(.is_server = serves ? CAIRN_ON : CAIRN_OFF,
                                                           .timeout = timeout ? atof(timeout) : 0,
                                                           .secret = proof[0] ? proof : NULL,
                                                           .secret_nbytes = strlen(proof)),
                                   store));
}

/* Prints "attempt 0: rank 1 read: 0 machine 1 machine ..." in one piece. */
static void read_all(cairn_store *store) {
    char host[64] = "", line[1024];
    gethostname(host, sizeof(host) - 1);
    MUST_OK(cairn_store_set(store, key("host", rank), host, strlen(host)));
    int length = snprintf(line, sizeof(line), "attempt %d: rank %d read:", attempt, rank);
    for (int r = 0; r < size; r++) {
        void *value = NULL;
        MUST_OK(cairn_store_get(store, key("host", r), &value, NULL));
        length += snprintf(line + length, sizeof(line) - (size_t)length, " %d %.60s", r, (char *)value);
        cairn_store_free(value);
    }
    puts(line);
    fflush(stdout);
}

/* Who serves leaves last. */
static void leave(cairn_store *store, int serves) {
    if (!serves) MUST_OK(cairn_store_set(store, key("left", rank), "", 0));
    for (int r = 1; serves && r < size; r++) MUST_OK(cairn_store_wait(store, &(const char *){key("left", r)}, 1));
    cairn_store_destroy(&store);
}

int main(int argc, char **argv) {
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE"), *what = argc > 1 ? argv[1] : "leave";
    rank = number("RANK");
    size = number("WORLD_SIZE");
    attempt = number("TORCHELASTIC_RESTART_COUNT");
    const int serves = rank == 0 && !(agent && strcmp(agent, "True") == 0);
    const int fails = strcmp(what, "fail") == 0 && argc > 2 && attempt == (argc > 3 ? atoi(argv[3]) : 0);
    cairn_store *store = NULL;
    join(serves, &store);
    read_all(store);
    if (fails && atoi(argv[2]) == rank) return 7;
    if (fails || strcmp(what, "stay") == 0) MUST_OK(cairn_store_wait(store, &(const char *){"exchange/never"}, 1));
    leave(store, serves);
    return 0;
}
