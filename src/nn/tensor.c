/* Leaf tensors, parameters' handles, and what can be asked of any tensor. */
#include "nn/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

static size_t nbytes_of(const cairn_tensor *t) {
    return t->n * cairn_dtype_nbytes(cairn__tensor_dtype(t));
}

/* ---- leaves ---- */

static cairn_status set_shape(cairn_tensor *t, const char *what, int ndim, const int64_t *shape) {
    REQUIRE(ndim >= 0 && ndim <= CAIRN_MAX_DIMS && (shape || ndim == 0), CAIRN_EINVAL,
            "%s: %d dimensions; 0 to %d are allowed", what, ndim, CAIRN_MAX_DIMS);
    t->ndim = ndim;
    t->n = 1;
    for (int d = 0; d < ndim; d++) {
        REQUIRE(shape[d] >= 0 && (shape[d] == 0 || t->n <= (size_t)INT64_MAX / 16 / (size_t)shape[d]), CAIRN_EINVAL,
                "%s: size %lld in dimension %d", what, (long long)shape[d], d);
        t->shape[d] = shape[d];
        t->n *= (size_t)shape[d];
    }
    return CAIRN_OK;
}

static void link_leaf(struct cairn__tape *tape, cairn_tensor *t) {
    t->next = tape->leaves;
    t->link = &tape->leaves;
    if (t->next) t->next->link = &t->next;
    tape->leaves = t;
}

static cairn_status new_leaf(const char *what, cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                             cairn_tensor **out) {
    REQUIRE(env, CAIRN_EINVAL, "%s: env is NULL", what);
    REQUIRE(dtype == CAIRN_F32 || cairn__is_half(dtype), CAIRN_EINVAL,
            "%s: dtype is %d (%s); tensors are f32, f16 or bf16", what, (int)dtype, cairn_dtype_name(dtype));
    cairn_status st = CAIRN_OK;
    cairn_tensor *t = NULL;
    TRY(cairn__calloc(1, sizeof(*t), (void **)&t));
    t->env = env;
    t->kind = CAIRN__LEAF;
    t->dtype = dtype;
    TRY(set_shape(t, what, ndim, shape));
    TRY(cairn__device_alloc(env->device, CAIRN__HOLDS_TENSORS, t->n * cairn_dtype_nbytes(dtype), &t->data));
    link_leaf(env->tape->main, t);
    *out = t;
    return CAIRN_OK;
out:
    cairn__free(t);
    return st;
}

cairn_tensor *cairn_randn(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape) {
    cairn_tensor *t = NULL;
    if (new_leaf("randn", env, dtype, ndim, shape, &t) != CAIRN_OK) return NULL;
    env->device->passes->normal(env->device, dtype, t->data, t->n, env->seed, cairn__env_next_stream(env));
    return t;
}

cairn_tensor *cairn_tensor_from(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape, const void *data) {
    cairn_tensor *t = NULL;
    if (!data) {
        cairn__fail(CAIRN_EINVAL, "tensor_from: data is NULL");
        return NULL;
    }
    if (new_leaf("tensor_from", env, dtype, ndim, shape, &t) != CAIRN_OK) return NULL;
    if (cairn__device_upload(env->device, t->data, data, nbytes_of(t)) == CAIRN_OK) return t;
    cairn_tensor_destroy(&t);
    return NULL;
}

cairn_tensor *cairn_tensor_keep(const cairn_tensor *t) {
    cairn_tensor *kept = NULL;
    if (!t || cairn__tensor_check(t, "keep") != CAIRN_OK) return NULL;
    if (new_leaf("keep", t->env, cairn__tensor_dtype(t), t->ndim, t->shape, &kept) != CAIRN_OK) return NULL;
    if (cairn__device_copy(t->env->device, kept->data, cairn__tensor_data(t), nbytes_of(t)) == CAIRN_OK) return kept;
    cairn_tensor_destroy(&kept);
    return NULL;
}

void cairn_tensor_destroy(cairn_tensor **tensor) {
    if (!tensor || !*tensor) return;
    cairn_tensor *t = *tensor;
    *tensor = NULL;
    if (t->kind != CAIRN__LEAF) return; /* the tape's or a module's */
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    cairn__device_free(t->env->device, t->data);
    cairn__device_free(t->env->device, t->grad);
    cairn__free(t);
}

static const char *kind_name(const cairn_tensor *t) {
    return t->kind == CAIRN__PARAM ? "parameter" : t->kind == CAIRN__RESULT ? "result" : "leaf";
}

cairn_status cairn_tensor_write(cairn_tensor *leaf, const void *values, size_t n) {
    REQUIRE(leaf && (values || n == 0), CAIRN_EINVAL, "write: tensor and values must be set");
    REQUIRE(leaf->kind == CAIRN__LEAF, CAIRN_ESTATE, "write: only a leaf can be written, not a %s", kind_name(leaf));
    REQUIRE(n == leaf->n, CAIRN_EINVAL, "write: %zu values, but the tensor has %zu", n, leaf->n);
    return cairn__device_upload(leaf->env->device, leaf->data, values, nbytes_of(leaf));
}

cairn_status cairn_tensor_require_grad(cairn_tensor *leaf) {
    REQUIRE(leaf, CAIRN_EINVAL, "require_grad: the tensor is NULL");
    REQUIRE(leaf->kind == CAIRN__LEAF, CAIRN_ESTATE,
            "require_grad: only a leaf can be asked for its gradient, not a %s", kind_name(leaf));
    leaf->wants_grad = true;
    return CAIRN_OK;
}

const float *cairn_tensor_grad(const cairn_tensor *leaf) {
    return leaf && leaf->kind == CAIRN__LEAF && leaf->has_grad ? leaf->grad : NULL;
}

void cairn_tensor_clear_grad(cairn_tensor *leaf) {
    if (leaf && leaf->kind == CAIRN__LEAF) leaf->has_grad = false;
}

/* ---- parameters ---- */

cairn_status cairn__tensor_of_param(struct cairn__param *p, cairn_tensor **out) {
    cairn_tensor *t = NULL;
    cairn_status st = cairn__calloc(1, sizeof(*t), (void **)&t);
    if (st != CAIRN_OK) return st;
    t->env = p->set->env;
    t->kind = CAIRN__PARAM;
    t->param = p;
    t->n = p->n;
    t->ndim = p->ndim;
    memcpy(t->shape, p->shape, sizeof(t->shape));
    t->wants_grad = true;
    *out = t;
    return CAIRN_OK;
}

void cairn__tensor_of_param_destroy(cairn_tensor **tensor) {
    if (!*tensor) return;
    cairn__device_free((*tensor)->env->device, (*tensor)->cast.data);
    cairn__free(*tensor);
    *tensor = NULL;
}

/* ---- facts and values ---- */

static bool is_stale(const cairn_tensor *t) {
    return t->kind == CAIRN__RESULT && t->generation != t->tape->generation;
}

cairn_status cairn__tensor_check(const cairn_tensor *t, const char *what) {
    REQUIRE(!is_stale(t), CAIRN_ESTATE,
            "%s: the tensor is the result of an earlier step; cairn_tensor_keep would have held it", what);
    return CAIRN_OK;
}

cairn_dtype cairn_tensor_dtype(const cairn_tensor *t) {
    return t && !is_stale(t) ? cairn__tensor_dtype(t) : (cairn_dtype)0;
}

int cairn_tensor_ndim(const cairn_tensor *t) {
    return t && !is_stale(t) ? t->ndim : -1;
}

int64_t cairn_tensor_size(const cairn_tensor *t, int dim) {
    return t && !is_stale(t) && dim >= 0 && dim < t->ndim ? t->shape[dim] : -1;
}

size_t cairn_tensor_numel(const cairn_tensor *t) {
    return t && !is_stale(t) ? t->n : 0;
}

/* The values as f32 in device memory: t's own, or in scratch beside the gradients of the last backward. */
static cairn_status widen(const cairn_tensor *t, const void **out) {
    struct cairn_device *d = t->env->device;
    const cairn_dtype dtype = cairn__tensor_dtype(t);
    *out = cairn__tensor_data(t);
    if (dtype == CAIRN_F32) return CAIRN_OK;
    void *wide = NULL;
    cairn_status st = cairn__arena_alloc(&t->env->tape->grads, t->n * sizeof(float), &wide);
    if (st != CAIRN_OK) return st;
    cairn__pass_cast(d->passes, d, wide, CAIRN_F32, *out, dtype, t->n);
    *out = wide;
    return CAIRN_OK;
}

cairn_status cairn_tensor_read(const cairn_tensor *t, float *values, size_t n) {
    REQUIRE(t && (values || n == 0), CAIRN_EINVAL, "read: tensor and values must be set");
    cairn_status st = cairn__tensor_check(t, "read");
    if (st != CAIRN_OK) return st;
    REQUIRE(n == t->n, CAIRN_EINVAL, "read: room for %zu values, but the tensor has %zu", n, t->n);
    const struct cairn__arena_mark mark = cairn__arena_mark(&t->env->tape->grads);
    const void *wide = NULL;
    st = widen(t, &wide);
    if (st == CAIRN_OK) st = cairn__device_download(t->env->device, values, wide, n * sizeof(float));
    cairn__arena_release(&t->env->tape->grads, mark);
    return st;
}

float cairn_tensor_item(const cairn_tensor *t) {
    float value = NAN;
    if (t) (void)cairn_tensor_read(t, &value, 1); /* NULL keeps the cause that made it NULL */
    return value;
}

const char *cairn__shape_text(const cairn_tensor *t, char text[CAIRN__SHAPE_TEXT]) {
    size_t used = (size_t)snprintf(text, CAIRN__SHAPE_TEXT, "[");
    for (int d = 0; d < t->ndim; d++) {
        used +=
            (size_t)snprintf(text + used, CAIRN__SHAPE_TEXT - used, "%s%lld", d ? ", " : "", (long long)t->shape[d]);
    }
    snprintf(text + used, CAIRN__SHAPE_TEXT - used, "]");
    return text;
}

bool cairn__same_shape(const cairn_tensor *a, const cairn_tensor *b) {
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(a->shape[0])) == 0;
}
