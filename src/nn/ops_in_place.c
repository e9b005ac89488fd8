/* Operations in place: the operation itself, without a graph, then a copy over its first input.
 *
 * They write to leaves, buffers and parameters only, never to results. Intermediate values are in the memory of a
 * no_grad scope, which is released at once, or with the scope around it. For a half parameter with a master the
 * operation computes on the master, so that no precision is lost, and rounds the half weights from it. */
#include "core/status.h"
#include "nn/ops.h"

struct write {
    const char *name; /* "add_" */
    cairn_tensor *x;
    cairn_tensor *operand; /* what the operation reads for x: x or its master */
};

/* ---- what may be written ---- */

static cairn_status check_target(const char *name, const cairn_tensor *x) {
    if (!x && cairn__last_status() != CAIRN_OK) return cairn__last_status();
    REQUIRE(x, CAIRN_EINVAL, "%s: the tensor is NULL", name);
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_check(x, name));
    const struct cairn__tape *tape = cairn__tape_of(x->env);
    const int letters = (int)strlen(name) - 1;
    REQUIRE(x->kind != CAIRN__RESULT, CAIRN_ESTATE,
            "%s: the tensor is a result, which a graph may hold; only leaves, buffers and parameters are written in "
            "place, so use y = cairn_%.*s(x, ...)",
            name, letters, name);
    REQUIRE(
        !cairn__wants_grad(x) || tape->no_grad.depth > 0, CAIRN_ESTATE,
        "%s: %s is being used in an in-place operation, which no graph records; do it between cairn_no_grad_begin and "
        "cairn_no_grad_end, or use y = cairn_%.*s(x, ...)",
        name, x->kind == CAIRN__PARAM ? "a parameter" : "a leaf that requires a gradient", letters, name);
    REQUIRE(
        !tape->outer, CAIRN_ESTATE,
        "%s: called within a checkpoint, whose function runs again in backward and would write twice; call it outside",
        name);
    for (int d = 0; d < x->ndim; d++) {
        REQUIRE(x->stride[d] != 0 || x->shape[d] <= 1, CAIRN_EINVAL,
                "%s: the leaf has several elements at one place in memory", name);
    }
out:
    return st;
}

/* ---- common to all ---- */

static cairn_status show_master(cairn_tensor *x, cairn_tensor **out) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__tape_new_result(cairn__tape_of(x->env), out));
    (*out)->dtype = CAIRN_F32;
    (*out)->ndim = x->ndim;
    memcpy((*out)->shape, x->shape, sizeof(x->shape));
    cairn__tensor_lay_out(*out);
    (*out)->data = x->param->master;
    (*out)->shows = x;
out:
    return st;
}

/* other: NULL = the operation has one tensor. After CAIRN_OK, finish must be called. */
static cairn_status begin(struct write *w, const char *name, cairn_tensor *x, bool has_other,
                          const cairn_tensor *other) {
    *w = (struct write){.name = name, .x = x, .operand = x};
    cairn_status st = CAIRN_OK;
    TRY(check_target(name, x));
    if (x->param && x->param->master) TRY(cairn__param_check_whole(name, x->param));
    if (has_other) {
        if (!other && cairn__last_status() != CAIRN_OK) return cairn__last_status();
        REQUIRE(other, CAIRN_EINVAL, "%s: the second tensor is NULL", name);
        REQUIRE(other->env == x->env, CAIRN_EINVAL, "%s: the tensors belong to different environments", name);
        REQUIRE(!cairn__wants_grad(other) || cairn__tape_of(other->env)->no_grad.depth > 0, CAIRN_ESTATE,
                "%s: the second tensor requires a gradient, which would be lost; cairn_detach it, or do this between "
                "cairn_no_grad_begin and cairn_no_grad_end",
                name);
    }
    cairn_no_grad_begin(x->env);
    if (x->param && x->param->master) st = show_master(x, &w->operand);
    if (st != CAIRN_OK) (void)cairn_no_grad_end(x->env);
    cairn__tape_of(x->env)->in_place = st == CAIRN_OK;
out:
    return st;
}

/* If other is x too, the operation reads the master for both. */
static cairn_tensor *other_of(const struct write *w, cairn_tensor *other) {
    return other == w->x ? w->operand : other;
}

/* Writes the dense y over x's values, in x's type. */
static cairn_status write_over(const struct write *w, cairn_tensor *y) {
    char text_x[CAIRN__SHAPE_TEXT], text_y[CAIRN__SHAPE_TEXT];
    cairn_tensor *x = w->x;
    struct cairn_device *d = x->env->device;
    const cairn_dtype own = cairn__tensor_dtype(x), to = cairn__tensor_dtype(w->operand);
    REQUIRE(cairn__same_shape(y, x), CAIRN_EINVAL, "%s: the result is %s, which does not fit into %s", w->name,
            cairn__shape_text(y, text_y), cairn__shape_text(x, text_x));
    REQUIRE(!cairn__is_float(y->dtype) || cairn__is_float(own), CAIRN_EINVAL,
            "%s: the result is %s, which does not fit into a tensor of %s", w->name, cairn_dtype_name(y->dtype),
            cairn_dtype_name(own));
    if (y->dtype != to) y = cairn_cast(y, to);
    if (!y) return cairn__last_status();
    cairn_status st = CAIRN_OK;
    if (x->is_dense) {
        TRY(cairn__device_copy(d, cairn__tensor_data(w->operand), y->data, y->n * cairn_dtype_nbytes(y->dtype)));
    } else {
        REQUIRE(d->math, CAIRN_ENOTSUP, "%s: '%s' does not write to a tensor that is not dense yet; use device \"cpu\"",
                w->name, cairn_device_name(d));
        const struct cairn__view from = cairn__tensor_view(y), into = cairn__tensor_view(x);
        d->math->map(d, CAIRN__MAP_COPY, &into, &from, NULL);
    }
    if (x->param) TRY(cairn_param_changed(x->param->set, x->param->index, w->operand != x));
out:
    return st;
}

/* y: the operation's result; NULL = it failed, with the last error set. */
static cairn_tensor *finish(struct write *w, cairn_tensor *y) {
    cairn_env *env = w->x->env;
    cairn__tape_of(env)->in_place = false;
    const cairn_status st = y ? write_over(w, y) : cairn__last_status();
    (void)cairn_no_grad_end(env);
    return st == CAIRN_OK ? w->x : NULL;
}

/* ---- the calls ---- */

#define TWO(name)                                                      \
    cairn_tensor *cairn_##name##_(cairn_tensor *x, cairn_tensor *b) {  \
        struct write w;                                                \
        if (begin(&w, #name "_", x, true, b) != CAIRN_OK) return NULL; \
        return finish(&w, cairn_##name(w.operand, other_of(&w, b)));   \
    }
#define ONE(name)                                                          \
    cairn_tensor *cairn_##name##_(cairn_tensor *x) {                       \
        struct write w;                                                    \
        if (begin(&w, #name "_", x, false, NULL) != CAIRN_OK) return NULL; \
        return finish(&w, cairn_##name(w.operand));                        \
    }
#define WITH_NUMBER(name)                                                  \
    cairn_tensor *cairn_##name##_(cairn_tensor *x, double s) {             \
        struct write w;                                                    \
        if (begin(&w, #name "_", x, false, NULL) != CAIRN_OK) return NULL; \
        return finish(&w, cairn_##name(w.operand, s));                     \
    }

TWO(add)
TWO(sub)
TWO(mul)
TWO(div)
ONE(exp)
ONE(sqrt)
WITH_NUMBER(add_scalar)
WITH_NUMBER(mul_scalar)
WITH_NUMBER(pow_scalar)

cairn_tensor *cairn_clamp_(cairn_tensor *x, double low, double high) {
    struct write w;
    if (begin(&w, "clamp_", x, false, NULL) != CAIRN_OK) return NULL;
    return finish(&w, cairn_clamp(w.operand, low, high));
}

/* Copies through a cast: the op hook is never called for one, and its result has memory of its own, so `from` may be a
 * part of x. */
cairn_tensor *cairn_copy_(cairn_tensor *x, cairn_tensor *from) {
    struct write w;
    if (begin(&w, "copy_", x, true, from) != CAIRN_OK) return NULL;
    from = other_of(&w, from);
    if (!cairn__same_shape(x, from)) from = cairn_expand(from, x->ndim, x->shape);
    return finish(&w, cairn_cast(from, cairn__tensor_dtype(w.operand)));
}
