/* Tensors from inside. A tensor is a leaf (owned by the environment, destroyed by the user), the handle of a parameter
 * (owned by a module), or a result (owned by the tape, dead when its generation is over). */
#ifndef CAIRN__NN_TENSOR_H
#define CAIRN__NN_TENSOR_H

#include <string.h>

#include "device/view.h"
#include "nn/tape.h"

enum cairn__tensor_kind { CAIRN__LEAF = 1, CAIRN__PARAM, CAIRN__RESULT };

/* A parameter's cast to another type, kept until the weights change. */
struct cairn__param_cast {
    void *data;
    size_t nbytes;
    cairn_dtype dtype;
    uint64_t version;
    cairn_tensor *result; /* the last cast; newer than data if the weights changed within a step */
    uint64_t result_version;
    uint64_t generation; /* of result */
    uint64_t shown;      /* a generation that has a result showing data; data is not overwritten while it lives */
};

/* A step that uses a leaf or a parameter. */
struct cairn__use {
    const struct cairn__tape *tape;
    uint64_t generation;
};
enum { CAIRN__MAX_USES = 4 /* at once; a tensor with more is freed with the environment */ };

struct cairn_tensor {
    cairn_env *env;
    enum cairn__tensor_kind kind;
    struct cairn__tape *tape; /* a result's */
    uint64_t generation;      /* a result's: it lives as long */
    cairn_dtype dtype;        /* a parameter's changes: read it by cairn__tensor_dtype */
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    int64_t stride[CAIRN_MAX_DIMS]; /* in elements, never negative; 0 repeats one element */
    size_t n;
    bool is_dense;   /* row-major without gaps */
    void *data;      /* the first element; a parameter's changes: read it by cairn__tensor_data */
    bool is_over;    /* a leaf over the user's memory */
    bool wants_grad; /* unused in a parameter's handle: see cairn__wants_grad */
    const struct cairn__loss_scale *loss_scale; /* a result's (cairn__tensor_loss_scale); NULL = none */

    /* Of an input inside a checkpoint: the tensor outside whose values it shows and which gets its gradient. */
    cairn_tensor *stands_for;
    cairn_tensor *base;       /* of a view of a result: the result whose memory it shows; else NULL */
    int readers;              /* of a result's memory: views of it, and nodes whose backward reads it */
    bool owns_data;           /* a result's: data is its own, from the tape */
    bool forgotten;           /* by cairn__forget: its memory is free once it has no readers */
    bool is_inside;           /* a module made it and did not return it: it ends when a backward has consumed node */
    struct cairn__node *node; /* that made it; NULL for leaves, and for results that want no gradient */

    void *grad;           /* a leaf's, in device memory: f64 if the leaf is f64, else f32 */
    bool has_grad;        /* grad holds a gradient */
    cairn_tensor **link;  /* the pointer in a list of leaves that points to this one */
    cairn_tensor *next;   /* in that list */
    bool is_buffer;       /* a leaf owned by a module: the user may read and write it, not destroy it */
    bool keeps_type;      /* a buffer that is not converted to a half type */
    cairn_dtype added_as; /* a buffer's type as the user added it and still writes it */

    struct cairn__param *param; /* NULL: the module has been destroyed */
    struct cairn__param_cast cast;

    struct cairn__use used[CAIRN__MAX_USES]; /* steps that use a leaf or parameter */
    bool is_used_by_many;                    /* there were more than fit in used */
    bool is_ended;                           /* by its owner; it is freed after the steps in used */
    cairn_tensor *shows; /* of a result without memory of its own: the parameter that it, or a cast it views, shows */

    uint64_t watched; /* a result's number at the environment's watcher; 0 = it was not shown */

    /* The state of the backward numbered `reached`; see backward.c. */
    uint64_t reached;
    int uses, arrived;
    void *sum;
    bool is_rounded; /* sum has the type of the tensor that this one is a cast of */
};

static inline cairn_dtype cairn__tensor_dtype(const cairn_tensor *t) {
    return t->param ? t->param->dtype : t->dtype;
}

static inline void *cairn__tensor_data(const cairn_tensor *t) {
    return t->param ? t->param->data : t->data;
}

/* t as an operand of math_passes.h. */
static inline struct cairn__view cairn__tensor_view(const cairn_tensor *t) {
    struct cairn__view v = {.data = cairn__tensor_data(t), .dtype = cairn__tensor_dtype(t), .ndim = t->ndim};
    memcpy(v.size, t->shape, sizeof(v.size));
    memcpy(v.stride, t->stride, sizeof(v.stride));
    return v;
}

/* Sets n, is_dense and row-major strides from ndim and shape. */
static inline void cairn__tensor_lay_out(cairn_tensor *t) {
    t->n = 1;
    t->is_dense = true;
    for (int d = t->ndim - 1; d >= 0; d--) {
        t->stride[d] = (int64_t)t->n;
        t->n *= (size_t)t->shape[d];
    }
}

/* Sets a view's n and is_dense from ndim, shape and stride. */
static inline void cairn__tensor_take_strides(cairn_tensor *t) {
    const struct cairn__view v = cairn__tensor_view(t);
    t->n = cairn__view_numel(&v);
    t->is_dense = cairn__view_is_dense(&v);
}

/* The tensor whose gradient a contribution to t's gradient belongs to. */
static inline cairn_tensor *cairn__tensor_grad_target(cairn_tensor *t) {
    return t->stands_for ? t->stands_for : t;
}

/* Whether operations may use t now: a result must be on the current tape. */
static inline bool cairn__is_at_hand(const cairn_tensor *t) {
    return t->kind != CAIRN__RESULT || t->tape == cairn__tape_of(t->env);
}

/* Whether the parameter that t is or shows has been destroyed with its module. */
static inline bool cairn__shows_ended(const cairn_tensor *t) {
    const cairn_tensor *p = t->kind == CAIRN__PARAM ? t : t->shows;
    return p && p->is_ended;
}

/* Notes that the current step uses t, a leaf or a parameter: if its owner ends it, it is freed only after the step.
 * Does nothing for results. */
void cairn__note_use(cairn_tensor *t);

/* For leaves and handles of parameters: link and unlink maintain a list; end is called by the owner, and frees at once
 * or after the steps that use the tensor; free frees. */
void cairn__leaf_link(cairn_tensor **list, cairn_tensor *t);
void cairn__leaf_unlink(cairn_tensor *t);
void cairn__leaf_end(cairn_tensor *t);
void cairn__leaf_free(cairn_tensor *t);

/* Frees the ended tensors that no live generation uses. Called at the end of a generation. */
void cairn__free_ended(struct cairn__tape *tape);

/* Returns a failure that the device has reported since the last call; for a result, also an earlier one of its step. */
cairn_status cairn__tensor_failure(const cairn_tensor *t);

/* Assigns failures that the device has reported to the current step. */
void cairn__listen(struct cairn__tape *tape);

/* Clears the failure of a step that is over; logs it if no call has returned it. */
void cairn__forget_failure(struct cairn__failure *failure);

/* A handle for p. The caller owns it and ends it by cairn__tensor_of_param_destroy. */
cairn_status cairn__tensor_of_param(struct cairn__param *p, cairn_tensor **out);
void cairn__tensor_of_param_destroy(cairn_tensor **t);

/* A zeroed leaf for a module. The caller owns it and ends it by cairn__tensor_of_buffer_destroy. */
cairn_status cairn__tensor_of_buffer(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                                     cairn_tensor **out);
void cairn__tensor_of_buffer_destroy(cairn_tensor **t);

/* CAIRN_ESTATE, naming what, for a result whose step is over. */
cairn_status cairn__tensor_check(const cairn_tensor *t, const char *what);

/* CAIRN_EINVAL, naming what, unless ndim is 0 to CAIRN_MAX_DIMS, no size is negative, and the number of bytes fits a
 * size_t in any type. */
cairn_status cairn__check_shape(const char *what, int ndim, const int64_t *shape);

/* CAIRN_EINVAL, naming what, unless tensors have elements of dtype. */
cairn_status cairn__check_dtype(const char *what, cairn_dtype dtype);

/* *out: the values in row-major order, in device memory: t's own, or a copy in the tape's scratch, which the caller
 * releases. CAIRN_ENOTSUP if t is not dense and the device cannot copy strided views. */
cairn_status cairn__tensor_dense(const cairn_tensor *t, const char *what, const void **out);

/* Ends t, a result: using it is an error from then on, and later results reuse its memory as soon as neither a view nor
 * a backward reads it. Ignores NULL, leaves and parameters. */
void cairn__forget(cairn_tensor *t);

/* Ends the results, except y, that were made inside (cairn__inside_begin) since the mark and that no graph holds. */
void cairn__inside_pass(const cairn_env *env, size_t mark, const cairn_tensor *y);

/* "[64, 1024]" into text, which is returned. */
const char *cairn__sizes_text(int ndim, const int64_t *shape, char text[CAIRN__SHAPE_TEXT]);

bool cairn__same_shape(const cairn_tensor *a, const cairn_tensor *b);

#endif
