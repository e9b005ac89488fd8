/* Cases of operations: those that only change the graph, and custom operations. */
#include "cairn/interop_cuda.h"
#include "core/convert.h"
#include "device/env.h"
#include "nn/tensor.h"
#include "op_cases.h"

static cairn_tensor *detach_one_side(cairn_tensor *const *in) {
    return cairn_mul(cairn_detach(in[0]), in[1]);
}
static cairn_tensor *detach_a_view(cairn_tensor *const *in) {
    return cairn_mul(cairn_detach(cairn_transpose(in[0], 0, 1)), in[1]);
}

/* ---- checkpoint ---- */

static cairn_tensor *rectified_product(void *ctx, cairn_tensor *const *in, int count) {
    (void)ctx;
    return count == 2 ? cairn_mul(cairn_relu(in[0]), in[1]) : NULL;
}
static cairn_tensor *checkpointed(cairn_tensor *const *in) {
    return cairn_checkpoint(rectified_product, NULL, in, 2);
}
static cairn_tensor *checkpointed_twice(void *ctx, cairn_tensor *const *in, int count) {
    return cairn_checkpoint(rectified_product, ctx, in, count);
}
static cairn_tensor *nested(cairn_tensor *const *in) {
    cairn_tensor *made[] = {cairn_transpose(in[0], 0, 1), cairn_transpose(in[1], 0, 1)};
    return cairn_checkpoint(checkpointed_twice, NULL, made, 2);
}

/* ---- custom: y = a * b for equal shapes, in f64, rounded once ---- */

static double element(const struct cairn_custom_array *x, size_t i) {
    double value = 0;
    cairn__convert(&value, CAIRN_F64, (const char *)x->data + i * cairn_dtype_nbytes(x->dtype), x->dtype, 1);
    return value;
}

static void multiply(struct cairn_custom_array *y, const struct cairn_custom_array *a,
                     const struct cairn_custom_array *b) {
    for (size_t i = 0; i < y->n; i++) {
        const double value = element(a, i) * element(b, i);
        cairn__convert((char *)y->data + i * cairn_dtype_nbytes(y->dtype), y->dtype, &value, CAIRN_F64, 1);
    }
}

static cairn_status forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)count;
    multiply(y, &x[0], &x[1]);
    return CAIRN_OK;
}

static cairn_status backward(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                             const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)y, (void)count;
    if (dx[0].data) multiply(&dx[0], dy, &x[1]);
    if (dx[1].data) multiply(&dx[1], dy, &x[0]);
    return CAIRN_OK;
}

/* On a GPU by its own passes, which queue on the stream as a user's kernels do; ctx is the environment. */
static void queue_multiply(cairn_env *env, const struct cairn_custom_array *y, const struct cairn_custom_array *a,
                           const struct cairn_custom_array *b) {
    const struct cairn__view of[] = {cairn__view_dense(a->data, a->dtype, a->ndim, a->shape),
                                     cairn__view_dense(b->data, b->dtype, b->ndim, b->shape)};
    const struct cairn__view to = cairn__view_dense(y->data, y->dtype, y->ndim, y->shape);
    env->device->math->map(env->device, CAIRN__MAP_MUL, &to, of, NULL);
}

static cairn_status forward_cuda(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                 void *stream) {
    (void)count;
    queue_multiply(ctx, y, &x[0], &x[1]);
    return stream == cairn_cuda_stream(ctx) ? CAIRN_OK : CAIRN_EINTERNAL;
}

static cairn_status backward_cuda(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                  const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                  void *stream) {
    (void)y, (void)count;
    if (dx[0].data) queue_multiply(ctx, &dx[0], dy, &x[1]);
    if (dx[1].data) queue_multiply(ctx, &dx[1], dy, &x[0]);
    return stream == cairn_cuda_stream(ctx) ? CAIRN_OK : CAIRN_EINTERNAL;
}

static const struct cairn_custom_op product = {.struct_size = sizeof(product),
                                               .name = "product",
                                               .forward = forward,
                                               .backward = backward,
                                               .forward_cuda = forward_cuda,
                                               .backward_cuda = backward_cuda};

static cairn_tensor *custom(cairn_tensor *const *in) {
    int64_t shape[CASE_DIMS];
    for (int d = 0; d < cairn_tensor_ndim(in[0]); d++) shape[d] = cairn_tensor_size(in[0], d);
    return cairn_custom(&product, in[0]->env, cairn_tensor_dtype(in[0]), cairn_tensor_ndim(in[0]), shape, in, 2);
}
static cairn_tensor *custom_square(cairn_tensor *const *in) {
    return custom((cairn_tensor *[]){in[0], in[0]});
}

static const struct op_case cases[] = {
    CASE("detach stops the gradient of one side", DETACH, detach_one_side, "a.detach() * b",
         {.shape = "3 5", .no_grad = true}, IN("3 5")),
    CASE("detach of a view", DETACH, detach_a_view, "a.T.detach() * b", {.shape = "5 3", .no_grad = true}, IN("3 5")),
    CASE("detach of one element", DETACH, detach_one_side, "a.detach() * b", {.shape = "", .no_grad = true}, IN("")),
    CASE("detach of nothing", DETACH, detach_one_side, "a.detach() * b", {.shape = "0 2", .no_grad = true}, IN("0 2")),
    CASE("checkpoint of a product", CHECKPOINT, checkpointed, "F.relu(a) * b", IN_AS("7 3", AWAY), IN("7 3")),
    CASE("checkpoint of one element", CHECKPOINT, checkpointed, "F.relu(a) * b", IN_AS("", AWAY), IN("")),
    CASE("checkpoint of nothing", CHECKPOINT, checkpointed, "F.relu(a) * b", IN("0 4"), IN("0 4")),
    CASE("checkpoint broadcasts inside", CHECKPOINT, checkpointed, "F.relu(a) * b", IN_AS("4 1 5", AWAY), IN("3 5")),
    CASE("checkpoint within a checkpoint, of views", CHECKPOINT, nested, "(F.relu(a) * b).T", IN_AS("6 5", AWAY),
         IN("6 5")),
    CASE("custom product", CUSTOM, custom, "a * b", IN("4 3 2"), IN("4 3 2")),
    CASE("custom product of one element", CUSTOM, custom, "a * b", IN(""), IN("")),
    CASE("custom product of nothing", CUSTOM, custom, "a * b", IN("0"), IN("0")),
    CASE("custom square: one input twice", CUSTOM, custom_square, "a * a", IN("9")),
};

const struct op_cases cases_autograd = OP_CASES(cases);
