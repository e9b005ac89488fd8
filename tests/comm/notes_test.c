/* Failure notes in the store: the error message of a rank once all other ranks have left their notes, only some have,
 * or the store is gone. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/notes.h"
#include "core/status.h"
#include "core/trace.h"
#include "rendezvous/store/server.h"
#include "rendezvous/store/tcp.h"

enum { MAX_RANKS = 8 };

static const struct cairn__call sum17 = {.number = 17,
                                         .n = 5,
                                         .kind = CAIRN__ALLREDUCE,
                                         .dtype = CAIRN_F32,
                                         .redop = CAIRN_SUM},
                                broadcast5 = {.number = 5, .n = 3, .kind = CAIRN__BROADCAST, .dtype = CAIRN_F32};

struct rank {
    struct cairn__family family;
    cairn_group group;
    int env_ranks[MAX_RANKS];
    const struct cairn__call *call;
    cairn_status status;
    char seen[600], said[1200];
    double took;
    pthread_t thread;
};

static void *die(void *argument) {
    struct rank *r = argument;
    const uint64_t begin = cairn__now_ns();
    cairn__fail(r->status, "%s", r->seen);
    r->status = cairn__notes_exchange(&r->group, r->call, r->status);
    snprintf(r->said, sizeof(r->said), "%s", cairn_last_error());
    r->took = (double)(cairn__now_ns() - begin) * 1e-9;
    return NULL;
}

static void fill(struct rank *ranks, int p, cairn_store *store) {
    for (int r = 0; r < p; r++) {
        ranks[r] = (struct rank){.call = &sum17, .status = CAIRN_ETIMEOUT};
        ranks[r].family.store = store;
        snprintf(ranks[r].family.prefix, sizeof(ranks[r].family.prefix), "test/1");
        for (int i = 0; i < p; i++) ranks[r].env_ranks[i] = i;
        ranks[r].group.rank = r;
        ranks[r].group.size = p;
        ranks[r].group.is_of_all = true;
        ranks[r].group.env_ranks = ranks[r].env_ranks;
        snprintf(ranks[r].seen, sizeof(ranks[r].seen), "rank %d saw it", r);
    }
    for (int r = 0; r < p; r++) ranks[r].group.family = &ranks[r].family;
}

static void run(struct rank *ranks, int p) {
    for (int r = 0; r < p; r++) assert_int_equal(pthread_create(&ranks[r].thread, NULL, die, &ranks[r]), 0);
    for (int r = 0; r < p; r++) pthread_join(ranks[r].thread, NULL);
}

static void expect(const struct rank *r, const char *part) {
    if (!strstr(r->said, part)) fail_msg("rank %d: '%s' lacks '%s'", r->group.rank, r->said, part);
    if (strstr(r->said, r->seen) != r->said) fail_msg("'%s' does not begin with '%s'", r->said, r->seen);
}

static cairn_store *make_store(void) {
    cairn_store *store = NULL;
    assert_int_equal(cairn_hash_store_create(20, &store), CAIRN_OK);
    return store;
}

static void two_ranks_in_different_collectives_name_both(void **state) {
    (void)state;
    struct rank ranks[2];
    cairn_store *store = make_store();
    fill(ranks, 2, store);
    ranks[1].call = &broadcast5;
    ranks[1].status = CAIRN_EPEER;
    run(ranks, 2);
    expect(&ranks[0], "rank 0 saw it; rank 1 was in broadcast number 5 of 3 f32 from rank 0");
    expect(&ranks[1], "rank 1 saw it; rank 0 was in all-reduce number 17 of 5 f32 to sum");
    assert_int_equal(ranks[0].status, CAIRN_ETIMEOUT);
    assert_int_equal(ranks[1].status, CAIRN_EPEER);
    for (int r = 0; r < 2; r++) assert_null(strstr(ranks[r].said, "reported nothing"));
    cairn_store_destroy(&store);
}

static void silent_rank_is_named_within_seconds(void **state) {
    (void)state;
    struct rank ranks[3];
    cairn_store *store = make_store();
    fill(ranks, 3, store);
    ranks[1].call = &broadcast5;
    run(ranks, 2);
    expect(&ranks[0], "; rank 1 was in broadcast number 5 of 3 f32 from rank 0; rank 2 reported nothing: it ended, is "
                      "stopped, or is not in a call of this group");
    expect(&ranks[1], "; rank 0 was in all-reduce number 17 of 5 f32 to sum; rank 2 reported nothing: it ended");
    for (int r = 0; r < 2; r++) assert_true(ranks[r].took > 0.9 && ranks[r].took < 20);
    cairn_store_destroy(&store);
}

static void many_silent_ranks_are_counted(void **state) {
    (void)state;
    struct rank ranks[8];
    cairn_store *store = make_store();
    fill(ranks, 8, store);
    run(ranks + 7, 1);
    expect(&ranks[7],
           "; rank 0, rank 1, rank 2, rank 3 and 3 more reported nothing: they ended, are stopped, or are not");
    cairn_store_destroy(&store);
}

static void ranks_in_the_same_call_are_not_listed(void **state) {
    (void)state;
    struct rank ranks[8];
    cairn_store *store = make_store();
    fill(ranks, 8, store);
    run(ranks, 8);
    for (int r = 0; r < 8; r++) {
        assert_string_equal(ranks[r].said, ranks[r].seen);
        assert_true(ranks[r].took < 20);
    }
    cairn_store_destroy(&store);
}

static void error_reports_the_failure_that_another_rank_noticed_first(void **state) {
    (void)state;
    struct rank ranks[3];
    cairn_store *store = make_store();
    fill(ranks, 3, store);
    snprintf(ranks[2].seen, sizeof(ranks[2].seen), "rank 2 waited 300 s for rank 1");
    ranks[0].status = ranks[1].status = CAIRN_EPEER;
    run(ranks + 2, 1);
    run(ranks, 2);
    for (int r = 0; r < 2; r++) expect(&ranks[r], "; first failure, on rank 2: rank 2 waited 300 s for rank 1");
    cairn_store_destroy(&store);
}

static void cause_is_reported_even_if_others_noticed_a_rank_leave_first(void **state) {
    (void)state;
    struct rank ranks[3];
    cairn_store *store = make_store();
    fill(ranks, 3, store);
    snprintf(ranks[1].seen, sizeof(ranks[1].seen), "rank 1 has no memory");
    ranks[0].status = ranks[2].status = CAIRN_EPEER;
    ranks[1].status = CAIRN_ENOMEM;
    run(ranks, 1);
    run(ranks + 1, 2);
    expect(&ranks[2], "; first failure, on rank 1: rank 1 has no memory");
    cairn_store_destroy(&store);
}

static void groups_of_one_environment_have_separate_notes(void **state) {
    (void)state;
    struct rank ranks[4];
    cairn_store *store = make_store();
    fill(ranks, 2, store);
    fill(ranks + 2, 2, store);
    for (int r = 2; r < 4; r++) {
        ranks[r].group.index = 512;
        ranks[r].group.is_of_all = false;
        ranks[r].call = r == 2 ? &sum17 : &broadcast5;
        for (int i = 0; i < 2; i++) ranks[r].env_ranks[i] = 4 + i;
    }
    run(ranks, 4);
    for (int r = 0; r < 2; r++) assert_null(strstr(ranks[r].said, " was in "));
    expect(&ranks[2], "(rank 5 of all) was in broadcast number 5");
    expect(&ranks[3], "(rank 4 of all) was in all-reduce number 17");
    cairn_store_destroy(&store);
}

static void without_a_store_the_error_is_unchanged(void **state) {
    (void)state;
    struct rank one[1];
    fill(one, 1, NULL);
    one[0].group.size = 2;
    run(one, 1);
    assert_string_equal(one[0].said, one[0].seen);
    assert_int_equal(one[0].status, CAIRN_ETIMEOUT);
}

static void after_the_store_has_ended_the_error_is_unchanged(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    cairn_store *store = NULL;
    struct rank one[1];
    int port = 0;
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    assert_int_equal(cairn_tcp_store_create("127.0.0.1", port, NULL, &store), CAIRN_OK);
    fill(one, 1, store);
    one[0].group.size = 2;
    cairn__store_stop(&server);
    run(one, 1);
    assert_string_equal(one[0].said, one[0].seen);
    assert_true(one[0].took < 20);
    cairn_store_destroy(&store);
}

static void store_that_hangs_delays_no_rank(void **state) {
    (void)state;
    cairn_store *store = NULL;
    struct rank one[1];
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(cairn__tcp_store_on(fds[0], CAIRN__STORE_2_2, "here:1", 60, &store), CAIRN_OK);
    fill(one, 1, store);
    one[0].group.size = 2;
    run(one, 1);
    assert_string_equal(one[0].said, one[0].seen);
    assert_true(one[0].took < 20);
    assert_true(store->timeout == 60);
    cairn_store_destroy(&store);
    close(fds[1]);
}

static void rank_that_hosts_a_store_that_hangs_is_named(void **state) {
    (void)state;
    cairn_store *store = NULL;
    struct rank ranks[2];
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(cairn__tcp_store_on(fds[0], CAIRN__STORE_2_2, "here:1", 60, &store), CAIRN_OK);
    fill(ranks, 2, store);
    ranks[1].family.rank_0_serves = true;
    run(ranks + 1, 1);
    expect(&ranks[1],
           "; the store does not answer: rank 0, which hosts it, ended, is stopped, or its machine cannot be "
           "reached");
    cairn_store_destroy(&store);
    close(fds[1]);
}

static void long_notes_are_cut(void **state) {
    (void)state;
    struct rank ranks[2];
    cairn_store *store = make_store();
    fill(ranks, 2, store);
    for (int r = 0; r < 2; r++) {
        memset(ranks[r].seen, 'a' + r, 500);
        ranks[r].seen[200] = '\n';
        ranks[r].seen[500] = '\0';
    }
    run(ranks, 2);
    for (int r = 0; r < 2; r++) assert_true(strncmp(ranks[r].said, ranks[r].seen, 400) == 0);
    cairn_store_destroy(&store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_in_different_collectives_name_both),
        cmocka_unit_test(silent_rank_is_named_within_seconds),
        cmocka_unit_test(many_silent_ranks_are_counted),
        cmocka_unit_test(ranks_in_the_same_call_are_not_listed),
        cmocka_unit_test(error_reports_the_failure_that_another_rank_noticed_first),
        cmocka_unit_test(cause_is_reported_even_if_others_noticed_a_rank_leave_first),
        cmocka_unit_test(groups_of_one_environment_have_separate_notes),
        cmocka_unit_test(without_a_store_the_error_is_unchanged),
        cmocka_unit_test(after_the_store_has_ended_the_error_is_unchanged),
        cmocka_unit_test(store_that_hangs_delays_no_rank),
        cmocka_unit_test(rank_that_hosts_a_store_that_hangs_is_named),
        cmocka_unit_test(long_notes_are_cut),
    };
    return cmocka_run_group_tests_name("notes", tests, NULL, NULL);
}
