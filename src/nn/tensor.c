/* Leaf tensors, handles of parameters, and the queries that programs make of any tensor. */
#include "nn/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "core/log.h"
#include "core/philox.h"
#include "core/status.h"

static size_t nbytes_of(const cairn_tensor *t) {
    return t->n * cairn_dtype_nbytes(cairn__tensor_dtype(t));
}

/* ---- leaves ---- */

cairn_status cairn__check_shape(const char *what, int ndim, const int64_t *shape) {
    char text[CAIRN__SHAPE_TEXT];
    REQUIRE(ndim >= 0 && ndim <= CAIRN_MAX_DIMS, CAIRN_EINVAL, "%s: %d dimensions; 0 to %d are allowed", what, ndim,
            CAIRN_MAX_DIMS);
    REQUIRE(shape || ndim == 0, CAIRN_EINVAL, "%s: shape is NULL", what);
    size_t n = 1; /* product of the sizes but 0, which bounds the strides too */
    for (int d = 0; d < ndim; d++) {
        REQUIRE(shape[d] >= 0, CAIRN_EINVAL, "%s: size %lld in dimension %d", what, (long long)shape[d], d);
        REQUIRE(shape[d] == 0 || n <= (size_t)INT64_MAX / 16 / (size_t)shape[d], CAIRN_EINVAL,
                "%s: %s has more elements than memory can hold: at most 2^59", what,
                cairn__sizes_text(ndim, shape, text));
        if (shape[d] > 0) n *= (size_t)shape[d];
    }
    return CAIRN_OK;
}

cairn_status cairn__check_dtype(const char *what, cairn_dtype dtype) {
    REQUIRE(cairn__dtype(dtype), CAIRN_EINVAL, "%s: dtype is %d; it must be an element type", what, (int)dtype);
    REQUIRE(cairn__is_tensor_dtype(dtype), CAIRN_EINVAL,
            "%s: dtype is %s, which is for process groups only; use i32 for small integers, bool for flags", what,
            cairn_dtype_name(dtype));
    return CAIRN_OK;
}

/* A leaf without memory, dense, not yet in the list. */
static cairn_status new_header(const char *what, cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                               cairn_tensor **out) {
    REQUIRE(env, CAIRN_EINVAL, "%s: env is NULL", what);
    cairn_status st = CAIRN_OK;
    cairn_tensor *t = NULL;
    TRY(cairn__check_dtype(what, dtype));
    TRY(cairn__check_shape(what, ndim, shape));
    TRY(cairn__calloc(1, sizeof(*t), (void **)&t));
    t->env = env;
    t->kind = CAIRN__LEAF;
    t->dtype = dtype;
    t->ndim = ndim;
    if (ndim > 0) memcpy(t->shape, shape, (size_t)ndim * sizeof(shape[0]));
    cairn__tensor_lay_out(t);
    *out = t;
out:
    return st;
}

static cairn_status new_leaf(const char *what, cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                             cairn_tensor **out) {
    cairn_status st = CAIRN_OK;
    cairn_tensor *t = NULL;
    TRY(new_header(what, env, dtype, ndim, shape, &t));
    TRY(cairn__device_alloc(env->device, CAIRN__HOLDS_TENSORS, nbytes_of(t), &t->data));
    cairn__leaf_link(&cairn__tape_of(env)->main->leaves, t);
    *out = t;
    return CAIRN_OK;
out:
    cairn__free(t);
    return st;
}

cairn_status cairn__tensor_empty(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                                 cairn_tensor **out) {
    return new_leaf("tensor_empty", env, dtype, ndim, shape, out);
}

/* Returns t; if filling it failed with st, destroys t and returns NULL. */
static cairn_tensor *finished(cairn_tensor *t, cairn_status st) {
    if (st != CAIRN_OK) cairn_tensor_destroy(&t);
    return t;
}

/* Computes n values on the host, from element `first` on, as doubles. */
typedef void (*values_fn)(const void *ctx, size_t first, double *values, size_t n);

static cairn_status upload_values(cairn_tensor *t, values_fn f, const void *ctx) {
    cairn_status st = CAIRN_OK;
    enum { AT_ONCE = 512 };
    double values[AT_ONCE];
    uint64_t converted[AT_ONCE];
    const size_t nbytes = cairn_dtype_nbytes(t->dtype);
    for (size_t i = 0; i < t->n; i += AT_ONCE) {
        const size_t n = t->n - i < AT_ONCE ? t->n - i : AT_ONCE;
        f(ctx, i, values, n);
        cairn__convert(converted, t->dtype, values, CAIRN_F64, n);
        TRY(cairn__device_upload(t->env->device, (char *)t->data + i * nbytes, converted, n * nbytes));
    }
out:
    return st;
}

struct random_stream {
    uint64_t seed, stream;
};

/* The normals of passes->normal; `first` is a multiple of 4. */
static void normals(const void *ctx, size_t first, double *values, size_t n) {
    const struct random_stream *r = ctx;
    for (size_t i = 0; i < n; i += 4) {
        float four[4];
        cairn__normal4(cairn__philox(r->seed, (first + i) / 4, r->stream), four);
        for (size_t j = 0; j < 4 && i + j < n; j++) values[i + j] = (double)four[j];
    }
}

cairn_tensor *cairn_randn(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape) {
    cairn_tensor *t = NULL;
    if (cairn__dtype(dtype) && !cairn__dtype(dtype)->is_float) {
        cairn__fail(CAIRN_EINVAL, "randn: dtype is %s; it must be a float type", cairn_dtype_name(dtype));
        return NULL;
    }
    if (new_leaf("randn", env, dtype, ndim, shape, &t) != CAIRN_OK) return NULL;
    const struct random_stream r = {env->seed, cairn__env_next_stream(env)};
    if (dtype == CAIRN_F64) return finished(t, upload_values(t, normals, &r));
    env->device->passes->normal(env->device, dtype, t->data, t->n, r.seed, r.stream);
    return t;
}

static void one_value(const void *ctx, size_t first, double *values, size_t n) {
    (void)first;
    for (size_t i = 0; i < n; i++) values[i] = *(const double *)ctx;
}

static cairn_tensor *full(const char *what, cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                          double value) {
    cairn_tensor *t = NULL;
    if (new_leaf(what, env, dtype, ndim, shape, &t) != CAIRN_OK) return NULL;
    if (dtype != CAIRN_F32 && !cairn__is_half(dtype)) return finished(t, upload_values(t, one_value, &value));
    env->device->passes->fill(env->device, dtype, t->data, t->n, (float)value);
    return t;
}

cairn_tensor *cairn_full(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape, double value) {
    return full("full", env, dtype, ndim, shape, value);
}

cairn_tensor *cairn_zeros(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape) {
    return full("zeros", env, dtype, ndim, shape, 0);
}

struct ramp {
    double start, step;
};

static void ramp_values(const void *ctx, size_t first, double *values, size_t n) {
    const struct ramp *r = ctx;
    for (size_t i = 0; i < n; i++) values[i] = r->start + (double)(first + i) * r->step;
}

static cairn_status ramp_length(double start, double end, double step, int64_t *n) {
    const double steps = ceil((end - start) / step);
    REQUIRE(isfinite(start) && isfinite(end) && isfinite(step) && step != 0, CAIRN_EINVAL,
            "arange: from %g to %g by %g; all must be finite, and the step must not be 0", start, end, step);
    REQUIRE(steps >= 0, CAIRN_EINVAL, "arange: from %g to %g by %g: the step has the wrong sign", start, end, step);
    REQUIRE(steps < 0x1p53, CAIRN_EINVAL, "arange: from %g to %g by %g: too many elements", start, end, step);
    *n = (int64_t)steps;
    return CAIRN_OK;
}

cairn_tensor *cairn_arange(cairn_env *env, cairn_dtype dtype, double start, double end, double step) {
    cairn_tensor *t = NULL;
    int64_t n = 0;
    if (ramp_length(start, end, step, &n) != CAIRN_OK) return NULL;
    if (new_leaf("arange", env, dtype, 1, &n, &t) != CAIRN_OK) return NULL;
    const struct ramp ramp = {start, step};
    return finished(t, upload_values(t, ramp_values, &ramp));
}

cairn_tensor *cairn_tensor_from(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape, const void *data) {
    cairn_tensor *t = NULL;
    char text[CAIRN__SHAPE_TEXT];
    if (new_leaf("tensor_from", env, dtype, ndim, shape, &t) != CAIRN_OK) return NULL;
    if (!data && t->n > 0) {
        return finished(t, cairn__fail(CAIRN_EINVAL, "tensor_from: data is NULL, but %s has %zu elements",
                                       cairn__shape_text(t, text), t->n));
    }
    return finished(t, cairn__device_upload(env->device, t->data, data, nbytes_of(t)));
}

/* Checks that the last element's offset is representable, and sets the strides. */
static cairn_status set_strides(cairn_tensor *t, const int64_t *stride) {
    const int64_t most = INT64_MAX / 16;
    int64_t last = 0;
    for (int d = 0; d < t->ndim; d++) {
        const int64_t steps = t->shape[d] > 0 ? t->shape[d] - 1 : 0;
        REQUIRE(stride[d] >= 0 && stride[d] <= (most - last) / (steps > 0 ? steps : 1), CAIRN_EINVAL,
                "tensor_over: stride %lld in dimension %d of size %lld", (long long)stride[d], d,
                (long long)t->shape[d]);
        last += steps * stride[d];
        t->stride[d] = stride[d];
    }
    cairn__tensor_take_strides(t);
    return CAIRN_OK;
}

static cairn_status check_memory(const cairn_env *env, cairn_dtype dtype, const void *data, size_t n) {
    REQUIRE(data || n == 0, CAIRN_EINVAL, "tensor_over: data is NULL");
    REQUIRE((uintptr_t)data % cairn_dtype_nbytes(dtype) == 0, CAIRN_EINVAL,
            "tensor_over: data at %p is not aligned for %s", data, cairn_dtype_name(dtype));
    REQUIRE(n == 0 || cairn__device_reaches(env->device, data), CAIRN_EINVAL,
            "tensor_over: data is host memory, but the environment computes on %s; pass memory of that device",
            cairn_device_name(env->device));
    return CAIRN_OK;
}

static cairn_status over(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                         void *data, cairn_tensor **out) {
    cairn_status st = CAIRN_OK;
    cairn_tensor *t = NULL;
    TRY(new_header("tensor_over", env, dtype, ndim, shape, &t));
    if (stride) TRY(set_strides(t, stride));
    TRY(check_memory(env, dtype, data, t->n));
    t->data = data;
    t->is_over = true;
    cairn__leaf_link(&cairn__tape_of(env)->main->leaves, t);
    *out = t;
    return CAIRN_OK;
out:
    cairn__free(t);
    return st;
}

cairn_tensor *cairn_tensor_over(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                                const int64_t *stride, void *data) {
    cairn_tensor *t = NULL;
    return over(env, dtype, ndim, shape, stride, data, &t) == CAIRN_OK ? t : NULL;
}

/* For a NULL tensor, keeps the error that made it NULL. */
static cairn_status check_set(const cairn_tensor *t, const char *what) {
    const cairn_status earlier = cairn__last_status();
    if (!t && earlier != CAIRN_OK) return earlier;
    REQUIRE(t, CAIRN_EINVAL, "%s: the tensor is NULL", what);
    return CAIRN_OK;
}

cairn_tensor *cairn_tensor_keep(const cairn_tensor *t) {
    cairn_tensor *kept = NULL;
    if (check_set(t, "keep") != CAIRN_OK || cairn__tensor_check(t, "keep") != CAIRN_OK) return NULL;
    if (new_leaf("keep", t->env, cairn__tensor_dtype(t), t->ndim, t->shape, &kept) != CAIRN_OK) return NULL;
    struct cairn__arena *scratch = &cairn__tape_of(t->env)->scratch;
    const struct cairn__arena_mark mark = cairn__arena_mark(scratch);
    const void *values = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_dense(t, "keep", &values));
    TRY(cairn__device_copy(t->env->device, kept->data, values, nbytes_of(t)));
    TRY(cairn__tensor_failure(t));
out:
    cairn__arena_release(scratch, mark);
    return finished(kept, st);
}

void cairn_tensor_destroy(cairn_tensor **tensor) {
    if (!tensor || !*tensor) return;
    cairn_tensor *t = *tensor;
    *tensor = NULL;
    if (t->kind == CAIRN__LEAF && !t->is_buffer) {
        cairn__leaf_end(t);
    } else {
        const char *what = t->kind == CAIRN__PARAM  ? "module's parameter"
                           : t->kind == CAIRN__LEAF ? "module's buffer"
                                                    : "step's result";
        cairn__log(CAIRN_LOG_DEBUG, "tensor_destroy: a %s is not destroyed by the caller; it stays", what);
    }
}

static const char *kind_name(const cairn_tensor *t) {
    return t->kind == CAIRN__PARAM ? "parameter" : t->kind == CAIRN__RESULT ? "result" : "leaf";
}

/* Converts n host elements to x's type and uploads them. */
static cairn_status upload_as(struct cairn_device *d, void *x, cairn_dtype to, const void *values, cairn_dtype from,
                              size_t n) {
    enum { AT_ONCE = 1024 };
    uint64_t block[AT_ONCE];
    const size_t to_nbytes = cairn_dtype_nbytes(to), from_nbytes = cairn_dtype_nbytes(from);
    cairn_status st = CAIRN_OK;
    if (to == from) return cairn__device_upload(d, x, values, n * to_nbytes);
    for (size_t i = 0; i < n; i += AT_ONCE) {
        const size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;
        cairn__convert(block, to, (const char *)values + i * from_nbytes, from, m);
        TRY(cairn__device_upload(d, (char *)x + i * to_nbytes, block, m * to_nbytes));
    }
out:
    return st;
}

cairn_status cairn_tensor_write(cairn_tensor *leaf, const void *values, size_t n) {
    REQUIRE(leaf && (values || n == 0), CAIRN_EINVAL, "write: tensor and values must be set");
    void *data = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_open(leaf, "write", &data));
    REQUIRE(n == leaf->n, CAIRN_EINVAL, "write: %zu values are given, but the tensor has %zu", n, leaf->n);
    TRY(upload_as(leaf->env->device, data, leaf->dtype, values, leaf->is_buffer ? leaf->added_as : leaf->dtype, n));
out:
    return st;
}

cairn_status cairn_tensor_require_grad(cairn_tensor *leaf) {
    REQUIRE(leaf, CAIRN_EINVAL, "require_grad: the tensor is NULL");
    REQUIRE(leaf->kind == CAIRN__LEAF, CAIRN_ESTATE, "require_grad: only a leaf can require a gradient, not a %s",
            kind_name(leaf));
    REQUIRE(!leaf->is_buffer, CAIRN_ESTATE, "require_grad: the tensor is a module's buffer, which has no gradient");
    REQUIRE(cairn__dtype(leaf->dtype)->is_float, CAIRN_EINVAL, "require_grad: %s values have no gradient",
            cairn_dtype_name(leaf->dtype));
    leaf->wants_grad = true;
    return CAIRN_OK;
}

const float *cairn_tensor_grad(const cairn_tensor *leaf) {
    const bool has_f32 = leaf && leaf->kind == CAIRN__LEAF && leaf->has_grad && leaf->dtype != CAIRN_F64;
    return has_f32 ? leaf->grad : NULL;
}

void cairn_tensor_clear_grad(cairn_tensor *leaf) {
    if (leaf && leaf->kind == CAIRN__LEAF) leaf->has_grad = false;
}

/* ---- parameters ---- */

cairn_status cairn__tensor_of_param(struct cairn__param *p, cairn_tensor **out) {
    cairn_tensor *t = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*t), (void **)&t));
    t->env = p->set->env;
    t->kind = CAIRN__PARAM;
    t->param = p;
    t->ndim = p->ndim;
    memcpy(t->shape, p->shape, sizeof(t->shape));
    cairn__tensor_lay_out(t);
    *out = t;
out:
    return st;
}

void cairn__tensor_of_param_destroy(cairn_tensor **tensor) {
    if (*tensor) cairn__leaf_end(*tensor);
    *tensor = NULL;
}

/* ---- buffers ---- */

cairn_status cairn__tensor_of_buffer(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                                     cairn_tensor **out) {
    cairn_tensor *t = cairn_zeros(env, dtype, ndim, shape);
    if (!t) return cairn__last_status();
    cairn__leaf_unlink(t); /* owned by the module, not by the environment */
    t->is_buffer = true;
    t->added_as = dtype;
    *out = t;
    return CAIRN_OK;
}

void cairn__tensor_of_buffer_destroy(cairn_tensor **tensor) {
    if (*tensor) (*tensor)->is_buffer = false;
    cairn_tensor_destroy(tensor);
}

void *cairn__tensor_memory(cairn_tensor *leaf) {
    return leaf->data;
}

cairn_status cairn__tensor_open(cairn_tensor *leaf, const char *call, void **data) {
    REQUIRE(leaf->kind == CAIRN__LEAF, CAIRN_ESTATE, "%s: only a leaf can be written, not a %s", call, kind_name(leaf));
    REQUIRE(leaf->is_dense, CAIRN_EINVAL,
            "%s: the leaf is over memory that is not dense; write to that memory directly", call);
    *data = leaf->data;
    return CAIRN_OK;
}

cairn_env *cairn__tensor_env(const cairn_tensor *t) {
    return t->env;
}

/* ---- queries and values ---- */

static bool is_stale(const cairn_tensor *t) {
    return t->kind == CAIRN__RESULT && !cairn__tape_lives(t->tape, t->generation);
}

cairn_status cairn__tensor_check(const cairn_tensor *t, const char *what) {
    REQUIRE(!is_stale(t), CAIRN_ESTATE,
            "%s: the tensor is the result of an earlier step (cairn_zero_grad begins one, cairn_optimizer_clear_grads "
            "does not) or was released (cairn_release_results); use cairn_tensor_keep to hold it",
            what);
    REQUIRE(!t->forgotten, CAIRN_ESTATE,
            "%s: the tensor was made inside a module that did not return it, and ended with that forward or, where it "
            "requires a gradient, with backward; use cairn_tensor_keep to hold it",
            what);
    REQUIRE(!cairn__shows_ended(t), CAIRN_ESTATE,
            "%s: the tensor is a parameter of a module that has been destroyed, or a view of one", what);
    return CAIRN_OK;
}

cairn_dtype cairn_tensor_dtype(const cairn_tensor *t) {
    return t && !is_stale(t) ? cairn__tensor_dtype(t) : (cairn_dtype)0;
}

int cairn_tensor_ndim(const cairn_tensor *t) {
    return t && !is_stale(t) ? t->ndim : -1;
}

/* dim from the front; -1 where there is none. */
static int dim_of(const cairn_tensor *t, int dim) {
    if (!t || is_stale(t) || dim < -t->ndim || dim >= t->ndim) return -1;
    return dim < 0 ? dim + t->ndim : dim;
}

int64_t cairn_tensor_size(const cairn_tensor *t, int dim) {
    const int d = dim_of(t, dim);
    return d < 0 ? -1 : t->shape[d];
}

int64_t cairn_tensor_stride(const cairn_tensor *t, int dim) {
    const int d = dim_of(t, dim);
    return d < 0 ? -1 : t->stride[d];
}

size_t cairn_tensor_numel(const cairn_tensor *t) {
    return t && !is_stale(t) ? t->n : 0;
}

cairn_status cairn__tensor_dense(const cairn_tensor *t, const char *what, const void **out) {
    struct cairn_device *d = t->env->device;
    *out = cairn__tensor_data(t);
    if (t->is_dense) return CAIRN_OK;
    REQUIRE(d->math, CAIRN_ENOTSUP, "%s: '%s' does not copy a tensor that is not dense yet; use device \"cpu\"", what,
            cairn_device_name(d));
    void *dense = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__arena_alloc(&cairn__tape_of(t->env)->scratch, nbytes_of(t), &dense));
    const struct cairn__view x = cairn__tensor_view(t);
    const struct cairn__view y = cairn__view_dense(dense, x.dtype, x.ndim, x.size);
    d->math->map(d, CAIRN__MAP_COPY, &y, &x, NULL);
    *out = dense;
out:
    return st;
}

/* Downloads n elements and converts them to another type. */
static cairn_status download_as(struct cairn_device *d, void *values, cairn_dtype to, const void *x, cairn_dtype from,
                                size_t n) {
    cairn_status st = CAIRN_OK;
    enum { AT_ONCE = 1024 };
    uint64_t block[AT_ONCE];
    const size_t to_nbytes = cairn_dtype_nbytes(to), from_nbytes = cairn_dtype_nbytes(from);
    if (to == from) return cairn__device_download(d, values, x, n * to_nbytes);
    for (size_t i = 0; i < n; i += AT_ONCE) {
        const size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;
        TRY(cairn__device_download(d, block, (const char *)x + i * from_nbytes, m * from_nbytes));
        cairn__convert((char *)values + i * to_nbytes, to, block, from, m);
    }
out:
    return st;
}

static cairn_status read_in_scratch(const cairn_tensor *t, cairn_dtype to, void *values, size_t n) {
    struct cairn_device *d = t->env->device;
    cairn_dtype from = cairn__tensor_dtype(t);
    const void *x = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_dense(t, "read", &x));
    if (cairn__is_half(from) && from != to) { /* convert on the device: one download, whatever the size */
        void *wide = NULL;
        TRY(cairn__arena_alloc(&cairn__tape_of(t->env)->scratch, t->n * sizeof(float), &wide));
        cairn__pass_cast(d->passes, d, wide, CAIRN_F32, x, from, t->n);
        x = wide;
        from = CAIRN_F32;
    }
    TRY(cairn__tensor_failure(t)); /* an error that a pass reported for the value */
    TRY(download_as(d, values, to, x, from, n));
out:
    return st;
}

cairn_status cairn_tensor_read_as(const cairn_tensor *t, cairn_dtype dtype, void *values, size_t n) {
    REQUIRE(t && (values || n == 0), CAIRN_EINVAL, "read: tensor and values must be set");
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_dtype("read", dtype));
    TRY(cairn__tensor_check(t, "read"));
    REQUIRE(n == t->n, CAIRN_EINVAL, "read: room for %zu values, but the tensor has %zu", n, t->n);
    struct cairn__arena *scratch = &cairn__tape_of(t->env)->scratch;
    const struct cairn__arena_mark mark = cairn__arena_mark(scratch);
    st = read_in_scratch(t, dtype, values, n);
    cairn__arena_release(scratch, mark);
out:
    return st;
}

cairn_status cairn_tensor_read(const cairn_tensor *t, float *values, size_t n) {
    return cairn_tensor_read_as(t, CAIRN_F32, values, n);
}

cairn_status cairn_tensor_read_grad(const cairn_tensor *leaf, double *values, size_t n) {
    REQUIRE(leaf && (values || n == 0), CAIRN_EINVAL, "read_grad: tensor and values must be set");
    REQUIRE(leaf->kind == CAIRN__LEAF, CAIRN_ESTATE, "read_grad: only a leaf has a gradient of its own, not a %s",
            kind_name(leaf));
    REQUIRE(leaf->wants_grad, CAIRN_ESTATE, "read_grad: the leaf requires no gradient (cairn_tensor_require_grad)");
    REQUIRE(n == leaf->n, CAIRN_EINVAL, "read_grad: room for %zu values, but the tensor has %zu", n, leaf->n);
    for (size_t i = 0; i < n; i++) values[i] = 0;
    if (!leaf->has_grad) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_failure(leaf));
    TRY(download_as(leaf->env->device, values, CAIRN_F64, leaf->grad, leaf->dtype == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32,
                    n));
out:
    return st;
}

float cairn_tensor_item(const cairn_tensor *t) {
    float value = NAN;
    if (check_set(t, "item") == CAIRN_OK) (void)cairn_tensor_read(t, &value, 1);
    return value;
}

const char *cairn__sizes_text(int ndim, const int64_t *shape, char text[CAIRN__SHAPE_TEXT]) {
    size_t used = (size_t)snprintf(text, CAIRN__SHAPE_TEXT, "[");
    for (int d = 0; d < ndim && d < CAIRN_MAX_DIMS; d++) {
        used += (size_t)snprintf(text + used, CAIRN__SHAPE_TEXT - used, "%s%lld", d ? ", " : "", (long long)shape[d]);
    }
    snprintf(text + used, CAIRN__SHAPE_TEXT - used, "]");
    return text;
}

const char *cairn__shape_text(const cairn_tensor *t, char text[CAIRN__SHAPE_TEXT]) {
    return cairn__sizes_text(t->ndim, t->shape, text);
}

bool cairn__same_shape(const cairn_tensor *a, const cairn_tensor *b) {
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(a->shape[0])) == 0;
}
