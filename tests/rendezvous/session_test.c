/* Store sessions without sockets: limits, and cases that no correct client causes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../processor_time.h"
#include "core/alloc.h"
#include "rendezvous/store/session.h"
#include "rendezvous/store/wire.h"
#include "wire_script.h"

static struct cairn__sessions all;
static struct cairn__session a, b;
static uint64_t alive;

static int begin(void **state) {
    (void)state;
    alive = cairn__alloc_counters().alive;
    cairn__sessions_init(&all);
    cairn__session_open(&a, CAIRN__TRUST_FULL);
    cairn__session_open(&b, CAIRN__TRUST_FULL);
    return 0;
}

static int end(void **state) {
    (void)state;
    cairn__session_close(&all, &a);
    cairn__session_close(&all, &b);
    cairn__sessions_clear(&all);
    return all.buffered == 0 && cairn__alloc_counters().alive == alive ? 0 : -1;
}

static void drain(void) {
    while (cairn__sessions_next(&all)) continue;
}

static void feed(struct cairn__session *s, const char *script) {
    uint8_t bytes[512];
    cairn__session_feed(&all, s, bytes, bytes_of(script, bytes));
    drain();
}

static void feed_u64(struct cairn__session *s, uint64_t number) {
    cairn__session_feed(&all, s, &number, sizeof(number));
}

static void feed_zeros(struct cairn__session *s, size_t nbytes) {
    static const uint8_t zeros[1 << 16];
    for (size_t n; nbytes > 0; nbytes -= n) {
        n = nbytes < sizeof(zeros) ? nbytes : sizeof(zeros);
        cairn__session_feed(&all, s, zeros, n);
    }
    drain();
}

static void expect_output(struct cairn__session *s, const char *script) {
    uint8_t wanted[512];
    const size_t n = bytes_of(script, wanted);
    const struct cairn__blob out = cairn__session_output(s);
    assert_int_equal(out.nbytes, n);
    if (n) assert_memory_equal(out.data, wanted, n);
    cairn__session_sent(&all, s, n);
    drain();
}

static void expect_end(struct cairn__session *s, const char *why) {
    assert_true(s->ended);
    assert_string_equal(s->why, why);
    assert_false(cairn__session_takes_input(&all, s));
    cairn__session_feed(&all, s, "\7", 1); /* nothing comes of it */
    assert_int_equal(cairn__session_output(s).nbytes, 0);
}

static void set_big(struct cairn__session *s, const char *op_and_key) {
    feed(s, op_and_key);
    feed_u64(s, STORE_MAX_VALUE);
    feed_zeros(s, STORE_MAX_VALUE);
}

static void lengths_beyond_a_limit_end_the_session_before_the_bytes_come(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *why;
    } cases[] = {
        {"01 | 01 20 00 00 00 00 00 00", "a request with a key's length of 8193; a store takes up to 8192"},
        {"01 | 00*8 | 01 00 80 00 00 00 00 00",
         "a request with a value's length of 8388609; a store takes up to 8388608"},
        {"0a | 01 00 02 00 00 00 00 00", "a request with a number of keys of 131073; a store takes up to 131072"},
        {"63", "a request with the unknown number 99"},
        {"00", "a request with the unknown number 0"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cairn__session_close(&all, &a);
        cairn__session_open(&a, CAIRN__TRUST_FULL);
        feed(&a, HELLO);
        feed(&a, cases[i].bytes);
        expect_end(&a, cases[i].why);
        assert_false(a.proven);
    }
    assert_int_equal(all.table.num_keys, 0);
}

static void request_above_16_mib_ends_the_session_and_stores_nothing(void **state) {
    (void)state;
    feed(&a, HELLO "| 0b | 02*8");
    set_big(&a, "01*8 'k'");
    assert_false(a.ended);
    feed(&a, "01*8 'k' | 00 00 80 00 00 00 00 00");
    expect_end(&a, "a request of more than 16777216 bytes");
    assert_int_equal(all.table.num_keys, 0);
}

static void reply_above_16_mib_ends_the_session_without_an_answer(void **state) {
    (void)state;
    feed(&a, HELLO);
    set_big(&a, "01 | 01*8 'k'");
    feed(&a, "0a | 08*8 | 01*8 'k' | 01*8 'k' | 01*8 'k' | 01*8 'k' | 01*8 'k' | 01*8 'k' | 01*8 'k' | 01*8 'k'");
    expect_end(&a, "a reply of more than 16777216 bytes");
}

static void requests_wait_while_replies_are_unread(void **state) {
    (void)state;
    feed(&a, HELLO);
    set_big(&a, "01 | 01*8 'k'");
    for (int i = 0; i < 3; i++) feed(&a, "03 | 01*8 'k'");
    const size_t one = 8 + STORE_MAX_VALUE;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cairn__session_output(&a).nbytes, one);
        cairn__session_sent(&all, &a, one - 1); /* almost: the next one's reply may come behind the last byte */
        drain();
        assert_int_equal(cairn__session_output(&a).nbytes, i < 2 ? 1 + one : 1);
        cairn__session_sent(&all, &a, 1);
        drain();
    }
    assert_int_equal(cairn__session_output(&a).nbytes, 0);
}

static void input_is_refused_while_much_is_queued(void **state) {
    (void)state;
    feed(&a, HELLO "| 06 | 01*8 | 01*8 'k'");
    assert_true(cairn__session_takes_input(&all, &a));
    for (int i = 0; i < 32; i++) {
        uint8_t requests[32 << 10];
        memset(requests, STORE_GETNUMKEYS, sizeof(requests));
        assert_true(cairn__session_takes_input(&all, &a));
        cairn__session_feed(&all, &a, requests, sizeof(requests));
    }
    assert_false(cairn__session_takes_input(&all, &a)); /* 1 MiB behind a WAIT */
    feed(&b, HELLO "| 01 | 01*8 'k' | 00*8");
    assert_int_equal(cairn__session_output(&a).nbytes, (1 << 20) + 1);
    assert_true(cairn__session_takes_input(&all, &a)); /* less is left by now, but much to send */
    size_t total = 0;
    for (size_t n; (n = cairn__session_output(&a).nbytes) > 0; total += n) {
        cairn__session_sent(&all, &a, n);
        drain();
    }
    assert_int_equal(total, 1 + 8 * (1 << 20));
}

static void full_buffers_end_the_session_that_needs_more(void **state) {
    (void)state;
    feed(&a, HELLO "| 01 | 01*8 'k' | 00 00 80 00 00 00 00 00");
    feed(&b, HELLO);
    all.buffered += STORE_MAX_BUFFERS - (1 << 20); /* as if others had them */
    feed_zeros(&a, 2 << 20);
    expect_end(&a, "unfinished requests and unread replies of all connections take more than 268435456 bytes");
    cairn__session_close(&all, &a);
    feed(&b, "01 | 01*8 'k' | 00*8 | 07");
    expect_output(&b, "01*8");
    all.buffered -= STORE_MAX_BUFFERS - (1 << 20);
}

static void full_table_ends_the_session_and_is_unchanged(void **state) {
    (void)state;
    feed(&a, HELLO "| 01 | 01*8 'k' | 01*8 'v'");
    feed(&b, HELLO);
    all.table.nbytes += STORE_MAX_TABLE - (1 << 20);
    feed(&b, "0b | 02*8 | 01*8 'a' | 00*8 | 01*8 'b'");
    feed_u64(&b, STORE_MAX_VALUE);
    feed_zeros(&b, STORE_MAX_VALUE);
    expect_end(&b, "the store is full: its keys and values would take more than 268435456 bytes");
    feed(&a, "07 | 03 | 01*8 'k' | 08 | 01*8 'k'");
    expect_output(&a, "01*8 | 01*8 'v' | 01*8");
    all.table.nbytes -= STORE_MAX_TABLE - (1 << 20);
}

/* Measuring goes on where it stopped: a list of keys byte by byte costs no more than its bytes. */
static void long_list_may_come_byte_by_byte(void **state) {
    (void)state;
    const double began = processor_seconds();
    feed(&a, HELLO "| 0b | 00 00 02 00 00 00 00 00");
    for (uint64_t i = 0; i < STORE_MAX_KEYS; i++) {
        uint8_t pair[8 + 4 + 8] = {4};
        memcpy(pair + 8, &i, 4);
        for (size_t k = 0; k < sizeof(pair); k++) cairn__session_feed(&all, &a, pair + k, 1);
    }
    drain();
    assert_false(a.ended);
    assert_int_equal(all.table.num_keys, STORE_MAX_KEYS);
    const double seconds = processor_seconds() - began;
    if (seconds > 20) fail_msg("it took %g s", seconds);
}

static void sessions_woken_in_a_chain_all_run(void **state) {
    (void)state;
    enum { CHAIN = 2000 };
    static struct cairn__session chain[CHAIN];
    for (int i = 0; i < CHAIN; i++) {
        char script[96];
        cairn__session_open(&chain[i], CAIRN__TRUST_FULL);
        snprintf(script, sizeof(script), HELLO "| 06 | 01*8 | 04*8 '%04d' | 01 | 04*8 '%04d' | 00*8", i, i + 1);
        feed(&chain[i], script);
    }
    feed(&a, HELLO "| 01 | 04*8 '0000' | 00*8");
    for (int i = 0; i < CHAIN; i++) {
        expect_output(&chain[i], "00");
        cairn__session_close(&all, &chain[i]);
    }
    assert_int_equal(all.table.num_keys, CHAIN + 1);
}

static void session_that_closes_while_it_waits_is_forgotten(void **state) {
    (void)state;
    feed(&a, HELLO "| 06 | 02*8 | 01*8 'k' | 01*8 'l' | 07");
    cairn__session_close(&all, &a);
    cairn__session_open(&a, CAIRN__TRUST_FULL);
    feed(&b, HELLO "| 01 | 01*8 'k' | 00*8 | 01 | 01*8 'l' | 00*8 | 07");
    expect_output(&b, "02*8");
    expect_output(&a, "");
}

static void only_small_buffers_are_kept_when_empty(void **state) {
    (void)state;
    feed(&a, HELLO);
    set_big(&a, "01 | 01*8 'k'");
    feed(&a, "03 | 01*8 'k'");
    cairn__session_sent(&all, &a, cairn__session_output(&a).nbytes);
    drain();
    assert_true(all.buffered <= 8 << 10);
    feed(&a, "07");
    expect_output(&a, "01*8");
}

int main(void) {
#define SESSION_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        SESSION_TEST(lengths_beyond_a_limit_end_the_session_before_the_bytes_come),
        SESSION_TEST(request_above_16_mib_ends_the_session_and_stores_nothing),
        SESSION_TEST(reply_above_16_mib_ends_the_session_without_an_answer),
        SESSION_TEST(requests_wait_while_replies_are_unread),
        SESSION_TEST(input_is_refused_while_much_is_queued),
        SESSION_TEST(full_buffers_end_the_session_that_needs_more),
        SESSION_TEST(full_table_ends_the_session_and_is_unchanged),
        SESSION_TEST(long_list_may_come_byte_by_byte),
        SESSION_TEST(sessions_woken_in_a_chain_all_run),
        SESSION_TEST(session_that_closes_while_it_waits_is_forgotten),
        SESSION_TEST(only_small_buffers_are_kept_when_empty),
    };
    return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
