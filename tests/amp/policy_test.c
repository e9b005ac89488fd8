/* Levels as data: presets, overrides, contradictions, words from a command line. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ops.h"
#include "policy.h"

static struct cairn__amp_policy resolved(const struct amp_options *options) {
    struct cairn__amp_policy p;
    assert_int_equal(cairn__amp_policy_resolve(options, &p), CAIRN_OK);
    return p;
}

static void assert_refused(const struct amp_options *options, const char *part) {
    struct cairn__amp_policy p;
    assert_int_equal(cairn__amp_policy_resolve(options, &p), CAIRN_EINVAL);
    if (!strstr(cairn_last_error(), part)) fail_msg("'%s' is not in '%s'", part, cairn_last_error());
}

static void no_options_mean_o1_in_f16(void **state) {
    (void)state;
    struct cairn__amp_policy p = resolved(NULL);
    assert_int_equal(p.level, AMP_O1);
    assert_int_equal(p.half_type, CAIRN_F16);
    assert_true(p.dynamic && p.patch_ops && p.skip_nonfinite && p.loss_scale == 65536.0);
}

static void presets_are_apex_s(void **state) {
    (void)state;
    static const struct {
        amp_opt_level level;
        cairn_dtype half, model, outputs;
        bool patch, norms, masters, dynamic, skips;
    } rows[] = {
        {AMP_O0, CAIRN_F16, CAIRN_F32, CAIRN_F32, false, false, false, false, false},
        {AMP_O1, CAIRN_F16, 0, 0, true, false, false, true, true},
        {AMP_O2, CAIRN_F16, CAIRN_F16, CAIRN_F32, false, true, true, true, true},
        {AMP_O3, CAIRN_F16, CAIRN_F16, CAIRN_F32, false, false, false, false, false},
        {AMP_O0, CAIRN_BF16, CAIRN_F32, CAIRN_F32, false, false, false, false, false},
        {AMP_O1, CAIRN_BF16, 0, 0, true, false, false, false, true},
        {AMP_O2, CAIRN_BF16, CAIRN_BF16, CAIRN_F32, false, true, true, false, true},
        {AMP_O3, CAIRN_BF16, CAIRN_BF16, CAIRN_F32, false, false, false, false, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct cairn__amp_policy p = resolved(amp_options(.opt_level = rows[i].level, .half_type = rows[i].half));
        assert_int_equal(p.cast_model_type, rows[i].model);
        assert_int_equal(p.cast_model_outputs, rows[i].outputs);
        assert_int_equal(p.patch_ops, rows[i].patch);
        assert_int_equal(p.keep_batchnorm_fp32, rows[i].norms);
        assert_int_equal(p.master_weights, rows[i].masters);
        assert_int_equal(p.dynamic, rows[i].dynamic);
        assert_int_equal(p.skip_nonfinite, rows[i].skips);
        assert_true(p.loss_scale == (rows[i].dynamic ? 65536.0 : 1.0));
    }
}

static void overrides_replace_one_property(void **state) {
    (void)state;
    struct cairn__amp_policy p =
        resolved(amp_options(.opt_level = AMP_O2, .loss_scale = 128, .master_weights = CAIRN_OFF));
    assert_true(!p.dynamic && p.loss_scale == 128 && !p.master_weights && p.skip_nonfinite);
    p = resolved(amp_options(.opt_level = AMP_O3, .keep_batchnorm_fp32 = CAIRN_ON, .loss_scale = AMP_DYNAMIC));
    assert_true(p.dynamic && p.keep_batchnorm_fp32 && p.skip_nonfinite);
    p = resolved(amp_options(.opt_level = AMP_O0, .loss_scale = 128));
    assert_true(p.skip_nonfinite);
    p = resolved(amp_options(.opt_level = AMP_O2, .max_loss_scale = 1024));
    assert_true(p.loss_scale == 1024);
    p = resolved(amp_options(.opt_level = AMP_O2, .min_loss_scale = 131072));
    assert_true(p.loss_scale == 131072); /* apex starts below the floor, and its first overflow raises the scale */
    p = resolved(amp_options(.opt_level = AMP_O1, .cast_model_type = CAIRN_F32));
    assert_int_equal(p.cast_model_type, 0);
    p = resolved(amp_options(.opt_level = AMP_O1, .patch_ops = CAIRN_OFF));
    assert_false(p.patch_ops);
}

static void contradictions_are_refused_with_advice(void **state) {
    (void)state;
    assert_refused(amp_options(.opt_level = AMP_O1, .cast_model_type = CAIRN_F16), "choose O2 or O3");
    assert_refused(amp_options(.opt_level = AMP_O2, .patch_ops = CAIRN_ON), "choose O1 or leave patch_ops out");
    assert_refused(amp_options(.opt_level = AMP_O1, .keep_batchnorm_fp32 = CAIRN_OFF), "keep_batchnorm_fp32");
    assert_refused(amp_options(.opt_level = AMP_O1, .keep_batchnorm_fp32 = CAIRN_ON), "keep_batchnorm_fp32");
    assert_refused(amp_options(.opt_level = AMP_O1, .master_weights = CAIRN_OFF), "master_weights");
    assert_refused(amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16, .cast_model_type = CAIRN_F16),
                   "contradicts half_type=bf16");
    assert_refused(amp_options(.opt_level = AMP_O2, .loss_scale = 128, .min_loss_scale = 1), "static 128");
    assert_refused(amp_options(.opt_level = AMP_O2, .min_loss_scale = 8, .max_loss_scale = 4), "above max_loss_scale");
    assert_refused(amp_options(.opt_level = AMP_O2, .skip_nonfinite = CAIRN_OFF), "skip_nonfinite=OFF");
}

static void values_out_of_range_are_refused(void **state) {
    (void)state;
    assert_refused(amp_options(.opt_level = (amp_opt_level)5), "unexpected optimization level 5");
    assert_refused(amp_options(.half_type = CAIRN_F32), "half_type is f32");
    assert_refused(amp_options(.loss_scale = -1), "loss_scale is -1");
    assert_refused(amp_options(.loss_scale = NAN), "loss_scale is nan");
    assert_refused(amp_options(.loss_scale = 1e39), "from 2^-126 to 2^126");
    assert_refused(amp_options(.loss_scale = 1e-300), "from 2^-126 to 2^126");
    assert_refused(amp_options(.min_loss_scale = -2), "min_loss_scale is -2");
    assert_refused(amp_options(.cast_model_outputs = CAIRN_I64), "cast_model_outputs is i64");
    assert_refused(amp_options(.patch_ops = (cairn_switch)7), "patch_ops is 7; a switch is");
}

static void disabled_looks_at_nothing_else(void **state) {
    (void)state;
    struct cairn__amp_policy p = resolved(amp_options(.enabled = CAIRN_OFF, .opt_level = (amp_opt_level)99));
    assert_false(p.enabled);
}

static void words_are_parsed_strictly(void **state) {
    (void)state;
    amp_opt_level level = AMP_O0;
    double scale = 0;
    cairn_dtype half = CAIRN_F32;
    assert_int_equal(amp_opt_level_parse("O2", &level), CAIRN_OK);
    assert_int_equal(level, AMP_O2);
    assert_int_equal(amp_opt_level_parse("02", &level), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "the letter O"));
    assert_int_equal(amp_loss_scale_parse("dynamic", &scale), CAIRN_OK);
    assert_true(scale == AMP_DYNAMIC);
    assert_int_equal(amp_loss_scale_parse("128.0", &scale), CAIRN_OK);
    assert_true(scale == 128);
    static const char *const bad[] = {"0", "-1", "nan", "inf", "", "12x", "Dynamic", "1e39", "1e-300"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(amp_loss_scale_parse(bad[i], &scale), CAIRN_EINVAL);
    }
    assert_true(scale == 128);
    assert_int_equal(amp_half_type_parse("bf16", &half), CAIRN_OK);
    assert_int_equal(half, CAIRN_BF16);
    assert_int_equal(amp_half_type_parse("f32", &half), CAIRN_EINVAL);
}

static void every_op_but_the_cast_has_a_class_and_a_reason(void **state) {
    (void)state;
    for (int op = 0; op < CAIRN__NUM_OPS; op++) {
        const struct cairn__amp_op_row *row = cairn__amp_op_row((enum cairn__op)op);
        if (op == CAIRN__OP_CAST) {
            assert_null(row);
        } else {
            if (!row || !row->reason[0]) fail_msg("op '%s' has no row", cairn__op_name((enum cairn__op)op));
        }
    }
}

static void classes_choose_types(void **state) {
    (void)state;
    assert_int_equal(cairn__amp_compute_type(CAIRN__OP_LINEAR, CAIRN_BF16), CAIRN_BF16);
    assert_int_equal(cairn__amp_compute_type(CAIRN__OP_MSE_LOSS, CAIRN_F16), CAIRN_F32);
    assert_int_equal(cairn__amp_compute_type(CAIRN__OP_ADD, CAIRN_F16), 0);
    assert_int_equal(cairn__amp_compute_type(CAIRN__OP_RELU, CAIRN_F16), 0);
    assert_int_equal(cairn__amp_compute_type(CAIRN__OP_CAST, CAIRN_F16), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_options_mean_o1_in_f16),
        cmocka_unit_test(presets_are_apex_s),
        cmocka_unit_test(overrides_replace_one_property),
        cmocka_unit_test(contradictions_are_refused_with_advice),
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(disabled_looks_at_nothing_else),
        cmocka_unit_test(words_are_parsed_strictly),
        cmocka_unit_test(every_op_but_the_cast_has_a_class_and_a_reason),
        cmocka_unit_test(classes_choose_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
