/* Opt levels as data. A preset defines a level, a field of the user's options overrides one entry, and checks refuse
 * contradictory overrides. A setting that would have no effect is refused, unless it asks for what is the case anyway.
 * Source: apex/amp/frontend.py at 25.04, classes O0 to O3 and Properties.__setattr__. */
#include "policy.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "numbers.h"
#include "scaler.h"

/* For the column model_type of presets: CHOSEN_HALF = the chosen half type, NONE = not cast. */
enum { CHOSEN_HALF = -1, NONE = 0 };

struct preset {
    const char *name;
    int model_type; /* a dtype, CHOSEN_HALF or NONE */
    bool patch_ops, keep_norms, masters, scaled;
    const char *brief;
};

/* clang-format off */
static const struct preset presets[] = {
    /*           name  model type  patch  norms  master scaled  one line for humans */
    [AMP_O0] = {"O0", CAIRN_F32, false, false, false, false, "Pure FP32 training."},
    [AMP_O1] = {"O1", NONE,      true,  false, false, true,  "Insert automatic casts around operations."},
    [AMP_O2] = {"O2", CHOSEN_HALF,       false, true,  true,  true,
                "Half training with FP32 normalisation and FP32 master weights."},
    [AMP_O3] = {"O3", CHOSEN_HALF,       false, false, false, false, "Pure half training."},
};
/* clang-format on */

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
    REQUIRE(isfinite(scale) && scale > 0, CAIRN_EINVAL, "%s is %.10g; it must be a finite number above 0%s", name,
            scale, is_loss_scale ? ", or dynamic" : "");
    REQUIRE(scale >= CAIRN__MIN_SCALE && scale <= CAIRN__MAX_SCALE, CAIRN_EINVAL,
            "%s is %.10g; the scale and its inverse must be normal f32 numbers, so from 2^-126 to 2^126", name, scale);
    return CAIRN_OK;
}

cairn_status amp_loss_scale_parse(const char *text, double *out) {
    REQUIRE(text && out, CAIRN_EINVAL, "loss scale: text and out must be set");
    if (strcmp(text, "dynamic") == 0) {
        *out = AMP_DYNAMIC;
        return CAIRN_OK;
    }
    char *end = NULL;
    const struct cairn__numbers numbers = cairn__numbers_begin();
    const double scale = strtod(text, &end);
    cairn__numbers_end(&numbers);
    REQUIRE(end != text && *end == '\0', CAIRN_EINVAL, "loss scale '%s' is neither 'dynamic' nor a number above 0",
            text);
    cairn_status st = CAIRN_OK;
    TRY(check_scale("loss_scale", scale));
    *out = scale;
out:
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

/* ---- values, each by itself ---- */

static cairn_status check_switches(const struct amp_options *o) {
    const struct {
        const char *name;
        cairn_switch value;
    } switches[] = {
        {"patch_ops", o->patch_ops},
        {"keep_batchnorm_fp32", o->keep_batchnorm_fp32},
        {"master_weights", o->master_weights},
        {"skip_nonfinite", o->skip_nonfinite},
        {"enabled", o->enabled},
        {"stochastic_rounding", o->stochastic_rounding},
        {"explain_overflow", o->explain_overflow},
    };
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        const cairn_switch value = switches[i].value;
        REQUIRE(value == CAIRN_DEFAULT || value == CAIRN_ON || value == CAIRN_OFF, CAIRN_EINVAL,
                "%s is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", switches[i].name, (int)value);
    }
    return CAIRN_OK;
}

static cairn_status check_values(const struct amp_options *o) {
    cairn_status st = CAIRN_OK;
    REQUIRE(o->opt_level == 0 || (o->opt_level >= AMP_O0 && o->opt_level <= AMP_O3), CAIRN_EINVAL,
            "unexpected optimization level %d; the levels are AMP_O0, AMP_O1, AMP_O2 and AMP_O3", (int)o->opt_level);
    const cairn_dtype cast = o->cast_model_type, outputs = o->cast_model_outputs;
    REQUIRE(o->half_type == 0 || cairn__is_half(o->half_type), CAIRN_EINVAL,
            "half_type is %s (%d); it must be CAIRN_F16 or CAIRN_BF16", cairn_dtype_name(o->half_type),
            (int)o->half_type);
    REQUIRE(cast == 0 || cast == AMP_KEEP_TYPES || cast == CAIRN_F32 || cairn__is_half(cast), CAIRN_EINVAL,
            "cast_model_type is %s (%d); it must be CAIRN_F32, CAIRN_F16, CAIRN_BF16 or AMP_KEEP_TYPES",
            cairn_dtype_name(cast), (int)cast);
    REQUIRE(outputs != AMP_KEEP_TYPES, CAIRN_EINVAL,
            "cast_model_outputs is AMP_KEEP_TYPES, which only cast_model_type can be; set it to CAIRN_F32, CAIRN_F16 "
            "or CAIRN_BF16, or leave it out");
    REQUIRE(outputs == 0 || outputs == CAIRN_F32 || cairn__is_half(outputs), CAIRN_EINVAL,
            "cast_model_outputs is %s (%d); it must be CAIRN_F32, CAIRN_F16 or CAIRN_BF16", cairn_dtype_name(outputs),
            (int)outputs);
    TRY(check_switches(o));
    if (o->loss_scale != 0 && o->loss_scale != AMP_DYNAMIC) TRY(check_scale("loss_scale", o->loss_scale));
    if (o->min_loss_scale != 0) TRY(check_scale("min_loss_scale", o->min_loss_scale));
    if (o->max_loss_scale != 0) TRY(check_scale("max_loss_scale", o->max_loss_scale));
    REQUIRE(o->num_losses >= 0 && o->num_losses <= AMP_MAX_LOSSES, CAIRN_EINVAL,
            "num_losses is %d; it must be from 1 to %d", o->num_losses, AMP_MAX_LOSSES);
    REQUIRE(o->verbosity >= -1 && o->verbosity <= 2, CAIRN_EINVAL,
            "verbosity is %d; it must be -1 (no settings), 0 or 1 (settings), or 2 (settings and the casts of O1)",
            o->verbosity);
out:
    return st;
}

/* ---- pairs ---- */

static cairn_status check_o1(const struct amp_options *o) {
    REQUIRE(o->cast_model_type == 0 || !cairn__is_half(o->cast_model_type), CAIRN_EINVAL,
            "opt level O1 inserts casts around operations and leaves weights in f32, so cast_model_type=%s contradicts "
            "it; leave cast_model_type out, or choose O2 or O3",
            cairn_dtype_name(o->cast_model_type));
    REQUIRE(o->keep_batchnorm_fp32 == CAIRN_DEFAULT, CAIRN_EINVAL,
            "with opt level O1 the weights stay in f32, so keep_batchnorm_fp32 contradicts it; leave it out, or choose "
            "O2 or O3");
    REQUIRE(o->master_weights == CAIRN_DEFAULT, CAIRN_EINVAL,
            "with opt level O1 the weights stay in f32, so master_weights contradicts it; leave it out, or choose O2");
    return CAIRN_OK;
}

/* Stochastic rounding needs half weights without masters: masters keep what rounding loses, and f32 weights are not
 * rounded. */
static cairn_status check_rounding(const struct amp_options *o, const struct cairn__amp_policy *p) {
    const bool may_be_half = cairn__is_half(p->cast_model_type) ||
                             (o->cast_model_type == AMP_KEEP_TYPES && (p->level == AMP_O2 || p->level == AMP_O3));
    if (!p->stochastic_rounding) return CAIRN_OK;
    REQUIRE(may_be_half, CAIRN_EINVAL,
            "stochastic_rounding rounds half weights, but with opt level %s%s they are f32; leave it out, or choose O3 "
            "with half_type=bf16",
            presets[p->level].name, o->cast_model_type == CAIRN_F32 ? " and cast_model_type=f32" : "");
    REQUIRE(p->half_type == CAIRN_BF16, CAIRN_EINVAL,
            "stochastic_rounding is for bf16, but half_type is f16, in whose range small weights would still be lost; "
            "set half_type=bf16, or use O2 with master weights");
    REQUIRE(!p->master_weights, CAIRN_EINVAL,
            "stochastic_rounding is for half weights without master weights, but opt level %s%s makes master weights; "
            "choose O3, set master_weights=OFF, or leave stochastic_rounding out",
            presets[p->level].name, o->master_weights == CAIRN_ON ? " with master_weights=ON" : "");
    return CAIRN_OK;
}

static cairn_status resolve_fp8(const struct amp_options *o, struct cairn__amp_policy *p) {
    if (!o->fp8) return CAIRN_OK;
    REQUIRE(p->level == AMP_O1 && p->patch_ops, CAIRN_EINVAL,
            "fp8 casts operands of operations, which opt level O1 with patch_ops does; choose O1, or leave fp8 out");
    p->has_fp8 = true;
    return cairn__fp8_recipe_read(o->fp8, "fp8", &p->fp8);
}

/* ---- the loss scale ---- */

/* A value that amp_options and its scaler options both have must be set in only one of them. */
static cairn_status check_set_once(const struct amp_options *o, const struct amp_scaler_options *s) {
    const bool has_number = o->loss_scale != 0 && o->loss_scale != AMP_DYNAMIC;
    REQUIRE(!has_number || s->kind == AMP_SCALER_STATIC, CAIRN_EINVAL,
            "loss_scale=%.10g is static, but the scaler's kind is dynamic; leave one of them out, or set the scaler's "
            "init_scale instead of loss_scale",
            o->loss_scale);
    REQUIRE(!has_number || s->init_scale == 0, CAIRN_EINVAL,
            "loss_scale=%.10g and the scaler's init_scale=%.10g both set the scale; leave one of them out",
            o->loss_scale, s->init_scale);
    REQUIRE(o->loss_scale != AMP_DYNAMIC || s->kind != AMP_SCALER_STATIC, CAIRN_EINVAL,
            "loss_scale is AMP_DYNAMIC, but the scaler's kind is static; leave one of them out");
    REQUIRE(o->min_loss_scale == 0 || s->min_scale == 0, CAIRN_EINVAL,
            "min_loss_scale=%.10g and the scaler's min_scale=%.10g both set the floor; leave one of them out",
            o->min_loss_scale, s->min_scale);
    REQUIRE(o->max_loss_scale == 0 || s->max_scale == 0, CAIRN_EINVAL,
            "max_loss_scale=%.10g and the scaler's max_scale=%.10g both set the ceiling; leave one of them out",
            o->max_loss_scale, s->max_scale);
    return CAIRN_OK;
}

/* The scaler's own check, with messages that name the fields the user set. */
static cairn_status check_bounds(const struct amp_options *o, const struct amp_scaler_options *s) {
    if (o->min_loss_scale == 0 && o->max_loss_scale == 0) return CAIRN_OK;
    REQUIRE(
        s->kind != AMP_SCALER_STATIC, CAIRN_EINVAL,
        "min_loss_scale and max_loss_scale bound a dynamic scale, but loss_scale is static %.10g; leave them out or "
        "set loss_scale to AMP_DYNAMIC",
        s->init_scale ? s->init_scale : 1.0);
    struct amp_scaler_options unbounded = *s;
    struct cairn__scaler_state defaults;
    unbounded.min_scale = unbounded.max_scale = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__scaler_resolve(&unbounded, 0, &defaults));
    const double min = s->min_scale ? s->min_scale : defaults.min, max = s->max_scale ? s->max_scale : defaults.max;
    REQUIRE(min <= max, CAIRN_EINVAL,
            "min_loss_scale %.10g%s is above max_loss_scale %.10g%s; raise max_loss_scale or lower min_loss_scale", min,
            s->min_scale ? "" : " (the default)", max, s->max_scale ? "" : " (the default)");
out:
    return st;
}

static cairn_status resolve_scaler(const struct amp_options *o, const struct cairn__amp_policy *p,
                                   struct amp_scaler_options *s) {
    cairn_status st = CAIRN_OK;
    const bool dynamic_by_default = presets[p->level].scaled && p->half_type == CAIRN_F16;
    const bool has_number = o->loss_scale != 0 && o->loss_scale != AMP_DYNAMIC;
    *s = (struct amp_scaler_options){.struct_size = sizeof(*s)};
    TRY(cairn__options_read(s, sizeof(*s), o->scaler, "amp_scaler_options"));
    if (o->scaler) {
        REQUIRE(s->kind || o->loss_scale || dynamic_by_default, CAIRN_EINVAL,
                "a scaler is given without a kind, but the loss scale of %s with %s is a static 1; set the scaler's "
                "kind, set loss_scale to AMP_DYNAMIC, or leave the scaler out",
                presets[p->level].name, cairn_dtype_name(p->half_type));
        if (!s->kind) s->kind = AMP_SCALER_APEX;
        TRY(check_set_once(o, s));
    } else {
        const bool dynamic = o->loss_scale ? !has_number : dynamic_by_default;
        s->kind = dynamic ? AMP_SCALER_APEX : AMP_SCALER_STATIC;
    }
    if (has_number) s->init_scale = o->loss_scale;
    if (o->min_loss_scale) s->min_scale = o->min_loss_scale;
    if (o->max_loss_scale) s->max_scale = o->max_loss_scale;
    TRY(check_bounds(o, s));
out:
    return st;
}

static bool resolve_switch(cairn_switch chosen, bool preset) {
    return chosen == CAIRN_DEFAULT ? preset : chosen == CAIRN_ON;
}

/* ---- resolving ---- */

static cairn_dtype resolve_model_type(const struct amp_options *o, const struct cairn__amp_policy *p) {
    const int preset = presets[p->level].model_type;
    if (o->cast_model_type == AMP_KEEP_TYPES || preset == NONE) return (cairn_dtype)NONE;
    if (o->cast_model_type) return o->cast_model_type;
    return preset == CHOSEN_HALF ? p->half_type : (cairn_dtype)preset;
}

static cairn_status resolve(const struct amp_options *o, struct cairn__amp_policy *p) {
    cairn_status st = CAIRN_OK;
    TRY(check_values(o));
    p->level = o->opt_level ? o->opt_level : AMP_O1;
    p->half_type = o->half_type                         ? o->half_type
                   : cairn__is_half(o->cast_model_type) ? o->cast_model_type /* implies the half type */
                                                        : CAIRN_F16;
    p->cast_model_type = resolve_model_type(o, p);
    if (p->level == AMP_O1) TRY(check_o1(o));
    /* Checks of the user's options, before presets fill in the others. */
    const char *level = presets[p->level].name;
    REQUIRE(p->level == AMP_O1 || o->patch_ops != CAIRN_ON, CAIRN_EINVAL,
            "patch_ops belongs to opt level O1 and contradicts %s; choose O1 or leave patch_ops out", level);
    REQUIRE(p->level != AMP_O0 || !cairn__is_half(o->cast_model_type), CAIRN_EINVAL,
            "opt level O0 trains in f32, so cast_model_type=%s contradicts it; leave it out, or choose O2 or O3",
            cairn_dtype_name(o->cast_model_type));
    REQUIRE(!cairn__is_half(o->cast_model_type) || o->cast_model_type == p->half_type, CAIRN_EINVAL,
            "cast_model_type=%s contradicts half_type=%s; set half_type alone", cairn_dtype_name(o->cast_model_type),
            cairn_dtype_name(p->half_type));
    REQUIRE(o->master_weights != CAIRN_ON || p->cast_model_type != CAIRN_F32, CAIRN_EINVAL,
            "with opt level %s%s the weights are f32, so master_weights=ON contradicts it; leave it out, or choose O2",
            level, p->level == AMP_O0 ? "" : " and cast_model_type=f32");
    const struct preset *preset = &presets[p->level];
    p->cast_model_outputs = o->cast_model_outputs ? o->cast_model_outputs
                            : p->cast_model_type  ? CAIRN_F32
                                                  : (cairn_dtype)NONE;
    p->patch_ops = resolve_switch(o->patch_ops, preset->patch_ops);
    p->keep_batchnorm_fp32 = resolve_switch(o->keep_batchnorm_fp32, preset->keep_norms);
    p->master_weights = resolve_switch(o->master_weights, preset->masters && p->cast_model_type != CAIRN_F32);
    p->stochastic_rounding = o->stochastic_rounding == CAIRN_ON;
    p->rounding_seed = o->rounding_seed;
    p->num_losses = o->num_losses ? o->num_losses : 1;
    TRY(check_rounding(o, p));
    TRY(resolve_fp8(o, p));
    /* O0 and O3 with a scale of 1 are the baselines, which do nothing between gradient and update. */
    struct cairn__scaler_state s;
    TRY(resolve_scaler(o, p, &p->scaler));
    TRY(cairn__scaler_resolve(&p->scaler, 0, &s));
    const bool dynamic = cairn__amp_policy_is_dynamic(p);
    const bool bare = !dynamic && s.scale == 1.0 && (p->level == AMP_O0 || p->level == AMP_O3);
    p->skip_nonfinite = resolve_switch(o->skip_nonfinite, !bare);
    p->explain_overflow = o->explain_overflow == CAIRN_ON;
    REQUIRE(
        !dynamic || p->skip_nonfinite, CAIRN_EINVAL,
        "a dynamic loss scale needs skipped steps, so skip_nonfinite=OFF contradicts it; set loss_scale to a number");
    REQUIRE(!p->explain_overflow || p->skip_nonfinite, CAIRN_EINVAL,
            "explain_overflow explains skipped steps, but with %s no step is skipped; set skip_nonfinite=ON, or leave "
            "explain_overflow out",
            o->skip_nonfinite == CAIRN_OFF ? "skip_nonfinite=OFF" : "this level's static loss scale of 1");
out:
    return st;
}

/* No other option is read, as in apex, but for num_losses: amp_scaler_of returns a scaler that passes through. */
static const struct cairn__amp_policy disabled = {
    .level = AMP_O0,
    .half_type = CAIRN_F16,
    .num_losses = 1,
    .scaler = {.struct_size = sizeof(struct amp_scaler_options), .kind = AMP_SCALER_STATIC},
};

cairn_status cairn__amp_policy_resolve(const struct amp_options *options, struct cairn__amp_policy *out) {
    struct amp_options o = {.struct_size = sizeof(o)};
    struct cairn__amp_policy p = disabled;
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), options, "amp_options"));
    p.verbosity = o.verbosity ? o.verbosity : 1;
    p.enabled = o.enabled != CAIRN_OFF;
    if (o.num_losses > 1 && o.num_losses <= AMP_MAX_LOSSES) p.num_losses = o.num_losses;
    if (p.enabled) TRY(resolve(&o, &p));
    *out = p;
out:
    return st;
}

/* ---- logging ---- */

static const char *on_off(bool on) {
    return on ? "on" : "off";
}

static const char *type_or_none(cairn_dtype dtype) {
    return dtype ? cairn_dtype_name(dtype) : "none";
}

/* "apex from 65536 in [1, 16777216], x2 after 2000, x0.5" */
static void write_scaler(const struct cairn__scaler_state *s, char *text, size_t nbytes) {
    if (s->rule == CAIRN__SCALER_STATIC) {
        snprintf(text, nbytes, "%.9g", s->scale);
        return;
    }
    if (s->rule == CAIRN__SCALER_LOGMAX) {
        snprintf(text, nbytes, "logmax from %.9g in [%.9g, %.9g], %.9g deviations below 2^%.9g", s->scale, s->min,
                 s->max, s->overflow_std_dev, s->log_max);
        return;
    }
    const int used = snprintf(text, nbytes, "%s from %.9g in [%.9g, %.9g], x%.9g after %lld, x%.9g",
                              cairn__scaler_kind_name((amp_scaler_kind)s->rule), s->scale, s->min, s->max, s->growth,
                              (long long)s->window, s->backoff);
    if (used < 0 || (size_t)used >= nbytes) return;
    if (s->rule == CAIRN__SCALER_HISTOGRAM)
        snprintf(text + used, nbytes - (size_t)used, ", %.9g from 2^%.9g on", s->saturation_share, s->saturation_log);
    if (s->hysteresis == 1) return;
    snprintf(text + used, nbytes - (size_t)used, ", hysteresis %d%s", (int)s->hysteresis,
             s->consecutive ? " consecutive" : "");
}

/* "hybrid, delayed 1024 max" */
static void write_fp8(const struct cairn__amp_policy *p, char *text, size_t nbytes) {
    const struct cairn__fp8_recipe *r = &p->fp8;
    const char *formats = r->forward == r->backward ? "e4m3" : "hybrid";
    if (r->scaling == CAIRN_FP8_DELAYED) {
        snprintf(text, nbytes, "%s, delayed %d %s", formats, r->history_len, r->most_recent ? "most_recent" : "max");
    } else {
        snprintf(text, nbytes, "%s, %s", formats, r->scaling == CAIRN_FP8_CURRENT ? "current" : "unscaled");
    }
}

void cairn__amp_policy_summary(const struct cairn__amp_policy *p, char *text, size_t nbytes) {
    char scaler[160], rounding[48] = "", fp8[40] = "";
    struct cairn__scaler_state s;
    if (cairn__scaler_resolve(&p->scaler, 0, &s) != CAIRN_OK) return; /* cannot fail: it was resolved before */
    write_scaler(&s, scaler, sizeof(scaler));
    if (p->stochastic_rounding) {
        snprintf(rounding, sizeof(rounding), ", rounding by seed %llu", (unsigned long long)p->rounding_seed);
    }
    if (p->has_fp8) write_fp8(p, fp8, sizeof(fp8));
    snprintf(text, nbytes, "%s %s, loss scale %s%s%s%s%s%s", cairn__amp_level_name(p->level),
             cairn_dtype_name(p->half_type), scaler, p->skip_nonfinite ? ", skipping" : "",
             p->patch_ops ? ", casting ops" : "", rounding, fp8[0] ? ", fp8 " : "", fp8);
}

/* One property in the log. */
struct property {
    const char *name;
    bool is_rare; /* logged only where it differs from the level's default */
    char value[160];
};
enum { MAX_PROPERTIES = 16 };

struct properties {
    struct property list[MAX_PROPERTIES];
    int count;
};

static char *add(struct properties *all, const char *name, bool is_rare, const char *value) {
    assert(all->count < MAX_PROPERTIES);
    struct property *p = &all->list[all->count++];
    p->name = name;
    p->is_rare = is_rare;
    snprintf(p->value, sizeof(p->value), "%s", value);
    return p->value;
}

/* Apex's properties in apex's order, then Cairn's own. O1 does not change weights. */
static cairn_status list_properties(const struct cairn__amp_policy *p, struct properties *all) {
    enum { ROOM = sizeof(all->list[0].value) };
    struct cairn__scaler_state s;
    cairn_status st = CAIRN_OK;
    TRY(cairn__scaler_resolve(&p->scaler, 0, &s));
    const bool dynamic = cairn__amp_policy_is_dynamic(p), is_o1 = p->level == AMP_O1;
    all->count = 0;
    add(all, "enabled", false, on_off(p->enabled));
    add(all, "opt_level", false, cairn__amp_level_name(p->level));
    add(all, "half_type", false, cairn_dtype_name(p->half_type));
    add(all, "cast_model_type", false, type_or_none(p->cast_model_type));
    add(all, "patch_ops", false, on_off(p->patch_ops));
    add(all, "keep_batchnorm_fp32", false, is_o1 ? "none" : on_off(p->keep_batchnorm_fp32));
    add(all, "master_weights", false, is_o1 ? "none" : on_off(p->master_weights));
    char *scale = add(all, "loss_scale", false, "dynamic");
    if (!dynamic) snprintf(scale, ROOM, "%.9g", s.scale);
    add(all, "cast_model_outputs", false, type_or_none(p->cast_model_outputs));
    add(all, "skip_nonfinite", false, on_off(p->skip_nonfinite));
    char *scaler = add(all, "scaler", true, "none");
    if (dynamic) write_scaler(&s, scaler, ROOM);
    snprintf(add(all, "num_losses", true, ""), ROOM, "%d", p->num_losses);
    add(all, "stochastic_rounding", true, on_off(p->stochastic_rounding));
    char *seed = add(all, "rounding_seed", true, "none");
    if (p->stochastic_rounding) snprintf(seed, ROOM, "%llu", (unsigned long long)p->rounding_seed);
    add(all, "explain_overflow", true, on_off(p->explain_overflow));
    char *fp8 = add(all, "fp8", true, "none");
    if (p->has_fp8) write_fp8(p, fp8, ROOM);
out:
    return st;
}

static void log_property(cairn_log_level level, const struct property *p) {
    cairn__log(level, "%-22s : %s", p->name, p->value);
}

static const char *value_of(const struct properties *all, const char *name) {
    int i = 0;
    while (strcmp(all->list[i].name, name) != 0) i++;
    return all->list[i].value;
}

/* Writes ", name value" for every property that differs from the level's default and is not in the line already. */
static void write_overrides(const struct properties *defaults, const struct properties *final, char *text,
                            size_t nbytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < final->count && used < nbytes; i++) {
        const struct property *p = &final->list[i];
        const bool is_logged = strcmp(p->name, "loss_scale") == 0 || (p->is_rare && strcmp(p->value, "none") == 0);
        if (is_logged || strcmp(p->value, defaults->list[i].value) == 0) continue;
        used += (size_t)snprintf(text + used, nbytes - used, ", %s %s", p->name, p->value);
    }
}

void cairn__amp_policy_log(const struct cairn__amp_policy *p) {
    const struct amp_options *preset = amp_options(.opt_level = p->level, .half_type = p->half_type);
    struct cairn__amp_policy unchanged;
    struct properties defaults, final;
    char overrides[512];
    if (p->verbosity < 0) return;
    if (!p->enabled) {
        cairn__log(CAIRN_LOG_NOTICE, "amp is not enabled: nothing is cast, scaled or checked");
        return;
    }
    /* Cannot fail: a level without overrides is consistent. */
    if (cairn__amp_policy_resolve(preset, &unchanged) != CAIRN_OK) return;
    if (list_properties(&unchanged, &defaults) != CAIRN_OK || list_properties(p, &final) != CAIRN_OK) return;
    write_overrides(&defaults, &final, overrides, sizeof(overrides));
    cairn__log(CAIRN_LOG_NOTICE, "Selected optimization level %s:  %s  half_type %s, loss_scale %s%s",
               cairn__amp_level_name(p->level), cairn__amp_level_brief(p->level), value_of(&final, "half_type"),
               value_of(&final, "loss_scale"), overrides);
    /* As apex prints them. */
    const cairn_log_level level = p->verbosity >= 2 ? CAIRN_LOG_NOTICE : CAIRN_LOG_INFO;
    cairn__log(level, "Defaults for this optimization level are:");
    for (int i = 0; i < defaults.count; i++) {
        if (!defaults.list[i].is_rare) log_property(level, &defaults.list[i]);
    }
    cairn__log(level, "Processing user overrides (additional options that are set)...");
    cairn__log(level, "After processing overrides, optimization options are:");
    for (int i = 0; i < final.count; i++) {
        const struct property *shown = &final.list[i];
        if (!shown->is_rare || strcmp(shown->value, defaults.list[i].value) != 0) log_property(level, shown);
    }
}
