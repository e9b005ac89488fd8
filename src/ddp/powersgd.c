/* The hook of PowerSGD (cairn/powersgd.h). begin sends a bucket's P and what is not compressed together, while backward
 * continues; finish sends Q. Both are in group memory, one bucket after the other.
 *
 * The errors and Q of a backward are kept beside those of the last one, and replace them once the backward has settled
 * and was finite: a skipped step leaves them as they were. */
#include <stdio.h>
#include <string.h>

#include "cairn/powersgd.h"
#include "comm/group.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "core/options.h"
#include "core/status.h"
#include "ddp/context.h"
#include "ddp/low_rank.h"
#include "param/stateful.h"

#define CALL "ddp_powersgd_register"
#define SEED 0x506f776572534744u /* apart from the environment's streams */

/* A shared parameter. */
struct matrix {
    struct cairn__low_rank shape; /* rank 0: it is sent uncompressed */
    float *q;                     /* [rank][cols]; NULL = not yet, or not wanted */
    float *error;                 /* [n]; NULL = not yet, or without error feedback */
    float *input;                 /* [n] gradient + error of this backward, and then its error; NULL = not yet */
};

struct cairn__powersgd {
    struct ddp_powersgd_options options; /* complete */
    struct matrix *matrices;             /* [set->count] */
    void *sent, *qs;                     /* group memory: P and what is not compressed; Q */
    struct cairn__low_rank_room room;
    float *expanded;     /* [of the largest matrix] for a bucket of halves */
    float *minus_factor; /* of this backward: -1/S, times the divisor over the number of ranks */
    uint32_t *found;     /* a result of this backward is infinite or NaN */
    uint32_t *words;     /* of the host: flags of the device */
    size_t num_words;
    int64_t iterations; /* backwards that have settled */
    bool began;         /* this backward has compressed a bucket */
};

static struct cairn_device *device_of(const struct ddp_context *d) {
    return d->set->env->device;
}

static bool feeds_back(const struct cairn__powersgd *p) {
    return p->options.use_error_feedback == CAIRN_ON;
}

static bool is_warm(const struct cairn__powersgd *p) {
    return p->options.warm_start == CAIRN_ON;
}

static bool compresses(const struct cairn__powersgd *p) {
    return p->iterations >= p->options.start_powerSGD_iter;
}

/* ---- options ---- */

static cairn_status check_switch(const char *name, cairn_switch value) {
    REQUIRE((int)value >= CAIRN_DEFAULT && (int)value <= CAIRN_OFF, CAIRN_EINVAL,
            "ddp_powersgd_options.%s is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", name, (int)value);
    return CAIRN_OK;
}

static cairn_status read_options(const struct ddp_powersgd_options *given, struct ddp_powersgd_options *out) {
    struct ddp_powersgd_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), given, "ddp_powersgd_options"));
    TRY(check_switch("use_error_feedback", o.use_error_feedback));
    TRY(check_switch("warm_start", o.warm_start));
    REQUIRE(o.matrix_approximation_rank >= 0, CAIRN_EINVAL,
            "ddp_powersgd_options.matrix_approximation_rank is %d; it must be positive, or 0 for 1",
            o.matrix_approximation_rank);
    REQUIRE(o.start_powerSGD_iter >= 0, CAIRN_EINVAL,
            "ddp_powersgd_options.start_powerSGD_iter is %lld; it must be positive, or 0 for 1000",
            (long long)o.start_powerSGD_iter);
    REQUIRE(o.min_compression_rate >= 0 && o.min_compression_rate <= 1e30, CAIRN_EINVAL,
            "ddp_powersgd_options.min_compression_rate is %g; it must be positive, or 0 for 2", o.min_compression_rate);
    REQUIRE(o.orthogonalization_epsilon >= 0 && o.orthogonalization_epsilon <= 1e30, CAIRN_EINVAL,
            "ddp_powersgd_options.orthogonalization_epsilon is %g; it must be 0 or more", o.orthogonalization_epsilon);
    if (o.matrix_approximation_rank == 0) o.matrix_approximation_rank = 1;
    if (o.start_powerSGD_iter == 0) o.start_powerSGD_iter = 1000;
    if (o.min_compression_rate == 0) o.min_compression_rate = 2;
    if (o.use_error_feedback == CAIRN_DEFAULT) o.use_error_feedback = CAIRN_ON;
    if (o.warm_start == CAIRN_DEFAULT) o.warm_start = CAIRN_ON;
    *out = o;
out:
    return st;
}

#define OPTION_LIST(X)           \
    X(matrix_approximation_rank) \
    X(use_error_feedback)        \
    X(start_powerSGD_iter)       \
    X(min_compression_rate)      \
    X(orthogonalization_epsilon) \
    X(warm_start)

static cairn_status compare_options(const struct ddp_powersgd_options *first, const struct ddp_powersgd_options *other,
                                    int rank) {
#define CAIRN__X(name)                                                                                                 \
    REQUIRE(first->name == other->name, CAIRN_EPEER,                                                                   \
            CALL ": ddp_powersgd_options." #name " is %.10g on rank 0 but %.10g on rank %d; give every rank the same " \
                 "options",                                                                                            \
            (double)first->name, (double)other->name, rank);
    OPTION_LIST(CAIRN__X)
#undef CAIRN__X
    REQUIRE(first->random_seed == other->random_seed, CAIRN_EPEER,
            CALL ": ddp_powersgd_options.random_seed is %llu on rank 0 but %llu on rank %d; give every rank the same "
                 "options",
            (unsigned long long)first->random_seed, (unsigned long long)other->random_seed, rank);
    return CAIRN_OK;
}

static cairn_status agree_on_options(const struct ddp_context *d, const struct ddp_powersgd_options *o) {
    struct ddp_powersgd_options *all = NULL;
    cairn_status st = CAIRN_OK;
    if (cairn_group_size(d->channel) == 1) return CAIRN_OK;
    TRY(cairn__group_make_room(d->channel, CALL, sizeof(*all), (void **)&all));
    TRY(cairn__group_exchange(d->channel, all, o, sizeof(*o)));
    for (int r = 1; r < cairn_group_size(d->channel); r++) TRY(compare_options(&all[0], &all[r], r));
out:
    cairn__free(all);
    return st;
}

/* Every rank orthonormalizes columns and expands P Q^T itself, and different kernels round differently. The number of
 * threads, with which the device's text may end, changes no bit. */
static cairn_status agree_on_kernels(const struct ddp_context *d) {
    enum { NBYTES = 256 };
    char mine[NBYTES] = {0}, *all = NULL;
    cairn_status st = CAIRN_OK;
    if (cairn_group_size(d->channel) == 1) return CAIRN_OK;
    snprintf(mine, NBYTES, "%s: %s", device_of(d)->ops->name, cairn_device_describe(device_of(d)));
    char *const last = strrchr(mine, ',');
    if (last && strstr(last, " thread")) memset(last, 0, (size_t)(mine + NBYTES - last));
    TRY(cairn__group_make_room(d->channel, CALL, NBYTES, (void **)&all));
    TRY(cairn__group_exchange(d->channel, all, mine, NBYTES));
    for (int r = 1; r < cairn_group_size(d->channel); r++) {
        const char *other = all + (size_t)r * NBYTES;
        if (strcmp(all, other) != 0)
            TRY(cairn__fail(CAIRN_EPEER,
                            CALL
                            ": rank 0 computes by '%s' but rank %d by '%s', which round otherwise, so that weights "
                            "would diverge; run ranks on equal devices and libraries, CPUs with the same CAIRN_CPU",
                            all, r, other));
    }
out:
    cairn__free(all);
    return st;
}

/* ---- matrices ---- */

static struct cairn__low_rank shape_of(const struct cairn__param *param, const struct ddp_powersgd_options *o) {
    struct cairn__low_rank s = {.rows = param->ndim ? param->shape[0] : 1, .rank = o->matrix_approximation_rank};
    s.cols = s.rows ? (int64_t)param->n / s.rows : 0;
    if (s.rank > s.rows) s.rank = s.rows;
    if (s.rank > s.cols) s.rank = s.cols;
    const double compressed = ((double)s.rows + (double)s.cols) * (double)s.rank;
    if (!(compressed * o->min_compression_rate < (double)param->n)) s.rank = 0;
    return s;
}

static size_t p_size(const struct cairn__low_rank *s) {
    return (size_t)(s->rank * s->rows);
}

static size_t q_size(const struct cairn__low_rank *s) {
    return (size_t)(s->rank * s->cols);
}

static cairn_status make_floats(struct ddp_context *d, size_t n, float **out) {
    struct cairn_device *device = device_of(d);
    void *memory = NULL;
    cairn_status st = CAIRN_OK;
    if (*out) return CAIRN_OK;
    TRY(cairn__device_alloc(device, CAIRN__HOLDS_GRADS, n * sizeof(float), &memory));
    device->passes->fill(device, CAIRN_F32, memory, n, 0.0f);
    *out = memory;
out:
    return st;
}

static void draw_q(struct ddp_context *d, size_t index, float *q, int64_t iteration) {
    const struct cairn__powersgd *p = d->powersgd;
    struct cairn_device *device = device_of(d);
    const uint64_t stream = ((uint64_t)iteration * d->set->count + index) << 16;
    device->passes->normal(device, CAIRN_F32, q, q_size(&p->matrices[index].shape), p->options.random_seed ^ SEED,
                           stream);
}

/* On first need. */
static cairn_status make_matrix(struct ddp_context *d, size_t index) {
    const struct cairn__powersgd *p = d->powersgd;
    struct matrix *m = &p->matrices[index];
    const size_t n = d->set->params[index]->n;
    cairn_status st = CAIRN_OK;
    if (m->shape.rank == 0) return CAIRN_OK;
    if (is_warm(p) && !m->q) {
        TRY(make_floats(d, q_size(&m->shape), &m->q));
        draw_q(d, index, m->q, 0);
    }
    if (feeds_back(p)) TRY(make_floats(d, n, &m->error));
    TRY(make_floats(d, n, &m->input));
out:
    return st;
}

/* ---- layout of group memory ---- */

struct place {
    size_t sent, q; /* elements of both */
};

static void pass_by(const struct ddp_context *d, size_t s, struct place *at) {
    const struct cairn__param *param = d->slots[s].param;
    const struct cairn__low_rank *shape = &d->powersgd->matrices[param->index].shape;
    at->sent += shape->rank ? p_size(shape) : param->n;
    at->q += q_size(shape);
}

/* Where bucket b begins: after the buckets before it. */
static struct place begin_of(const struct ddp_context *d, size_t b) {
    struct place at = {0, 0};
    for (size_t i = 0; i < b; i++) {
        for (size_t k = 0; k < d->plan.buckets[i].count; k++) pass_by(d, d->plan.buckets[i].items[k], &at);
    }
    return at;
}

/* A parameter of a bucket. */
struct part {
    struct matrix *m;
    size_t index, n;
    void *gradient;  /* in the bucket */
    float *sent, *q; /* P, or the gradient as it is sent */
};

static struct part part_of(const struct ddp_context *d, const struct ddp_bucket *bucket, size_t k, struct place *at) {
    const struct cairn__powersgd *p = d->powersgd;
    const struct cairn__ddp_bucket *b = &d->plan.buckets[bucket->index];
    const size_t s = b->items[k], index = d->slots[s].param->index;
    const struct part part = {.m = &p->matrices[index],
                              .index = index,
                              .n = d->slots[s].param->n,
                              .gradient = (char *)bucket->buffer +
                                          (d->plan.places[s].offset - b->begin) * cairn_dtype_nbytes(bucket->dtype),
                              .sent = (float *)p->sent + at->sent,
                              .q = (float *)p->qs + at->q};
    pass_by(d, s, at);
    return part;
}

/* ---- begin: a bucket is sent ---- */

/* What the bucket's gradient, multiplied by the loss scale, is multiplied by; NULL = 1. */
static const float *unscaling(const struct ddp_context *d) {
    return d->set->scale ? &d->set->scale->factor : NULL;
}

/* Runs once per backward. Ranks that an average does not count send their errors, too: what all ranks have lost of the
 * sum is what was not applied, times the divisor. */
static void start(struct ddp_context *d) {
    struct cairn__powersgd *p = d->powersgd;
    struct cairn_device *device = device_of(d);
    const int divisor = cairn__ddp_divisor(d);
    const float share = -(float)(divisor ? divisor : 1) / (float)cairn_group_size(d->channel);
    if (p->began) return;
    p->began = true;
    device->passes->clear_flags(device, p->found, 1);
    if (unscaling(d)) {
        device->passes->mul_scalar(device, CAIRN_F32, p->minus_factor, unscaling(d), 1, share);
    } else {
        device->passes->fill(device, CAIRN_F32, p->minus_factor, 1, share);
    }
}

static void copy_uncompressed(struct ddp_context *d, const struct ddp_bucket *bucket) {
    struct place at = begin_of(d, (size_t)bucket->index);
    size_t listed = 0;
    for (size_t k = 0; k < bucket->num_params; k++) {
        const struct part part = part_of(d, bucket, k, &at);
        if (part.m->shape.rank) continue;
        d->items[listed++] = (struct cairn__item){.n = part.n, .dst = part.sent, .x = part.gradient};
    }
    if (listed) device_of(d)->passes->cast(device_of(d), d->items, listed, CAIRN_F32, bucket->dtype);
}

/* input = gradient / S + error */
static cairn_status add_errors(struct ddp_context *d, const struct ddp_bucket *bucket) {
    struct cairn_device *device = device_of(d);
    struct place at = begin_of(d, (size_t)bucket->index);
    size_t listed = 0;
    cairn_status st = CAIRN_OK;
    for (size_t k = 0; k < bucket->num_params; k++) {
        const struct part part = part_of(d, bucket, k, &at);
        if (!part.m->shape.rank) continue;
        TRY(make_matrix(d, part.index));
        d->items[listed++] =
            (struct cairn__item){.n = part.n, .dst = part.m->input, .x = part.gradient, .y = part.m->error};
    }
    if (listed && feeds_back(d->powersgd)) {
        device->passes->axpby(device, d->items, listed, CAIRN_F32, bucket->dtype, unscaling(d), 1.0f, NULL);
    } else if (listed) {
        device->passes->scale(device, d->items, listed, CAIRN_F32, bucket->dtype, unscaling(d), NULL);
    }
out:
    return st;
}

static void project(struct ddp_context *d, const struct part *part) {
    const struct cairn__powersgd *p = d->powersgd;
    struct cairn_device *device = device_of(d);
    const struct cairn__low_rank *shape = &part->m->shape;
    if (is_warm(p)) {
        cairn__pass_cast(device->passes, device, part->q, CAIRN_F32, part->m->q, CAIRN_F32, q_size(shape));
    } else {
        draw_q(d, part->index, part->q, p->iterations);
    }
    cairn__low_rank_orthonormalize(device, part->q, shape->rank, shape->cols, p->options.orthogonalization_epsilon,
                                   &p->room);
    cairn__low_rank_project(device, shape, part->sent, part->m->input, part->q);
}

static cairn_status begin(void *ctx, const struct ddp_bucket *bucket, cairn_work **work) {
    struct ddp_context *d = ctx;
    const struct cairn__powersgd *p = d->powersgd;
    const struct place from = begin_of(d, (size_t)bucket->index);
    struct place at = from;
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(device_of(d), "with PowerSGD the host waits for a backward's end, so that it "
                                                     "cannot be recorded; run the step without a graph"));
    if (!compresses(p)) return cairn__ddp_reduce(d, bucket, work);
    start(d);
    cairn__ddp_weigh(d, bucket);
    copy_uncompressed(d, bucket);
    TRY(add_errors(d, bucket));
    for (size_t k = 0; k < bucket->num_params; k++) {
        const struct part part = part_of(d, bucket, k, &at);
        if (part.m->shape.rank) project(d, &part);
    }
    TRY(cairn__group_average(d->channel, (float *)p->sent + from.sent, at.sent - from.sent, CAIRN_F32,
                             cairn__ddp_divisor(d), NULL, work));
out:
    return st;
}

/* ---- finish: a bucket is expanded ---- */

static cairn_status make_qs(struct ddp_context *d, const struct ddp_bucket *bucket) {
    const struct cairn__powersgd *p = d->powersgd;
    struct cairn_device *device = device_of(d);
    const int divisor = cairn__ddp_divisor(d);
    const struct place from = begin_of(d, (size_t)bucket->index);
    struct place at = from;
    cairn_work *work = NULL;
    cairn_status st = CAIRN_OK;
    for (size_t k = 0; k < bucket->num_params; k++) {
        const struct part part = part_of(d, bucket, k, &at);
        const struct cairn__low_rank *shape = &part.m->shape;
        if (!shape->rank) continue;
        /* P is an average: torch's epsilon is for the sum. */
        cairn__low_rank_orthonormalize(device, part.sent, shape->rank, shape->rows,
                                       p->options.orthogonalization_epsilon / (divisor ? divisor : 1), &p->room);
        cairn__low_rank_back(device, shape, part.q, part.m->input, part.sent);
    }
    if (at.q == from.q) return CAIRN_OK;
    TRY(cairn__group_average(d->channel, (float *)p->qs + from.q, at.q - from.q, CAIRN_F32, divisor, NULL, &work));
    TRY(cairn__work_finish(&work, NULL));
out:
    return st;
}

/* Sets the gradient to P Q^T, rounded and scaled as it was, and input to the error that remains. */
static void expand(struct ddp_context *d, const struct part *part, cairn_dtype dtype) {
    const struct cairn__powersgd *p = d->powersgd;
    struct cairn_device *device = device_of(d);
    float *const expanded = dtype == CAIRN_F32 ? part->gradient : p->expanded;
    const struct cairn__item scaled = {.n = part->n, .dst = part->gradient, .x = expanded};
    const struct cairn__item left = {.n = part->n, .dst = part->m->input, .x = part->gradient, .y = part->m->input};
    cairn__low_rank_expand(device, &part->m->shape, expanded, part->sent, part->q);
    device->passes->scale(device, &scaled, 1, dtype, CAIRN_F32, d->set->scale ? &d->set->scale->scale : NULL, p->found);
    if (feeds_back(p)) device->passes->axpby(device, &left, 1, CAIRN_F32, dtype, p->minus_factor, 1.0f, NULL);
}

static cairn_status finish(void *ctx, const struct ddp_bucket *bucket) {
    struct ddp_context *d = ctx;
    struct place at = begin_of(d, (size_t)bucket->index);
    size_t listed = 0;
    cairn_status st = CAIRN_OK;
    if (!compresses(d->powersgd)) return CAIRN_OK;
    TRY(make_qs(d, bucket));
    for (size_t k = 0; k < bucket->num_params; k++) {
        const struct part part = part_of(d, bucket, k, &at);
        if (part.m->shape.rank) {
            expand(d, &part, bucket->dtype);
        } else {
            d->items[listed++] = (struct cairn__item){.n = part.n, .dst = part.gradient, .x = part.sent};
        }
    }
    if (listed)
        device_of(d)->passes->scale(device_of(d), d->items, listed, bucket->dtype, CAIRN_F32, NULL, d->powersgd->found);
out:
    return st;
}

/* ---- a backward's end ---- */

static cairn_status look_at(struct ddp_context *d, const uint32_t *flags, size_t n, bool *raised) {
    struct cairn__powersgd *p = d->powersgd;
    cairn_status st = CAIRN_OK;
    while (n > 0) {
        const size_t some = n < p->num_words ? n : p->num_words;
        TRY(cairn__device_download(device_of(d), p->words, flags, some * sizeof(flags[0])));
        for (size_t i = 0; i < some; i++) *raised |= p->words[i] != 0;
        flags += some;
        n -= some;
    }
out:
    return st;
}

static void keep(struct ddp_context *d, size_t b) {
    const struct cairn__powersgd *p = d->powersgd;
    const struct ddp_bucket bucket = cairn__ddp_bucket_view(d, b);
    struct place at = begin_of(d, b);
    for (size_t k = 0; k < bucket.num_params; k++) {
        const struct part part = part_of(d, &bucket, k, &at);
        const struct cairn__low_rank *shape = &part.m->shape;
        if (!shape->rank || !d->slots[d->plan.buckets[b].items[k]].used) continue;
        if (is_warm(p)) cairn__low_rank_keep(device_of(d), part.m->q, part.q, shape->rank, shape->cols, &p->room);
        if (!feeds_back(p)) continue;
        float *const error = part.m->input;
        part.m->input = part.m->error;
        part.m->error = error;
    }
}

static cairn_status settle(struct ddp_context *d) {
    struct cairn__powersgd *p = d->powersgd;
    const struct cairn_param_set *set = d->set;
    bool skipped = !p->began;
    cairn_status st = CAIRN_OK;
    if (p->began) { /* the flags are reduced, so every rank finds the same */
        TRY(look_at(d, p->found, 1, &skipped));
        if (d->num_ignored > 0) TRY(look_at(d, set->flags, 2 * set->flags_count, &skipped));
        if (set->bad_losses) TRY(look_at(d, set->bad_losses, (size_t)set->env->size, &skipped));
    }
    for (size_t b = 0; !skipped && b < d->plan.count; b++) {
        if (!d->sends[b].skipped) keep(d, b);
    }
    p->began = false;
    p->iterations++;
out:
    return st;
}

/* ---- state ---- */

static bool is_listed(const struct cairn__entries *entries, const char *what, const struct cairn__param *param,
                      bool has) {
    return cairn__entries_is_load(entries) ? cairn__entries_has(entries, "powersgd.%s.%s", what, param->name) : has;
}

static cairn_status list_matrix(struct ddp_context *d, struct cairn__entries *entries, enum cairn__entry_owner owner,
                                size_t index) {
    const struct cairn__powersgd *p = d->powersgd;
    const struct cairn__param *param = d->set->params[index];
    struct matrix *m = &p->matrices[index];
    const bool q = is_listed(entries, "q", param, m->q != NULL);
    const bool error = is_listed(entries, "error", param, m->error != NULL);
    cairn_status st = CAIRN_OK;
    if (!m->shape.rank || (!q && !error)) return CAIRN_OK;
    TRY(make_matrix(d, index));
    if (q && is_warm(p))
        TRY(cairn__entries_add_array(entries, owner, CAIRN_F32, 2, (int64_t[]){m->shape.rank, m->shape.cols}, m->q,
                                     "powersgd.q.%s", param->name));
    if (error && feeds_back(p))
        TRY(cairn__entries_add_array(entries, CAIRN__ENTRY_RANK, CAIRN_F32, param->ndim, param->shape, m->error,
                                     "powersgd.error.%s", param->name));
out:
    return st;
}

static cairn_status list(struct ddp_context *d, struct cairn__entries *entries) {
    const bool spans_all = cairn_group_size(d->channel) == d->set->env->size;
    const enum cairn__entry_owner owner = spans_all ? CAIRN__ENTRY_SHARED : CAIRN__ENTRY_RANK;
    cairn_status st = CAIRN_OK;
    if (cairn__entries_is_load(entries) && !cairn__entries_has(entries, "powersgd.iterations")) return CAIRN_OK;
    TRY(cairn__entries_add_i64(entries, owner, d->powersgd->iterations, "powersgd.iterations"));
    for (size_t i = 0; i < d->num_shared; i++) TRY(list_matrix(d, entries, owner, d->shared[i].param->index));
out:
    return st;
}

static cairn_status check(const struct ddp_context *d, const struct cairn__entries *entries) {
    (void)d;
    if (!cairn__entries_find(entries, "powersgd.iterations")) return CAIRN_OK;
    const int64_t iterations = cairn__entries_i64(entries, "powersgd.iterations");
    REQUIRE(iterations >= 0 && iterations < (int64_t)1 << 62, CAIRN_EINVAL, "ddp: powersgd.iterations is %lld",
            (long long)iterations);
    return CAIRN_OK;
}

static void loaded(struct ddp_context *d, const struct cairn__entries *entries) {
    struct cairn__powersgd *p = d->powersgd;
    struct cairn_device *device = device_of(d);
    const bool found = cairn__entries_find(entries, "powersgd.iterations") != NULL;
    p->iterations = found ? cairn__entries_i64(entries, "powersgd.iterations") : 0;
    /* A matrix that the state does not have starts afresh. */
    for (size_t i = 0; i < d->num_shared; i++) {
        const struct cairn__param *param = d->shared[i].param;
        const struct matrix *m = &p->matrices[param->index];
        char name[512];
        snprintf(name, sizeof(name), "powersgd.q.%s", param->name);
        if (m->q && !cairn__entries_find(entries, name)) draw_q(d, param->index, m->q, 0);
        snprintf(name, sizeof(name), "powersgd.error.%s", param->name);
        if (m->error && !cairn__entries_find(entries, name))
            device->passes->fill(device, CAIRN_F32, m->error, param->n, 0.0f);
    }
}

/* ---- made and ended ---- */

static void end(struct ddp_context *d) {
    struct cairn__powersgd *p = d->powersgd;
    struct cairn_device *device = device_of(d);
    if (!p) return;
    (void)cairn_group_free(d->channel, &p->sent); /* a dead group frees it when it is destroyed */
    (void)cairn_group_free(d->channel, &p->qs);
    for (size_t i = 0; p->matrices && i < d->set->count; i++) {
        cairn__device_free(device, p->matrices[i].q);
        cairn__device_free(device, p->matrices[i].error);
        cairn__device_free(device, p->matrices[i].input);
    }
    cairn__device_free(device, p->room.column);
    cairn__device_free(device, p->room.dots);
    cairn__device_free(device, p->room.norms);
    cairn__device_free(device, p->expanded);
    cairn__device_free(device, p->minus_factor);
    cairn__device_free(device, p->found);
    cairn__free(p->words);
    cairn__free(p->matrices);
    cairn__free(p);
    d->powersgd = NULL;
}

struct sizes {
    size_t sent, qs, column, dots, expanded;
};

static size_t most(size_t a, size_t b) {
    return a > b ? a : b;
}

static struct sizes find_shapes(struct ddp_context *d) {
    struct cairn__powersgd *p = d->powersgd;
    struct sizes sizes = {1, 1, 1, 1, 1};
    for (size_t i = 0; i < d->num_shared; i++) {
        const struct cairn__param *param = d->shared[i].param;
        struct cairn__low_rank *shape = &p->matrices[param->index].shape;
        *shape = shape_of(param, &p->options);
        sizes.sent += shape->rank ? p_size(shape) : param->n;
        sizes.qs += q_size(shape);
        if (!shape->rank) continue;
        sizes.column = most(sizes.column, (size_t)(shape->rows > shape->cols ? shape->rows : shape->cols));
        sizes.dots = most(sizes.dots, (size_t)shape->rank);
        sizes.expanded = most(sizes.expanded, param->n);
    }
    return sizes;
}

static bool has_halves(const struct ddp_context *d) {
    for (size_t i = 0; i < d->num_shared && !d->options.wire; i++) {
        const struct cairn__param *param = d->shared[i].param;
        if (cairn__is_half(param->dtype) || param->value_type) return true;
    }
    return cairn__is_half(d->options.wire);
}

static cairn_status make(struct ddp_context *d, const struct ddp_powersgd_options *options, struct sizes *sizes) {
    struct ddp_powersgd_options o;
    struct cairn__powersgd *p = NULL;
    struct cairn_device *device = device_of(d);
    cairn_status st = CAIRN_OK;
    TRY(cairn__ddp_may_hook(CALL, d));
    REQUIRE(device->math, CAIRN_ENOTSUP, CALL ": the device %s has no products of matrices; train on the CPU",
            device->ops->name);
    TRY(read_options(options, &o));
    TRY(cairn__calloc(1, sizeof(*p), (void **)&p));
    d->powersgd = p;
    p->options = o;
    TRY(cairn__calloc(d->set->count, sizeof(struct matrix), (void **)&p->matrices));
    *sizes = find_shapes(d);
    TRY(make_floats(d, sizes->column, &p->room.column));
    TRY(make_floats(d, sizes->dots, &p->room.dots));
    TRY(cairn__device_alloc(device, CAIRN__HOLDS_STATE, 2 * sizeof(double), (void **)&p->room.norms));
    if (has_halves(d)) TRY(make_floats(d, sizes->expanded, &p->expanded));
    TRY(make_floats(d, 1, &p->minus_factor));
    TRY(cairn__device_alloc(device, CAIRN__HOLDS_STATE, sizeof(uint32_t), (void **)&p->found));
    p->num_words = 1024;
    TRY(cairn__calloc(p->num_words, sizeof(p->words[0]), (void **)&p->words));
    for (size_t s = 0; s < d->num_slots; s++) TRY(make_matrix(d, d->slots[s].param->index));
out:
    return st;
}

static const struct cairn__own_hook own_hook = {
    .settle = settle, .list = list, .check = check, .loaded = loaded, .end = end};

cairn_status ddp_powersgd_register(ddp_context *ddp, const struct ddp_powersgd_options *options) {
    struct sizes sizes = {0, 0, 0, 0, 0};
    cairn_status st = CAIRN_OK;
    REQUIRE(ddp, CAIRN_EINVAL, CALL ": ddp is NULL");
    struct cairn__powersgd *const before = ddp->powersgd;
    const struct ddp_comm_hook hook = {.struct_size = sizeof(hook),
                                       .name = "powersgd",
                                       .ctx = ddp,
                                       .begin = begin,
                                       .finish = finish,
                                       .whole_parameters = CAIRN_ON};
    st = make(ddp, options, &sizes);
    TRY(cairn__group_agree_on_status(ddp->channel, CALL, st));
    TRY(cairn__ddp_agree_on_hook(ddp, &hook));
    TRY(agree_on_options(ddp, &ddp->powersgd->options));
    TRY(agree_on_kernels(ddp));
    TRY(cairn_group_alloc(ddp->channel, sizes.sent * sizeof(float), &ddp->powersgd->sent));
    TRY(cairn_group_alloc(ddp->channel, sizes.qs * sizeof(float), &ddp->powersgd->qs));
    TRY(cairn__ddp_use_hook(ddp, &hook));
    ddp->has_hook = true;
    ddp->own_hook = &own_hook;
    return CAIRN_OK;
out:
    if (!before) end(ddp);
    return st;
}
