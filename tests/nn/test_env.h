/* A minimal environment of one rank: device and tape, without launch facts and group. */
#ifndef TEST_ENV_H
#define TEST_ENV_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "../check.h"
#include "core/alloc.h"
#include "device/env.h"
#include "nn/hooks.h"
#include "nn/tape.h"
#include "scaler.h"

/* The device of this room's tests: CAIRN_TEST_DEVICE, or the CPU. */
static inline const char *test_device(void) {
    const char *device = getenv("CAIRN_TEST_DEVICE");
    return device ? device : "cpu";
}

/* For programs on devices that a machine may lack: exits with 77 then. */
static inline bool test_device_is_there(void) {
    struct cairn_device *device = NULL;
    if (cairn__device_open(test_device(), 0, &device) != CAIRN_OK) print_message("%s\n", cairn_last_error());
    const bool is_there = device != NULL;
    cairn__device_close(&device);
    return is_there;
}

static inline cairn_env *test_env_create(uint64_t seed, int rank) {
    cairn_env *env = NULL;
    assert_int_equal(cairn__calloc(1, sizeof(*env), (void **)&env), CAIRN_OK);
    env->rank = env->stream_rank = rank;
    env->size = rank + 1;
    env->seed = seed;
    assert_int_equal(cairn__device_open(test_device(), 0, &env->device), CAIRN_OK);
    assert_int_equal(cairn__tape_create(env), CAIRN_OK);
    return env;
}

static inline void test_env_destroy(cairn_env *env) {
    cairn__tape_destroy(env);
    cairn__device_close(&env->device);
    cairn__free(env);
}

/* cmocka's setup and teardown for a test with its own environment; the allocation counters detect leaks. */
struct test_state {
    cairn_env *env;
    uint64_t alive;
};

static inline int test_env_setup(void **state) {
    static struct test_state s;
    s.alive = cairn__alloc_counters().alive;
    s.env = test_env_create(1, 0);
    *state = &s;
    return 0;
}

static inline int test_env_teardown(void **state) {
    struct test_state *s = *state;
    test_env_destroy(s->env);
    return cairn__alloc_counters().alive == s->alive ? 0 : -1;
}

static inline cairn_env *test_env_of(void **state) {
    return ((struct test_state *)*state)->env;
}

/* loss * scale through a new cell; the last eight cells stay valid. Device memory is host memory here. */
static inline cairn_tensor *test_scale_loss(cairn_tensor *loss, double scale) {
    enum { CELLS = 8 };
    static struct cairn__scaler_state scalers[CELLS];
    static struct cairn__loss_scale cells[CELLS];
    static unsigned next;
    const unsigned i = next++ % CELLS;
    scalers[i] = (struct cairn__scaler_state){.scale = scale, .rule = CAIRN__SCALER_STATIC};
    return cairn__scale_loss(loss, &scalers[i], &cells[i], NULL);
}

#define ENV_TEST(f) cmocka_unit_test_setup_teardown(f, test_env_setup, test_env_teardown)

#endif
