/* A user-defined optimizer: one function that updates a flat piece of a parameter, called where Cairn's own optimizers
 * apply their update.
 *
 *     static void sign_sgd(void *ctx, const struct cairn_custom_update *u) {
 *         const float lr = (float)u->scalars->lr;
 *         (void)ctx;
 *         for (size_t i = 0; i < u->n; i++) u->weights[i] -= u->grad[i] > 0 ? lr : u->grad[i] < 0 ? -lr : 0;
 *     }
 *     static const struct cairn_custom_optimizer kind = {
 *         .struct_size = sizeof(kind), .name = "sign_sgd", .update = sign_sgd};
 *     struct cairn_custom_options options = CAIRN_CUSTOM_OPTIONS_INIT;
 *     options.lr = 1e-3;
 *     CAIRN_CHECK(cairn_custom_optimizer_create(set, &kind, &options, &optimizer));
 *
 * The result is a cairn_optimizer like any other, with groups, schedules, frozen and late parameters, half weights
 * (with masters or stochastic rounding), loss scaling, skipped steps, clipping, accumulation, ddp and checkpoints. The
 * function need not handle any of these: weights, gradient and states are f32, the gradient is unscaled and clipped,
 * and half weights are rounded from the updated weights. */
#ifndef CAIRN_CUSTOM_OPTIMIZER_H
#define CAIRN_CUSTOM_OPTIMIZER_H

#include "core.h"
#include "optim.h"
#include "param.h"
#include "param_groups.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CAIRN_CUSTOM_STATES = 3, /* the most f32 state arrays of a parameter */
    CAIRN_CUSTOM_VALUES = 8  /* the most hyperparameters of a group, besides lr and momentum */
};

/* Values that the step computes on the device; in memory of the environment's device. */
struct cairn_custom_scalars {
    double lr, momentum; /* of the group, as its schedule sets them for this step */
    int64_t update;      /* of this parameter, from 1; steps without a gradient for it and skipped steps do not count */
    int32_t skipped;     /* 1 = this step is skipped: write nothing. On the CPU the function is then not called */
    int32_t unused;
};

/* A piece of one parameter: elements [offset, offset + n) of its size, in row-major order. Pieces may be of any size,
 * and a rank may get only some pieces of a parameter, so an update that needs the whole parameter cannot be written
 * this way. */
struct cairn_custom_update {
    size_t n;
    float *weights;                             /* [n] read and written */
    const float *grad;                          /* [n] */
    float *states[CAIRN_CUSTOM_STATES];         /* [n] each, read and written; 0 before the first update */
    const struct cairn_custom_scalars *scalars; /* on a GPU only kernels may read it */
    const double *values; /* of the group, in the order of their names; host memory, valid during the call */
    int group;
    size_t parameter; /* index in the optimizer, in the order in which parameters were added */
    const char *name; /* of the parameter */
    size_t offset, size;
    void *stream; /* cudaStream_t; NULL on the CPU */
};

/* A kind of optimizer. The struct and its names are copied; ctx and the functions must outlive the optimizer. */
struct cairn_custom_optimizer {
    size_t struct_size;
    const char *name; /* in messages and checkpoints: letters, digits, '_', '-'; this and all names below: at most 31 */
    /* The update on the CPU. Called for one piece after the other or, if the rank has several threads
     * (cairn_set_num_threads), by these threads concurrently, each with a different piece: data behind ctx must be
     * read-only or locked. It must not call Cairn. NULL = not implemented: the kind is refused on the CPU. */
    void (*update)(void *ctx, const struct cairn_custom_update *u);
    /* The update on a GPU: a host function that queues kernels on u->stream and returns without waiting. weights, grad,
     * states and scalars are GPU memory, valid in stream order until the next call. Kernels must return early if
     * scalars->skipped is not 0, since the host does not know it. While a graph is recorded the function is called
     * once; replays launch what it queued, with the addresses and values of that call. NULL = not implemented: the kind
     * is refused on a GPU. */
    void (*update_cuda)(void *ctx, const struct cairn_custom_update *u);
    void *ctx;
    /* Names of a parameter's f32 states in checkpoints, up to the first NULL. */
    const char *states[CAIRN_CUSTOM_STATES];
    /* The name of scalars->momentum in checkpoints ("momentum", "beta1"); NULL = the kind has none, and schedules do
     * not change it. */
    const char *momentum;
    /* Names of hyperparameters in checkpoints, up to the first NULL. */
    const char *values[CAIRN_CUSTOM_VALUES];
};

/* Hyperparameters of one group. */
struct cairn_custom_options {
    size_t struct_size;
    double lr;       /* >= 0 */
    double momentum; /* any number; 0 if the kind has none */
    double values[CAIRN_CUSTOM_VALUES];
};
#define CAIRN_CUSTOM_OPTIONS_INIT                       \
    {                                                   \
        sizeof(struct cairn_custom_options), 1e-3, 0, { \
            0                                           \
        }                                               \
    }

/* Make an optimizer of this kind over all parameters of set; over the `count` parameters at indices; add a group of
 * these to an optimizer of this kind; make one with a group for each rule, whose options are cairn_group_rule.custom.
 * They work as cairn_sgd_create, cairn_sgd_create_over, cairn_sgd_add_group and cairn_sgd_create_grouped.
 *
 * Cost       On the CPU a piece has at most 256 elements: the gradient, and half weights without a master, are
 *            converted to f32 in memory that stays in the L1 cache. On a GPU a piece has at most 4 M elements; the
 *            gradient is converted to f32 by a pass of its own, half weights are read and written by further passes,
 *            and scratch is 16 MB (32 MB for half weights without a master).
 * Checkpoint States are saved by parameter, hyperparameters by group, under the names given. A kind that uses the names
 *            of a built-in optimizer loads its checkpoints ("adam": "exp_avg", "exp_avg_sq", momentum "beta1", "beta2",
 *            "eps", "weight_decay").
 * Errors     CAIRN_EINVAL a kind without an update, a name that cannot be saved, is missing or is used twice, a value
 *            that is not finite; CAIRN_ENOTSUP the kind has no update for the environment's device; the errors of
 *            cairn_sgd_create.
 * Source     torch.optim.Optimizer, as a base of a user's class. */
CAIRN_API cairn_status cairn_custom_optimizer_create(cairn_param_set *set, const struct cairn_custom_optimizer *kind,
                                                     const struct cairn_custom_options *options, cairn_optimizer **out);
CAIRN_API cairn_status cairn_custom_optimizer_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                                          const struct cairn_custom_optimizer *kind,
                                                          const struct cairn_custom_options *options,
                                                          cairn_optimizer **out);
CAIRN_API cairn_status cairn_custom_optimizer_add_group(cairn_optimizer *optimizer, cairn_param_set *set,
                                                        const size_t *indices, size_t count,
                                                        const struct cairn_custom_options *options);
CAIRN_API cairn_status cairn_custom_optimizer_create_grouped(cairn_param_set *set,
                                                             const struct cairn_custom_optimizer *kind,
                                                             const cairn_group_rule *rules, size_t count,
                                                             cairn_optimizer **out);
CAIRN_API cairn_status cairn_custom_optimizer_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                                   const struct cairn_custom_optimizer *kind,
                                                                   const cairn_group_rule *rules, size_t count,
                                                                   cairn_optimizer **out);
#define cairn_custom_optimizer_create_grouped(...) \
    cairn_custom_optimizer_create_grouped_sized(sizeof(cairn_group_rule), __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
