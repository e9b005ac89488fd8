/* Creates schedules from options. Every field is checked against a table that lists the kinds that use it, and defaults
 * are filled in. The form that the device evaluates (kernels/schedule.h) is one piece of memory, parts first and then
 * milestones; the host and the device each have a copy. */
#include "cairn/schedule.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "optim/rates.h"
#include "optim/report.h"

typedef struct cairn_schedule_options options;

/* ---- which fields a kind has ---- */

#define BIT(kind) (1u << CAIRN_SCHEDULE_##kind)
enum {
    CONSTANT = BIT(CONSTANT),
    LINEAR = BIT(LINEAR),
    COSINE = BIT(COSINE),
    RESTARTS = BIT(COSINE_RESTARTS),
    POLYNOMIAL = BIT(POLYNOMIAL),
    STEP = BIT(STEP),
    MULTI_STEP = BIT(MULTI_STEP),
    EXPONENTIAL = BIT(EXPONENTIAL),
    ONE_CYCLE = BIT(ONE_CYCLE),
    INVERSE_SQRT = BIT(INVERSE_SQRT),
    STABLE_DECAY = BIT(WARMUP_STABLE_DECAY),
    SEQUENCE = BIT(SEQUENCE),
    PRODUCT = BIT(PRODUCT),
    CHAINS = SEQUENCE | PRODUCT,
    HAVE_TOTAL = CONSTANT | LINEAR | COSINE | RESTARTS | POLYNOMIAL | ONE_CYCLE | STABLE_DECAY,
    HAVE_END = LINEAR | COSINE | RESTARTS | POLYNOMIAL | STABLE_DECAY,
    HAVE_WARMUP = ~(ONE_CYCLE | CHAINS)
};

static const char *name_of(cairn_schedule_kind kind) {
    static const char *const names[] = {
        "",         "constant",   "linear",      "cosine",    "cosine with restarts", "polynomial",
        "step",     "multi-step", "exponential", "one-cycle", "inverse square root",  "warmup-stable-decay",
        "sequence", "product"};
    return names[kind];
}

enum type { COUNT, REAL, CURVE, SWITCH, POINTER };

/* Valid values of fields. A count, curve or real is never below 0, and a real is finite. */
static const struct field {
    const char *name;
    size_t offset;
    enum type type;
    int kinds;   /* that use it */
    double most; /* maximum of a real; 0 = no limit */
} fields[] = {
#define FIELD(name, type, kinds, most) \
    { #name, offsetof(options, name), type, kinds, most }
    FIELD(count_skipped, SWITCH, ~0, 0),
    FIELD(first_step, COUNT, ~0, 0),
    FIELD(warmup_steps, COUNT, HAVE_WARMUP, 0),
    FIELD(warmup_start, REAL, HAVE_WARMUP, 1),
    FIELD(warmup_curve, CURVE, HAVE_WARMUP, 0),
    FIELD(total_steps, COUNT, HAVE_TOTAL, 0),
    FIELD(start_factor, REAL, CONSTANT | LINEAR, 0),
    FIELD(end_factor, REAL, HAVE_END, 0),
    FIELD(end_lr, REAL, HAVE_END, 0),
    FIELD(cycles, REAL, COSINE | RESTARTS | STABLE_DECAY, 0),
    FIELD(cycle_steps, COUNT, RESTARTS, 0),
    FIELD(cycle_growth, COUNT, RESTARTS, 0),
    FIELD(power, REAL, POLYNOMIAL, 0),
    FIELD(gamma, REAL, STEP | MULTI_STEP | EXPONENTIAL, 0),
    FIELD(step_size, COUNT, STEP, 0),
    FIELD(milestones, POINTER, MULTI_STEP | SEQUENCE, 0),
    FIELD(decay_steps, COUNT, STABLE_DECAY, 0),
    FIELD(decay_curve, CURVE, STABLE_DECAY | ONE_CYCLE, 0),
    FIELD(timescale, COUNT, INVERSE_SQRT, 0),
    FIELD(pct_start, REAL, ONE_CYCLE, 1),
    FIELD(div_factor, REAL, ONE_CYCLE, 0),
    FIELD(final_div_factor, REAL, ONE_CYCLE, 0),
    FIELD(three_phase, SWITCH, ONE_CYCLE, 0),
    FIELD(cycle_momentum, SWITCH, ONE_CYCLE, 0),
    FIELD(base_momentum, REAL, ONE_CYCLE, 1),
    FIELD(max_momentum, REAL, ONE_CYCLE, 1),
    FIELD(parts, POINTER, CHAINS, 0),
#undef FIELD
};

/* The field's value as a number; for an address, whether it is set. */
static double value_of(const options *o, const struct field *f) {
    const void *at = (const char *)o + f->offset;
    switch (f->type) {
    case COUNT:
        return (double)*(const int64_t *)at;
    case REAL:
        return *(const double *)at;
    case CURVE:
        return (double)*(const cairn_schedule_curve *)at;
    case SWITCH:
        return (double)*(const cairn_switch *)at;
    case POINTER:
        break;
    }
    return *(const void *const *)at != NULL;
}

/* Exact in f64, and far below INT64_MAX. */
#define MAX_STEPS ((double)((int64_t)1 << 53))

static cairn_status check_field(const options *o, const struct field *f) {
    const double value = value_of(o, f);
    const char *name = name_of(o->kind);
    REQUIRE(value == 0 || f->kinds >> o->kind & 1, CAIRN_EINVAL,
            "schedule: %s is set, but a %s schedule does not use it; leave it out", f->name, name);
    REQUIRE(isfinite(value) && value >= 0, CAIRN_EINVAL, "%s schedule: %s is %g; it must be a number >= 0", name,
            f->name, value);
    REQUIRE(f->most == 0 || value <= f->most, CAIRN_EINVAL, "%s schedule: %s is %g; it must be at most %g", name,
            f->name, value, f->most);
    REQUIRE(f->type != COUNT || value <= MAX_STEPS, CAIRN_EINVAL, "%s schedule: %s is %g; it must be at most 2^53",
            name, f->name, value);
    REQUIRE(f->type != CURVE || value <= CAIRN_CURVE_ONE_MINUS_SQRT, CAIRN_EINVAL,
            "%s schedule: %s is %g; it must be a CAIRN_CURVE_ value", name, f->name, value);
    return CAIRN_OK;
}

/* ---- constraints between fields ---- */

static cairn_status check_lengths(const options *o) {
    const char *name = name_of(o->kind);
    const bool by_cycle = o->kind == CAIRN_SCHEDULE_COSINE_RESTARTS && o->cycle_steps > 0;
    const bool has_total = HAVE_TOTAL >> o->kind & 1 && o->kind != CAIRN_SCHEDULE_CONSTANT && !by_cycle;
    REQUIRE(!has_total || o->total_steps > 0, CAIRN_EINVAL, "%s schedule: total_steps must be set", name);
    REQUIRE(!by_cycle || (!o->total_steps && o->cycles == 0), CAIRN_EINVAL,
            "%s schedule: cycle_steps is set, so total_steps and cycles must not be", name);
    REQUIRE(by_cycle || !o->cycle_growth, CAIRN_EINVAL,
            "%s schedule: cycle_growth is set without cycle_steps; set both", name);
    REQUIRE(!o->total_steps || o->warmup_steps <= o->total_steps, CAIRN_EINVAL,
            "%s schedule: warmup_steps is %lld; it must be at most total_steps, which is %lld", name,
            (long long)o->warmup_steps, (long long)o->total_steps);
    REQUIRE(o->kind != CAIRN_SCHEDULE_STEP || o->step_size > 0, CAIRN_EINVAL, "step schedule: step_size must be set");
    REQUIRE(o->kind != CAIRN_SCHEDULE_EXPONENTIAL || o->gamma > 0, CAIRN_EINVAL,
            "exponential schedule: gamma must be set");
    REQUIRE(o->kind != CAIRN_SCHEDULE_ONE_CYCLE || o->total_steps > 1, CAIRN_EINVAL,
            "one-cycle schedule: total_steps is %lld; it must be at least 2", (long long)o->total_steps);
    REQUIRE(o->kind != CAIRN_SCHEDULE_WARMUP_STABLE_DECAY ||
                (o->decay_steps > 0 && o->decay_steps <= o->total_steps - o->warmup_steps),
            CAIRN_EINVAL, "%s schedule: decay_steps is %lld; it must be in [1, %lld]", name, (long long)o->decay_steps,
            (long long)(o->total_steps - o->warmup_steps));
    REQUIRE(o->end_lr == 0 || o->end_factor == 0, CAIRN_EINVAL,
            "%s schedule: end_lr and end_factor are both set; leave one out", name);
    return CAIRN_OK;
}

static cairn_status check_milestones(const options *o) {
    REQUIRE(o->milestones || !o->num_milestones, CAIRN_EINVAL,
            "%s schedule: num_milestones is set, but milestones is NULL", name_of(o->kind));
    for (size_t i = 0; i < o->num_milestones; i++) {
        const int64_t at = o->milestones[i], before = i ? o->milestones[i - 1] : 0;
        REQUIRE(at >= before, CAIRN_EINVAL,
                "%s schedule: milestone %zu is %lld, below the one before, %lld; milestones must ascend",
                name_of(o->kind), i, (long long)at, (long long)before);
    }
    return CAIRN_OK;
}

static cairn_status check_one_cycle(const options *o, bool momentum_cycles) {
    const bool moves = o->cycle_momentum != CAIRN_OFF;
    const double base = o->base_momentum != 0 ? o->base_momentum : 0.85;
    const double most = o->max_momentum != 0 ? o->max_momentum : 0.95;
    REQUIRE(o->decay_curve != CAIRN_CURVE_ONE_MINUS_SQRT, CAIRN_EINVAL,
            "one-cycle schedule: decay_curve must be cosine or linear");
    REQUIRE(!moves || (base <= most && most < 1), CAIRN_EINVAL,
            "one-cycle schedule: base_momentum is %g and max_momentum %g; they must satisfy 0 < base <= max < 1", base,
            most);
    REQUIRE(
        !moves || momentum_cycles, CAIRN_EINVAL,
        "one-cycle schedule: the group has no momentum to cycle; set SGD's momentum, or cycle_momentum to CAIRN_OFF");
    return CAIRN_OK;
}

static cairn_status read_options(const options *given, options *o) {
    cairn_status st = CAIRN_OK;
    memset(o, 0, sizeof(*o));
    TRY(cairn__options_read(o, sizeof(*o), given, "cairn_schedule_options"));
    REQUIRE(o->kind >= CAIRN_SCHEDULE_CONSTANT && o->kind <= CAIRN_SCHEDULE_PRODUCT, CAIRN_EINVAL,
            "schedule: kind is %d; use a macro that sets it, such as cairn_linear_schedule", (int)o->kind);
out:
    return st;
}

static bool is_chain(const options *o) {
    return CHAINS >> o->kind & 1;
}

static cairn_status check_one(const options *o, bool momentum_cycles) {
    cairn_status st = CAIRN_OK;
    for (size_t f = 0; f < sizeof(fields) / sizeof(fields[0]); f++) TRY(check_field(o, &fields[f]));
    TRY(check_milestones(o));
    TRY(check_lengths(o));
    if (o->kind == CAIRN_SCHEDULE_ONE_CYCLE) TRY(check_one_cycle(o, momentum_cycles));
out:
    return st;
}

static cairn_status check_part(const options *given, size_t i, bool momentum_cycles) {
    options o;
    cairn_status st = CAIRN_OK;
    REQUIRE(given, CAIRN_EINVAL, "schedule: part %zu is NULL", i);
    TRY(read_options(given, &o));
    REQUIRE(!is_chain(&o), CAIRN_EINVAL, "schedule: part %zu is a %s schedule; a part cannot have parts", i,
            name_of(o.kind));
    REQUIRE(!o.first_step && !o.count_skipped, CAIRN_EINVAL,
            "schedule: part %zu sets first_step or count_skipped; set them in the whole schedule", i);
    TRY(check_one(&o, momentum_cycles));
out:
    return st;
}

cairn_status cairn__schedule_check(const struct cairn_schedule_options *given, bool momentum_cycles) {
    options o;
    cairn_status st = CAIRN_OK;
    if (!given) return CAIRN_OK;
    TRY(read_options(given, &o));
    TRY(check_one(&o, momentum_cycles));
    if (!is_chain(&o)) return CAIRN_OK;
    REQUIRE(o.num_parts > 0 && o.parts, CAIRN_EINVAL, "%s schedule: parts is NULL or num_parts is 0", name_of(o.kind));
    REQUIRE(o.kind == CAIRN_SCHEDULE_PRODUCT || o.num_milestones == o.num_parts - 1, CAIRN_EINVAL,
            "sequence schedule: %zu milestones for %zu parts; there must be one fewer than parts", o.num_milestones,
            o.num_parts);
    for (size_t i = 0; i < o.num_parts; i++) TRY(check_part(o.parts[i], i, momentum_cycles));
out:
    return st;
}

/* ---- from checked options to schedules ---- */

static double or_else(double value, double otherwise) {
    return value != 0 ? value : otherwise;
}

static int64_t at_least_1(int64_t n) {
    return n > 1 ? n : 1;
}

/* Milestones still point to the caller's memory. */
static struct cairn__schedule schedule_of(const options *o) {
    const bool restarts = o->kind == CAIRN_SCHEDULE_COSINE_RESTARTS, one_cycle = o->kind == CAIRN_SCHEDULE_ONE_CYCLE;
    const bool is_constant = o->kind == CAIRN_SCHEDULE_CONSTANT;
    const int64_t length = o->total_steps - o->warmup_steps;
    return (struct cairn__schedule){
        .kind = (int32_t)o->kind,
        .warmup_curve = o->warmup_curve ? (int32_t)o->warmup_curve : CAIRN__CURVE_LINEAR,
        .curve = o->decay_curve ? (int32_t)o->decay_curve : CAIRN__CURVE_COSINE,
        .three_phase = o->three_phase == CAIRN_ON,
        .moves_momentum = one_cycle && o->cycle_momentum != CAIRN_OFF,
        .warmup = o->warmup_steps,
        .length = is_constant ? length : at_least_1(length),
        .decay = o->decay_steps,
        .step_size = restarts ? o->cycle_steps : o->step_size,
        .growth = at_least_1(o->cycle_growth),
        .timescale = o->timescale      ? o->timescale
                     : o->warmup_steps ? o->warmup_steps
                                       : 10000,
        .warmup_start = o->warmup_start,
        .start_factor = or_else(o->start_factor, 1),
        .end_factor = o->end_factor,
        .end_lr = o->end_lr,
        .cycles = or_else(o->cycles, restarts ? 1 : 0.5),
        .power = or_else(o->power, 1),
        .gamma = or_else(o->gamma, 0.1),
        .pct_start = or_else(o->pct_start, 0.3),
        .div_factor = or_else(o->div_factor, 25),
        .final_div_factor = or_else(o->final_div_factor, 1e4),
        .base_momentum = or_else(o->base_momentum, 0.85),
        .max_momentum = or_else(o->max_momentum, 0.95),
        .milestones = o->milestones,
        .num_milestones = o->kind == CAIRN_SCHEDULE_MULTI_STEP ? (int64_t)o->num_milestones : 0,
    };
}

/* A schedule in one piece of memory, with equal offsets on the host and on the device. */
struct laid_out {
    struct cairn__schedule *parts;
    size_t count, nbytes;
};

/* options must have been checked. Errors: CAIRN_ENOMEM. */
static cairn_status lay_out(const options *o, struct laid_out *l) {
    size_t milestones = o->kind == CAIRN_SCHEDULE_MULTI_STEP ? o->num_milestones : 0;
    options part;
    cairn_status st = CAIRN_OK;
    l->count = is_chain(o) ? o->num_parts : 1;
    for (size_t i = 0; is_chain(o) && i < l->count; i++) {
        (void)read_options(o->parts[i], &part);
        if (part.kind == CAIRN_SCHEDULE_MULTI_STEP) milestones += part.num_milestones;
    }
    l->nbytes = l->count * sizeof(l->parts[0]) + milestones * sizeof(int64_t);
    TRY(cairn__calloc(l->nbytes, 1, (void **)&l->parts));
    int64_t *to = (int64_t *)(void *)(l->parts + l->count);
    for (size_t i = 0; i < l->count; i++) {
        struct cairn__schedule *s = &l->parts[i];
        if (is_chain(o)) (void)read_options(o->parts[i], &part);
        *s = schedule_of(is_chain(o) ? &part : o);
        if (o->kind == CAIRN_SCHEDULE_SEQUENCE && i > 0) s->from = o->milestones[i - 1];
        const size_t n = (size_t)s->num_milestones;
        if (n) memcpy(to, s->milestones, n * sizeof(to[0]));
        s->milestones = n ? to : NULL;
        to += n;
    }
out:
    return st;
}

/* Uploads a copy whose pointers to milestones are for the memory at `there`. */
static cairn_status upload(struct cairn_device *d, const struct laid_out *l, void *there) {
    cairn_status st = CAIRN_OK;
    struct cairn__schedule *copy = NULL;
    TRY(cairn__calloc(l->nbytes, 1, (void **)&copy));
    memcpy(copy, l->parts, l->nbytes);
    for (size_t i = 0; i < l->count; i++) {
        const struct cairn__schedule *s = &l->parts[i];
        if (!s->milestones) continue;
        const size_t offset = (size_t)((const char *)s->milestones - (const char *)l->parts);
        copy[i].milestones = (const int64_t *)(const void *)((const char *)there + offset);
    }
    TRY(cairn__device_upload(d, there, copy, l->nbytes));
out:
    cairn__free(copy);
    return st;
}

static struct cairn__group_schedule group_schedule(const options *o, const struct laid_out *l,
                                                   struct cairn__rates base) {
    return (struct cairn__group_schedule){.base = base,
                                          .parts = l->parts,
                                          .count = (int64_t)l->count,
                                          .origin = -o->first_step,
                                          .is_product = o->kind == CAIRN_SCHEDULE_PRODUCT,
                                          .counts_skipped = o->count_skipped == CAIRN_ON};
}

/* ---- schedules of groups ---- */

/* Makes the schedule of a group that is not part of the optimizer yet; parts are newly allocated. */
static cairn_status make_schedule(cairn_optimizer *o, const struct cairn_schedule_options *given, size_t g,
                                  struct cairn__param_group *out) {
    struct cairn_device *d = o->env->device;
    const struct cairn__step_report last = cairn__optimizer_last_report(o);
    cairn_status st = CAIRN_OK;
    options how;
    struct laid_out here = {0};
    void *there = NULL;
    TRY(read_options(given, &how));
    TRY(lay_out(&how, &here));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, here.nbytes, &there));
    TRY(upload(d, &here, there));
    out->schedule = group_schedule(&how, &here, o->groups[g].schedule.base);
    out->schedule.origin += last.steps + (out->schedule.counts_skipped ? last.skipped : 0);
    out->parts = here.parts;
    out->device_parts = there;
    return CAIRN_OK;
out:
    cairn__free(here.parts);
    cairn__device_free(d, there);
    return st;
}

/* Sets schedules of groups [first, last), all or none. Waits for the device, since a schedule begins at the device's
 * step count. */
static cairn_status set_schedules(cairn_optimizer *o, size_t first, size_t last,
                                  const struct cairn_schedule_options *given) {
    cairn_status st = CAIRN_OK;
    struct cairn__param_group *fresh = NULL;
    size_t made = first;
    for (size_t g = first; g < last; g++)
        TRY(cairn__schedule_check(given, cairn__momentum_cycles(o->kind, &o->groups[g])));
    TRY(cairn__device_refuse_recording(o->env->device, "a schedule cannot be set in a graph; set it between replays"));
    TRY(cairn__device_synchronize(o->env->device));
    TRY(cairn__optimizer_read_reports(o));
    TRY(cairn__calloc(last - first, sizeof(fresh[0]), (void **)&fresh));
    for (; given && made < last; made++) TRY(make_schedule(o, given, made, &fresh[made - first]));
    for (size_t g = first; g < last; g++) {
        struct cairn__param_group *group = &o->groups[g], *from = &fresh[g - first];
        cairn__group_drop_schedule(o->env->device, group);
        if (given) {
            group->schedule = from->schedule;
            group->parts = from->parts;
            group->device_parts = from->device_parts;
        }
        cairn__rates_store(o, g);
    }
    made = first;
out:
    for (size_t g = first; g < made; g++) cairn__group_drop_schedule(o->env->device, &fresh[g - first]);
    cairn__free(fresh);
    return st;
}

cairn_status cairn_optimizer_set_schedule(cairn_optimizer *optimizer, const struct cairn_schedule_options *schedule) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_optimizer_set_schedule: optimizer is NULL");
    return set_schedules(optimizer, 0, optimizer->num_groups, schedule);
}

cairn_status cairn_optimizer_set_group_schedule(cairn_optimizer *optimizer, int group,
                                                const struct cairn_schedule_options *schedule) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_optimizer_set_group_schedule: optimizer is NULL");
    REQUIRE(group >= 0 && (size_t)group < optimizer->num_groups, CAIRN_EINVAL,
            "%s: group is %d, but the optimizer has %zu groups", optimizer->kind->name, group, optimizer->num_groups);
    return set_schedules(optimizer, (size_t)group, (size_t)group + 1, schedule);
}

cairn_status cairn_schedule_at(const struct cairn_schedule_options *schedule, double base_lr, int64_t step, double *lr,
                               double *momentum) {
    REQUIRE(schedule && lr, CAIRN_EINVAL, "cairn_schedule_at: schedule and lr must be set");
    REQUIRE(step >= 0 && (double)step <= MAX_STEPS, CAIRN_EINVAL,
            "cairn_schedule_at: step is %lld; it must be from 0 to 2^53", (long long)step);
    cairn_status st = CAIRN_OK;
    options how;
    struct laid_out here = {0};
    TRY(cairn__check_rate("cairn_schedule_at", "base_lr", base_lr));
    TRY(cairn__schedule_check(schedule, true));
    TRY(read_options(schedule, &how));
    TRY(lay_out(&how, &here));
    const struct cairn__rates base = {base_lr, momentum ? *momentum : 0};
    const struct cairn__group_schedule whole = group_schedule(&how, &here, base);
    const struct cairn__rates rates = cairn__group_rates(&whole, step, 0);
    *lr = rates.lr;
    if (momentum) *momentum = rates.momentum;
out:
    cairn__free(here.parts);
    return st;
}
