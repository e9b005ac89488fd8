/* Optimizers: SGD, Adam, AdamW, Lion, Adagrad, LAMB, NovoGrad. A step is one fused pass (two for LAMB; NovoGrad reads
 * gradients once more): it reads each gradient in its own type, unscales it, updates f32 state and weights (the
 * masters, if amp made any), and writes the half weight.
 *
 * Options are hyperparameters, for which 0 is a valid value: initialise them with the INIT macro, then assign. In C and
 * C++: struct cairn_adam_options o = CAIRN_ADAM_OPTIONS_INIT; o.lr = 3e-4;
 * Threads: one thread per optimizer at a time. */
#ifndef CAIRN_OPTIM_H
#define CAIRN_OPTIM_H

#include "core.h"
#include "param.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_optimizer cairn_optimizer;

struct cairn_sgd_options {
    size_t struct_size;
    double lr;           /* learning rate, >= 0 */
    double momentum;     /* >= 0 */
    double dampening;    /* of momentum */
    double weight_decay; /* L2, added to the gradient; >= 0 */
    cairn_switch nesterov;
    int unused;                        /* padding at the end of the struct before 0.9.0 */
    cairn_switch maximize;             /* maximise the loss: steps follow the gradient upwards */
    cairn_switch decay_after_momentum; /* weight decay is added to the step instead of the momentum */
};
#define CAIRN_SGD_OPTIONS_INIT \
    { sizeof(struct cairn_sgd_options), 1e-3, 0, 0, 0, CAIRN_DEFAULT, 0, CAIRN_DEFAULT, CAIRN_DEFAULT }

struct cairn_adam_options {
    size_t struct_size;
    double lr;                    /* >= 0 */
    double beta1, beta2;          /* in [0, 1) */
    double eps;                   /* >= 0, and above 0 if beta2 is 0; outside the square root, after bias correction */
    double weight_decay;          /* >= 0: L2 in the gradient for Adam, decoupled for AdamW */
    cairn_switch amsgrad;         /* divides by the root of the greatest second moment so far, a third state */
    cairn_switch maximize;        /* maximise the loss */
    cairn_switch bias_correction; /* CAIRN_DEFAULT is on */
    int unused;                   /* 0; padding */
};
#define CAIRN_ADAM_OPTIONS_INIT \
    { sizeof(struct cairn_adam_options), 1e-3, 0.9, 0.999, 1e-8, 0, CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, 0 }
#define CAIRN_ADAMW_OPTIONS_INIT \
    { sizeof(struct cairn_adam_options), 1e-3, 0.9, 0.999, 1e-8, 1e-2, CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, 0 }

struct cairn_lion_options {
    size_t struct_size;
    double lr;           /* >= 0; the step of every element, whatever its gradient: a third to a tenth of AdamW's */
    double beta1, beta2; /* in [0, 1): of the mean whose sign is used, and of the mean that is kept as state */
    double weight_decay; /* decoupled; >= 0 */
    cairn_switch maximize;
    int unused; /* 0; padding */
};
#define CAIRN_LION_OPTIONS_INIT \
    { sizeof(struct cairn_lion_options), 1e-4, 0.9, 0.99, 0, CAIRN_DEFAULT, 0 }

struct cairn_adagrad_options {
    size_t struct_size;
    double lr;                  /* >= 0 */
    double lr_decay;            /* update t of a parameter uses lr / (1 + (t - 1) * lr_decay); >= 0 */
    double eps;                 /* >= 0, and above 0 if initial_accumulator is 0; outside the square root */
    double weight_decay;        /* >= 0 */
    double initial_accumulator; /* initial value of the sums of squares; >= 0 */
    cairn_switch decoupled;     /* weight decay is added to the step instead of the gradient: apex's adagrad_w_mode */
    cairn_switch maximize;
};
#define CAIRN_ADAGRAD_OPTIONS_INIT \
    { sizeof(struct cairn_adagrad_options), 1e-2, 0, 1e-10, 0, 0, CAIRN_DEFAULT, CAIRN_DEFAULT }

/* LAMB: AdamW's direction u with a learning rate for each parameter: w -= lr * |w| / |u| * u. */
struct cairn_lamb_options {
    size_t struct_size;
    double lr;              /* >= 0; for large batches about sqrt(batch) times that of a small one */
    double beta1, beta2;    /* in [0, 1) */
    double eps;             /* > 0; outside the square root, after bias correction */
    double weight_decay;    /* >= 0. If it is 0, or the norm of a parameter or its direction is, the rate is lr alone */
    double max_grad_norm;   /* every step clips to it as cairn_clip_grad_norm; equal in all groups; 0 = no clipping */
    cairn_switch decoupled; /* weight decay is added to the direction, not the gradient; CAIRN_DEFAULT is on */
    cairn_switch bias_correction; /* CAIRN_DEFAULT is on */
    cairn_switch grad_averaging;  /* on: the first moment adds (1 - beta1) g, off: all of g; CAIRN_DEFAULT is on */
    cairn_switch nvlamb;          /* uses the rate by norms even without weight decay */
    cairn_switch maximize;
    int unused; /* 0; padding */
};
/* clang-format off */
#define CAIRN_LAMB_OPTIONS_INIT                                                               \
    { sizeof(struct cairn_lamb_options), 1e-3, 0.9, 0.999, 1e-6, 1e-2, 1, CAIRN_DEFAULT,      \
      CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, 0 }
/* clang-format on */

/* NovoGrad: the gradient is divided by d = mean + eps, with mean a running mean of its norm over the parameter; the
 * step uses its momentum m: w -= lr * (m / d + weight_decay * w). */
struct cairn_novograd_options {
    size_t struct_size;
    double lr;                      /* >= 0 */
    double beta1, beta2;            /* in [0, 1): of the momentum, and of the running mean of squared norms */
    double eps;                     /* > 0; after bias correction */
    double weight_decay;            /* >= 0 */
    cairn_switch bias_correction;   /* CAIRN_DEFAULT is on */
    cairn_switch grad_averaging;    /* on: the momentum adds (1 - beta1) g, off: all of g; CAIRN_DEFAULT is on */
    cairn_switch reg_inside_moment; /* the momentum is of g / d + weight_decay * w, as in the paper */
    cairn_switch init_zero;         /* the mean starts at 0 instead of the first norm */
    cairn_switch max_norm;          /* norms are maximum norms, and the mean is of the norms, not their squares */
    cairn_switch maximize;
};
/* clang-format off */
#define CAIRN_NOVOGRAD_OPTIONS_INIT                                                               \
    { sizeof(struct cairn_novograd_options), 1e-3, 0.9, 0.999, 1e-8, 0, CAIRN_DEFAULT,            \
      CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT }
/* clang-format on */

/* Make an optimizer over every parameter of set, which must outlive it. Options are copied; NULL = the INIT macro's
 * values.
 *
 * Numerics   f32, as torch.optim.SGD / Adam / AdamW / Adagrad with foreach off, except that scalars (1-beta, bias
 *            corrections, lr * weight_decay) are computed in double and rounded once. Lion:
 *                w -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w),  m = beta2 * m + (1 - beta2) * g
 *            where the sign of 0 is 0 and that of NaN is NaN, so NaNs remain visible. LAMB, NovoGrad: sums of squares,
 *            and values computed from them, are f64; LAMB's weights are the masters.
 * Errors     CAIRN_EINVAL names the value that is out of range; CAIRN_ENOMEM.
 * Cost       state of 4 bytes per parameter element for SGD with momentum, Lion and Adagrad, 8 for Adam, 12 with
 *            amsgrad; LAMB has 8 and scratch of 4, and reads gradients once more to clip; NovoGrad has 4, and 4 per
 *            parameter. If ranks share updates (ddp.h: shard_optimizer), LAMB, NovoGrad and LARC wait for the device
 *            and exchange norms in each step, which then cannot be recorded (cairn_step: CAIRN_ESTATE).
 * Source     torch.optim (PyTorch 2.x): SGD's first momentum is the gradient itself; Kingma and Ba, ICLR 2015;
 *            Loshchilov and Hutter, ICLR 2019; amsgrad: Reddi, Kale and Kumar, ICLR 2018, algorithm 2, of the corrected
 *            moment as torch has it; Lion: Chen et al., NeurIPS 2023, algorithm 2; Adagrad: Duchi, Hazan and Singer,
 *            JMLR 12, 2011; LAMB: You et al., ICLR 2020, algorithm 2; NovoGrad: Ginsburg et al., arXiv 1905.11286,
 *            algorithm 1. apex/optimizers/fused_{sgd,adam,adagrad,lamb,novograd}.py: decay_after_momentum is
 *            wd_after_momentum. */
CAIRN_API cairn_status cairn_sgd_create(cairn_param_set *set, const struct cairn_sgd_options *options,
                                        cairn_optimizer **out);
CAIRN_API cairn_status cairn_adam_create(cairn_param_set *set, const struct cairn_adam_options *options,
                                         cairn_optimizer **out);
CAIRN_API cairn_status cairn_adamw_create(cairn_param_set *set, const struct cairn_adam_options *options,
                                          cairn_optimizer **out);
CAIRN_API cairn_status cairn_lion_create(cairn_param_set *set, const struct cairn_lion_options *options,
                                         cairn_optimizer **out);
CAIRN_API cairn_status cairn_adagrad_create(cairn_param_set *set, const struct cairn_adagrad_options *options,
                                            cairn_optimizer **out);
CAIRN_API cairn_status cairn_lamb_create(cairn_param_set *set, const struct cairn_lamb_options *options,
                                         cairn_optimizer **out);
CAIRN_API cairn_status cairn_novograd_create(cairn_param_set *set, const struct cairn_novograd_options *options,
                                             cairn_optimizer **out);

/* The same over some parameters of a set: the count at indices, each once. Add more with add_group, also from other
 * sets of the same environment: one optimizer can cover several models. Errors: CAIRN_EINVAL an index out of range or
 * listed twice. */
CAIRN_API cairn_status cairn_sgd_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                             const struct cairn_sgd_options *options, cairn_optimizer **out);
CAIRN_API cairn_status cairn_adam_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                              const struct cairn_adam_options *options, cairn_optimizer **out);
CAIRN_API cairn_status cairn_adamw_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                               const struct cairn_adam_options *options, cairn_optimizer **out);
CAIRN_API cairn_status cairn_lion_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                              const struct cairn_lion_options *options, cairn_optimizer **out);
CAIRN_API cairn_status cairn_adagrad_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                                 const struct cairn_adagrad_options *options, cairn_optimizer **out);
CAIRN_API cairn_status cairn_lamb_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                              const struct cairn_lamb_options *options, cairn_optimizer **out);
CAIRN_API cairn_status cairn_novograd_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                                  const struct cairn_novograd_options *options, cairn_optimizer **out);

/* Add a group of parameters with its own hyperparameters. Groups are numbered from 0, the one made with the optimizer.
 * indices NULL: all of set. Use adam_add_group for AdamW too; options NULL = the INIT macro of the optimizer's kind.
 * Parameters start with new moments and their own count of steps. Call it between steps.
 * Errors, which change nothing: CAIRN_EINVAL another kind of optimizer, an index out of range, a parameter that is
 * listed twice or already in an optimizer, another environment, for LAMB another max_grad_norm than group 0's;
 * CAIRN_ESTATE the optimizer belongs to an amp context and the set does not (pass its model to the same
 * amp_initialize), or a graph is alive; CAIRN_ENOMEM. torch.optim.Optimizer.add_param_group */
CAIRN_API cairn_status cairn_sgd_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices,
                                           size_t count, const struct cairn_sgd_options *options);
CAIRN_API cairn_status cairn_adam_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices,
                                            size_t count, const struct cairn_adam_options *options);
CAIRN_API cairn_status cairn_lion_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices,
                                            size_t count, const struct cairn_lion_options *options);
CAIRN_API cairn_status cairn_adagrad_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices,
                                               size_t count, const struct cairn_adagrad_options *options);
CAIRN_API cairn_status cairn_lamb_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices,
                                            size_t count, const struct cairn_lamb_options *options);
CAIRN_API cairn_status cairn_novograd_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices,
                                                size_t count, const struct cairn_novograd_options *options);

/* Waits for the device. While an amp context uses the optimizer it is not destroyed, and an error is logged; an
 * amp_scaler releases it. */
CAIRN_API void cairn_optimizer_destroy(cairn_optimizer **optimizer);

/* cairn_zero_grad forgets the gradients of the optimizer's parameters (nothing is written to memory) and starts a new
 * step of the environment, which ends the results of the last one. To keep results (for a second model, or a second
 * loss of the same step) use cairn_optimizer_clear_grads, which only forgets the gradients; cairn_param_set_zero_grad
 * and cairn_module_zero_grad do so for all parameters of a set or model. NULL does nothing. */
CAIRN_API void cairn_zero_grad(cairn_optimizer *optimizer);
CAIRN_API void cairn_optimizer_clear_grads(cairn_optimizer *optimizer);

/* Deprecated name, used before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("cairn_optimizer_clear_grads") void cairn_clear_grads(cairn_optimizer *optimizer);

/* Clips gradients by their total norm, between backward and cairn_step: the step multiplies them by min(1, max_norm /
 * (norm + 1e-6)). The call stores only this coefficient and changes no gradient. Gradients that a later backward adds
 * are not clipped. A second call clips the clipped gradients further; forgetting the gradients ends clipping. One read
 * of the gradients, which is also amp's overflow check if there was one backward.
 *
 *   norm     the L2 norm of the unscaled gradients, from f64 sums (docs/benchmarks.md has its error); inf if one is
 *            infinite or NaN, and then nothing changes. NULL = not wanted; otherwise the call waits for the device
 *
 * Collective if ranks share updates (ddp_options.shard_optimizer), as cairn_step is.
 * Errors: CAIRN_EINVAL max_norm is not above 0; CAIRN_ESTATE a graph is being recorded and norm is set; CAIRN_ENOMEM.
 * torch.nn.utils.clip_grad_norm_ (norm_type 2) */
CAIRN_API cairn_status cairn_clip_grad_norm(cairn_optimizer *optimizer, double max_norm, double *norm);

/* Clamps every unscaled gradient to [-limit, limit]; NaN stays NaN. For half gradients it makes f32 ones. One read and
 * write.
 * Errors: CAIRN_EINVAL limit is not above 0; CAIRN_ENOMEM. torch.nn.utils.clip_grad_value_ */
CAIRN_API cairn_status cairn_clip_grad_value(cairn_optimizer *optimizer, double limit);

/* Computes the L2 norms of the unscaled gradients after clipping: of each parameter, 0 without a gradient, and of all
 * together; infinite or NaN if a gradient is. Changes no gradient. Waits for the device. Collective if ranks share
 * updates (ddp_options.shard_optimizer).
 *
 *   norms    out [count = cairn_optimizer_num_params]; NULL = not wanted
 *   total    out; NULL = not wanted
 *
 * Errors: CAIRN_EINVAL count; CAIRN_ESTATE a graph is being recorded, or gradients are in flight; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_grad_norms(cairn_optimizer *optimizer, double *norms, size_t count, double *total);

/* The number of parameters; they are numbered in the order in which they were added. */
CAIRN_API size_t cairn_optimizer_num_params(const cairn_optimizer *optimizer);

/* Describes the tensors that the optimizer updates, [count = cairn_optimizer_num_params]: data is the master of a half
 * parameter, or the parameter itself; grad is the unscaled f32 gradient after clipping (NULL: none), computed once per
 * backward. Errors: CAIRN_EINVAL count; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_optimizer_masters(cairn_optimizer *optimizer, cairn_param *out, size_t count);
CAIRN_API cairn_status cairn_optimizer_masters_sized(size_t param_nbytes, cairn_optimizer *optimizer, cairn_param *out,
                                                     size_t count);
#define cairn_optimizer_masters(...) cairn_optimizer_masters_sized(sizeof(cairn_param), __VA_ARGS__)

/* Queues an update of every parameter that has a gradient; parameters without one keep weight and state. If amp found
 * an infinite or NaN gradient, on any rank, the step is skipped: nothing is written.
 *
 * Late      On the CPU the step is done when the call returns. A GPU decides and does it later; the host gets the
 *           report (messages, the counters below, CAIRN_ENUMERIC) at the earliest in the next cairn_step. After
 *           cairn_env_synchronize it has the reports of all queued steps.
 * Errors    CAIRN_EINVAL NULL; CAIRN_ESTATE the previous backward failed, or a scaled loss has not been ended (nothing
 *           was written); CAIRN_ENOMEM; CAIRN_EDEVICE; CAIRN_ENUMERIC the loss scale is at its floor and gradients
 *           still overflow, in this step or (on a GPU) an earlier one; CAIRN_EPEER ranks share updates, and another
 *           rank's step was refused or failed. */
CAIRN_API cairn_status cairn_step(cairn_optimizer *optimizer);

/* 1 if the last reported step was skipped. */
CAIRN_API int cairn_optimizer_step_skipped(const cairn_optimizer *optimizer);

/* Deprecated name, used before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("cairn_optimizer_step_skipped") int cairn_step_skipped(const cairn_optimizer *optimizer);

/* The numbers of steps taken and of steps skipped, as reported so far. */
CAIRN_API int64_t cairn_optimizer_steps(const cairn_optimizer *optimizer);
CAIRN_API int64_t cairn_optimizer_skipped(const cairn_optimizer *optimizer);

/* Set the learning rate of all groups, or of one, from the next step on; if a group has a schedule (schedule.h), its
 * base rate. lr and group_lr return the rate of the next step, as far as earlier steps have been reported.
 * Errors: CAIRN_EINVAL negative or not finite, no such group; CAIRN_ESTATE in a step that is being recorded. */
CAIRN_API cairn_status cairn_optimizer_set_lr(cairn_optimizer *optimizer, double lr);
CAIRN_API cairn_status cairn_optimizer_set_group_lr(cairn_optimizer *optimizer, int group, double lr);
CAIRN_API double cairn_optimizer_lr(const cairn_optimizer *optimizer);                  /* of group 0 */
CAIRN_API double cairn_optimizer_group_lr(const cairn_optimizer *optimizer, int group); /* NaN: no such group */
CAIRN_API int cairn_optimizer_num_groups(const cairn_optimizer *optimizer);

struct cairn_larc_options {
    size_t struct_size;
    double trust_coefficient; /* > 0 */
    double eps;               /* >= 0; added to the gradient's norm */
    cairn_switch
        clip;   /* on: the local rate can only lower the rate; OFF: the rate is multiplied by it. CAIRN_DEFAULT is on */
    int unused; /* 0; padding */
};
#define CAIRN_LARC_OPTIONS_INIT \
    { sizeof(struct cairn_larc_options), 0.02, 1e-8, CAIRN_DEFAULT, 0 }

/* Applies LARC to all current groups, or to one, from the next step on: every parameter's gradient g becomes
 *
 *     (g + weight_decay * w) * a,   a = min(r / lr, 1), or r where clip is off,
 *     r = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps)
 *
 * Norms are those of the whole parameter and of the unscaled, clipped gradient. The update itself then has no weight
 * decay, AdamW's neither. If w or g is 0, g is unchanged and has no weight decay. Costs one more read of weights and
 * gradients. For SGD, Adam, AdamW and Adagrad. It is a hyperparameter: loading a checkpoint replaces it by the saved
 * one, or removes it.
 *
 *   options   copied; NULL = no LARC
 *
 * Errors, which change nothing: CAIRN_EINVAL another kind of optimizer, no such group, an invalid option;
 * CAIRN_ESTATE a captured graph is alive. You, Gitman and Ginsburg, arXiv 1708.03888; apex.parallel.LARC */
CAIRN_API cairn_status cairn_optimizer_set_larc(cairn_optimizer *optimizer, const struct cairn_larc_options *options);
CAIRN_API cairn_status cairn_optimizer_set_group_larc(cairn_optimizer *optimizer, int group,
                                                      const struct cairn_larc_options *options);

/* The set that the optimizer was created with. */
CAIRN_API cairn_param_set *cairn_optimizer_params(cairn_optimizer *optimizer);

/* The optimizer's state for a checkpoint (stateful.h), to be saved together with that of its parameters
 * (cairn_module_stateful):
 *
 *   moments      by their parameters' names; a parameter that has been frozen from the beginning has none, and a load
 *                makes them if the checkpoint has some
 *   counters     steps taken, skipped, and missed by each parameter, which Adam's bias correction, schedules and
 *                stochastic rounding use; the last reported step, and whether the next one will be skipped for a loss
 *                that was also given to another optimizer
 *   groups       hyperparameters and base rates: a load replaces the program's by the saved ones; to continue with
 *                others, set them after the load
 *   schedules    the step at which each began. The schedule itself is not saved: the program sets it before the load,
 *                and may set another one; its position comes from the counters
 *   plateau      the best metric and the counts since, if both runs have called cairn_optimizer_set_plateau
 *
 * Both optimizers must be of the same kind, with the same groups in the same order. Errors: CAIRN_ESTATE as
 * cairn_param_set_stateful (param.h), and also if gradients have been clipped that no step has used, or if a load would
 * change hyperparameters that a captured graph holds, that is all except learning rate and momentum; CAIRN_EINVAL other
 * groups, or invalid numbers (those of missed steps are checked only after arrays have been loaded). With several
 * ranks, moments are shared or each rank's own as their parameters are; the rest is rank 0's if ddp averages all
 * parameters. */
CAIRN_API cairn_stateful cairn_optimizer_stateful(cairn_optimizer *optimizer);

#ifdef __cplusplus
}
#endif

#endif
