/* Normalisation: divides the work among blocks and queues the kernels.
 *
 * Rows take one kernel in forward; backward takes another one for weights. Channels and groups take three or four: sums
 * over parts, the statistics and factors computed from them, and the pass over all elements. */
#include "device/cuda/norms.h"

#include "device/cuda/math_table.h"

static cairn_dtype r_of(cairn_dtype t) {
    return t == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
}

static size_t quotient_up(size_t a, size_t b) {
    return a / b + (a % b != 0);
}

static size_t within(size_t x, size_t least, size_t most) {
    return x < least ? least : x > most ? most : x;
}

static bool is_empty(const struct cairn__norm *norm) {
    return norm->outer == 0 || norm->channels == 0 || norm->inner == 0;
}

static bool is_rows(const struct cairn__norm *norm) {
    return norm->kind == CAIRN__NORM_ROWS || norm->kind == CAIRN__NORM_RMS;
}

static const char *complaint_about(const struct cairn__norm *norm) {
    const cairn_dtype t = norm->dtype, affine = norm->affine_dtype;
    if (t != CAIRN_F32 && t != CAIRN_F16 && t != CAIRN_BF16 && t != CAIRN_F64) return "the type is not a float";
    if (affine != t && (affine != CAIRN_F32 || t == CAIRN_F64)) return "weights are neither of x's type nor f32";
    if (is_rows(norm) && norm->share != CAIRN__NORM_ALONE) return "rows are not shared";
    return NULL;
}

/* ---- how sums are divided, by sizes alone ---- */

enum {
    COLUMN_BLOCKS = 1024,
    LEAST_ROWS = 32, /* of a part of columns */
    STRIP = 256,     /* columns that a block has, at most */
    RUN_BLOCKS = 2048,
    LEAST_CHUNK = 4096, /* elements of a part */
    MAX_PARTS = 512,
    WARP_RUN = 512,       /* elements of a group that a warp adds up */
    LONG_WARP_RUN = 2048, /* the same, with MANY_GROUPS groups or more */
    MANY_GROUPS = 1024,
    PACK = 8, /* of the smallest elements */
};

static struct cairn__norm_parts columns_of(size_t rows, size_t columns) {
    struct cairn__norm_parts p = {.groups = columns, .count = rows, .n = 1, .stride = columns, .columns = true};
    const size_t parts = within(COLUMN_BLOCKS / quotient_up(columns, STRIP), 1, MAX_PARTS);
    p.chunk = quotient_up(rows, within(quotient_up(rows, LEAST_ROWS), 1, parts));
    p.parts = quotient_up(rows, p.chunk);
    return p;
}

static struct cairn__norm_parts runs_of(size_t groups, size_t count, size_t n, size_t stride) {
    struct cairn__norm_parts p = {.groups = groups, .count = count, .n = n, .stride = stride};
    const size_t length = count * n, chunk = within(quotient_up(groups * length, RUN_BLOCKS), LEAST_CHUNK, SIZE_MAX);
    p.by_warp = length <= WARP_RUN || (length <= LONG_WARP_RUN && groups >= MANY_GROUPS);
    const size_t parts = p.by_warp ? 1 : within(quotient_up(length, chunk), 1, MAX_PARTS);
    p.chunk = quotient_up(quotient_up(length, parts), PACK) * PACK;
    p.parts = quotient_up(length, p.chunk);
    return p;
}

static struct cairn__norm_parts channels_of(const struct cairn__norm *norm) {
    const size_t outer = (size_t)norm->outer, channels = (size_t)norm->channels, inner = (size_t)norm->inner;
    return inner == 1 ? columns_of(outer, channels) : runs_of(channels, outer, inner, channels * inner);
}

/* Each group is one run of adjacent elements. */
static struct cairn__norm_parts groups_of(const struct cairn__norm *norm) {
    const size_t n = (size_t)(norm->channels / norm->per * norm->inner);
    return runs_of((size_t)(norm->outer * norm->per), 1, n, n);
}

/* As many teams as a large GPU has at once, but no more than 16 rows for each: these are added in f32. */
static struct cairn__norm_teams teams_of(const struct cairn__norm *norm) {
    enum { WARPS = CAIRN__CUDA_THREADS / 32, BLOCKS_OF_WARPS = 256, BLOCKS = 512, MAX_ROWS = 16 };
    const size_t rows = (size_t)norm->outer;
    const bool by_warp = norm->channels <= CAIRN__NORM_WARP_ROW;
    struct cairn__norm_teams t = {.teams_a_block = by_warp ? WARPS : 1};
    t.rows = within(quotient_up(rows, t.teams_a_block * (by_warp ? BLOCKS_OF_WARPS : BLOCKS)), 1, MAX_ROWS);
    t.blocks = quotient_up(rows, t.teams_a_block * t.rows);
    return t;
}

/* ---- what passes have in common ---- */

/* The stream and arguments of a pass. `ok` becomes false when something could not be queued; then nothing more is
 * queued. */
struct work {
    struct cairn_device *d;
    struct CUstream_st *stream;
    const char *pass;
    const struct cairn__norm *norm;
    bool ok;
};

static struct work begin(struct cairn_device *d, const char *pass, const struct cairn__norm *norm) {
    return (struct work){d, cairn__cuda_enter(d)->stream, pass, norm, true};
}

static void queued(struct work *w, int error) {
    cairn__cuda_queued(w->d, w->pass, error);
    if (error) w->ok = false;
}

static void *room(struct work *w, enum cairn__room slot, size_t count, cairn_dtype t) {
    void *p = w->ok ? cairn__cuda_room(w->d, slot, count * cairn_dtype_nbytes(t)) : NULL;
    if (!p) w->ok = false;
    return p;
}

static void zero(struct work *w, cairn_dtype t, void *p, size_t n) {
    if (!p || n == 0 || !w->ok) return;
    const bool wide = t == CAIRN_F64; /* all of its bits are zero, as those of two f32 */
    queued(w, cairn__launch_fill(w->stream, wide ? CAIRN_F32 : t, p, wide ? 2 * n : n, 0));
}

/* Sums of the parts, f64 [2, parts, groups]. */
static double *add_up(struct work *w, enum cairn__norm_sums which, const struct cairn__norm_parts *parts,
                      size_t per_mean) {
    double *sums = room(w, CAIRN__ROOM_A, 2 * parts->parts * parts->groups, CAIRN_F64);
    if (w->ok) queued(w, cairn__launch_norm_sums(w->stream, w->norm, which, parts, per_mean, sums));
    return sums;
}

/* Reports the sums of a share of the batch that has no values. */
static void tell_nothing(struct work *w) {
    const double count = (double)w->norm->outer * (double)w->norm->inner; /* there may be no channels */
    zero(w, CAIRN_F64, w->norm->shared, 1 + 2 * (size_t)w->norm->channels);
    if (w->ok && count > 0) queued(w, cairn__launch_store(w->stream, w->norm->shared, &count, sizeof(count)));
}

/* ---- forward ---- */

static void planes_forward(struct work *w) {
    const struct cairn__norm *norm = w->norm;
    const bool by_channel = norm->kind == CAIRN__NORM_CHANNELS, tells = norm->share == CAIRN__NORM_TELLS;
    const struct cairn__norm_parts parts = by_channel ? channels_of(norm) : groups_of(norm);
    const size_t period = (size_t)(by_channel ? norm->channels : norm->outer * norm->channels);
    const double *sums = NULL;
    void *factors = NULL;
    if (!norm->given_stats && norm->share != CAIRN__NORM_TAKES) sums = add_up(w, CAIRN__NORM_MOMENTS, &parts, 1);
    if (!tells) factors = room(w, CAIRN__ROOM_B, CAIRN__NORM_FACTORS * period, r_of(norm->dtype));
    if (w->ok) queued(w, cairn__launch_norm_stats(w->stream, norm, parts.groups, parts.parts, sums, factors));
    if (w->ok && !tells) queued(w, cairn__launch_norm_apply(w->stream, norm, factors, period));
}

static void empty_forward(struct work *w) {
    const size_t channels = (size_t)w->norm->channels;
    if (w->norm->share == CAIRN__NORM_TELLS) tell_nothing(w);
    if (w->norm->share == CAIRN__NORM_TAKES && channels > 0)
        queued(w, cairn__launch_norm_stats(w->stream, w->norm, channels, 0, NULL, NULL));
}

void cairn__cuda_norm(struct cairn_device *d, const struct cairn__norm *norm) {
    if (cairn__cuda_refused(d, "norm", complaint_about(norm))) return;
    struct work w = begin(d, "norm", norm);
    if (is_empty(norm)) {
        empty_forward(&w);
    } else if (is_rows(norm)) {
        queued(&w, cairn__launch_norm_rows(w.stream, norm));
    } else {
        planes_forward(&w);
    }
}

/* ---- backward ---- */

static void wide_rows_backward(struct work *w, bool has_affine) {
    const struct cairn__norm *norm = w->norm;
    if (norm->dx) queued(w, cairn__launch_norm_wide_rows_backward(w->stream, norm));
    if (!has_affine) return;
    const struct cairn__norm_parts parts = columns_of((size_t)norm->outer, (size_t)norm->channels);
    const double *sums = add_up(w, CAIRN__NORM_ROW_SLOPES, &parts, 1);
    if (w->ok) queued(w, cairn__launch_norm_affine(w->stream, norm, sums, CAIRN_F64, parts.parts));
}

static void rows_backward(struct work *w) {
    const struct cairn__norm *norm = w->norm;
    const bool has_affine = norm->dweight || norm->dbias;
    if (norm->dtype == CAIRN_F64 || norm->channels > CAIRN__NORM_BLOCK_ROW) {
        wide_rows_backward(w, has_affine);
        return;
    }
    const struct cairn__norm_teams teams = teams_of(norm);
    void *sums = has_affine ? room(w, CAIRN__ROOM_A, 2 * teams.blocks * (size_t)norm->channels, CAIRN_F32) : NULL;
    if (w->ok) queued(w, cairn__launch_norm_rows_backward(w->stream, norm, &teams, sums));
    if (w->ok && has_affine) queued(w, cairn__launch_norm_affine(w->stream, norm, sums, CAIRN_F32, teams.blocks));
}

static void channels_backward(struct work *w) {
    const struct cairn__norm *norm = w->norm;
    const struct cairn__norm_parts parts = channels_of(norm);
    const size_t channels = (size_t)norm->channels;
    const double *sums = NULL;
    void *factors = NULL;
    if (norm->share != CAIRN__NORM_TAKES) sums = add_up(w, CAIRN__NORM_SLOPES, &parts, 1);
    if (norm->dx) factors = room(w, CAIRN__ROOM_B, CAIRN__NORM_SLOPE_FACTORS * channels, r_of(norm->dtype));
    if (w->ok) queued(w, cairn__launch_norm_channel_slopes(w->stream, norm, parts.parts, sums, factors));
    if (w->ok && norm->dx) queued(w, cairn__launch_norm_apply_slopes(w->stream, norm, factors, channels));
}

static void groups_backward(struct work *w) {
    const struct cairn__norm *norm = w->norm;
    const size_t planes = (size_t)(norm->outer * norm->channels), inner = (size_t)norm->inner;
    const struct cairn__norm_parts parts = runs_of(planes, 1, inner, inner);
    const size_t per_mean = (size_t)(norm->channels / norm->per);
    const double *sums = add_up(w, CAIRN__NORM_SLOPES, &parts, per_mean);
    double *whole = room(w, CAIRN__ROOM_C, 2 * planes, CAIRN_F64);
    void *factors = NULL;
    if (norm->dx) factors = room(w, CAIRN__ROOM_B, CAIRN__NORM_SLOPE_FACTORS * planes, r_of(norm->dtype));
    if (w->ok) queued(w, cairn__launch_norm_group_slopes(w->stream, norm, parts.parts, sums, whole, factors));
    if (w->ok && norm->dx) queued(w, cairn__launch_norm_apply_slopes(w->stream, norm, factors, planes));
    if (w->ok && (norm->dweight || norm->dbias))
        queued(w, cairn__launch_norm_affine(w->stream, norm, whole, CAIRN_F64, (size_t)norm->outer));
}

static void empty_backward(struct work *w) {
    const struct cairn__norm *norm = w->norm;
    if (norm->share == CAIRN__NORM_TELLS) tell_nothing(w);
    zero(w, norm->affine_dtype, norm->dweight, (size_t)norm->channels);
    zero(w, norm->affine_dtype, norm->dbias, (size_t)norm->channels);
}

void cairn__cuda_norm_backward(struct cairn_device *d, const struct cairn__norm *norm) {
    if (cairn__cuda_refused(d, "norm_backward", complaint_about(norm))) return;
    struct work w = begin(d, "norm_backward", norm);
    if (is_empty(norm)) {
        empty_backward(&w);
    } else if (is_rows(norm)) {
        rows_backward(&w);
    } else if (norm->kind == CAIRN__NORM_CHANNELS) {
        channels_backward(&w);
    } else {
        groups_backward(&w);
    }
}

/* ---- running statistics ---- */

void cairn__cuda_batch_stats(struct cairn_device *d, cairn_dtype running_dtype, void *running_mean, void *running_var,
                             const struct cairn__norm *norm, double momentum) {
    const bool is_float = running_dtype == CAIRN_F32 || running_dtype == CAIRN_F64;
    if (cairn__cuda_refused(d, "batch_stats", is_float ? NULL : "running statistics are f32 or f64")) return;
    if (norm->channels == 0) return;
    struct work w = begin(d, "batch_stats", norm);
    queued(&w, cairn__launch_batch_stats(w.stream, running_dtype, running_mean, running_var, norm, momentum));
}

/* ---- shares of a batch ---- */

void cairn__cuda_merge_moments(struct cairn_device *d, double *shared, const double *all, size_t shares,
                               size_t channels) {
    cairn__cuda_queued(d, "merge_moments",
                       cairn__launch_merge_moments(cairn__cuda_enter(d)->stream, shared, all, shares, channels));
}
