/* The environment of a test program: one process on the CPU, made before each group of tests. Needs cmocka and
 * check.h. */
#ifndef TESTS_ONE_ENV_H
#define TESTS_ONE_ENV_H

#include "cairn/cairn.h"
#include "check.h"

static inline int make_env(void **state) {
    cairn_env *env = NULL;
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    *state = env;
    return 0;
}

static inline int end_env(void **state) {
    cairn_env *env = *state;
    cairn_env_destroy(&env);
    assert_null(env); /* every object in it was destroyed */
    return 0;
}

#endif
