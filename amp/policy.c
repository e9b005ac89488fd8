/* Opt levels as data. A preset says what a level means; a field of the user's options replaces one entry; a table of
 * contradictions says which replacements make no sense.
 * Source: apex/amp/frontend.py at 25.04, classes O0 to O3 and Properties.__setattr__. */
#include "policy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"

/* In the columns of presets: the half type chosen; and a property that the level has no say in. */
enum { LOW = -1, NONE = 0 };

struct preset {
    const char *name;
    int model_type; /* a dtype, LOW or NONE */
    bool patch_ops, keep_norms, masters, scaled;
    const char *brief;
};

/* clang-format off */
static const struct preset presets[] = {
    /*           name  model type  patch  norms  master scaled  one line for humans */
    [AMP_O0] = {"O0", CAIRN_F32, false, false, false, false, "Pure FP32 training."},
    [AMP_O1] = {"O1", NONE,      true,  false, false, true,  "Insert automatic casts around operations."},
    [AMP_O2] = {"O2", LOW,       false, true,  true,  true,  "Half training with FP32 normalisation and FP32 master weights."},
    [AMP_O3] = {"O3", LOW,       false, false, false, false, "Pure half training."},
};
/* clang-format on */

static const double INITIAL_SCALE = 65536.0;  /* apex/amp/scaler.py, LossScaler.__init__: init_scale */
static const double DEFAULT_MAX = 16777216.0; /* the same: max_loss_scale */
static const double LEAST_SCALE = 0x1p-126;
static const double DEFAULT_MIN = 1.0; /* apex has no floor, and its scale can reach 0 */

const char *cairn__amp_level_name(amp_opt_level level) {
    return presets[level].name;
}

const char *cairn__amp_level_brief(amp_opt_level level) {
    return presets[level].brief;
}

/* ---- words from a command line ---- */

cairn_status amp_opt_level_parse(const char *text, amp_opt_level *out) {
    REQUIRE(text && out, CAIRN_EINVAL, "opt level: text and out must be set");
    for (amp_opt_level level = AMP_O0; level <= AMP_O3; level++) {
        if (strcmp(text, presets[level].name) == 0) {
            *out = level;
            return CAIRN_OK;
        }
    }
    return cairn__fail(CAIRN_EINVAL,
                       "unexpected optimization level '%s'; the levels are O0, O1, O2 and O3 (the letter O, not the "
                       "digit zero)",
                       text);
}

static cairn_status check_scale(const char *name, double scale) {
    bool is_loss_scale = strcmp(name, "loss_scale") == 0;
    REQUIRE(isfinite(scale) && scale > 0, CAIRN_EINVAL, "%s is %g; it must be a finite number above 0%s", name, scale,
            is_loss_scale ? ", or dynamic" : "");
    REQUIRE(scale >= LEAST_SCALE && scale <= 1 / LEAST_SCALE, CAIRN_EINVAL,
            "%s is %g; the scale and its inverse must be normal f32 numbers, so from 2^-126 to 2^126", name, scale);
    return CAIRN_OK;
}

cairn_status amp_loss_scale_parse(const char *text, double *out) {
    REQUIRE(text && out, CAIRN_EINVAL, "loss scale: text and out must be set");
    if (strcmp(text, "dynamic") == 0) {
        *out = AMP_DYNAMIC;
        return CAIRN_OK;
    }
    char *end = NULL;
    double scale = strtod(text, &end);
    REQUIRE(end != text && *end == '\0', CAIRN_EINVAL, "loss scale '%s' is neither 'dynamic' nor a number above 0",
            text);
    cairn_status st = check_scale("loss_scale", scale);
    if (st == CAIRN_OK) *out = scale;
    return st;
}

cairn_status amp_half_type_parse(const char *text, cairn_dtype *out) {
    static const struct {
        const char *word;
        cairn_dtype dtype;
    } words[] = {{"f16", CAIRN_F16},  {"fp16", CAIRN_F16},  {"float16", CAIRN_F16},
                 {"half", CAIRN_F16}, {"bf16", CAIRN_BF16}, {"bfloat16", CAIRN_BF16}};
    REQUIRE(text && out, CAIRN_EINVAL, "half type: text and out must be set");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(text, words[i].word) == 0) {
            *out = words[i].dtype;
            return CAIRN_OK;
        }
    }
    return cairn__fail(CAIRN_EINVAL, "unknown half type '%s'; the half types are f16 and bf16", text);
}

/* ---- resolving ---- */

static cairn_status check_switch(const char *name, cairn_switch value) {
    REQUIRE(value == CAIRN_DEFAULT || value == CAIRN_ON || value == CAIRN_OFF, CAIRN_EINVAL,
            "%s is %d; a switch is CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", name, (int)value);
    return CAIRN_OK;
}

static cairn_status check_ranges(const struct amp_options *o) {
    REQUIRE(o->opt_level == 0 || (o->opt_level >= AMP_O0 && o->opt_level <= AMP_O3), CAIRN_EINVAL,
            "unexpected optimization level %d; the levels are AMP_O0, AMP_O1, AMP_O2 and AMP_O3", (int)o->opt_level);
    REQUIRE(o->half_type == 0 || cairn__is_half(o->half_type), CAIRN_EINVAL,
            "half_type is %s (%d); the half types are CAIRN_F16 and CAIRN_BF16", cairn_dtype_name(o->half_type),
            (int)o->half_type);
    REQUIRE(o->cast_model_outputs == 0 || o->cast_model_outputs == CAIRN_F32 || cairn__is_half(o->cast_model_outputs),
            CAIRN_EINVAL, "cast_model_outputs is %s (%d); it can be f32, f16 or bf16",
            cairn_dtype_name(o->cast_model_outputs), (int)o->cast_model_outputs);
    cairn_status st = CAIRN_OK;
    TRY(check_switch("patch_ops", o->patch_ops));
    TRY(check_switch("keep_batchnorm_fp32", o->keep_batchnorm_fp32));
    TRY(check_switch("master_weights", o->master_weights));
    TRY(check_switch("skip_nonfinite", o->skip_nonfinite));
    TRY(check_switch("enabled", o->enabled));
    if (o->loss_scale != 0 && o->loss_scale != AMP_DYNAMIC) TRY(check_scale("loss_scale", o->loss_scale));
    if (o->min_loss_scale != 0) TRY(check_scale("min_loss_scale", o->min_loss_scale));
    if (o->max_loss_scale != 0) TRY(check_scale("max_loss_scale", o->max_loss_scale));
out:
    return st;
}

/* The pairs that apex refuses, and two that it lets through to do harm. */
static cairn_status check_pairs(const struct amp_options *o, amp_opt_level level, cairn_dtype half) {
    bool o1 = level == AMP_O1;
    REQUIRE(!o1 || o->cast_model_type == 0 || o->cast_model_type == CAIRN_F32, CAIRN_EINVAL,
            "opt level O1 inserts casts around operations and leaves weights in f32, so cast_model_type=%s contradicts "
            "it; leave cast_model_type out, or choose O2 or O3",
            cairn_dtype_name(o->cast_model_type));
    REQUIRE(o1 || o->patch_ops != CAIRN_ON, CAIRN_EINVAL,
            "patch_ops belongs to opt level O1 and contradicts %s; choose O1 or leave patch_ops out",
            presets[level].name);
    REQUIRE(
        !o1 || o->keep_batchnorm_fp32 == CAIRN_DEFAULT, CAIRN_EINVAL,
        "with opt level O1 normalisation runs in f32 by itself, so keep_batchnorm_fp32 contradicts it; leave it out "
        "or choose O2 or O3");
    REQUIRE(!o1 || o->master_weights == CAIRN_DEFAULT, CAIRN_EINVAL,
            "with opt level O1 the weights are f32 already, so master_weights contradicts it; leave it out or choose "
            "O2");
    REQUIRE(o->cast_model_type == 0 || o->cast_model_type == CAIRN_F32 || o->cast_model_type == half, CAIRN_EINVAL,
            "cast_model_type=%s contradicts half_type=%s; say the half type once, in half_type",
            cairn_dtype_name(o->cast_model_type), cairn_dtype_name(half));
    return CAIRN_OK;
}

static bool resolve_switch(cairn_switch chosen, bool preset) {
    return chosen == CAIRN_DEFAULT ? preset : chosen == CAIRN_ON;
}

static cairn_status resolve_scale(const struct amp_options *o, const struct preset *preset,
                                  struct cairn__amp_policy *p) {
    double chosen = o->loss_scale ? o->loss_scale : preset->scaled && p->half_type == CAIRN_F16 ? AMP_DYNAMIC : 1.0;
    p->dynamic = chosen == AMP_DYNAMIC;
    p->loss_scale = p->dynamic ? INITIAL_SCALE : chosen;
    REQUIRE(
        p->dynamic || (o->min_loss_scale == 0 && o->max_loss_scale == 0), CAIRN_EINVAL,
        "min_loss_scale and max_loss_scale bound a dynamic scale, but loss_scale is static %g; leave them out or set "
        "loss_scale to AMP_DYNAMIC",
        chosen);
    p->min_loss_scale = o->min_loss_scale ? o->min_loss_scale : DEFAULT_MIN;
    p->max_loss_scale = o->max_loss_scale ? o->max_loss_scale : DEFAULT_MAX;
    REQUIRE(!p->dynamic || p->min_loss_scale <= p->max_loss_scale, CAIRN_EINVAL,
            "min_loss_scale %g is above max_loss_scale %g", p->min_loss_scale, p->max_loss_scale);
    if (p->dynamic) p->loss_scale = fmin(fmax(p->loss_scale, p->min_loss_scale), p->max_loss_scale);
    bool bare = !p->dynamic && p->loss_scale == 1.0 && (p->level == AMP_O0 || p->level == AMP_O3);
    p->skip_nonfinite = resolve_switch(o->skip_nonfinite, !bare);
    REQUIRE(!p->dynamic || p->skip_nonfinite, CAIRN_EINVAL,
            "a dynamic loss scale finds its level by skipping steps, so skip_nonfinite=OFF contradicts it; give "
            "loss_scale a number");
    return CAIRN_OK;
}

cairn_status cairn__amp_policy_resolve(const struct amp_options *options, struct cairn__amp_policy *out) {
    struct amp_options o = {.struct_size = sizeof(o)};
    struct cairn__amp_policy p = {.enabled = true};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), options, "amp_options"));
    if (o.enabled == CAIRN_OFF) { /* nothing else is looked at, as in apex */
        *out = (struct cairn__amp_policy){.level = AMP_O0, .half_type = CAIRN_F16, .loss_scale = 1.0};
        return CAIRN_OK;
    }
    TRY(check_ranges(&o));
    p.level = o.opt_level ? o.opt_level : AMP_O1;
    p.half_type = o.half_type ? o.half_type : CAIRN_F16;
    TRY(check_pairs(&o, p.level, p.half_type));

    const struct preset *preset = &presets[p.level];
    p.cast_model_type = o.cast_model_type           ? o.cast_model_type
                        : preset->model_type == LOW ? p.half_type
                                                    : (cairn_dtype)preset->model_type;
    if (p.level == AMP_O1) p.cast_model_type = (cairn_dtype)NONE; /* f32 is what O1's weights are anyway */
    p.patch_ops = resolve_switch(o.patch_ops, preset->patch_ops);
    p.keep_batchnorm_fp32 = resolve_switch(o.keep_batchnorm_fp32, preset->keep_norms);
    p.master_weights = resolve_switch(o.master_weights, preset->masters);
    p.cast_model_outputs = o.cast_model_outputs ? o.cast_model_outputs : p.cast_model_type ? CAIRN_F32 : (cairn_dtype)0;
    TRY(resolve_scale(&o, preset, &p));
    *out = p;
out:
    return st;
}

/* ---- telling ---- */

static const char *type_or_none(cairn_dtype dtype) {
    return dtype ? cairn_dtype_name(dtype) : "none";
}

void cairn__amp_policy_summary(const struct cairn__amp_policy *p, char *text, size_t nbytes) {
    char bounds[64] = "";
    if (p->dynamic) snprintf(bounds, sizeof(bounds), " in [%g, %g]", p->min_loss_scale, p->max_loss_scale);
    snprintf(text, nbytes, "%s %s, loss scale %s%g%s%s%s", cairn__amp_level_name(p->level),
             cairn_dtype_name(p->half_type), p->dynamic ? "dynamic from " : "", p->loss_scale, bounds,
             p->skip_nonfinite ? ", skipping" : "", p->patch_ops ? ", casting ops" : "");
}

static void log_properties(const struct cairn__amp_policy *p) {
    char scale[32] = "dynamic";
    if (!p->dynamic) snprintf(scale, sizeof(scale), "%g", p->loss_scale);
    cairn__log(CAIRN_LOG_NOTICE,
               "half_type: %s, cast_model_type: %s, patch_ops: %s, keep_batchnorm_fp32: %s, master_weights: %s, "
               "loss_scale: %s, skip_nonfinite: %s",
               cairn_dtype_name(p->half_type), type_or_none(p->cast_model_type), p->patch_ops ? "on" : "off",
               p->keep_batchnorm_fp32 ? "on" : "off", p->master_weights ? "on" : "off", scale,
               p->skip_nonfinite ? "on" : "off");
}

void cairn__amp_policy_log(const struct amp_options *options, const struct cairn__amp_policy *policy) {
    if (options && options->struct_size >= sizeof(*options) && options->verbosity < 0) return;
    if (!policy->enabled) {
        cairn__log(CAIRN_LOG_NOTICE, "amp is not enabled: nothing is cast, scaled or checked");
        return;
    }
    cairn__log(CAIRN_LOG_NOTICE, "Selected optimization level %s:  %s", cairn__amp_level_name(policy->level),
               cairn__amp_level_brief(policy->level));
    log_properties(policy);
}
