/* Training with an address space limit just above the process's current size: it ends in success or an error, never by
 * a signal. With CAIRN_TEST_SHORT in the environment the limit grows in steps of 2 MiB instead of 512 KiB. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../check.h"
#include "cairn/cairn.h"

enum { MAX_KIB = 48 << 10, STEP_KIB = 512, LONG_STEP_KIB = 2048, TRAINED = 3, REFUSED = 4, NOT_SAID = 5 };

static long address_space_kib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int refuse(void) {
    return cairn_last_error()[0] ? REFUSED : NOT_SAID;
}

static int step(cairn_module *model, cairn_tensor *x) {
    cairn_tensor *y = cairn_module_forward(model, x);
    if (!y) return refuse();
    return cairn_backward(cairn_mean(y)) == CAIRN_OK ? TRAINED : refuse();
}

static int train_products(cairn_env *env) {
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(512, 1024)); /* by dnnl_sgemm and by primitives */
    cairn_module *model =
        cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, 1024, 1024), cairn_linear(env, 1024, 512)));
    return x && model ? step(model, x) : refuse();
}

static int train_convolutions(cairn_env *env) {
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 64, 28, 28));
    cairn_module *model =
        cairn_sequential(env, CAIRN_MODULES(cairn_conv2d(env, 64, 64, 3, NULL), cairn_conv2d(env, 64, 256, 1, NULL)));
    return x && model ? step(model, x) : refuse();
}

/* Exits as the child ends. */
static int with_more(long kib, int (*train)(cairn_env *env)) {
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        cairn_env *env = NULL;
        for (int number = 1; number < NSIG; number++) (void)signal(number, SIG_DFL); /* cmocka's */
        const rlim_t limit = (rlim_t)(address_space_kib() + kib) << 10;
        if (setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}) != 0) _exit(1);
        _exit(cairn_env_create(NULL, NULL, NULL, &env) == CAIRN_OK ? train(env) : refuse());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) < TRAINED || WEXITSTATUS(status) > REFUSED)
        fail_msg("with %ld KiB more: %s %d", kib, WIFEXITED(status) ? "exit code" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return WEXITSTATUS(status);
}

static void ends_without_a_signal(int (*train)(cairn_env *env)) {
    int refused = 0;
    long kib = 0;
    const long step_kib = check_is_short() ? LONG_STEP_KIB : STEP_KIB;
    for (; kib < MAX_KIB; kib += step_kib) refused += with_more(kib, train) == REFUSED;
    assert_true(refused > 0);
    while (with_more(kib, train) != TRAINED) {
        kib *= 2;
        assert_true(kib < (8L << 20));
    }
}

static void products_in_little_memory_end_without_a_signal(void **state) {
    (void)state;
    ends_without_a_signal(train_products);
}

static void convolutions_in_little_memory_end_without_a_signal(void **state) {
    (void)state;
    ends_without_a_signal(train_convolutions);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_in_little_memory_end_without_a_signal),
        cmocka_unit_test(convolutions_in_little_memory_end_without_a_signal),
    };
    return cmocka_run_group_tests_name("little memory", tests, NULL, NULL);
}
