/* Every CPU kernel has a GPU counterpart or a stated reason why not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/cuda/launch.h"
#include "rows.h"

static void every_row_of_the_cpu_has_a_twin_or_a_reason(void **state) {
    (void)state;
    size_t count;
    const struct cairn__kernel_row *rows = cairn__kernel_rows(&count);
    for (size_t i = 0; i < count; i++) {
        const struct cairn__cuda_row *twin = cairn__cuda_row(rows[i].kind, rows[i].a, rows[i].b);
        if (!twin) fail_msg("%s has neither a twin on the GPU nor a reason", rows[i].name);
    }
}

static void every_gpu_kernel_has_a_row_of_the_cpu(void **state) {
    (void)state;
    size_t count;
    const struct cairn__cuda_row *twins = cairn__cuda_rows(&count);
    for (size_t i = 0; i < count; i++) {
        const struct cairn__cuda_row *t = &twins[i];
        assert_non_null(cairn__kernel_pick(t->kind, t->a, t->b, 0));
        assert_ptr_equal(cairn__cuda_row(t->kind, t->a, t->b), t);
    }
}

static void a_row_has_a_launcher_or_a_reason_and_not_both(void **state) {
    (void)state;
    size_t count;
    const struct cairn__cuda_row *twins = cairn__cuda_rows(&count);
    for (size_t i = 0; i < count; i++) assert_true(!twins[i].launcher != !twins[i].reason);
}

/* rows.c does not compile with a launcher that launch.h lacks; here it is that the names are said as they are. */
static void a_twin_that_is_claimed_is_a_launcher(void **state) {
    (void)state;
    size_t count;
    const struct cairn__cuda_row *twins = cairn__cuda_rows(&count);
#define LAUNCHER(name) (sizeof(&name) ? #name : NULL)
    const char *const launchers[] = {
        LAUNCHER(cairn__launch_copy),         LAUNCHER(cairn__launch_cast),
        LAUNCHER(cairn__launch_scale),        LAUNCHER(cairn__launch_axpby),
        LAUNCHER(cairn__launch_check),        LAUNCHER(cairn__launch_l2norm),
        LAUNCHER(cairn__launch_update),       LAUNCHER(cairn__launch_fill),
        LAUNCHER(cairn__launch_add),          LAUNCHER(cairn__launch_mul_scalar),
        LAUNCHER(cairn__launch_relu),         LAUNCHER(cairn__launch_relu_backward),
        LAUNCHER(cairn__launch_sum),          LAUNCHER(cairn__launch_mse),
        LAUNCHER(cairn__launch_mse_backward), LAUNCHER(cairn__launch_bias_add),
        LAUNCHER(cairn__launch_col_sum),      LAUNCHER(cairn__launch_round),
        LAUNCHER(cairn__launch_census),       LAUNCHER(cairn__launch_count_exponents),
        LAUNCHER(cairn__launch_direction),
    };
#undef LAUNCHER
    for (size_t i = 0; i < count; i++) {
        size_t l = 0;
        if (!twins[i].launcher) continue;
        while (l < sizeof(launchers) / sizeof(launchers[0]) && strcmp(launchers[l], twins[i].launcher) != 0) l++;
        if (l == sizeof(launchers) / sizeof(launchers[0])) fail_msg("there is no %s", twins[i].launcher);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_of_the_cpu_has_a_twin_or_a_reason),
        cmocka_unit_test(every_gpu_kernel_has_a_row_of_the_cpu),
        cmocka_unit_test(a_row_has_a_launcher_or_a_reason_and_not_both),
        cmocka_unit_test(a_twin_that_is_claimed_is_a_launcher),
    };
    return cmocka_run_group_tests_name("twins", tests, NULL, NULL);
}
