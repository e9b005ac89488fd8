/* The environment of a test program, one process on the CPU, and its log messages. */
#ifndef TESTS_AMP_LOGGED_ENV_H
#define TESTS_AMP_LOGGED_ENV_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cairn/cairn.h"
#include "../kept_log.h"

static inline int make_env(void **state) {
    cairn_env *env = NULL;
    cairn_set_log(keep_log, NULL);
    log_text[0] = '\0';
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.seed = 3), &env), CAIRN_OK);
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
