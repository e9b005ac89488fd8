/* An optimizer of the user's own: one function over a flat piece of a parameter, which Cairn calls where its own
 * optimizers have their update.
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
 * The result is a cairn_optimizer like any other: groups, schedules, frozen and late parameters, half weights with
 * masters or rounded at random, loss scaling, skipped steps, clipping, accumulation, ddp and checkpoints come with it.
 * The function sees none of these: weights, gradient and states are f32, the gradient is unscaled and clipped, and
 * half weights are written from what it leaves. */
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
    CAIRN_CUSTOM_STATES = 3, /* f32 arrays of a parameter, at most */
    CAIRN_CUSTOM_VALUES = 8  /* hyperparameters of a group beside lr and momentum, at most */
};

/* What a step decides where it runs: in the environment's device's memory. */
struct cairn_custom_scalars {
    double lr, momentum; /* of the group, as its schedule has them in this step */
    int64_t update;  /* of this parameter, from 1: steps in which it had no gradient, and skipped ones, do not count */
    int32_t skipped; /* 1 = this step is skipped: write nothing. On the CPU the function is not called then */
    int32_t unused;
};

/* A piece of one parameter: elements [offset, offset + n) of its size, in row-major order. Any piece may come, and a
 * rank may have some of a parameter's pieces alone: what needs the whole of a parameter is no update of this kind. */
struct cairn_custom_update {
    size_t n;
    float *weights;                             /* [n] read and written */
    const float *grad;                          /* [n] */
    float *states[CAIRN_CUSTOM_STATES];         /* [n] each, read and written; 0 before the first update */
    const struct cairn_custom_scalars *scalars; /* on a GPU kernels alone read it */
    const double *values; /* of the group, in the order of their names; the host's, good until the call returns */
    int group;
    size_t parameter; /* in the optimizer, in the order they were given */
    const char *name; /* the parameter's */
    size_t offset, size;
    void *stream; /* cudaStream_t; NULL on the CPU */
};

/* A kind. It and its names are copied; ctx and the functions must outlive the optimizer. */
struct cairn_custom_optimizer {
    size_t struct_size;
    const char *name; /* in messages and checkpoints: letters, digits, '_', '-'; 31 at most, as of all names below */
    /* The update on the CPU. Called for pieces one after the other, or, where the rank has several threads
     * (cairn_set_num_threads), from these at once, each with another piece: what ctx points to is read alone, or
     * guarded. It must not call Cairn. NULL = none: on the CPU the kind is refused. */
    void (*update)(void *ctx, const struct cairn_custom_update *u);
    /* The update on a GPU: a function of the host that queues kernels on u->stream and returns without waiting.
     * weights, grad, states and scalars are the GPU's memory, good until the next call in the order of the stream.
     * Kernels return where scalars->skipped is not 0: the host does not know it. While a graph is recorded it is called
     * once; replays launch what it queued, with the addresses and the values of that call. NULL = none. */
    void (*update_cuda)(void *ctx, const struct cairn_custom_update *u);
    void *ctx;
    /* Names of a parameter's f32 states in checkpoints; the first NULL ends them. */
    const char *states[CAIRN_CUSTOM_STATES];
    /* The name of scalars->momentum in checkpoints ("momentum", "beta1"); NULL = the kind has none, and no schedule
     * moves it. */
    const char *momentum;
    /* Names of hyperparameters in checkpoints; the first NULL ends them. */
    const char *values[CAIRN_CUSTOM_VALUES];
};

/* Hyperparameters of one group. */
struct cairn_custom_options {
    size_t struct_size;
    double lr;       /* >= 0 */
    double momentum; /* any number; 0 where the kind has none */
    double values[CAIRN_CUSTOM_VALUES];
};
#define CAIRN_CUSTOM_OPTIONS_INIT                       \
    {                                                   \
        sizeof(struct cairn_custom_options), 1e-3, 0, { \
            0                                           \
        }                                               \
    }

/* An optimizer of this kind over all parameters of set, or over the count at indices; a further group of one; one with
 * a group for each rule, whose options are cairn_group_rule.custom. As cairn_sgd_create, cairn_sgd_create_over,
 * cairn_sgd_add_group and cairn_sgd_create_grouped.
 *
 * Cost       On the CPU pieces have 256 elements: gradient, and half weights without a master, are brought to f32 in
 *            memory that stays in the first cache. On a GPU they have 4 M elements, the gradient is brought to f32 by a
 *            pass of its own, half weights are read and written by further ones, and scratch is 16 MB (32 MB for half
 *            weights without a master).
 * Checkpoint States are saved by parameter, hyperparameters by group, under the names given; a kind with the names of
 *            a built-in optimizer loads its checkpoints ("adam": "exp_avg", "exp_avg_sq", momentum "beta1", "beta2",
 *            "eps", "weight_decay").
 * Errors     CAIRN_EINVAL a kind without an update, a name that cannot be saved, is missing or comes twice, a value
 *            that is not finite; CAIRN_ENOTSUP the kind has no update for the environment's device; as
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
