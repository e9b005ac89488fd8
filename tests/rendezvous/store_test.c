/* Runs the same cases on every kind of store, since calls must behave the same wherever the keys are stored. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../check.h"
#include "rendezvous/store/server.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/wire.h"
#include "old_store.h"

/* TOLD: our own server, whose second dialect is asked for; OLD: one of PyTorch 1.13, which the client finds out. */
enum where { TCP, TOLD, OLD, FILED, HASH };

struct kind {
    const char *name;
    enum where where;
    int prefixes; /* around it */
};

static const struct kind kinds[] = {
    {"tcp", TCP, 0},
    {"tcp at 1.13", OLD, 0},
    {"tcp told 1.13", TOLD, 0},
    {"file", FILED, 0},
    {"hash", HASH, 0},
    {"prefix of tcp", TCP, 1},
    {"prefix of tcp at 1.13", OLD, 1},
    {"prefix of file", FILED, 1},
    {"prefix of hash", HASH, 1},
    {"prefix of prefix of hash", HASH, 2},
};

static const struct kind *kind;
static struct cairn__store_server *server;
static struct old_store *old;
static cairn_store *hash;
static char folder[64], path[96];
static int port;

/* A store, and what it stands on. */
struct handle {
    cairn_store *layers[3];
    int n;
};

static cairn_store *top(const struct handle *h) {
    return h->layers[h->n - 1];
}

static cairn_status join(struct handle *h, double timeout) {
    cairn_status st = CAIRN_OK;
    *h = (struct handle){.n = 0};
    if (kind->where == HASH) {
        h->layers[0] = hash;
        st = cairn_store_set_timeout(hash, timeout);
    } else if (kind->where == FILED) {
        st = cairn_file_store_create(path, 0, timeout, &h->layers[0]);
    } else {
        st = cairn_tcp_store_create("127.0.0.1", port, cairn_tcp_store_options(.timeout = timeout), &h->layers[0]);
    }
    if (st == CAIRN_OK) h->n = 1;
    for (int i = 0; i < kind->prefixes && st == CAIRN_OK; i++) {
        st = cairn_prefix_store_create("pre", h->layers[i], &h->layers[i + 1]);
        if (st == CAIRN_OK) h->n++;
    }
    return st;
}

static void leave(struct handle *h) {
    while (h->n > (kind->where == HASH ? 1 : 0)) cairn_store_destroy(&h->layers[--h->n]);
}

/* Two callers of one store; a hash store is one object. */
static struct handle one, two;
static cairn_store *a, *b;

static int begin(void **state) {
    kind = *state;
    check_as(kind->name);
    snprintf(folder, sizeof(folder), "/tmp/cairn-store-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof(path), "%s/store", folder);
    if (kind->where == OLD) port = (old = old_start())->port;
    if ((kind->where == TCP || kind->where == TOLD) && cairn__store_serve(0, &server, &port) != CAIRN_OK) return -1;
    if (kind->where == HASH && cairn_hash_store_create(10, &hash) != CAIRN_OK) return -1;
    if (kind->where == TOLD) setenv("CAIRN_STORE_DIALECT", "1.13", 1);
    if (join(&one, 60) != CAIRN_OK || join(&two, 60) != CAIRN_OK) {
        print_error("%s: %s\n", kind->name, cairn_last_error());
        return -1;
    }
    a = top(&one);
    b = top(&two);
    return 0;
}

static int end(void **state) {
    (void)state;
    int broken = 0;
    leave(&one);
    leave(&two);
    if (old) broken = old->torn || old->vast || old->stale;
    if (broken) print_error("torn %d, vast %d, stale %d\n", old->torn, old->vast, old->stale);
    cairn_store_destroy(&hash);
    cairn__store_stop(&server);
    old_end(old);
    old = NULL;
    unsetenv("CAIRN_STORE_DIALECT");
    unlink(path);
    rmdir(folder);
    return broken;
}

static void expect_held(cairn_store *s, const char *key, const char *value) {
    void *got = NULL;
    size_t nbytes = 0;
    OK(cairn_store_get(s, key, &got, &nbytes));
    assert_string_equal(got, value);
    assert_int_equal(nbytes, strlen(value));
    cairn_store_free(got);
}

static int is_there(cairn_store *s, const char *key) {
    int present = -1;
    OK(cairn_store_check(s, &key, 1, &present));
    return present;
}

static void set(cairn_store *s, const char *key, const char *value) {
    OK(cairn_store_set(s, key, value, strlen(value)));
}

/* ---- cases ---- */

static void value_set_by_one_client_is_read_by_another(void **state) {
    (void)state;
    set(a, "k", "value");
    expect_held(b, "k", "value");
    set(b, "k", "v");
    expect_held(a, "k", "v"); /* SET has no reply at a TCP store, but b's own question came behind it */
    void *got = NULL;
    OK(cairn_store_get(a, "k", &got, NULL)); /* the size is optional */
    cairn_store_free(got);
}

static void values_hold_any_bytes_and_may_be_empty(void **state) {
    (void)state;
    static const char bytes[] = "\0\xff\n\0";
    void *got = NULL;
    size_t nbytes = 0;
    OK(cairn_store_set(a, "binary", bytes, sizeof(bytes)));
    OK(cairn_store_get(a, "binary", &got, &nbytes));
    assert_int_equal(nbytes, sizeof(bytes));
    assert_memory_equal(got, bytes, sizeof(bytes));
    cairn_store_free(got);
    OK(cairn_store_set(a, "empty", NULL, 0));
    expect_held(a, "empty", "");
    assert_int_equal(is_there(a, "empty"), 1);
}

static void sizes_beyond_a_limit_are_refused(void **state) {
    (void)state;
    const size_t most = STORE_MAX_VALUE, longest = 8191 - 4 * (size_t)kind->prefixes;
    char *value = malloc(most + 1), *key = malloc(9001);
    void *got = NULL;
    size_t nbytes = 0;
    for (size_t i = 0; i < most; i++) value[i] = (char)(i * 31 >> 3);
    OK(cairn_store_set(a, "big", value, most));
    OK(cairn_store_get(a, "big", &got, &nbytes));
    assert_int_equal(nbytes, most);
    assert_memory_equal(got, value, most);
    assert_int_equal(cairn_store_set(a, "big", value, most + 1), CAIRN_EINVAL);
    SAYS("a value of 8388609 bytes for key 'big' is more than a store holds (8388608)");
    assert_int_equal(cairn_store_compare_set(a, "big", value, most + 1, "", 0, NULL, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_store_append(a, "big", value, most + 1), CAIRN_EINVAL);
    memset(key, 'k', 9000);
    key[longest] = '\0';
    set(a, key, "long");
    expect_held(b, key, "long");
    key[longest] = 'k';
    key[longest + 1] = '\0';
    assert_int_equal(cairn_store_set(a, key, "", 0), CAIRN_EINVAL);
    SAYS("more than a store holds (8191): '");
    assert_int_equal(cairn_store_wait(a, &(const char *){key}, 1), CAIRN_EINVAL);
    set(a, "after", "all");
    expect_held(b, "after", "all");
    cairn_store_free(got);
    free(value);
    free(key);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    const char *const keys[] = {"k", NULL}, *const empty[] = {""};
    void *value = NULL;
    int present = 0;
    int64_t count = 0;
    assert_int_equal(cairn_store_set(a, NULL, "", 0), CAIRN_EINVAL);
    assert_int_equal(cairn_store_set(a, "", "", 0), CAIRN_EINVAL);
    assert_int_equal(cairn_store_set(a, "k", NULL, 1), CAIRN_EINVAL);
    assert_int_equal(cairn_store_get(a, "k", NULL, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_store_add(a, NULL, 1, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_store_wait(a, keys, 2), CAIRN_EINVAL);
    assert_int_equal(cairn_store_wait(a, empty, 1), CAIRN_EINVAL);
    assert_int_equal(cairn_store_wait(a, NULL, 1), CAIRN_EINVAL);
    assert_int_equal(cairn_store_wait(a, keys, SIZE_MAX), CAIRN_EINVAL);
    assert_int_equal(cairn_store_check(a, keys, 1, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_store_check(a, keys, 131073, &present), CAIRN_EINVAL);
    assert_int_equal(cairn_store_compare_set(a, "k", NULL, 1, "", 0, &value, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_store_append(a, "k", NULL, 1), CAIRN_EINVAL);
    assert_int_equal(cairn_store_delete(a, "", NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_store_num_keys(a, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_store_num_keys(NULL, &count), CAIRN_EINVAL);
    assert_int_equal(cairn_store_set(NULL, "k", "", 0), CAIRN_EINVAL);
    assert_int_equal(cairn_store_set_timeout(a, 0), CAIRN_EINVAL);
    assert_int_equal(cairn_store_set_timeout(a, -1), CAIRN_EINVAL);
    assert_int_equal(cairn_store_set_timeout(NULL, 1), CAIRN_EINVAL);
    assert_null(value);
    cairn_store_destroy(NULL);
    cairn_store_destroy(&(cairn_store *){NULL});
    cairn_store_free(NULL);
    set(a, "k", "fine");
    expect_held(a, "k", "fine");
}

static void add_counts_in_decimal_text(void **state) {
    (void)state;
    int64_t sum = 0;
    OK(cairn_store_add(a, "c", 5, &sum));
    assert_int_equal(sum, 5);
    OK(cairn_store_add(b, "c", -7, &sum));
    assert_int_equal(sum, -2);
    expect_held(a, "c", "-2");
    set(a, "c", "40");
    OK(cairn_store_add(a, "c", 2, NULL));
    expect_held(a, "c", "42");
}

static void adding_to_a_text_is_refused(void **state) {
    (void)state;
    const bool served = kind->where != FILED && kind->where != HASH;
    set(a, "text", "four");
    assert_int_equal(cairn_store_add(a, "text", 1, NULL), served ? CAIRN_EPEER : CAIRN_EINVAL);
    SAYS("not hold a");
    expect_held(b, "text", "four");
}

static void expect_swapped(const char *key, const char *expected, const char *desired, const char *answer) {
    void *got = NULL;
    size_t nbytes = 0;
    OK(cairn_store_compare_set(a, key, expected, strlen(expected), desired, strlen(desired), &got, &nbytes));
    assert_string_equal(got, answer);
    assert_int_equal(nbytes, strlen(answer));
    cairn_store_free(got);
}

static void compare_set_swaps_creates_and_reports(void **state) {
    (void)state;
    expect_swapped("s", "old", "new", "old"); /* no key: what was expected comes back, nothing is stored */
    assert_int_equal(is_there(a, "s"), 0);
    expect_swapped("s", "", "one", "one");
    expect_swapped("s", "other", "two", "one");
    expect_swapped("s", "one", "", "");
    expect_swapped("s", "", "three", "three"); /* a key that holds nothing is as expected */
    OK(cairn_store_compare_set(a, "s", "three", 5, "four", 4, NULL, NULL));
    expect_held(b, "s", "four");
}

static void append_creates_and_continues(void **state) {
    (void)state;
    OK(cairn_store_append(a, "list", "x", 1));
    expect_held(a, "list", "x");
    OK(cairn_store_append(b, "list", "x", 1));
    expect_held(b, "list", "xx");
    OK(cairn_store_append(a, "list", "", 0));
    OK(cairn_store_append(a, "list", "yz", 2));
    expect_held(a, "list", "xxyz");
}

static void delete_removes_a_key_once(void **state) {
    (void)state;
    int deleted = -1;
    set(a, "k", "v");
    OK(cairn_store_delete(a, "k", &deleted));
    assert_int_equal(deleted, 1);
    assert_int_equal(is_there(b, "k"), 0);
    OK(cairn_store_delete(a, "k", &deleted));
    assert_int_equal(deleted, 0);
    OK(cairn_store_delete(a, "k", NULL));
    set(a, "k", "again");
    expect_held(b, "k", "again");
}

static void several_keys_are_checked_and_awaited_together(void **state) {
    (void)state;
    static const char *const keys[] = {"x", "y", "z"};
    int present = -1;
    set(a, "x", "");
    set(a, "z", "");
    OK(cairn_store_check(a, keys, 3, &present));
    assert_int_equal(present, 0);
    set(a, "y", "");
    OK(cairn_store_check(a, keys, 3, &present));
    assert_int_equal(present, 1);
    OK(cairn_store_wait(a, keys, 3));
    present = -1;
    OK(cairn_store_check(a, NULL, 0, &present));
    assert_int_equal(present, 1);
    OK(cairn_store_wait(a, NULL, 0));
}

static void keys_are_counted(void **state) {
    (void)state;
    int64_t before = -1, after = -1;
    OK(cairn_store_num_keys(a, &before));
    assert_int_equal(before, kind->where == FILED || kind->where == HASH ? 0 : 1); /* a TCP store counts clients */
    set(a, "x", "");
    set(a, "y", "");
    set(a, "x", "again");
    OK(cairn_store_delete(a, "y", NULL));
    OK(cairn_store_add(a, "z", 1, NULL));
    OK(cairn_store_num_keys(a, &after));
    assert_int_equal(after - before, 2);
}

static void wait_that_times_out_names_the_key_and_the_store_lives_on(void **state) {
    (void)state;
    static const char *const keys[] = {"here", "nowhere", "neither"};
    void *value = NULL;
    set(a, "here", "");
    OK(cairn_store_set_timeout(a, 0.15));
    assert_int_equal(cairn_store_wait(a, keys, 3), CAIRN_ETIMEOUT);
    SAYS("nowhere' did not appear in the");
    if (kind->where != HASH) SAYS("store at "); /* and where */
    SAYS("within 0.15 s");
    assert_int_equal(cairn_store_get(a, "never", &value, NULL), CAIRN_ETIMEOUT);
    SAYS("never' did not appear");
    assert_null(value);
    OK(cairn_store_set_timeout(a, 60));
    set(a, "never", "late"); /* the stream is where it should be */
    expect_held(a, "never", "late");
    OK(cairn_store_add(a, "n", 3, NULL));
    expect_held(b, "n", "3");
}

/* ---- several at once ---- */

struct writer {
    pthread_t thread;
    int how;
    const char *key;
    bool failed;
};

static void *write_later(void *argument) {
    struct writer *w = argument;
    struct handle h;
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    w->failed = join(&h, 60) != CAIRN_OK;
    if (w->failed) return NULL;
    if (w->how == 0) w->failed = cairn_store_set(top(&h), w->key, "7", 1) != CAIRN_OK;
    if (w->how == 1) w->failed = cairn_store_add(top(&h), w->key, 7, NULL) != CAIRN_OK;
    if (w->how == 2) w->failed = cairn_store_append(top(&h), w->key, "7", 1) != CAIRN_OK;
    if (w->how == 3) w->failed = cairn_store_compare_set(top(&h), w->key, "", 0, "7", 1, NULL, NULL) != CAIRN_OK;
    leave(&h);
    return NULL;
}

static void every_way_to_write_ends_a_wait(void **state) {
    (void)state;
    static const char *const keys[] = {"w0", "w1", "w2", "w3"};
    for (int how = 0; how < 4; how++) {
        struct writer w = {.how = how, .key = keys[how]};
        assert_int_equal(pthread_create(&w.thread, NULL, write_later, &w), 0);
        expect_held(a, keys[how], "7");
        pthread_join(w.thread, NULL);
        assert_false(w.failed);
    }
}

enum { THREADS = 4, ROUNDS = 50 };

static void *append_often(void *argument) {
    bool *failed = argument;
    struct handle h;
    *failed = join(&h, 60) != CAIRN_OK;
    for (int i = 0; i < ROUNDS && !*failed; i++) {
        *failed = cairn_store_append(top(&h), "tape", "x", 1) != CAIRN_OK ||
                  cairn_store_add(top(&h), "sum", 1, NULL) != CAIRN_OK;
    }
    if (*failed) print_error("%s: %s\n", kind->name, cairn_last_error());
    leave(&h);
    return NULL;
}

static void threads_do_not_lose_each_others_writes(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    bool failed[THREADS];
    void *tape = NULL;
    size_t nbytes = 0;
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, append_often, &failed[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) assert_false(failed[i]);
    OK(cairn_store_get(a, "tape", &tape, &nbytes));
    assert_int_equal(nbytes, THREADS * ROUNDS);
    cairn_store_free(tape);
    expect_held(a, "sum", "200");
}

/* A key that comes and goes is either got or waited for: no kind may hang up over it, or hand out what was never
 * set. */
static void *set_and_delete(void *argument) {
    bool *failed = argument;
    struct handle h;
    *failed = join(&h, 60) != CAIRN_OK;
    for (int i = 0; i < 300 && !*failed; i++) {
        *failed = cairn_store_set(top(&h), "blink", "on", 2) != CAIRN_OK ||
                  cairn_store_delete(top(&h), "blink", NULL) != CAIRN_OK;
    }
    if (!*failed) *failed = cairn_store_set(top(&h), "blink", "off", 3) != CAIRN_OK;
    leave(&h);
    return NULL;
}

static void keys_set_and_deleted_at_once_are_never_half_written(void **state) {
    (void)state;
    pthread_t thread;
    bool failed = false, over = false;
    pthread_create(&thread, NULL, set_and_delete, &failed);
    while (!over) {
        void *got = NULL;
        OK(cairn_store_get(a, "blink", &got, NULL));
        over = strcmp(got, "off") == 0;
        assert_true(over || strcmp(got, "on") == 0);
        cairn_store_free(got);
    }
    pthread_join(thread, NULL);
    assert_false(failed);
}

static int add_in_a_process(void) {
    struct handle h;
    int64_t sum = 0;
    if (join(&h, 120) != CAIRN_OK) return 1;
    for (int i = 0; i < 100; i++) {
        if (cairn_store_add(top(&h), "total", 1, &sum) != CAIRN_OK) return 1;
    }
    leave(&h);
    return 0;
}

static void eight_processes_add_up_exactly(void **state) {
    (void)state;
    if (kind->where == HASH) return; /* the threads of one process only */
    pid_t pids[8];
    for (int i = 0; i < 8; i++) {
        pids[i] = fork();
        if (pids[i] == 0) _exit(add_in_a_process());
    }
    for (int i = 0; i < 8; i++) {
        int status = -1;
        waitpid(pids[i], &status, 0);
        assert_int_equal(status, 0);
    }
    expect_held(a, "total", "800");
}

int main(void) {
#define CASE(name) \
    { #name, name }
    static const struct {
        const char *name;
        CMUnitTestFunction fn;
    } cases[] = {
        CASE(value_set_by_one_client_is_read_by_another),
        CASE(values_hold_any_bytes_and_may_be_empty),
        CASE(sizes_beyond_a_limit_are_refused),
        CASE(wrong_arguments_are_refused),
        CASE(add_counts_in_decimal_text),
        CASE(adding_to_a_text_is_refused),
        CASE(compare_set_swaps_creates_and_reports),
        CASE(append_creates_and_continues),
        CASE(delete_removes_a_key_once),
        CASE(several_keys_are_checked_and_awaited_together),
        CASE(keys_are_counted),
        CASE(wait_that_times_out_names_the_key_and_the_store_lives_on),
        CASE(every_way_to_write_ends_a_wait),
        CASE(threads_do_not_lose_each_others_writes),
        CASE(keys_set_and_deleted_at_once_are_never_half_written),
        CASE(eight_processes_add_up_exactly),
    };
    enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), CASES = sizeof(cases) / sizeof(cases[0]) };
    static struct CMUnitTest tests[KINDS * CASES];
    static char names[KINDS * CASES][96];
    for (int i = 0; i < KINDS * CASES; i++) {
        snprintf(names[i], sizeof(names[i]), "%s: %s", kinds[i / CASES].name, cases[i % CASES].name);
        tests[i] = (struct CMUnitTest){names[i], cases[i % CASES].fn, begin, end, (void *)(uintptr_t)&kinds[i / CASES]};
    }
    return cmocka_run_group_tests_name("store kinds", tests, NULL, NULL);
}
