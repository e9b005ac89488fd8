/* What a scaler may be made with, saved as and set to. */
#include "scaler.h"

#include <float.h>
#include <stddef.h>

#include "core/options.h"
#include "core/status.h"

/* ---- the fields of a state ---- */

static const char A_SCALE[] = "a number from 2^-126 to 2^126, so that the scale and its inverse are normal f32 numbers";

#define FIELD(type, name) #name, CAIRN__FIELD_##type, offsetof(struct amp_scaler_state, name)
#define ANY               -HUGE_VAL, HUGE_VAL, NULL
#define COUNT(least)      least, 0x1p62, "from " #least " to 2^62"

/* clang-format off */
const struct cairn__scaler_field cairn__scaler_fields[CAIRN__SCALER_FIELDS] = {
    {FIELD(DOUBLE, scale),             CAIRN__MIN_SCALE, CAIRN__MAX_SCALE, A_SCALE},
    {FIELD(DOUBLE, growth_factor),     1 + DBL_EPSILON, DBL_MAX, "a number above 1"},
    {FIELD(DOUBLE, backoff_factor),    DBL_MIN, 1 - DBL_EPSILON / 2, "a number between 0 and 1, both excluded"},
    {FIELD(DOUBLE, min_scale),         CAIRN__MIN_SCALE, CAIRN__MAX_SCALE, A_SCALE},
    {FIELD(DOUBLE, max_scale),         CAIRN__MIN_SCALE, CAIRN__MAX_SCALE, A_SCALE},
    {FIELD(INT64, growth_interval),    1, HUGE_VAL, "at least 1"},
    {FIELD(INT64, growth_tracker),     COUNT(0)},
    {FIELD(INT64, updates),            COUNT(0)},
    {FIELD(INT64, last_overflow),      COUNT(-1)},
    {FIELD(INT, hysteresis),           1, HUGE_VAL, "at least 1"},
    {FIELD(INT, hysteresis_left),      ANY},
    {FIELD(INT, consecutive_hysteresis), ANY},
    {FIELD(DOUBLE, user[0]),           ANY},
    {FIELD(DOUBLE, user[1]),           ANY},
    {FIELD(DOUBLE, user[2]),           ANY},
    {FIELD(DOUBLE, user[3]),           ANY},
};
/* clang-format on */

static double value_of(const struct cairn__scaler_field *field, const struct amp_scaler_state *state) {
    const void *at = (const char *)state + field->offset;
    if (field->type == CAIRN__FIELD_DOUBLE) return *(const double *)at;
    return field->type == CAIRN__FIELD_INT64 ? (double)*(const int64_t *)at : *(const int *)at;
}

cairn_status cairn__scaler_check_field(const struct cairn__scaler_field *field, const struct amp_scaler_state *state,
                                       const char *where) {
    const double value = value_of(field, state);
    REQUIRE(!field->must || (value >= field->least && value <= field->most), CAIRN_EINVAL,
            "%s%s is %.17g; it must be %s", where, field->name, value, field->must);
    return CAIRN_OK;
}

/* ---- kinds ---- */

struct kind {
    const char *name;
    double init, max;
    int64_t interval;
    int hysteresis;
    bool has_hysteresis;
};

/* clang-format off */
static const struct kind kinds[] = {
    /*                       name         init     ceiling      interval  hysteresis */
    [AMP_SCALER_STATIC]    = {"static",    1,       CAIRN__MAX_SCALE,  2000,     1, false},
    [AMP_SCALER_APEX]      = {"apex",      0x1p16,  0x1p24,      2000,     1, false},
    [AMP_SCALER_TORCH]     = {"torch",     0x1p16,  CAIRN__MAX_SCALE,  2000,     1, false},
    [AMP_SCALER_DEEPSPEED] = {"deepspeed", 0x1p16,  CAIRN__MAX_SCALE,  1000,     2, true},
    [AMP_SCALER_MEGATRON]  = {"megatron",  0x1p32,  CAIRN__MAX_SCALE,  1000,     2, true},
    [AMP_SCALER_USER]      = {"user",      0x1p16,  CAIRN__MAX_SCALE,  2000,     1, true},
};
/* clang-format on */

static bool is_kind(amp_scaler_kind kind) {
    return (int)kind >= AMP_SCALER_STATIC && (int)kind <= AMP_SCALER_USER;
}

const char *cairn__scaler_kind_name(amp_scaler_kind kind) {
    return is_kind(kind) ? kinds[kind].name : NULL;
}

/* A scale as its kind holds it; floor and ceiling are scales. */
static double held(amp_scaler_kind kind, double scale) {
    return kind == AMP_SCALER_TORCH || kind == AMP_SCALER_MEGATRON ? (float)scale : scale;
}

static double clamped(double scale, double min, double max) {
    return scale < min ? min : scale > max ? max : scale;
}

/* ---- states ---- */

void cairn__scaler_state_show(const struct cairn__scaler_state *s, struct amp_scaler_state *out) {
    *out = (struct amp_scaler_state){
        .struct_size = sizeof(*out),
        .kind = (amp_scaler_kind)s->rule,
        .scale = s->scale,
        .growth_factor = s->growth,
        .backoff_factor = s->backoff,
        .min_scale = s->min,
        .max_scale = s->max,
        .growth_interval = s->window,
        .growth_tracker = s->unskipped,
        .updates = s->updates,
        .last_overflow = s->last_overflow,
        .hysteresis = s->hysteresis,
        .hysteresis_left = s->hysteresis_left,
        .consecutive_hysteresis = s->consecutive,
        .user = {s->user[0], s->user[1], s->user[2], s->user[3]},
    };
}

static int between(int least, int value, int most) {
    return value < least ? least : value > most ? most : value;
}

cairn_status cairn__scaler_state_take(const struct amp_scaler_state *s, const char *where,
                                      struct cairn__scaler_state *out) {
    cairn_status st = CAIRN_OK;
    const bool is_own = s->kind == AMP_SCALER_USER; /* the fields mean what its update makes of them */
    REQUIRE(is_kind(s->kind), CAIRN_EINVAL, "%skind is %d; it must be AMP_SCALER_STATIC to AMP_SCALER_USER", where,
            (int)s->kind);
    for (int i = 0; i < CAIRN__SCALER_FIELDS; i++) {
        TRY(cairn__scaler_check_field(&cairn__scaler_fields[i], s, where));
    }
    REQUIRE(s->min_scale <= s->max_scale, CAIRN_EINVAL,
            "%smin_scale is %.10g, above max_scale, which is %.10g; raise max_scale or lower min_scale", where,
            s->min_scale, s->max_scale);
    REQUIRE(s->last_overflow < s->updates, CAIRN_EINVAL,
            "%slast_overflow is %lld, but it must be below updates, which is %lld", where, (long long)s->last_overflow,
            (long long)s->updates);
    const double min = held(s->kind, s->min_scale), max = held(s->kind, s->max_scale);
    *out = (struct cairn__scaler_state){
        .scale = clamped(held(s->kind, s->scale), min, max),
        .unskipped = s->growth_tracker,
        .user = {s->user[0], s->user[1], s->user[2], s->user[3]},
        .hysteresis_left = is_own ? s->hysteresis_left : between(0, s->hysteresis_left, s->hysteresis),
        .hysteresis = s->hysteresis,
        .consecutive = s->consecutive_hysteresis != 0,
        .rule = (int32_t)s->kind,
        .min = min,
        .max = max,
        .growth = s->growth_factor,
        .backoff = s->backoff_factor,
        .window = s->growth_interval,
        .updates = s->updates,
        .last_overflow = s->last_overflow,
    };
out:
    return st;
}

/* ---- options ---- */

static const char OPTIONS[] = "amp_scaler_options: ";

static cairn_status check_options(const struct amp_scaler_options *o) {
    REQUIRE(is_kind(o->kind), CAIRN_EINVAL, "%skind is %d; it must be AMP_SCALER_STATIC to AMP_SCALER_USER", OPTIONS,
            (int)o->kind);
    REQUIRE(!o->hysteresis || kinds[o->kind].has_hysteresis, CAIRN_EINVAL,
            "%sa scaler of kind %s has no hysteresis; leave it out, or choose deepspeed, megatron or user", OPTIONS,
            kinds[o->kind].name);
    REQUIRE(o->consecutive_hysteresis != CAIRN_ON || o->kind == AMP_SCALER_DEEPSPEED, CAIRN_EINVAL,
            "%sconsecutive_hysteresis needs kind deepspeed, but the kind is %s; leave it out", OPTIONS,
            kinds[o->kind].name);
    REQUIRE((int)o->consecutive_hysteresis >= CAIRN_DEFAULT && (int)o->consecutive_hysteresis <= CAIRN_OFF,
            CAIRN_EINVAL, "%sconsecutive_hysteresis is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", OPTIONS,
            (int)o->consecutive_hysteresis);
    REQUIRE(o->kind != AMP_SCALER_STATIC || !(o->growth_factor != 0 || o->backoff_factor != 0 || o->growth_interval ||
                                              o->min_scale != 0 || o->max_scale != 0),
            CAIRN_EINVAL,
            "%sa static scale does not change, so factors, growth_interval, min_scale and max_scale contradict it; "
            "leave them out, or choose another kind",
            OPTIONS);
    REQUIRE(o->kind != AMP_SCALER_USER || o->update, CAIRN_EINVAL,
            "%sAMP_SCALER_USER needs an update function; set update", OPTIONS);
    REQUIRE(o->kind == AMP_SCALER_USER || !o->update, CAIRN_EINVAL,
            "%sa scaler of kind %s does not call update; leave it out, or choose AMP_SCALER_USER", OPTIONS,
            kinds[o->kind].name);
    return CAIRN_OK;
}

static double or_default(double value, double otherwise) {
    return value != 0 ? value : otherwise;
}

static struct amp_scaler_state fresh_state(const struct amp_scaler_options *o) {
    const struct kind *kind = &kinds[o->kind];
    const bool is_static = o->kind == AMP_SCALER_STATIC; /* floor and ceiling have no say */
    const int hysteresis = o->hysteresis ? o->hysteresis : kind->hysteresis;
    return (struct amp_scaler_state){
        .kind = o->kind,
        .scale = or_default(o->init_scale, kind->init),
        .growth_factor = or_default(o->growth_factor, 2),
        .backoff_factor = or_default(o->backoff_factor, 0.5),
        .min_scale = is_static ? CAIRN__MIN_SCALE : or_default(o->min_scale, 1),
        .max_scale = is_static ? CAIRN__MAX_SCALE : or_default(o->max_scale, kind->max),
        .growth_interval = o->growth_interval ? o->growth_interval : kind->interval,
        .last_overflow = -1,
        .hysteresis = hysteresis,
        .hysteresis_left = hysteresis,
        .consecutive_hysteresis = o->consecutive_hysteresis == CAIRN_ON,
    };
}

cairn_status cairn__scaler_resolve(const struct amp_scaler_options *options, int id, struct cairn__scaler_state *out) {
    cairn_status st = CAIRN_OK;
    struct amp_scaler_options o = {.struct_size = sizeof(o)};
    TRY(cairn__options_read(&o, sizeof(o), options, "amp_scaler_options"));
    if (!o.kind) o.kind = AMP_SCALER_APEX;
    TRY(check_options(&o));
    const struct amp_scaler_state fresh = fresh_state(&o);
    TRY(cairn__scaler_check_field(&cairn__scaler_fields[0], &fresh, "amp_scaler_options: init_"));
    TRY(cairn__scaler_state_take(&fresh, OPTIONS, out));
    out->id = id;
out:
    return st;
}
