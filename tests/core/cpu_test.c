/* CAIRN_CPU. The set is fixed at the first call, so each case runs in its own child process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/cpu.h"
#include "core/log.h"

static int warnings;

static void count_warnings(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)message;
    if (level == CAIRN_LOG_WARNING) warnings++;
}

/* What a fresh process finds with CAIRN_CPU=cap: features + 16 * warnings, asked for twice. */
static int features_under(const char *cap) {
    pid_t child = fork();
    if (child == 0) {
        cairn_set_log(count_warnings, NULL);
        if (cap) setenv("CAIRN_CPU", cap, 1);
        else unsetenv("CAIRN_CPU");
        unsigned features = cairn__cpu_features();
        setenv("CAIRN_CPU", "ref", 1); /* too late to count */
        _exit(cairn__cpu_features() == features ? (int)features + 16 * warnings : 255);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_cap_only_removes(void **state) {
    (void)state;
    const int all = (int)cairn__cpu_detect();
    assert_int_equal(features_under(NULL), all);
    assert_int_equal(features_under(""), all);
    assert_int_equal(features_under("ref"), 0);
    assert_int_equal(features_under("avx2"), all & CAIRN__CPU_AVX2);
    assert_int_equal(features_under("avx512"), all & (CAIRN__CPU_AVX2 | CAIRN__CPU_AVX512));
    assert_int_equal(features_under("avx512_bf16"), all);
}

static void an_unknown_cap_warns_once_and_removes_nothing(void **state) {
    (void)state;
    assert_int_equal(features_under("AVX2"), (int)cairn__cpu_detect() + 16);
    assert_int_equal(features_under("neon"), (int)cairn__cpu_detect() + 16);
}

static void each_cpu_level_includes_the_lower_ones(void **state) {
    (void)state;
    const unsigned all = cairn__cpu_detect();
    if (all & CAIRN__CPU_AVX512_BF16) assert_true(all & CAIRN__CPU_AVX512);
    if (all & CAIRN__CPU_AVX512) assert_true(all & CAIRN__CPU_AVX2);
    assert_string_equal(cairn__cpu_level_name(0), "ref");
    assert_string_equal(cairn__cpu_level_name(CAIRN__CPU_AVX2), "avx2");
    assert_string_equal(cairn__cpu_level_name(CAIRN__CPU_AVX2 | CAIRN__CPU_AVX512), "avx512");
    assert_string_equal(cairn__cpu_level_name(CAIRN__CPU_AVX2 | CAIRN__CPU_AVX512 | CAIRN__CPU_AVX512_BF16),
                        "avx512_bf16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cap_only_removes),
        cmocka_unit_test(an_unknown_cap_warns_once_and_removes_nothing),
        cmocka_unit_test(each_cpu_level_includes_the_lower_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
