/* Maps, element by element, and sums of them. */
#include "device/cuda/maps.h"

#include <string.h>

#include "device/cuda/math_table.h"

static struct cairn__map_job job_of(enum cairn__map_fn f, const struct cairn__view *dst,
                                    const struct cairn__view *shape, const struct cairn__view *x,
                                    const double *numbers) {
    struct cairn__map_job job = {.dst = dst->data, .dst_type = dst->dtype};
    const struct cairn__view *views[CAIRN__AXES_OPERANDS] = {shape};
    for (int k = 0; k < cairn__map_inputs(f); k++) {
        views[k + 1] = &x[k];
        job.x[k] = x[k].data;
        job.x_type[k] = x[k].dtype;
    }
    cairn__axes_of(views, 1 + cairn__map_inputs(f), &job.axes);
    if (numbers) memcpy(job.numbers, numbers, sizeof(job.numbers));
    return job;
}

static bool is_wide(const struct cairn__map_job *job, int inputs) {
    bool wide = cairn__needs_f64(job->dst_type);
    for (int k = 0; k < inputs; k++) wide |= cairn__needs_f64(job->x_type[k]);
    return wide;
}

/* ---- packs ---- */

/* Whether an operand's packs of V elements are whole: see launch_map_packs. */
static bool has_packs(const struct cairn__axes *axes, int operand, const void *data, int64_t pack, size_t width) {
    const int last = axes->ndim - 1;
    if ((size_t)data % ((size_t)pack * width) != 0) return false;
    if (axes->ndim == 0) return true;
    if (axes->stride[operand][last] != 1 && (operand == 0 || axes->stride[operand][last] != 0)) return false;
    for (int d = 0; d < last; d++) {
        if (axes->stride[operand][last] == 1 && axes->stride[operand][d] % pack != 0) return false;
    }
    return true;
}

/* An input that is one element along the last axis needs no alignment. */
static bool operands_have_packs(const struct cairn__map_job *job, int inputs, int64_t pack, size_t width) {
    const struct cairn__axes *axes = &job->axes;
    if (axes->ndim > 1 && axes->size[axes->ndim - 1] % pack != 0) return false;
    if (!has_packs(axes, 0, job->dst, pack, width)) return false;
    for (int k = 0; k < inputs; k++) {
        const bool repeats = axes->ndim == 0 || axes->stride[k + 1][axes->ndim - 1] == 0;
        if (!repeats && !has_packs(axes, k + 1, job->x[k], pack, width)) return false;
    }
    return true;
}

static bool can_pack(const struct cairn__map_job *job, int inputs) {
    const cairn_dtype t = job->dst_type;
    if (t != CAIRN_F32 && t != CAIRN_F16 && t != CAIRN_BF16) return false;
    for (int k = 0; k < inputs; k++) {
        if (job->x_type[k] != t) return false;
    }
    return operands_have_packs(job, inputs, cairn__map_pack(t), cairn_dtype_nbytes(t));
}

/* ---- copies of bits ---- */

/* Sorts axes by insertion, stably, the result's widest strides outermost, so that it is written in the order of its
 * memory. */
static void sort_axes(struct cairn__axes *axes) {
    for (int i = 1; i < axes->ndim; i++) {
        for (int d = i; d > 0 && axes->stride[0][d - 1] < axes->stride[0][d]; d--) {
            const int64_t size = axes->size[d], to = axes->stride[0][d], from = axes->stride[1][d];
            axes->size[d] = axes->size[d - 1], axes->size[d - 1] = size;
            axes->stride[0][d] = axes->stride[0][d - 1], axes->stride[0][d - 1] = to;
            axes->stride[1][d] = axes->stride[1][d - 1], axes->stride[1][d - 1] = from;
        }
    }
}

/* If the result is contiguous along the last axis and the source along another, moves that axis to the last place but
 * one, and returns true. */
static bool is_transposed(struct cairn__axes *axes) {
    const int last = axes->ndim - 1;
    if (last < 1 || axes->stride[0][last] != 1 || axes->stride[1][last] <= 1) return false;
    for (int d = last - 1; d >= 0; d--) {
        if (axes->stride[1][d] != 1) continue;
        const int64_t size = axes->size[d], to = axes->stride[0][d], from = axes->stride[1][d];
        for (int k = d; k < last - 1; k++) {
            axes->size[k] = axes->size[k + 1];
            axes->stride[0][k] = axes->stride[0][k + 1], axes->stride[1][k] = axes->stride[1][k + 1];
        }
        axes->size[last - 1] = size, axes->stride[0][last - 1] = to, axes->stride[1][last - 1] = from;
        return true;
    }
    return false;
}

static int launch_copy(struct cairn__cuda *c, struct cairn__map_job *job) {
    const size_t width = cairn_dtype_nbytes(job->dst_type);
    sort_axes(&job->axes);
    if (operands_have_packs(job, 1, CAIRN__MAP_PACK_NBYTES / (int64_t)width, width))
        return cairn__launch_copy_packs(c->stream, job, width);
    if (is_transposed(&job->axes)) return cairn__launch_copy_transposed(c->stream, job, width);
    return cairn__launch_copy_any(c->stream, job, width);
}

/* ---- the passes ---- */

void cairn__cuda_map(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                     const struct cairn__view *x, const double *numbers) {
    struct cairn__map_job job = job_of(f, dst, dst, x, numbers);
    struct cairn__cuda *c = cairn__cuda_enter(d);
    int error = 0;
    if (job.axes.n == 0) return;
    if (f == CAIRN__MAP_COPY && dst->dtype == x->dtype) {
        error = launch_copy(c, &job);
    } else if (cairn__map_has_packs(f) && can_pack(&job, cairn__map_inputs(f))) {
        error = cairn__launch_map_packs(c->stream, f, job.dst_type, &job);
    } else {
        error = cairn__launch_map_any(c->stream, f, is_wide(&job, cairn__map_inputs(f)), &job);
    }
    cairn__cuda_queued(d, "map", error);
}

void cairn__cuda_map_sum(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                         const struct cairn__view *x, const double *numbers, double divisor) {
    const struct cairn__map_job job = job_of(f, dst, x, x, numbers);
    struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn__cuda_queued(d, "map_sum",
                       cairn__launch_map_sum(c->stream, c->partials, f, is_wide(&job, cairn__map_inputs(f)), &job,
                                             divisor));
}
