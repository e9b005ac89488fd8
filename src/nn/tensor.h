/* Tensors from inside. A tensor is one of three: a leaf (owned by the environment, ended by the user), the handle of a
 * parameter (owned by a module), or a result (owned by the tape, dead when its generation is over). */
#ifndef CAIRN__NN_TENSOR_H
#define CAIRN__NN_TENSOR_H

#include <string.h>

#include "device/view.h"
#include "nn/tape.h"

enum cairn__tensor_kind { CAIRN__LEAF = 1, CAIRN__PARAM, CAIRN__RESULT };

/* A parameter in another type, kept until its weights change. */
struct cairn__param_cast {
    void *data;
    size_t nbytes;
    cairn_dtype dtype;
    uint64_t version;
    cairn_tensor *result; /* the last cast; a later one than data where weights changed within a step */
    uint64_t result_version;
    uint64_t generation; /* of result */
    uint64_t shown;      /* a generation with a result that shows data: while it lives, data stays as it is */
};

/* A step that used a leaf or a parameter. */
struct cairn__use {
    const struct cairn__tape *tape;
    uint64_t generation;
};
enum { CAIRN__MAX_USES = 4 /* alive at once; a tensor of more waits for the environment's end */ };

struct cairn_tensor {
    cairn_env *env;
    enum cairn__tensor_kind kind;
    struct cairn__tape *tape; /* a result's, and the generation it lives in */
    uint64_t generation;
    cairn_dtype dtype; /* a parameter's changes: read it by cairn__tensor_dtype */
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    int64_t stride[CAIRN_MAX_DIMS]; /* in elements, never negative; 0 shows one element again and again */
    size_t n;
    bool is_dense;                              /* row-major without gaps */
    void *data;                                 /* of the first element; a parameter's changes: cairn__tensor_data */
    bool is_over;                               /* a leaf over memory of the user */
    bool wants_grad;                            /* not of a parameter: cairn__wants_grad */
    const struct cairn__loss_scale *loss_scale; /* of a result: what a loss in it was multiplied by; NULL = none was */

    cairn_tensor
        *stands_for;    /* of a checkpoint's input: the tensor outside, whose values it shows and to which its gradient
                                 goes. NULL */
    cairn_tensor *base; /* of a view of a result: the result whose memory it shows; NULL */
    int readers;        /* of its memory: views of it, and nodes whose backward reads it */
    bool owns_data;     /* a result's own, from the tape */
    bool forgotten;     /* by cairn__forget: only its readers read it any more */
    bool is_inside;     /* a module made it and did not return it: it ends when backward has consumed node */
    struct cairn__node *node; /* that made it; NULL for leaves, and for results that want no gradient */

    void *grad;           /* a leaf's, in device memory: f32, or f64 as the leaf is */
    bool has_grad;        /* it holds something */
    cairn_tensor **link;  /* what points to this leaf in the list */
    cairn_tensor *next;   /* leaf */
    bool is_buffer;       /* a leaf that a module owns: the user may read and write it, and not end it */
    bool keeps_type;      /* a buffer that is left as it is where others become half */
    cairn_dtype added_as; /* a buffer's type before that, in which the user goes on writing it */

    struct cairn__param *param; /* NULL: the module has been destroyed */
    struct cairn__param_cast cast;

    struct cairn__use used[CAIRN__MAX_USES]; /* a leaf or a parameter */
    bool is_used_by_many;
    bool is_ended; /* by its owner; it waits for those */
    cairn_tensor
        *shows; /* of a result that has no memory of its own: the parameter whose memory it shows, or its cast's */

    uint64_t watched; /* a result's number at the environment's watcher; 0 = it was not shown */

    /* One backward's state; see backward.c. */
    uint64_t reached;
    int uses, arrived;
    void *sum;
    bool is_rounded; /* the sum of a cast's result has the type of what was cast */
};

static inline cairn_dtype cairn__tensor_dtype(const cairn_tensor *t) {
    return t->param ? t->param->dtype : t->dtype;
}

static inline void *cairn__tensor_data(const cairn_tensor *t) {
    return t->param ? t->param->data : t->data;
}

/* What math_passes.h computes with. */
static inline struct cairn__view cairn__tensor_view(const cairn_tensor *t) {
    struct cairn__view v = {.data = cairn__tensor_data(t), .dtype = cairn__tensor_dtype(t), .ndim = t->ndim};
    memcpy(v.size, t->shape, sizeof(v.size));
    memcpy(v.stride, t->stride, sizeof(v.stride));
    return v;
}

/* n and dense strides from ndim and shape. */
static inline void cairn__tensor_lay_out(cairn_tensor *t) {
    t->n = 1;
    t->is_dense = true;
    for (int d = t->ndim - 1; d >= 0; d--) {
        t->stride[d] = (int64_t)t->n;
        t->n *= (size_t)t->shape[d];
    }
}

/* is_dense and n from ndim, shape and stride: of a view. */
static inline void cairn__tensor_take_strides(cairn_tensor *t) {
    const struct cairn__view v = cairn__tensor_view(t);
    t->n = cairn__view_numel(&v);
    t->is_dense = cairn__view_is_dense(&v);
}

/* Whose gradient a contribution to t's is. */
static inline cairn_tensor *cairn__tensor_grad_target(cairn_tensor *t) {
    return t->stands_for ? t->stands_for : t;
}

/* A result that is on another tape than the one of the step now running is not. */
static inline bool cairn__is_at_hand(const cairn_tensor *t) {
    return t->kind != CAIRN__RESULT || t->tape == cairn__tape_of(t->env);
}

/* The parameter that t is or shows has ended with its module. */
static inline bool cairn__shows_ended(const cairn_tensor *t) {
    const cairn_tensor *p = t->kind == CAIRN__PARAM ? t : t->shows;
    return p && p->is_ended;
}

/* The step that runs uses t, a leaf or a parameter: if its owner ends it, it is freed after the step. Results:
 * nothing. */
void cairn__note_use(cairn_tensor *t);

/* Leaves and handles of parameters: in their list, ended by their owner, freed. */
void cairn__leaf_link(cairn_tensor **list, cairn_tensor *t);
void cairn__leaf_unlink(cairn_tensor *t);
void cairn__leaf_end(cairn_tensor *t);
void cairn__leaf_free(cairn_tensor *t);

/* A generation is over: frees what waited for it alone. */
void cairn__free_ended(struct cairn__tape *tape);

/* A failure that the device has reported since the last call; for a result, also an earlier one of its step. */
cairn_status cairn__tensor_failure(const cairn_tensor *t);

/* Failures that the device has reported become those of the step that runs. */
void cairn__listen(struct cairn__tape *tape);

/* The step is over; a failure that no call has returned goes to the log. */
void cairn__forget_failure(struct cairn__failure *failure);

/* A handle for p, owned by the caller, ended by cairn__tensor_of_param_destroy. */
cairn_status cairn__tensor_of_param(struct cairn__param *p, cairn_tensor **out);
void cairn__tensor_of_param_destroy(cairn_tensor **t);

/* A leaf for a module, zeroed; likewise. */
cairn_status cairn__tensor_of_buffer(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                                     cairn_tensor **out);
void cairn__tensor_of_buffer_destroy(cairn_tensor **t);

/* CAIRN_ESTATE, naming what, for a result whose step is over. */
cairn_status cairn__tensor_check(const cairn_tensor *t, const char *what);

/* CAIRN_EINVAL, naming what, unless ndim is 0 to CAIRN_MAX_DIMS, no size is negative, and the elements can be counted:
 * their bytes too, in any type. */
cairn_status cairn__check_shape(const char *what, int ndim, const int64_t *shape);

/* CAIRN_EINVAL, naming what, unless tensors have elements of dtype. */
cairn_status cairn__check_dtype(const char *what, cairn_dtype dtype);

/* The values in row-major order, in device memory: t's own, or copied into the tape's scratch, which the caller
 * releases. CAIRN_ENOTSUP where the device cannot copy what is not dense. */
cairn_status cairn__tensor_dense(const cairn_tensor *t, const char *what, const void **out);

/* Ends t, a result: its use is an error from here on, and its memory goes to the next results as soon as neither a view
 * nor a backward reads it. NULL, leaves and parameters: nothing happens. */
void cairn__forget(cairn_tensor *t);

/* Ends what has been made inside (hooks.h) since the mark and no graph holds, but y. */
void cairn__inside_pass(const cairn_env *env, size_t mark, const cairn_tensor *y);

/* "[64, 1024]" into text, which is returned. */
const char *cairn__sizes_text(int ndim, const int64_t *shape, char text[CAIRN__SHAPE_TEXT]);

bool cairn__same_shape(const cairn_tensor *a, const cairn_tensor *b);

#endif
