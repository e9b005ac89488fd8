/* Replays recorded conversations of PyTorch's stores and clients (transcripts/, made by record_store.py): the clients'
 * bytes go to sessions of Cairn's server, which must answer with the recorded bytes, and Cairn's client gets the
 * recorded answers. This checks the protocol without PyTorch; torch_store.py tests against the real PyTorch. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cairn/store.h"
#include "rendezvous/store/session.h"
#include "wire_script.h"

enum { MAX_EVENTS = 400, MAX_CONNECTIONS = 8, MAX_TEXT = 96 };

/* Bytes of one side, or a word. */
struct event {
    enum { LABEL, OPENED, CLIENT, SERVER, CLOSED } kind;
    int connection, line;
    char label[MAX_TEXT];
    uint8_t *bytes;
    size_t nbytes;
};

struct scenario {
    char name[MAX_TEXT];
    struct event events[MAX_EVENTS];
    size_t num_events;
};

/* ---- reading ---- */

static void add_bytes(struct event *e, const char *hex) {
    unsigned byte;
    e->bytes = realloc(e->bytes, e->nbytes + 16);
    assert_non_null(e->bytes);
    for (int used = 0; sscanf(hex, " %2x%n", &byte, &used) == 1; hex += used) e->bytes[e->nbytes++] = (uint8_t)byte;
}

/* Lines of one side that follow each other are one event. */
static void add_line(struct scenario *s, int number, const char *line) {
    struct event e = {.line = number, .connection = line[0] == '#' ? 0 : line[0] - '0'}, *last = NULL;
    if (s->num_events) last = &s->events[s->num_events - 1];
    if (line[0] == '#') {
        snprintf(e.label, sizeof(e.label), "%.90s", line + 3);
    } else if (strcmp(line + 3, "opened") == 0) {
        e.kind = OPENED;
    } else if (strcmp(line + 3, "closed") == 0) {
        e.kind = CLOSED;
    } else {
        e.kind = line[1] == '>' ? CLIENT : SERVER;
        if (!last || last->kind != e.kind || last->connection != e.connection) last = NULL;
        if (last) {
            add_bytes(last, line + 3);
            return;
        }
        add_bytes(&e, line + 3);
    }
    assert_true(s->num_events < MAX_EVENTS &&
                (e.kind == LABEL || (e.connection > 0 && e.connection < MAX_CONNECTIONS)));
    s->events[s->num_events++] = e;
}

static void clear(struct scenario *s) {
    for (size_t i = 0; i < s->num_events; i++) free(s->events[i].bytes);
    s->num_events = 0;
}

/* False at the end. A scenario begins with "=== name". */
static bool read_scenario(FILE *f, int *number, struct scenario *s) {
    char line[256];
    clear(s);
    while (fgets(line, sizeof(line), f)) {
        ++*number;
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "=== ", 4) == 0) {
            snprintf(s->name, sizeof(s->name), "%.90s", line + 4);
        } else if (line[0] == '#' && line[1] == '#') {
            add_line(s, *number, line);
        } else if (line[0] >= '0' && line[0] <= '9') {
            add_line(s, *number, line);
        } else if (s->num_events) {
            return true;
        }
    }
    return s->num_events > 0;
}

static FILE *open_transcript(const char *torch) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/torch-%s.txt", TRANSCRIPTS, torch);
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("cannot read %s", path);
    return f;
}

static void expect_bytes(const char *torch, const struct event *e, const void *got, size_t nbytes) {
    if (nbytes == e->nbytes && memcmp(got, e->bytes, nbytes) == 0) return;
    fprintf(stderr, "torch-%s.txt:%d: not the recorded %zu bytes but %zu:", torch, e->line, e->nbytes, nbytes);
    for (size_t i = 0; i < nbytes; i++) fprintf(stderr, " %02x", ((const uint8_t *)got)[i]);
    fprintf(stderr, "\n");
    fail();
}

/* ---- recorded clients, our server ---- */

static void replay(const char *torch, const struct scenario *scenario) {
    struct cairn__sessions *all = calloc(1, sizeof(*all));
    struct cairn__session sessions[MAX_CONNECTIONS];
    cairn__sessions_init(all);
    for (int i = 0; i < MAX_CONNECTIONS; i++) cairn__session_open(&sessions[i], CAIRN__TRUST_FULL);
    for (size_t i = 0; i < scenario->num_events; i++) {
        const struct event *e = &scenario->events[i];
        struct cairn__session *s = &sessions[e->connection];
        if (e->kind == CLIENT) cairn__session_feed(all, s, e->bytes, e->nbytes);
        while (cairn__sessions_next(all)) continue;
        if (e->kind == SERVER) {
            const struct cairn__blob out = cairn__session_output(s);
            expect_bytes(torch, e, out.data, out.nbytes);
            cairn__session_sent(all, s, out.nbytes);
        }
        if (s->ended) fail_msg("torch-%s.txt:%d: the server hangs up: %s", torch, e->line, s->why);
        if (e->kind != LABEL) continue;
        for (int c = 0; c < MAX_CONNECTIONS; c++) { /* the proxy had seen nothing more before this */
            const size_t left = cairn__session_output(&sessions[c]).nbytes;
            if (left) fail_msg("torch-%s.txt:%d: the server says %zu bytes too many", torch, e->line, left);
        }
    }
    for (int i = 0; i < MAX_CONNECTIONS; i++) cairn__session_close(all, &sessions[i]);
    cairn__sessions_clear(all);
    free(all);
}

static void replay_all(const char *torch) {
    FILE *f = open_transcript(torch);
    struct scenario *s = calloc(1, sizeof(*s));
    int line = 0, scenarios = 0;
    for (; read_scenario(f, &line, s); scenarios++) replay(torch, s);
    assert_true(scenarios >= 4);
    free(s);
    fclose(f);
}

static void our_server_answers_clients_of_1_13_as_torchs_does(void **state) {
    (void)state;
    replay_all("1.13.1");
}

static void our_server_answers_clients_of_2_1_as_torchs_does(void **state) {
    (void)state;
    replay_all("2.1.2");
}

static void our_server_answers_clients_of_2_2_as_torchs_does(void **state) {
    (void)state;
    replay_all("2.2.2");
}

static void our_server_answers_clients_of_2_15_as_torchs_does(void **state) {
    (void)state;
    replay_all("2.15.0");
}

/* ---- our client, recorded servers ---- */

/* Acts the server in a thread of its own. The first of what went wrong is told by failure. */
struct actor {
    pthread_t thread;
    const struct scenario *scenario;
    int listener;
    char failure[200];
};

static void *give_up(struct actor *a, int fd, int line, const char *what) {
    snprintf(a->failure, sizeof(a->failure), "line %d: %s", line, what);
    if (fd >= 0) close(fd);
    return NULL;
}

static int accept_one(const struct actor *a) {
    const int fd = accept(a->listener, NULL, NULL);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 20}, sizeof(struct timeval));
    return fd;
}

static bool reads(int fd, const char *script) {
    uint8_t wanted[64], got[64];
    const size_t n = bytes_of(script, wanted);
    return recv(fd, got, n, MSG_WAITALL) == (ssize_t)n && memcmp(wanted, got, n) == 0;
}

static void writes(int fd, const char *script) {
    uint8_t bytes[64];
    const size_t n = bytes_of(script, bytes);
    if (send(fd, bytes, n, MSG_NOSIGNAL) != (ssize_t)n) perror("send");
}

/* Our client's greeting is its own: the server's age, which what the recorded client said at first tells, decides about
 * which of its attempts is answered. */
static int be_greeted(const struct actor *a) {
    const bool old = a->scenario->events[2].kind != CLIENT;
    int fd = accept_one(a);
    bool well = reads(fd, HELLO "07 07 07 07");
    if (old) {
        close(fd);
        fd = accept_one(a);
        well = well && reads(fd, "06");
        writes(fd, "01*8");
        well = well && reads(fd, "07 0e*8 '/cairn/dialect'");
        writes(fd, "03"); /* WATCH_KEY */
    } else {
        writes(fd, "01*8 01*8 01*8 01*8");
    }
    well = well && reads(fd, old ? "03 05*8 'init/' 01*8" : "04 05*8 'init/' 01*8");
    writes(fd, "01*8");
    if (well) return fd;
    close(fd);
    return -1;
}

/* Calls of which our client sends what torch's sends. (It fetches values in another way, see tcp_client.c; waiting is
 * asking again and again with the old ones.) */
static bool is_alike(const struct scenario *s, size_t label) {
    static const char *const names[] = {"set ", "add ", "check ", "compare_set ", "num_keys", "delete_key ", "append "};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strncmp(s->events[label].label, names[i], strlen(names[i])) == 0) return true;
    }
    return false;
}

static void *act(void *argument) {
    struct actor *a = argument;
    const int fd = be_greeted(a);
    bool alike = false;
    if (fd < 0) return give_up(a, fd, a->scenario->events[0].line, "no greeting that this server would know");
    for (size_t i = 0; i < a->scenario->num_events; i++) {
        const struct event *e = &a->scenario->events[i];
        uint8_t got[512];
        if (e->kind == LABEL) alike = is_alike(a->scenario, i);
        if (!alike) continue;
        if (e->kind == CLIENT &&
            (recv(fd, got, e->nbytes, MSG_WAITALL) != (ssize_t)e->nbytes || memcmp(got, e->bytes, e->nbytes) != 0))
            return give_up(a, fd, e->line, "not what the recorded client said");
        if (e->kind == SERVER && send(fd, e->bytes, e->nbytes, MSG_NOSIGNAL) != (ssize_t)e->nbytes)
            return give_up(a, fd, e->line, "the client does not listen");
    }
    if (recv(fd, &(char){0}, 1, 0) != 0) return give_up(a, fd, 0, "the client says more than was recorded");
    close(fd);
    return NULL;
}

/* "name "text" 5 ["a", "b"]" in parts; the label's text is cut up. */
static int split(char *label, char *words[8]) {
    int n = 0;
    for (char *word = strtok(label, " "); word && n < 8; word = strtok(NULL, " ")) {
        word += strspn(word, "[\"");
        word[strcspn(word, "\"],")] = '\0';
        words[n++] = word;
    }
    return n;
}

static int64_t number_in(const struct event *reply) {
    int64_t number = 0;
    assert_int_equal(reply->nbytes, sizeof(number));
    memcpy(&number, reply->bytes, sizeof(number));
    return number;
}

static void expect_compare_set(cairn_store *store, char *words[8], const struct event *reply) {
    void *value = NULL;
    size_t nbytes = 0;
    assert_int_equal(cairn_store_compare_set(store, words[1], words[2], strlen(words[2]), words[3], strlen(words[3]),
                                             &value, &nbytes),
                     CAIRN_OK);
    assert_int_equal(nbytes, reply->nbytes - sizeof(uint64_t));
    assert_memory_equal(value, reply->bytes + sizeof(uint64_t), nbytes);
    cairn_store_free(value);
}

static void call(cairn_store *store, const struct event *label, const struct event *reply) {
    char text[MAX_TEXT], *words[8] = {0};
    int64_t number = 0;
    int flag = 0;
    strcpy(text, label->label);
    const int n = split(text, words);
    if (strcmp(words[0], "set") == 0) {
        assert_int_equal(cairn_store_set(store, words[1], words[2], strlen(words[2])), CAIRN_OK);
    } else if (strcmp(words[0], "append") == 0) {
        assert_int_equal(cairn_store_append(store, words[1], words[2], strlen(words[2])), CAIRN_OK);
    } else if (strcmp(words[0], "add") == 0) {
        assert_int_equal(cairn_store_add(store, words[1], atoi(words[2]), &number), CAIRN_OK);
        assert_int_equal(number, number_in(reply));
    } else if (strcmp(words[0], "num_keys") == 0) {
        assert_int_equal(cairn_store_num_keys(store, &number), CAIRN_OK);
        assert_int_equal(number, number_in(reply));
    } else if (strcmp(words[0], "delete_key") == 0) {
        assert_int_equal(cairn_store_delete(store, words[1], &flag), CAIRN_OK);
        assert_int_equal(flag, number_in(reply));
    } else if (strcmp(words[0], "check") == 0) {
        assert_int_equal(cairn_store_check(store, (const char *const *)words + 1, (size_t)n - 1, &flag), CAIRN_OK);
        assert_int_equal(flag, reply->bytes[0] == 0);
    } else {
        expect_compare_set(store, words, reply);
    }
}

static int listen_here(int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t length = sizeof(a);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &length), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void call_all(const char *torch) {
    FILE *f = open_transcript(torch);
    struct scenario *s = calloc(1, sizeof(*s));
    struct actor a = {.scenario = s};
    cairn_store *store = NULL;
    int line = 0, port = 0, calls = 0;
    assert_true(read_scenario(f, &line, s));
    assert_string_equal(s->name, "values");
    a.listener = listen_here(&port);
    assert_int_equal(pthread_create(&a.thread, NULL, act, &a), 0);
    if (cairn_tcp_store_create("127.0.0.1", port, cairn_tcp_store_options(.timeout = 20), &store) != CAIRN_OK)
        fail_msg("%s; %s", cairn_last_error(), a.failure);
    for (size_t i = 0; i + 2 < s->num_events; i++) {
        if (s->events[i].kind != LABEL || !is_alike(s, i)) continue;
        call(store, &s->events[i], &s->events[i + 2]);
        calls++;
    }
    cairn_store_destroy(&store);
    pthread_join(a.thread, NULL);
    if (a.failure[0]) fail_msg("torch-%s.txt: %s", torch, a.failure);
    assert_true(calls >= 12);
    close(a.listener);
    clear(s);
    free(s);
    fclose(f);
}

static void client_understands_a_server_of_1_13(void **state) {
    (void)state;
    call_all("1.13.1");
}

static void client_understands_a_server_of_2_2(void **state) {
    (void)state;
    call_all("2.2.2");
}

static void client_understands_a_server_of_2_15(void **state) {
    (void)state;
    call_all("2.15.0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(our_server_answers_clients_of_1_13_as_torchs_does),
        cmocka_unit_test(our_server_answers_clients_of_2_1_as_torchs_does),
        cmocka_unit_test(our_server_answers_clients_of_2_2_as_torchs_does),
        cmocka_unit_test(our_server_answers_clients_of_2_15_as_torchs_does),
        cmocka_unit_test(client_understands_a_server_of_1_13),
        cmocka_unit_test(client_understands_a_server_of_2_2),
        cmocka_unit_test(client_understands_a_server_of_2_15),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
