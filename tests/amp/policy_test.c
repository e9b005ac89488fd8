/* Opt levels as data: presets, overrides, contradictions, their log lines, parsing of command-line words. */
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy.h"
#include "scaler.h"

static struct cairn__amp_policy resolved(const struct amp_options *options) {
    struct cairn__amp_policy p;
    if (cairn__amp_policy_resolve(options, &p) != CAIRN_OK) fail_msg("refused: %s", cairn_last_error());
    return p;
}

static struct cairn__scaler_state scaler_of(const struct cairn__amp_policy *p) {
    struct cairn__scaler_state s;
    assert_int_equal(cairn__scaler_resolve(&p->scaler, 0, &s), CAIRN_OK);
    return s;
}

/* ---- what is accepted ---- */

static void no_options_mean_o1_in_f16(void **state) {
    (void)state;
    const struct cairn__amp_policy p = resolved(NULL);
    assert_int_equal(p.level, AMP_O1);
    assert_int_equal(p.half_type, CAIRN_F16);
    assert_true(p.enabled && p.patch_ops && p.skip_nonfinite && cairn__amp_policy_is_dynamic(&p));
    assert_false(p.stochastic_rounding || p.explain_overflow);
    assert_true(p.num_losses == 1 && p.verbosity == 1);
    assert_true(scaler_of(&p).scale == 65536.0);
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
        const struct cairn__scaler_state s = scaler_of(&p);
        assert_int_equal(p.cast_model_type, rows[i].model);
        assert_int_equal(p.cast_model_outputs, rows[i].outputs);
        assert_int_equal(p.patch_ops, rows[i].patch);
        assert_int_equal(p.keep_batchnorm_fp32, rows[i].norms);
        assert_int_equal(p.master_weights, rows[i].masters);
        assert_int_equal(p.scaler.kind, rows[i].dynamic ? AMP_SCALER_APEX : AMP_SCALER_STATIC);
        assert_int_equal(p.skip_nonfinite, rows[i].skips);
        assert_true(s.scale == (rows[i].dynamic ? 65536.0 : 1.0));
        if (rows[i].dynamic) assert_true(s.min == 1.0 && s.max == 0x1p24);
    }
}

static void overrides_replace_one_property(void **state) {
    (void)state;
    struct cairn__amp_policy p = resolved(amp_options(.opt_level = AMP_O2, .master_weights = CAIRN_OFF));
    assert_true(!p.master_weights && p.keep_batchnorm_fp32);
    p = resolved(amp_options(.opt_level = AMP_O3, .keep_batchnorm_fp32 = CAIRN_ON, .master_weights = CAIRN_ON));
    assert_true(p.keep_batchnorm_fp32 && p.master_weights);
    p = resolved(amp_options(.opt_level = AMP_O3, .cast_model_outputs = CAIRN_F16));
    assert_int_equal(p.cast_model_outputs, CAIRN_F16);
    p = resolved(amp_options(.opt_level = AMP_O1, .cast_model_outputs = CAIRN_F32));
    assert_true(p.cast_model_outputs == CAIRN_F32 && p.cast_model_type == 0);
    p = resolved(amp_options(.opt_level = AMP_O1, .cast_model_type = CAIRN_F32));
    assert_int_equal(p.cast_model_type, 0); /* what O1's weights are anyway: inputs are left alone */
    p = resolved(amp_options(.opt_level = AMP_O1, .patch_ops = CAIRN_OFF));
    assert_true(!p.patch_ops && cairn__amp_policy_is_dynamic(&p)); /* casts come from amp_autocast scopes */
    p = resolved(amp_options(.num_losses = AMP_MAX_LOSSES, .explain_overflow = CAIRN_ON, .verbosity = 2));
    assert_true(p.num_losses == AMP_MAX_LOSSES && p.explain_overflow && p.verbosity == 2);
    p = resolved(amp_options(.opt_level = AMP_O2, .cast_model_type = CAIRN_F32));
    assert_true(p.cast_model_type == CAIRN_F32 && !p.master_weights); /* f32 weights are their own masters */
}

static void kept_types_do_not_cast_model_inputs_and_outputs(void **state) {
    (void)state;
    for (amp_opt_level level = AMP_O0; level <= AMP_O3; level++) {
        struct cairn__amp_policy p = resolved(amp_options(.opt_level = level, .cast_model_type = AMP_KEEP_TYPES));
        assert_true(p.cast_model_type == 0 && p.cast_model_outputs == 0);
        assert_int_equal(p.master_weights, level == AMP_O2); /* of what is half in the user's own buffers */
    }
}

static void half_model_type_says_the_half_type(void **state) {
    (void)state;
    const struct cairn__amp_policy p = resolved(amp_options(.opt_level = AMP_O2, .cast_model_type = CAIRN_BF16));
    assert_true(p.half_type == CAIRN_BF16 && p.cast_model_type == CAIRN_BF16);
    assert_false(cairn__amp_policy_is_dynamic(&p));
}

static void options_that_match_the_level_are_accepted(void **state) {
    (void)state;
    static const struct amp_options rows[] = {
        {.opt_level = AMP_O0, .keep_batchnorm_fp32 = CAIRN_ON},
        {.opt_level = AMP_O0, .keep_batchnorm_fp32 = CAIRN_OFF},
        {.opt_level = AMP_O0, .master_weights = CAIRN_OFF},
        {.opt_level = AMP_O0, .cast_model_type = CAIRN_F32},
        {.opt_level = AMP_O0, .patch_ops = CAIRN_OFF},
        {.opt_level = AMP_O0, .half_type = CAIRN_BF16},
        {.opt_level = AMP_O0, .stochastic_rounding = CAIRN_OFF},
        {.opt_level = AMP_O1, .patch_ops = CAIRN_ON},
        {.opt_level = AMP_O1, .cast_model_type = AMP_KEEP_TYPES},
        {.opt_level = AMP_O2, .keep_batchnorm_fp32 = CAIRN_ON, .cast_model_type = AMP_KEEP_TYPES},
        {.opt_level = AMP_O2, .cast_model_type = CAIRN_F16},
        {.opt_level = AMP_O2, .loss_scale = AMP_DYNAMIC, .skip_nonfinite = CAIRN_ON},
        {.opt_level = AMP_O3, .rounding_seed = 3}, /* a program's --seed */
        {.opt_level = AMP_O2, .master_weights = CAIRN_OFF, .cast_model_type = CAIRN_F32},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct amp_options o = rows[i];
        o.struct_size = sizeof(o);
        (void)resolved(&o);
    }
}

static void loss_scale_chooses_the_scaler(void **state) {
    (void)state;
    static const struct {
        struct amp_options options;
        amp_scaler_kind kind;
        double scale, min, max;
        bool skips;
    } rows[] = {
        {{.opt_level = AMP_O2, .loss_scale = 128}, AMP_SCALER_STATIC, 128, 0, 0, true},
        {{.opt_level = AMP_O2, .loss_scale = 1}, AMP_SCALER_STATIC, 1, 0, 0, true},
        {{.opt_level = AMP_O0, .loss_scale = 128}, AMP_SCALER_STATIC, 128, 0, 0, true},
        {{.opt_level = AMP_O0, .loss_scale = 128, .skip_nonfinite = CAIRN_OFF}, AMP_SCALER_STATIC, 128, 0, 0, false},
        {{.opt_level = AMP_O3, .skip_nonfinite = CAIRN_ON}, AMP_SCALER_STATIC, 1, 0, 0, true},
        {{.opt_level = AMP_O0, .loss_scale = AMP_DYNAMIC}, AMP_SCALER_APEX, 65536, 1, 0x1p24, true},
        {{.opt_level = AMP_O3, .loss_scale = AMP_DYNAMIC}, AMP_SCALER_APEX, 65536, 1, 0x1p24, true},
        {{.half_type = CAIRN_BF16, .loss_scale = AMP_DYNAMIC}, AMP_SCALER_APEX, 65536, 1, 0x1p24, true},
        {{.opt_level = AMP_O2, .max_loss_scale = 1024}, AMP_SCALER_APEX, 1024, 1, 1024, true},
        /* apex starts below the floor, and its first overflow raises the scale */
        {{.opt_level = AMP_O2, .min_loss_scale = 131072}, AMP_SCALER_APEX, 131072, 131072, 0x1p24, true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct amp_options o = rows[i].options;
        o.struct_size = sizeof(o);
        const struct cairn__amp_policy p = resolved(&o);
        const struct cairn__scaler_state s = scaler_of(&p);
        assert_int_equal(p.scaler.kind, rows[i].kind);
        assert_int_equal(p.skip_nonfinite, rows[i].skips);
        assert_true(s.scale == rows[i].scale);
        if (rows[i].kind == AMP_SCALER_APEX) assert_true(s.min == rows[i].min && s.max == rows[i].max);
    }
}

static void scaler_of_the_user_s_choice_is_taken(void **state) {
    (void)state;
    struct cairn__amp_policy p = resolved(amp_options(.scaler = amp_scaler_options(.init_scale = 1024)));
    assert_true(p.scaler.kind == AMP_SCALER_APEX && scaler_of(&p).scale == 1024);
    p = resolved(amp_options(.opt_level = AMP_O0, .scaler = amp_scaler_options(.kind = AMP_SCALER_APEX)));
    assert_true(p.scaler.kind == AMP_SCALER_APEX && p.skip_nonfinite);
    p = resolved(amp_options(.opt_level = AMP_O0, .loss_scale = AMP_DYNAMIC, .scaler = amp_scaler_options(0)));
    assert_true(p.scaler.kind == AMP_SCALER_APEX && p.skip_nonfinite);
    p = resolved(amp_options(.scaler = amp_scaler_options(.kind = AMP_SCALER_DEEPSPEED, .hysteresis = 3),
                             .loss_scale = AMP_DYNAMIC, .min_loss_scale = 4, .max_loss_scale = 4096));
    struct cairn__scaler_state s = scaler_of(&p);
    assert_true(s.rule == CAIRN__SCALER_DEEPSPEED && s.hysteresis == 3);
    assert_true(s.min == 4 && s.max == 4096 && s.scale == 4096);
    p = resolved(amp_options(.scaler = amp_scaler_options(.kind = AMP_SCALER_TORCH, .init_scale = 8, .min_scale = 2),
                             .max_loss_scale = 16));
    s = scaler_of(&p);
    assert_true(s.scale == 8 && s.min == 2 && s.max == 16);
    p = resolved(amp_options(.scaler = amp_scaler_options(.kind = AMP_SCALER_STATIC), .loss_scale = 32));
    assert_true(!cairn__amp_policy_is_dynamic(&p) && scaler_of(&p).scale == 32);
    p = resolved(amp_options(.scaler = amp_scaler_options(.kind = AMP_SCALER_STATIC, .init_scale = 16)));
    assert_true(!cairn__amp_policy_is_dynamic(&p) && scaler_of(&p).scale == 16);
}

static void weights_without_masters_may_be_rounded_at_random(void **state) {
    (void)state;
    struct cairn__amp_policy p = resolved(
        amp_options(.opt_level = AMP_O3, .half_type = CAIRN_BF16, .stochastic_rounding = CAIRN_ON, .rounding_seed = 7));
    assert_true(p.stochastic_rounding && p.rounding_seed == 7);
    p = resolved(amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16, .stochastic_rounding = CAIRN_ON,
                             .master_weights = CAIRN_OFF));
    assert_true(p.stochastic_rounding && p.keep_batchnorm_fp32);
    p = resolved(amp_options(.opt_level = AMP_O3, .half_type = CAIRN_BF16, .stochastic_rounding = CAIRN_ON,
                             .cast_model_type = AMP_KEEP_TYPES));
    assert_true(p.stochastic_rounding);
}

static void disabled_reads_no_other_option(void **state) {
    (void)state;
    const struct amp_scaler_options never_made = {.kind = AMP_SCALER_USER};
    struct cairn__amp_policy p = resolved(amp_options(.enabled = CAIRN_OFF, .opt_level = (amp_opt_level)99,
                                                      .num_losses = -1, .scaler = &never_made, .verbosity = -1));
    assert_false(p.enabled);
    assert_true(p.verbosity == -1 && p.num_losses == 1 && scaler_of(&p).scale == 1);
    assert_int_equal(resolved(amp_options(.enabled = CAIRN_OFF, .num_losses = 3)).num_losses, 3);
    assert_int_equal(resolved(amp_options(.enabled = CAIRN_OFF, .num_losses = AMP_MAX_LOSSES + 1)).num_losses, 1);
}

static void options_of_an_older_header_have_the_defaults(void **state) {
    (void)state;
    struct amp_options o = {.opt_level = AMP_O2, .num_losses = 77, .stochastic_rounding = CAIRN_ON};
    o.struct_size = offsetof(struct amp_options, num_losses);
    const struct cairn__amp_policy p = resolved(&o);
    assert_true(p.level == AMP_O2 && p.num_losses == 1 && !p.stochastic_rounding);
}

/* ---- what is refused ---- */

static const struct amp_scaler_options torch_of_8 = {.struct_size = sizeof(torch_of_8),
                                                     .kind = AMP_SCALER_TORCH,
                                                     .init_scale = 8};
static const struct amp_scaler_options static_8 = {.struct_size = sizeof(static_8),
                                                   .kind = AMP_SCALER_STATIC,
                                                   .init_scale = 8};
static const struct amp_scaler_options with_bounds = {.struct_size = sizeof(with_bounds),
                                                      .min_scale = 2,
                                                      .max_scale = 4};
static const struct amp_scaler_options smaller = {.struct_size = sizeof(smaller), .init_scale = 1024};
static const struct amp_scaler_options without_size = {.kind = AMP_SCALER_APEX};

struct refusal {
    struct amp_options options;
    const char *what, *advice; /* words of the sentence */
};

static void assert_refused(const struct refusal *rows, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct amp_options o = rows[i].options;
        struct cairn__amp_policy p = {.num_losses = 77};
        o.struct_size = sizeof(o);
        if (cairn__amp_policy_resolve(&o, &p) != CAIRN_EINVAL) fail_msg("'%s' is accepted", rows[i].what);
        const char *said = cairn_last_error();
        if (!strstr(said, rows[i].what)) fail_msg("'%s' is not in '%s'", rows[i].what, said);
        if (!strstr(said, rows[i].advice)) fail_msg("'%s' is not in '%s'", rows[i].advice, said);
        assert_int_equal(p.num_losses, 77); /* nothing is written */
    }
}

#define ASSERT_REFUSED(rows) assert_refused(rows, sizeof(rows) / sizeof(rows[0]))

static void contradicting_casts_are_refused_with_advice(void **state) {
    (void)state;
    static const struct refusal rows[] = {
        {{.opt_level = AMP_O1, .cast_model_type = CAIRN_F16}, "leaves weights in f32", "choose O2 or O3"},
        {{.opt_level = AMP_O1, .half_type = CAIRN_BF16, .cast_model_type = CAIRN_BF16},
         "cast_model_type=bf16",
         "choose O2 or O3"},
        {{.opt_level = AMP_O0, .cast_model_type = CAIRN_F16}, "O0 trains in f32", "choose O2 or O3"},
        {{.opt_level = AMP_O0, .patch_ops = CAIRN_ON}, "contradicts O0", "choose O1 or leave patch_ops out"},
        {{.opt_level = AMP_O2, .patch_ops = CAIRN_ON}, "contradicts O2", "choose O1 or leave patch_ops out"},
        {{.opt_level = AMP_O3, .patch_ops = CAIRN_ON}, "contradicts O3", "choose O1 or leave patch_ops out"},
        {{.opt_level = AMP_O1, .keep_batchnorm_fp32 = CAIRN_ON}, "keep_batchnorm_fp32", "leave it out, or choose O2"},
        {{.opt_level = AMP_O1, .keep_batchnorm_fp32 = CAIRN_OFF}, "keep_batchnorm_fp32", "leave it out, or choose O2"},
        {{.opt_level = AMP_O2, .half_type = CAIRN_BF16, .cast_model_type = CAIRN_F16},
         "cast_model_type=f16 contradicts half_type=bf16",
         "set half_type alone"},
        {{.opt_level = AMP_O3, .half_type = CAIRN_F16, .cast_model_type = CAIRN_BF16},
         "cast_model_type=bf16 contradicts half_type=f16",
         "set half_type alone"},
    };
    ASSERT_REFUSED(rows);
}

static void masters_of_f32_weights_are_refused_with_advice(void **state) {
    (void)state;
    static const struct refusal rows[] = {
        {{.opt_level = AMP_O0, .master_weights = CAIRN_ON}, "with opt level O0 the weights are f32,", "choose O2"},
        {{.opt_level = AMP_O1, .master_weights = CAIRN_ON}, "master_weights contradicts it", "choose O2"},
        {{.opt_level = AMP_O1, .master_weights = CAIRN_OFF}, "master_weights contradicts it", "leave it out"},
        {{.opt_level = AMP_O2, .cast_model_type = CAIRN_F32, .master_weights = CAIRN_ON},
         "O2 and cast_model_type=f32",
         "leave it out"},
    };
    ASSERT_REFUSED(rows);
}

static void contradicting_scales_are_refused_with_advice(void **state) {
    (void)state;
    static const struct refusal rows[] = {
        {{.opt_level = AMP_O2, .loss_scale = 128, .min_loss_scale = 1}, "static 128", "AMP_DYNAMIC"},
        {{.opt_level = AMP_O2, .loss_scale = 128, .max_loss_scale = 1}, "static 128", "AMP_DYNAMIC"},
        {{.opt_level = AMP_O0, .max_loss_scale = 8}, "static 1;", "AMP_DYNAMIC"},
        {{.opt_level = AMP_O2, .half_type = CAIRN_BF16, .max_loss_scale = 8}, "static 1;", "AMP_DYNAMIC"},
        {{.min_loss_scale = 8, .max_loss_scale = 4},
         "min_loss_scale 8 is above max_loss_scale 4;",
         "lower min_loss_scale"},
        {{.min_loss_scale = 0x1p25}, "above max_loss_scale 16777216 (the default)", "raise max_loss_scale"},
        {{.max_loss_scale = 0.5}, "min_loss_scale 1 (the default) is above", "lower min_loss_scale"},
        {{.opt_level = AMP_O2, .skip_nonfinite = CAIRN_OFF}, "skip_nonfinite=OFF", "set loss_scale to a number"},
        {{.skip_nonfinite = CAIRN_OFF, .half_type = CAIRN_BF16, .scaler = &torch_of_8},
         "skip_nonfinite=OFF",
         "set loss_scale to a number"},
        {{.loss_scale = 8, .scaler = &torch_of_8}, "loss_scale=8 is static", "init_scale"},
        {{.loss_scale = 8, .scaler = &static_8}, "loss_scale=8 and the scaler's init_scale=", "leave one of them out"},
        {{.loss_scale = AMP_DYNAMIC, .scaler = &static_8}, "kind is static", "leave one of them out"},
        {{.min_loss_scale = 2, .scaler = &with_bounds}, "both set the floor", "leave one of them out"},
        {{.max_loss_scale = 4, .scaler = &with_bounds}, "both set the ceiling", "leave one of them out"},
        {{.min_loss_scale = 2, .scaler = &static_8}, "static 8", "leave them out"},
    };
    ASSERT_REFUSED(rows);
}

static void options_without_effect_are_refused_with_advice(void **state) {
    (void)state;
    static const struct refusal rows[] = {
        {{.opt_level = AMP_O0, .explain_overflow = CAIRN_ON}, "static loss scale of 1", "set skip_nonfinite=ON"},
        {{.opt_level = AMP_O2, .loss_scale = 8, .skip_nonfinite = CAIRN_OFF, .explain_overflow = CAIRN_ON},
         "skip_nonfinite=OFF",
         "leave explain_overflow out"},
        {{.opt_level = AMP_O0, .half_type = CAIRN_BF16, .stochastic_rounding = CAIRN_ON},
         "with opt level O0 they are f32",
         "choose O3 with half_type=bf16"},
        {{.opt_level = AMP_O1, .half_type = CAIRN_BF16, .stochastic_rounding = CAIRN_ON},
         "with opt level O1 they are f32",
         "choose O3"},
        {{.opt_level = AMP_O1, .cast_model_type = AMP_KEEP_TYPES, .stochastic_rounding = CAIRN_ON},
         "with opt level O1 they are f32",
         "choose O3"},
        {{.opt_level = AMP_O3, .cast_model_type = CAIRN_F32, .stochastic_rounding = CAIRN_ON},
         "O3 and cast_model_type=f32",
         "leave it out"},
        {{.opt_level = AMP_O3, .stochastic_rounding = CAIRN_ON}, "half_type is f16", "set half_type=bf16, or use O2"},
        {{.opt_level = AMP_O2, .half_type = CAIRN_BF16, .stochastic_rounding = CAIRN_ON},
         "opt level O2 makes master weights",
         "choose O3, set master_weights=OFF"},
        {{.opt_level = AMP_O3, .half_type = CAIRN_BF16, .master_weights = CAIRN_ON, .stochastic_rounding = CAIRN_ON},
         "O3 with master_weights=ON",
         "leave stochastic_rounding out"},
    };
    ASSERT_REFUSED(rows);
}

static void values_out_of_range_are_refused(void **state) {
    (void)state;
    static const struct refusal rows[] = {
        {{.opt_level = (amp_opt_level)5}, "unexpected optimization level 5", "AMP_O0, AMP_O1"},
        {{.half_type = CAIRN_F32}, "half_type is f32", "CAIRN_F16 or CAIRN_BF16"},
        {{.cast_model_type = CAIRN_I64}, "cast_model_type is i64", "AMP_KEEP_TYPES"},
        {{.opt_level = AMP_O2, .cast_model_type = CAIRN_F64}, "cast_model_type is f64", "AMP_KEEP_TYPES"},
        {{.cast_model_outputs = CAIRN_I64}, "cast_model_outputs is i64", "CAIRN_F32, CAIRN_F16 or CAIRN_BF16"},
        {{.cast_model_outputs = AMP_KEEP_TYPES},
         "cast_model_outputs is AMP_KEEP_TYPES",
         "CAIRN_F32, CAIRN_F16 or CAIRN_BF16"},
        {{.loss_scale = -1}, "loss_scale is -1", "or dynamic"},
        {{.loss_scale = NAN}, "loss_scale is nan", "or dynamic"},
        {{.loss_scale = -HUGE_VAL}, "loss_scale is -inf", "or dynamic"},
        {{.loss_scale = 1e39}, "loss_scale is 1e+39", "from 2^-126 to 2^126"},
        {{.loss_scale = 1e-300}, "loss_scale is 1e-300", "from 2^-126 to 2^126"},
        {{.min_loss_scale = -2}, "min_loss_scale is -2", "above 0"},
        {{.max_loss_scale = HUGE_VAL}, "max_loss_scale is inf", "finite"},
        {{.patch_ops = (cairn_switch)7}, "patch_ops is 7", "it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF"},
        {{.enabled = (cairn_switch)7}, "enabled is 7", "it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF"},
        {{.stochastic_rounding = (cairn_switch)-1},
         "stochastic_rounding is -1",
         "it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF"},
        {{.explain_overflow = (cairn_switch)7},
         "explain_overflow is 7",
         "it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF"},
        {{.num_losses = -1}, "num_losses is -1", "1 to 64"},
        {{.num_losses = AMP_MAX_LOSSES + 1}, "num_losses is 65", "1 to 64"},
        {{.verbosity = 3}, "verbosity is 3", "-1 (no settings)"},
        {{.verbosity = -2}, "verbosity is -2", "-1 (no settings)"},
        {{.scaler = &without_size}, "amp_scaler_options.struct_size is 0", "macro"},
        {{.opt_level = AMP_O0, .scaler = &smaller},
         "scale of O0 with f16 is a static 1",
         "set loss_scale to AMP_DYNAMIC"},
        {{.half_type = CAIRN_BF16, .scaler = &smaller}, "scale of O1 with bf16 is a static 1", "leave the scaler out"},
    };
    ASSERT_REFUSED(rows);
}

/* ---- the log ---- */

static char told[8192], in_detail[8192]; /* notices; and info */

static void keep_lines(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    char *text = level == CAIRN_LOG_NOTICE ? told : in_detail;
    const size_t used = strlen(text);
    snprintf(text + used, sizeof(told) - used, "%s\n", message);
}

static const char *log_of(const struct amp_options *options) {
    const struct cairn__amp_policy p = resolved(options);
    told[0] = in_detail[0] = '\0';
    cairn_set_log(keep_lines, NULL);
    cairn__amp_policy_log(&p);
    cairn_set_log(NULL, NULL);
    return told;
}

static void one_line_logs_the_level_and_what_differs_from_it(void **state) {
    (void)state;
    assert_string_equal(log_of(NULL), "Selected optimization level O1:  Insert automatic casts around operations.  "
                                      "half_type f16, loss_scale dynamic\n");
    assert_string_equal(log_of(amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16)),
                        "Selected optimization level O2:  Half training with FP32 normalisation and FP32 master "
                        "weights.  half_type bf16, loss_scale 1\n");
    assert_string_equal(log_of(amp_options(.opt_level = AMP_O2, .keep_batchnorm_fp32 = CAIRN_OFF, .loss_scale = 128,
                                           .num_losses = 2)),
                        "Selected optimization level O2:  Half training with FP32 normalisation and FP32 master "
                        "weights.  half_type f16, loss_scale 128, keep_batchnorm_fp32 off, num_losses 2\n");
    assert_string_equal(
        log_of(amp_options(.opt_level = AMP_O3, .half_type = CAIRN_BF16, .stochastic_rounding = CAIRN_ON,
                           .rounding_seed = 12, .scaler = amp_scaler_options(.kind = AMP_SCALER_DEEPSPEED))),
        "Selected optimization level O3:  Pure half training.  half_type bf16, loss_scale dynamic, skip_nonfinite on, "
        "scaler deepspeed from 65536 in [1, 8.50705917e+37], x2 after 1000, x0.5, hysteresis 2, stochastic_rounding "
        "on, "
        "rounding_seed 12\n");
}

static const char *const as_apex_prints = "Defaults for this optimization level are:\n"
                                          "enabled                : on\n"
                                          "opt_level              : O2\n"
                                          "half_type              : f16\n"
                                          "cast_model_type        : f16\n"
                                          "patch_ops              : off\n"
                                          "keep_batchnorm_fp32    : on\n"
                                          "master_weights         : on\n"
                                          "loss_scale             : dynamic\n"
                                          "cast_model_outputs     : f32\n"
                                          "skip_nonfinite         : on\n"
                                          "Processing user overrides (additional options that are set)...\n"
                                          "After processing overrides, optimization options are:\n"
                                          "enabled                : on\n"
                                          "opt_level              : O2\n"
                                          "half_type              : f16\n"
                                          "cast_model_type        : f16\n"
                                          "patch_ops              : off\n"
                                          "keep_batchnorm_fp32    : off\n"
                                          "master_weights         : on\n"
                                          "loss_scale             : 128\n"
                                          "cast_model_outputs     : f32\n"
                                          "skip_nonfinite         : on\n"
                                          "scaler                 : none\n"
                                          "num_losses             : 2\n";

static void all_settings_are_logged_at_info_as_apex_prints_them(void **state) {
    (void)state;
    struct amp_options *o =
        amp_options(.opt_level = AMP_O2, .keep_batchnorm_fp32 = CAIRN_OFF, .loss_scale = 128, .num_losses = 2);
    (void)log_of(o);
    assert_string_equal(in_detail, as_apex_prints);
    o->verbosity = 2;
    assert_non_null(strstr(log_of(o), as_apex_prints));
    assert_string_equal(in_detail, "");
}

/* Its normalisation runs in f32 and its weights are f32: "off" would say that they are not. */
static void log_of_o1_has_no_weight_settings(void **state) {
    (void)state;
    (void)log_of(NULL);
    assert_non_null(strstr(in_detail, "\nkeep_batchnorm_fp32    : none\nmaster_weights         : none\n"));
    assert_null(strstr(in_detail, "scaler"));
    assert_null(strstr(in_detail, "rounding"));
}

static void log_is_quiet_at_verbosity_minus_1(void **state) {
    (void)state;
    assert_string_equal(log_of(amp_options(.verbosity = -1)), "");
    assert_string_equal(log_of(amp_options(.enabled = CAIRN_OFF, .verbosity = -1)), "");
    assert_string_equal(log_of(amp_options(.enabled = CAIRN_OFF)),
                        "amp is not enabled: nothing is cast, scaled or checked\n");
}

static void summary_differs_in_every_setting_that_ranks_share(void **state) {
    (void)state;
    static const struct amp_scaler_options slow = {.struct_size = sizeof(slow), .growth_interval = 3};
    static const struct amp_options rows[] = {
        {.opt_level = AMP_O1},
        {.opt_level = AMP_O2},
        {.opt_level = AMP_O2, .half_type = CAIRN_BF16},
        {.opt_level = AMP_O2, .loss_scale = 128},
        {.opt_level = AMP_O2, .loss_scale = 128.0001},
        {.opt_level = AMP_O2, .loss_scale = 128, .skip_nonfinite = CAIRN_OFF},
        {.opt_level = AMP_O2, .max_loss_scale = 0x1p23},
        {.opt_level = AMP_O2, .max_loss_scale = 0x1p23 + 1},
        {.opt_level = AMP_O2, .scaler = &slow},
        {.opt_level = AMP_O3, .half_type = CAIRN_BF16, .stochastic_rounding = CAIRN_ON},
        {.opt_level = AMP_O3, .half_type = CAIRN_BF16, .stochastic_rounding = CAIRN_ON, .rounding_seed = 1},
    };
    enum { ROWS = sizeof(rows) / sizeof(rows[0]) };
    char texts[ROWS][256];
    for (int i = 0; i < ROWS; i++) {
        struct amp_options o = rows[i];
        o.struct_size = sizeof(o);
        const struct cairn__amp_policy p = resolved(&o);
        cairn__amp_policy_summary(&p, texts[i], sizeof(texts[i]));
        for (int k = 0; k < i; k++) assert_string_not_equal(texts[i], texts[k]);
    }
    assert_string_equal(texts[3], "O2 f16, loss scale 128, skipping");
    assert_string_equal(texts[0], "O1 f16, loss scale apex from 65536 in [1, 16777216], x2 after 2000, x0.5, skipping, "
                                  "casting ops");
}

/* ---- words ---- */

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

static void scales_are_parsed_with_a_point_whatever_the_programs_locale(void **state) {
    (void)state;
    double scale = 0;
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8")) {
        print_message("no locale with a decimal comma is installed: de_DE.UTF-8\n");
        skip();
    }
    assert_int_equal(amp_loss_scale_parse("128.5", &scale), CAIRN_OK);
    assert_true(scale == 128.5);
    assert_int_equal(amp_loss_scale_parse("128,5", &scale), CAIRN_EINVAL);
    setlocale(LC_NUMERIC, "C");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_options_mean_o1_in_f16),
        cmocka_unit_test(presets_are_apex_s),
        cmocka_unit_test(overrides_replace_one_property),
        cmocka_unit_test(kept_types_do_not_cast_model_inputs_and_outputs),
        cmocka_unit_test(half_model_type_says_the_half_type),
        cmocka_unit_test(options_that_match_the_level_are_accepted),
        cmocka_unit_test(loss_scale_chooses_the_scaler),
        cmocka_unit_test(scaler_of_the_user_s_choice_is_taken),
        cmocka_unit_test(weights_without_masters_may_be_rounded_at_random),
        cmocka_unit_test(disabled_reads_no_other_option),
        cmocka_unit_test(options_of_an_older_header_have_the_defaults),
        cmocka_unit_test(contradicting_casts_are_refused_with_advice),
        cmocka_unit_test(masters_of_f32_weights_are_refused_with_advice),
        cmocka_unit_test(contradicting_scales_are_refused_with_advice),
        cmocka_unit_test(options_without_effect_are_refused_with_advice),
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(one_line_logs_the_level_and_what_differs_from_it),
        cmocka_unit_test(all_settings_are_logged_at_info_as_apex_prints_them),
        cmocka_unit_test(log_of_o1_has_no_weight_settings),
        cmocka_unit_test(log_is_quiet_at_verbosity_minus_1),
        cmocka_unit_test(summary_differs_in_every_setting_that_ranks_share),
        cmocka_unit_test(words_are_parsed_strictly),
        cmocka_unit_test(scales_are_parsed_with_a_point_whatever_the_programs_locale),
    };
    setenv("CAIRN_LOG", "info", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
