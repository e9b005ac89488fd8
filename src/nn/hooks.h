/* What nn lets others fill in: amp's choice of types. nn knows nothing of amp; without hooks every op computes in its
 * inputs' type. */
#ifndef CAIRN__NN_HOOKS_H
#define CAIRN__NN_HOOKS_H

#include "cairn/nn.h"
#include "nn/op_list.h"

struct cairn__scaler_state; /* kernels/step.h */
struct cairn__loss_scale;

enum cairn__op {
#define CAIRN__X(op, name, row) CAIRN__OP_##op,
    CAIRN__OP_LIST(CAIRN__X)
#undef CAIRN__X
        CAIRN__NUM_OPS
};

/* "linear" */
const char *cairn__op_name(enum cairn__op op);

/* The type op computes in and returns, given its inputs' types; 0 = nn's own rule (equal types, or the widest). Asked
 * with the types of the inputs that are floats; others are never cast. Inputs of
 * another float type are cast first, and their gradients cast back; a parameter's cast is kept until its weights change
 * (struct cairn__param's version, and the environment's replays). Never asked about CAIRN__OP_CAST and
 * CAIRN__OP_SCALE_LOSS. */
struct cairn__op_hook {
    void *ctx;
    cairn_dtype (*compute_type)(void *ctx, enum cairn__op op, const cairn_dtype *inputs, int count);
};

/* hook is copied; it is asked about every operation of the environment, inside modules and outside. One at a time.
 * Errors: CAIRN_ESTATE there is one. */
cairn_status cairn__set_op_hook(cairn_env *env, const struct cairn__op_hook *hook);
void cairn__clear_op_hook(cairn_env *env);

/* cairn_module_forward casts a float input to `input` and the result to `output`; 0 = leaves it. O2, O3 and O0 do. */
void cairn__module_set_io_types(cairn_module *module, cairn_dtype input, cairn_dtype output);

/* Where the values of a buffer or a leaf stand, in device memory. */
void *cairn__tensor_memory(cairn_tensor *leaf);

/* The environment a module was made in; NULL for NULL. */
cairn_env *cairn__module_env(const cairn_module *module);

/* loss * scale, in f32 whatever the loss's type, as a further node of the graph; the scale is scaler's when the device
 * comes to it, and stays in *cell. The gradient of the loss starts from it, and what is made of the result knows the
 * cell, so that backward can tell every parameter set it reaches where its factor stands. scaler and cell are device
 * memory; cell belongs to this loss until its gradients have been used. NULL with CAIRN_EINVAL more than one element,
 * CAIRN_ESTATE scaled already. */
cairn_tensor *cairn__scale_loss(cairn_tensor *loss, const struct cairn__scaler_state *scaler,
                                struct cairn__loss_scale *cell);

#endif
