/* Values of scalers: options, fields of a state, and their checks. */
#include "scaler.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#include "core/options.h"
#include "core/status.h"

/* ---- the fields of a state ---- */

static const char A_SCALE[] = "a number from 2^-126 to 2^126, so that the scale and its inverse are normal f32 numbers";

#define FIELD(type, name) #name, CAIRN__FIELD_##type, offsetof(struct amp_scaler_state, name)
#define ANY               -HUGE_VAL, HUGE_VAL, NULL
#define COUNT(least)      least, 0x1p62, "from " #least " to 2^62"
#define A_SHARE           DBL_MIN, 1 - DBL_EPSILON / 2, "a number between 0 and 1, both excluded"
#define ANY_KIND          (amp_scaler_kind)0

/* clang-format off */
const struct cairn__scaler_field cairn__scaler_fields[CAIRN__SCALER_FIELDS] = {
    {FIELD(DOUBLE, scale),             CAIRN__MIN_SCALE, CAIRN__MAX_SCALE, A_SCALE, ANY_KIND},
    {FIELD(DOUBLE, growth_factor),     1 + DBL_EPSILON, DBL_MAX, "a number above 1", ANY_KIND},
    {FIELD(DOUBLE, backoff_factor),    A_SHARE, ANY_KIND},
    {FIELD(DOUBLE, min_scale),         CAIRN__MIN_SCALE, CAIRN__MAX_SCALE, A_SCALE, ANY_KIND},
    {FIELD(DOUBLE, max_scale),         CAIRN__MIN_SCALE, CAIRN__MAX_SCALE, A_SCALE, ANY_KIND},
    {FIELD(INT64, growth_interval),    1, HUGE_VAL, "at least 1", ANY_KIND},
    {FIELD(INT64, growth_tracker),     COUNT(0), ANY_KIND},
    {FIELD(INT64, updates),            COUNT(0), ANY_KIND},
    {FIELD(INT64, last_overflow),      COUNT(-1), ANY_KIND},
    {FIELD(INT, hysteresis),           1, HUGE_VAL, "at least 1", ANY_KIND},
    {FIELD(INT, hysteresis_left),      ANY, ANY_KIND},
    {FIELD(INT, consecutive_hysteresis), ANY, ANY_KIND},
    {FIELD(DOUBLE, user[0]),           ANY, ANY_KIND},
    {FIELD(DOUBLE, user[1]),           ANY, ANY_KIND},
    {FIELD(DOUBLE, user[2]),           ANY, ANY_KIND},
    {FIELD(DOUBLE, user[3]),           ANY, ANY_KIND},
    {FIELD(DOUBLE, log_max),           -126, 126, "a number from -126 to 126",                 AMP_SCALER_LOGMAX},
    {FIELD(DOUBLE, beta1),             A_SHARE,                                                AMP_SCALER_LOGMAX},
    {FIELD(DOUBLE, beta2),             A_SHARE,                                                AMP_SCALER_LOGMAX},
    {FIELD(DOUBLE, overflow_std_dev),  0, DBL_MAX, "a finite number that is not negative",     AMP_SCALER_LOGMAX},
    {FIELD(DOUBLE, x_hat),             -DBL_MAX, DBL_MAX, "a finite number",                   AMP_SCALER_LOGMAX},
    {FIELD(DOUBLE, slow_x_hat),        -DBL_MAX, DBL_MAX, "a finite number",                   AMP_SCALER_LOGMAX},
    {FIELD(DOUBLE, xsquared_hat),      0, DBL_MAX, "a finite number that is not negative",     AMP_SCALER_LOGMAX},
    {FIELD(DOUBLE, b1_correction),     0, 1, "a number from 0 to 1",                           AMP_SCALER_LOGMAX},
    {FIELD(DOUBLE, b2_correction),     0, 1, "a number from 0 to 1",                           AMP_SCALER_LOGMAX},
    {FIELD(INT64, overflow_feeds_power), 0, 1, "0 or 1",                                       AMP_SCALER_LOGMAX},
    {FIELD(DOUBLE, saturation_share),  A_SHARE,                                                AMP_SCALER_HISTOGRAM},
    {FIELD(DOUBLE, saturation_log),    -126, 126, "a number from -126 to 126",                 AMP_SCALER_HISTOGRAM},
};
/* clang-format on */

cairn_status cairn__scaler_check_field(const struct cairn__scaler_field *field, const struct amp_scaler_state *state,
                                       const char *where) {
    const void *at = (const char *)state + field->offset;
    const double value = field->type == CAIRN__FIELD_DOUBLE  ? *(const double *)at
                         : field->type == CAIRN__FIELD_INT64 ? (double)*(const int64_t *)at
                                                             : *(const int *)at;
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
    [AMP_SCALER_LOGMAX]    = {"logmax",    1,       0x1p24,      2000,     1, false},
    [AMP_SCALER_HISTOGRAM] = {"histogram", 0x1p16,  0x1p24,       100,     1, false},
};
/* clang-format on */

static bool is_kind(amp_scaler_kind kind) {
    return (int)kind >= AMP_SCALER_STATIC && (int)kind <= AMP_SCALER_HISTOGRAM;
}

const char *cairn__scaler_kind_name(amp_scaler_kind kind) {
    return is_kind(kind) ? kinds[kind].name : NULL;
}

/* Rounds a scale to its kind's precision; floor and ceiling too. */
static double held(amp_scaler_kind kind, double scale) {
    return kind == AMP_SCALER_TORCH || kind == AMP_SCALER_MEGATRON ? (float)scale : scale;
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
        .log_max = s->log_max,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .overflow_std_dev = s->overflow_std_dev,
        .x_hat = s->x_hat,
        .slow_x_hat = s->slow_x_hat,
        .xsquared_hat = s->xsquared_hat,
        .b1_correction = s->b1_correction,
        .b2_correction = s->b2_correction,
        .overflow_feeds_power = s->overflow_feeds_power,
        .saturation_share = s->saturation_share,
        .saturation_log = s->saturation_log,
    };
}

bool cairn__scaler_has_field(amp_scaler_kind kind, const struct cairn__scaler_field *field) {
    return !field->only || field->only == kind;
}

static int between(int least, int value, int most) {
    return value < least ? least : value > most ? most : value;
}

static void take_logmax(const struct amp_scaler_state *s, struct cairn__scaler_state *out) {
    out->log_max = s->log_max;
    out->beta1 = s->beta1;
    out->beta2 = s->beta2;
    out->overflow_std_dev = s->overflow_std_dev;
    out->x_hat = s->x_hat;
    out->slow_x_hat = s->slow_x_hat;
    out->xsquared_hat = s->xsquared_hat;
    out->b1_correction = s->b1_correction;
    out->b2_correction = s->b2_correction;
    out->overflow_feeds_power = s->overflow_feeds_power;
}

cairn_status cairn__scaler_state_take(const struct amp_scaler_state *s, const char *where,
                                      struct cairn__scaler_state *out) {
    cairn_status st = CAIRN_OK;
    const bool is_own = s->kind == AMP_SCALER_USER; /* the user's update function defines the fields */
    REQUIRE(is_kind(s->kind), CAIRN_EINVAL, "%skind is %d; it must be AMP_SCALER_STATIC to AMP_SCALER_HISTOGRAM", where,
            (int)s->kind);
    for (int i = 0; i < CAIRN__SCALER_FIELDS; i++) {
        const struct cairn__scaler_field *field = &cairn__scaler_fields[i];
        if (cairn__scaler_has_field(s->kind, field)) TRY(cairn__scaler_check_field(field, s, where));
    }
    REQUIRE(s->min_scale <= s->max_scale, CAIRN_EINVAL,
            "%smin_scale is %.10g, above max_scale, which is %.10g; raise max_scale or lower min_scale", where,
            s->min_scale, s->max_scale);
    REQUIRE(s->last_overflow < s->updates, CAIRN_EINVAL,
            "%slast_overflow is %lld, but it must be below updates, which is %lld", where, (long long)s->last_overflow,
            (long long)s->updates);
    const double min = held(s->kind, s->min_scale), max = held(s->kind, s->max_scale);
    *out = (struct cairn__scaler_state){
        .scale = fmax(min, fmin(held(s->kind, s->scale), max)),
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
    if (s->kind == AMP_SCALER_LOGMAX) take_logmax(s, out);
    if (s->kind == AMP_SCALER_HISTOGRAM) {
        out->saturation_share = s->saturation_share;
        out->saturation_log = s->saturation_log;
    }
    out->saturating = out->saturating_if_grown = -1;
out:
    return st;
}

/* ---- options ---- */

static const char OPTIONS[] = "amp_scaler_options: ";

static cairn_status check_logmax(const struct amp_scaler_options *o) {
    const bool is_logmax = o->kind == AMP_SCALER_LOGMAX;
    REQUIRE(!is_logmax || !(o->growth_factor != 0 || o->backoff_factor != 0 || o->growth_interval), CAIRN_EINVAL,
            "%sa logmax scaler sets its scale by a model of the gradients, so factors and growth_interval contradict "
            "it; leave them out, or choose another kind",
            OPTIONS);
    REQUIRE(is_logmax || !(o->log_max != 0 || o->beta1 != 0 || o->beta2 != 0 || o->overflow_std_dev != 0 ||
                           o->overflow_feeds_power),
            CAIRN_EINVAL,
            "%slog_max, beta1, beta2, overflow_std_dev and overflow_feeds_power need kind logmax, but the kind is %s; "
            "leave them out",
            OPTIONS, kinds[o->kind].name);
    REQUIRE((int)o->overflow_feeds_power >= CAIRN_DEFAULT && (int)o->overflow_feeds_power <= CAIRN_OFF, CAIRN_EINVAL,
            "%soverflow_feeds_power is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", OPTIONS,
            (int)o->overflow_feeds_power);
    return CAIRN_OK;
}

static cairn_status check_histogram(const struct amp_scaler_options *o) {
    const bool is_shown = o->kind == AMP_SCALER_HISTOGRAM || o->update_by_statistics;
    REQUIRE(o->saturation_share == 0 || o->kind == AMP_SCALER_HISTOGRAM, CAIRN_EINVAL,
            "%ssaturation_share needs kind histogram, but the kind is %s; leave it out", OPTIONS, kinds[o->kind].name);
    REQUIRE(o->saturation_log == 0 || is_shown, CAIRN_EINVAL,
            "%ssaturation_log needs kind histogram or update_by_statistics, but the kind is %s; leave it out", OPTIONS,
            kinds[o->kind].name);
    REQUIRE(o->saturation_log >= -126 && o->saturation_log <= 126, CAIRN_EINVAL,
            "%ssaturation_log is %.17g; it must be a number from -126 to 126", OPTIONS, o->saturation_log);
    return CAIRN_OK;
}

static cairn_status check_options(const struct amp_scaler_options *o) {
    cairn_status st = CAIRN_OK;
    REQUIRE(is_kind(o->kind), CAIRN_EINVAL, "%skind is %d; it must be AMP_SCALER_STATIC to AMP_SCALER_HISTOGRAM",
            OPTIONS, (int)o->kind);
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
    REQUIRE(o->kind != AMP_SCALER_USER || o->update || o->update_by_statistics, CAIRN_EINVAL,
            "%sAMP_SCALER_USER needs an update function; set update, or update_by_statistics", OPTIONS);
    REQUIRE(!o->update || !o->update_by_statistics, CAIRN_EINVAL,
            "%supdate and update_by_statistics are both set, but one of them decides; leave the other out", OPTIONS);
    REQUIRE(o->kind == AMP_SCALER_USER || !(o->update || o->update_by_statistics), CAIRN_EINVAL,
            "%sa scaler of kind %s does not call %s; leave it out, or choose AMP_SCALER_USER", OPTIONS,
            kinds[o->kind].name, o->update ? "update" : "update_by_statistics");
    TRY(check_logmax(o));
    TRY(check_histogram(o));
out:
    return st;
}

static double or_default(double value, double otherwise) {
    return value != 0 ? value : otherwise;
}

double cairn__saturation_log(const struct amp_scaler_options *options) {
    return or_default(options->saturation_log, 15);
}

static struct amp_scaler_state fresh_state(const struct amp_scaler_options *o) {
    const struct kind *kind = &kinds[o->kind];
    const bool is_static = o->kind == AMP_SCALER_STATIC; /* floor and ceiling are not used */
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
    struct amp_scaler_state fresh = fresh_state(&o);
    if (o.kind == AMP_SCALER_LOGMAX) { /* the running means start at 0, without bias correction */
        fresh.log_max = or_default(o.log_max, 16);
        fresh.beta1 = or_default(o.beta1, 0.99);
        fresh.beta2 = or_default(o.beta2, 0.999);
        fresh.overflow_std_dev = or_default(o.overflow_std_dev, 3.09);
        fresh.b1_correction = fresh.b2_correction = 1;
        fresh.overflow_feeds_power = o.overflow_feeds_power == CAIRN_ON;
    }
    if (o.kind == AMP_SCALER_HISTOGRAM) {
        fresh.saturation_share = or_default(o.saturation_share, 1e-4);
        fresh.saturation_log = cairn__saturation_log(&o);
    }
    TRY(cairn__scaler_check_field(&cairn__scaler_fields[0], &fresh, "amp_scaler_options: init_"));
    TRY(cairn__scaler_state_take(&fresh, OPTIONS, out));
    out->id = id;
out:
    return st;
}
