/* A store for tests written in other languages.
 *
 *   store_tool serve                               serves at a free port, which it prints, until its input ends
 *   store_tool host PORT WORLD                     hosts until then; waits for WORLD clients, its own among them, and
 *                                                  prints "joined"
 *   store_tool PORT TIMEOUT CALL [+ CALL]...       joins the store at 127.0.0.1 and calls; one line of output a call
 *
 * Calls: set K V, get K, add K N, wait K..., check K..., compare_set K EXPECTED DESIRED, append K V, delete K,
 * num_keys, and sleep MS. A call that fails prints "error" and the message. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cairn/store.h"
#include "rendezvous/store/server.h"

static int fail(const char *what) {
    fprintf(stderr, "store_tool: %s: %s\n", what, cairn_last_error());
    return 1;
}

static void until_input_ends(void) {
    char byte;
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0) continue;
}

static int serve(void) {
    struct cairn__store_server *server = NULL;
    int port = 0;
    if (cairn__store_serve(0, &server, &port) != CAIRN_OK) return fail("serve");
    printf("%d\n", port);
    until_input_ends();
    cairn__store_stop(&server);
    return 0;
}

static int host(int port, int world) {
    cairn_store *store = NULL;
    if (cairn_tcp_store_create("127.0.0.1", port,
                               cairn_tcp_store_options(.is_server = CAIRN_ON, .world_size = world, .timeout = 60),
                               &store) != CAIRN_OK)
        return fail("host");
    printf("joined\n");
    until_input_ends();
    cairn_store_destroy(&store);
    return 0;
}

static void print_value(void *value, size_t nbytes) {
    fwrite(value, 1, nbytes, stdout);
    printf("\n");
    cairn_store_free(value);
}

static cairn_status call(cairn_store *s, int n, char **words) {
    const char *name = words[0], *key = n > 1 ? words[1] : "", *text = n > 2 ? words[2] : "";
    const char *const *keys = (const char *const *)words + 1;
    cairn_status st = CAIRN_EINVAL;
    void *value = NULL;
    size_t nbytes = 0;
    int64_t number = 0;
    int flag = 0;
    if (strcmp(name, "get") == 0 || strcmp(name, "compare_set") == 0) {
        const char *desired = n > 3 ? words[3] : "";
        st = name[0] == 'g'
                 ? cairn_store_get(s, key, &value, &nbytes)
                 : cairn_store_compare_set(s, key, text, strlen(text), desired, strlen(desired), &value, &nbytes);
        if (st == CAIRN_OK) print_value(value, nbytes);
        return st;
    }
    if (strcmp(name, "add") == 0) st = cairn_store_add(s, key, strtoll(text, NULL, 10), &number);
    if (strcmp(name, "num_keys") == 0) st = cairn_store_num_keys(s, &number);
    if (strcmp(name, "check") == 0) st = cairn_store_check(s, keys, (size_t)n - 1, &flag);
    if (strcmp(name, "delete") == 0) st = cairn_store_delete(s, key, &flag);
    if (strcmp(name, "set") == 0) st = cairn_store_set(s, key, text, strlen(text));
    if (strcmp(name, "append") == 0) st = cairn_store_append(s, key, text, strlen(text));
    if (strcmp(name, "wait") == 0) st = cairn_store_wait(s, keys, (size_t)n - 1);
    if (strcmp(name, "sleep") == 0) st = usleep(1000 * (useconds_t)atoi(key)) == 0 ? CAIRN_OK : CAIRN_ESYSTEM;
    if (st == CAIRN_OK) printf("%" PRId64 "\n", number + flag);
    return st;
}

int main(int argc, char **argv) {
    cairn_store *store = NULL;
    if (argc == 2 && strcmp(argv[1], "serve") == 0) return serve();
    if (argc == 4 && strcmp(argv[1], "host") == 0) return host(atoi(argv[2]), atoi(argv[3]));
    if (argc < 4) return fail("usage");
    if (cairn_tcp_store_create("127.0.0.1", atoi(argv[1]), cairn_tcp_store_options(.timeout = atof(argv[2])), &store) !=
        CAIRN_OK)
        return fail("join");
    for (int i = 3, n; i < argc; i += n + 1) {
        for (n = 0; i + n < argc && strcmp(argv[i + n], "+") != 0;) n++;
        if (n && call(store, n, argv + i) != CAIRN_OK) printf("error %s\n", cairn_last_error());
        fflush(stdout);
    }
    cairn_store_destroy(&store);
    return 0;
}
