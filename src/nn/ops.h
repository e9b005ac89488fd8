/* Operations from inside: one row each, or one for several, and cairn__apply, which applies them all. A row is
 * private to the file of its family, which hands it to cairn__apply.
 *
 * To add one: a line in op_list.h, its row in the file of its family, its public call in include/cairn/ops.h, a class
 * with a reason in amp/ops.c, its name in docs/operations.md, cases in tests/nn, and a line in
 * tests/amp/op_table_test.c (tests fail for an operation that lacks one of the last four). */
#ifndef CAIRN__NN_OPS_H
#define CAIRN__NN_OPS_H

#include "nn/tensor.h"

struct cairn__op_row {
    bool promotes;     /* inputs of different types are cast to the widest float type, and other types left as they are;
                      without it different float types are an error that infer returns */
    bool strided;      /* inputs may have any strides; without it they come dense (by the operation `contiguous`) */
    bool view;         /* the result shows memory of inputs[0]: infer gives its strides and data too, forward is NULL */
    bool needs_math;   /* refused on a device without the passes of math_passes.h */
    bool keeps_types;  /* inputs are never cast, and the op hook is not called */
    uint32_t optional; /* bit i: inputs[i] may be NULL */

    /* Checks shapes and types of node->inputs and gives node->result its ndim and shape. It comes with the type of the
     * first input that is a float (else of the first), which infer may change. Sentences begin with the op's name, then
     * shapes, then the rule. */
    cairn_status (*infer)(const struct cairn__node *node);

    /* Computes node->result's data, which has room, dense. */
    cairn_status (*forward)(struct cairn__tape *tape, struct cairn__node *node);

    /* Propagates dy, the gradient of the result in the result's type and size, dense, by cairn__tensor_grad_begin and
     * cairn__tensor_grad_end, or by cairn__tensor_grad_pass_on, once for each input that cairn__wants_grad: parameters
     * before other inputs. NULL = the result has no gradient. */
    cairn_status (*backward)(struct cairn__tape *tape, const struct cairn__node *node, const void *dy);

    /* The gradient of the only input is that of the result, bit for bit: one memory may hold both. */
    bool hands_on;

    /* Whether backward reads the values of input i; of the result, where i is node->count. What it does not read may be
     * forgotten (cairn__forget). The answer never changes while the node lives. NULL = it reads everything, but for
     * views, which read nothing. */
    bool (*reads)(const struct cairn__node *node, int i);

    /* (optional) The name of the operation that attrs describe, where one row serves several. NULL = that of
     * op_list.h. */
    const char *(*own_name)(const void *attrs);
};

/* For `reads`: nothing; inputs alone; the result alone. */
bool cairn__reads_nothing(const struct cairn__node *node, int i);
bool cairn__reads_inputs(const struct cairn__node *node, int i);
bool cairn__reads_result(const struct cairn__node *node, int i);

/* ---- forget.c ---- */

/* node has been made, and recorded where its result wants a gradient; given are the inputs as the caller gave them,
 * before they were cast or made contiguous; such copies are used here alone. */
void cairn__note_readers(struct cairn__node *node, cairn_tensor *const *given);

/* A backward that does not retain the graph has walked node: what it alone needed is given back. */
void cairn__note_walked(struct cairn__node *node);

static inline const struct cairn__passes *cairn__passes_of(const struct cairn__tape *tape) {
    return tape->env->device->passes;
}

static inline const struct cairn__math *cairn__math_of(const struct cairn__tape *tape) {
    return tape->env->device->math;
}

/* Tensors as the arguments "count, inputs". */
#define CAIRN__INPUTS(...)                                                                        \
    (int)(sizeof((cairn_tensor *[]){__VA_ARGS__}) / sizeof(cairn_tensor *)), (cairn_tensor *[]) { \
        __VA_ARGS__                                                                               \
    }

/* The result of op, whose row is given; NULL where an input is NULL that is not optional (the cause is kept) or on
 * error. attrs, of attrs_nbytes, is copied to node->attrs; NULL, 0 = none. */
cairn_tensor *cairn__apply(enum cairn__op op, const struct cairn__op_row *row, int count, cairn_tensor *const *inputs,
                           const void *attrs, size_t attrs_nbytes);

/* Likewise, but where made is not NULL the result's values are there already: forward is not called, and the memory at
 * made outlives the result. */
cairn_tensor *cairn__apply_made(enum cairn__op op, const struct cairn__op_row *row, int count,
                                cairn_tensor *const *inputs, const void *attrs, size_t attrs_nbytes, void *made);

/* ---- ops_convert.c ---- */

/* t as an operation with this row takes it: cast to dtype where both are floats (0 = as it is), and dense where the row
 * says so. A parameter is cast once until its weights change. NULL on error. */
cairn_tensor *cairn__prepare_input(struct cairn__tape *tape, const struct cairn__op_row *row, cairn_tensor *t,
                                   cairn_dtype dtype);

/* ---- op_names.c ---- */

/* "linear"; of an operation of another room or of the user its own. */
const char *cairn__node_name(const struct cairn__node *node);
const char *cairn__name_of(enum cairn__op op, const struct cairn__op_row *row, const void *attrs);

/* ---- for rows ---- */

/* CAIRN_ENOTSUP where the device has no math_passes.h: for an operation that needs them for some inputs only. */
cairn_status cairn__require_math(const struct cairn__tape *tape, enum cairn__op op);

/* Device memory, undefined: until the forward or backward that is running returns; */
cairn_status cairn__scratch(struct cairn__tape *tape, size_t nbytes, void **out);
/* and node->saved, for its backward. */
cairn_status cairn__save(struct cairn__tape *tape, struct cairn__node *node, size_t nbytes);

/* The type arithmetic is done in, where t's values are stored: f64 for f64, else f32. */
static inline cairn_dtype cairn__arithmetic_type(cairn_dtype t) {
    return t == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
}

static inline bool cairn__is_float(cairn_dtype t) {
    return t == CAIRN_F32 || t == CAIRN_F16 || t == CAIRN_BF16 || t == CAIRN_F64;
}

/* dim counted from the end where negative, for ndim dimensions; CAIRN_EINVAL with a sentence of op's where out of
 * range. */
cairn_status cairn__dim_of(enum cairn__op op, int ndim, int dim, int *out);

/* v shown with the shape of like (NumPy's broadcasting rules hold: nn has checked), strides 0 where it is repeated. */
struct cairn__view cairn__view_broadcast(const struct cairn__view *v, int ndim, const int64_t *shape);

/* The shape that inputs of a node broadcast to, into its result; NumPy's rules. CAIRN_EINVAL:
 * "add: [64, 3] and [64, 4] do not broadcast: sizes 3 and 4 in dimension -1". */
cairn_status cairn__infer_broadcast(const struct cairn__node *node);

/* ---- for backward functions: where gradients go ---- */

/* A parameter's handle asks the parameter. */
static inline bool cairn__wants_grad(const cairn_tensor *t) {
    if (!t || !t->param) return t && t->wants_grad;
    return cairn__param_requires_grad(t->param);
}

/* cairn__tensor_grad_begin for a contribution that may be rounded at once, where t is a cast of a half result: memory
 * of *dtype, t's own or that half type. */
cairn_status cairn__tensor_grad_begin_rounded(struct cairn__tape *tape, cairn_tensor *t, void **dx, cairn_dtype *dtype);

/* Begin and end in one: dy, the gradient of node's result, is t's contribution as it is, element by element, converted
 * to t's type. Where the types are equal and t is a result nothing is copied: shared memory is never written. */
cairn_status cairn__tensor_grad_pass_on(struct cairn__tape *tape, cairn_tensor *t, const struct cairn__node *node,
                                        const void *dy);

/* The sum of the contributions to t's gradient that there are, dense, in t's type, where one to some of its elements
 * may be added in place, instead of begin and end. NULL: there is none yet, or it is another's too. */
void *cairn__tensor_grad_so_far(struct cairn__tape *tape, cairn_tensor *t);

/* The dense view of t's gradient at dx. */
static inline struct cairn__view cairn__tensor_grad_view(const cairn_tensor *t, void *dx) {
    return cairn__view_dense(dx, cairn__tensor_dtype(t), t->ndim, t->shape);
}

/* The dense view of a gradient of a node's result. */
static inline struct cairn__view cairn__dy_view(const struct cairn__node *node, const void *dy) {
    return cairn__view_dense((void *)(uintptr_t)dy, node->result->dtype, node->result->ndim, node->result->shape);
}

cairn_status cairn__infer_scalar(const struct cairn__node *node);

/* cairn_scaled_dot_product_attention of x [B, T, 3 * heads * D], which holds q, k and v of every head side by side; the
 * result [B, T, heads * D] holds those of the heads so. (ops_attention.c) */
cairn_tensor *cairn__attention_of_heads(cairn_tensor *x, int64_t heads, const struct cairn_attention_options *options);

#endif
