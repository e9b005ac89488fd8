/* Operations from inside: each has a row, some share one, and cairn__apply applies them all. A row is private to the
 * file of its family, which passes it to cairn__apply.
 *
 * To add one: a line in op_list.h, its row in the file of its family, its public call in include/cairn/ops.h, a class
 * with a reason in amp/ops.c, its name in docs/operations.md, cases in tests/nn, and a line in
 * tests/amp/op_table_test.c (tests fail for an operation that lacks one of the last four). */
#ifndef CAIRN__NN_OPS_H
#define CAIRN__NN_OPS_H

#include "nn/tensor.h"

struct cairn__op_row {
    bool promotes;     /* float inputs are cast to the widest of their types; without it, infer rejects float inputs of
                          different types */
    bool strided;      /* inputs may have any strides; without it they are made dense (by the operation `contiguous`) */
    bool view;         /* the result shows memory of inputs[0]: infer sets its strides and data too, forward is NULL */
    bool needs_math;   /* refused on a device without the passes of math_passes.h */
    bool keeps_types;  /* inputs are never cast, and the op hook is not called */
    uint32_t optional; /* bit i: inputs[i] may be NULL */

    /* Checks shapes and types of node->inputs and sets node->result's ndim and shape. The result's type is already that
     * of the first float input (else of the first input); infer may change it. Error messages begin with the op's name,
     * then the shapes, then the rule. */
    cairn_status (*infer)(const struct cairn__node *node);

    /* Computes the values of node->result into its data, which is allocated, dense. */
    cairn_status (*forward)(struct cairn__tape *tape, struct cairn__node *node);

    /* Computes the gradient of each input that cairn__wants_grad from dy, the gradient of the result (dense, in the
     * result's type and size). Writes each once, parameters before other inputs, by cairn__tensor_grad_begin and
     * cairn__tensor_grad_end or by cairn__tensor_grad_pass_on. NULL = the result has no gradient. */
    cairn_status (*backward)(struct cairn__tape *tape, const struct cairn__node *node, const void *dy);

    /* The gradient of the only input is that of the result, bit for bit, so both may share memory. */
    bool hands_on;

    /* Whether backward reads the values of input i, or of the result if i is node->count. Values that it does not read
     * may be forgotten earlier (cairn__forget). The answer must not change while the node lives. NULL = a view reads
     * nothing, any other operation everything. */
    bool (*reads)(const struct cairn__node *node, int i);

    /* (optional) If one row serves several operations: the name of the one that attrs describe. NULL = the name in
     * op_list.h. */
    const char *(*own_name)(const void *attrs);
};

/* Functions for `reads`: nothing; the inputs only; the result only. */
bool cairn__reads_nothing(const struct cairn__node *node, int i);
bool cairn__reads_inputs(const struct cairn__node *node, int i);
bool cairn__reads_result(const struct cairn__node *node, int i);

/* ---- forget.c ---- */

/* Counts node as a reader of the values that its backward reads. Called once node is applied, and recorded if its
 * result wants a gradient. given: the caller's inputs, before casts and copies to dense memory; of those, only casts of
 * parameters are used by other operations too. */
void cairn__note_readers(struct cairn__node *node, cairn_tensor *const *given);

/* Releases what only node needed. Called when a backward that does not retain the graph has walked node. */
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

/* Applies op, whose row is given. Returns NULL on error, or if an input that is not optional is NULL (the last error
 * stays). The attrs_nbytes of attrs are copied to node->attrs; NULL, 0 = none. */
cairn_tensor *cairn__apply(enum cairn__op op, const struct cairn__op_row *row, int count, cairn_tensor *const *inputs,
                           const void *attrs, size_t attrs_nbytes);

/* As cairn__apply, but if made is not NULL, the result's values are already there: forward is not called. The memory at
 * made must outlive the result. */
cairn_tensor *cairn__apply_made(enum cairn__op op, const struct cairn__op_row *row, int count,
                                cairn_tensor *const *inputs, const void *attrs, size_t attrs_nbytes, void *made);

/* ---- ops_convert.c ---- */

/* Prepares t as an input of an operation with this row: cast to dtype if both are floats (dtype 0 = no cast), and dense
 * unless the row is strided. A parameter's cast is kept until its weights change. NULL on error. */
cairn_tensor *cairn__prepare_input(struct cairn__tape *tape, const struct cairn__op_row *row, cairn_tensor *t,
                                   cairn_dtype dtype);

/* ---- op_names.c ---- */

/* "linear"; operations of other rooms and of the user have names of their own. */
const char *cairn__node_name(const struct cairn__node *node);
const char *cairn__name_of(enum cairn__op op, const struct cairn__op_row *row, const void *attrs);

/* ---- for rows ---- */

/* CAIRN_ENOTSUP if the device lacks the passes of math_passes.h: for operations that need them for some inputs only. */
cairn_status cairn__require_math(const struct cairn__tape *tape, enum cairn__op op);

/* Undefined device memory that lasts until the running forward or backward returns. */
cairn_status cairn__scratch(struct cairn__tape *tape, size_t nbytes, void **out);
/* Undefined device memory in node->saved that lasts until the node's backward. */
cairn_status cairn__save(struct cairn__tape *tape, struct cairn__node *node, size_t nbytes);

/* The type that arithmetic on values stored as t is done in: f64 for f64, else f32. */
static inline cairn_dtype cairn__arithmetic_type(cairn_dtype t) {
    return t == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
}

static inline bool cairn__is_float(cairn_dtype t) {
    return t == CAIRN_F32 || t == CAIRN_F16 || t == CAIRN_BF16 || t == CAIRN_F64;
}

/* *out: dim, counted from the end if negative, of ndim dimensions. CAIRN_EINVAL, naming op, if out of range. */
cairn_status cairn__dim_of(enum cairn__op op, int ndim, int dim, int *out);

/* v broadcast to a shape by NumPy's rules, with stride 0 along repeated dimensions. Precondition: it broadcasts. */
struct cairn__view cairn__view_broadcast(const struct cairn__view *v, int ndim, const int64_t *shape);

/* Sets the result's shape to the one that a node's inputs broadcast to, by NumPy's rules. CAIRN_EINVAL:
 * "add: [64, 3] and [64, 4] do not broadcast: sizes 3 and 4 in dimension -1". */
cairn_status cairn__infer_broadcast(const struct cairn__node *node);

/* ---- for backward functions: where gradients go ---- */

/* Whether t wants a gradient; false for NULL. For a parameter's handle: whether the parameter requires one now. */
static inline bool cairn__wants_grad(const cairn_tensor *t) {
    if (!t || !t->param) return t && t->wants_grad;
    return cairn__param_requires_grad(t->param);
}

/* cairn__tensor_grad_begin for an operation that can write its contribution in either of two types. *dtype is the one
 * to write: the half type if t is an f32 cast of a half result and only the cast reads t's gradient; else t's type. */
cairn_status cairn__tensor_grad_begin_rounded(struct cairn__tape *tape, cairn_tensor *t, void **dx, cairn_dtype *dtype);

/* Begin and end in one, where t's contribution equals dy, the gradient of node's result, element by element; dy is
 * converted to t's type. If the types are equal and t is a result, both share memory, which is never written then. */
cairn_status cairn__tensor_grad_pass_on(struct cairn__tape *tape, cairn_tensor *t, const struct cairn__node *node,
                                        const void *dy);

/* The sum of the contributions to t's gradient so far, dense, in t's type. A contribution to some of its elements may
 * be added to it in place, instead of begin and end. NULL: there is none yet, or its memory is shared. */
void *cairn__tensor_grad_so_far(struct cairn__tape *tape, cairn_tensor *t);

/* A dense view of t's gradient at dx. */
static inline struct cairn__view cairn__tensor_grad_view(const cairn_tensor *t, void *dx) {
    return cairn__view_dense(dx, cairn__tensor_dtype(t), t->ndim, t->shape);
}

/* A dense view of dy, the gradient of a node's result. */
static inline struct cairn__view cairn__dy_view(const struct cairn__node *node, const void *dy) {
    return cairn__view_dense((void *)(uintptr_t)dy, node->result->dtype, node->result->ndim, node->result->shape);
}

cairn_status cairn__infer_scalar(const struct cairn__node *node);

/* cairn_scaled_dot_product_attention of x [B, T, 3 * heads * D], which holds the q, then the k, then the v of all heads
 * side by side; the result is [B, T, heads * D], heads side by side. (ops_attention.c) */
cairn_tensor *cairn__attention_of_heads(cairn_tensor *x, int64_t heads, const struct cairn_attention_options *options);

#endif
