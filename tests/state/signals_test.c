/* Signals that request checkpoints may arrive at any moment of a step, also within matrix products. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "../one_env.h"

enum { N = 192, PRODUCTS = 3000 };

static atomic_bool ended;

static void *send_signals(void *arg) {
    const pthread_t thread = *(const pthread_t *)arg;
    const struct timespec pause = {0, 20000};
    while (!atomic_load(&ended)) {
        pthread_kill(thread, SIGUSR1);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void signals_within_products_change_nothing(void **state) {
    cairn_env *env = *state;
    const pthread_t self = pthread_self();
    pthread_t sender;
    cairn_state *watching;
    float *x = malloc(N * N * sizeof(*x)), *first = malloc(N * N * sizeof(*x)), *again = malloc(N * N * sizeof(*x));
    for (int i = 0; i < N * N; i++) x[i] = (float)(i % 13 - 6);
    OK(cairn_state_create(env, &watching));
    OK(cairn_state_watch_signals(watching));
    cairn_no_grad_begin(env);
    cairn_tensor *a = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, N), x);
    OK(cairn_tensor_read(cairn_matmul(a, a), first, N * N));
    assert_int_equal(pthread_create(&sender, NULL, send_signals, (void *)&self), 0);
    for (int i = 0; i < PRODUCTS; i++) {
        OK(cairn_tensor_read(cairn_matmul(a, a), again, N * N));
        assert_memory_equal(again, first, N * N * sizeof(*x));
        OK(cairn_release_results(env));
    }
    atomic_store(&ended, true);
    pthread_join(sender, NULL);
    OK(cairn_no_grad_end(env));
    int due = 0;
    OK(cairn_state_due(watching, 1, 0, &due));
    assert_int_equal(due, CAIRN_STATE_SAVE);
    cairn_tensor_destroy(&a);
    cairn_state_destroy(&watching);
    free(x), free(first), free(again);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(signals_within_products_change_nothing)};
    return cmocka_run_group_tests(tests, make_env, end_env);
}
