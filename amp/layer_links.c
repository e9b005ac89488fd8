/* The links between the children of a chain. Every child is followed by a link, a copy in forward. In backward a link
 * takes the census of the incoming gradient, and passes it on multiplied by the child's scale. A last link, in front of
 * the chain, divides by the product of all scales. */
#include "core/dtype.h"
#include "core/status.h"
#include "layer_chain.h"
#include "nn/hooks.h"

static cairn_status copy_on(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    struct cairn_device *d = ((const struct cairn__link *)ctx)->chain->env->device;
    (void)count;
    cairn__pass_cast(d->passes, d, y->data, y->dtype, x->data, x->dtype, x->n);
    return CAIRN_OK;
}

/* dy is the gradient of the input of the next child. */
static cairn_status scale_on(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                             const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    const struct cairn__link *l = ctx;
    const struct cairn__chain *c = l->chain;
    struct cairn_device *d = c->env->device;
    /* The element at count, 1 / P_0, divides by the product of all. */
    const float *scales = cairn__tensor_memory(c->buffer);
    const size_t child = l->index + 1;
    const struct cairn__item item = {.n = dy->n, .dst = dx->data, .x = dy->data};
    (void)y, (void)x, (void)count;
    REQUIRE(dy->dtype != CAIRN_F64, CAIRN_ENOTSUP,
            "amp_sequential: the gradient is f64, which is not scaled; use cairn_sequential");
    if (child < c->count) {
        const struct cairn__item seen = {.n = dy->n, .x = dy->data};
        d->passes->census(d, &seen, 1, dy->dtype, 0, &c->census[child]);
        d->passes->l2norm(d, &seen, 1, dy->dtype, NULL, &c->norms[child], NULL, NULL);
        c->types[child] = dy->dtype;
        c->elements[child] = (int64_t)dy->n;
    }
    if (dx->data) d->passes->scale(d, &item, 1, dx->dtype, dy->dtype, &scales[l->index], NULL);
    return CAIRN_OK;
}

static cairn_status copy_on_cuda(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                 void *stream) {
    (void)stream; /* the passes use the same one */
    return copy_on(ctx, y, x, count);
}

static cairn_status scale_on_cuda(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                  const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                  void *stream) {
    (void)stream;
    return scale_on(ctx, dx, dy, y, x, count);
}

static const struct cairn_custom_op link_op = {.struct_size = sizeof(link_op),
                                               .name = "layer_scale",
                                               .forward = copy_on,
                                               .backward = scale_on,
                                               .forward_cuda = copy_on_cuda,
                                               .backward_cuda = scale_on_cuda};

/* Indices have no gradient. */
static cairn_tensor *through(struct cairn__link *l, cairn_tensor *x) {
    if (!x || !cairn__dtype(cairn_tensor_dtype(x))->is_float || !cairn__records(l->chain->env)) return x;
    int64_t shape[CAIRN_MAX_DIMS];
    for (int i = 0; i < cairn_tensor_ndim(x); i++) shape[i] = cairn_tensor_size(x, i);
    return cairn_custom(&link_op, l, cairn_tensor_dtype(x), cairn_tensor_ndim(x), shape, &x, 1);
}

cairn_tensor *cairn__chain_run(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    struct cairn__chain *c = context;
    (void)module, (void)count;
    cairn_tensor *x = through(&c->links[c->count], inputs[0]);
    for (size_t i = 0; i < c->count; i++) x = through(&c->links[i], cairn_module_forward(c->children[i], x));
    return x;
}
