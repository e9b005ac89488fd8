/* Optimizers: SGD, Adam, AdamW, Lion, Adagrad, LAMB, NovoGrad. A step is one fused pass (two of LAMB; NovoGrad reads
 * gradients once more): it reads each gradient in its own type, unscales it, updates f32 state and weights (masters
 * where amp made some), and writes the half weight.
 *
 * Options hold hyperparameters, where 0 is a value: start from the INIT macro, then assign. In C and C++ alike:
 * struct cairn_adam_options o = CAIRN_ADAM_OPTIONS_INIT; o.lr = 3e-4;
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
    int unused;                        /* where structs of before 0.9.0 end in padding */
    cairn_switch maximize;             /* the loss: steps go up its gradient */
    cairn_switch decay_after_momentum; /* weight decay joins the step, and not the momentum */
};
#define CAIRN_SGD_OPTIONS_INIT \
    { sizeof(struct cairn_sgd_options), 1e-3, 0, 0, 0, CAIRN_DEFAULT, 0, CAIRN_DEFAULT, CAIRN_DEFAULT }

struct cairn_adam_options {
    size_t struct_size;
    double lr;             /* >= 0 */
    double beta1, beta2;   /* in [0, 1) */
    double eps;            /* >= 0, and above 0 where beta2 is 0; outside the square root, after bias correction */
    double weight_decay;   /* >= 0: L2 in the gradient for Adam, decoupled for AdamW */
    cairn_switch amsgrad;  /* divides by the root of the greatest second moment so far, a third state */
    cairn_switch maximize; /* the loss */
    cairn_switch bias_correction; /* CAIRN_DEFAULT is on */
    int unused;                   /* 0: in place of padding */
};
#define CAIRN_ADAM_OPTIONS_INIT \
    { sizeof(struct cairn_adam_options), 1e-3, 0.9, 0.999, 1e-8, 0, CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, 0 }
#define CAIRN_ADAMW_OPTIONS_INIT \
    { sizeof(struct cairn_adam_options), 1e-3, 0.9, 0.999, 1e-8, 1e-2, CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, 0 }

struct cairn_lion_options {
    size_t struct_size;
    double lr;           /* >= 0; of each step and element, whatever the gradient: a third to a tenth of AdamW's */
    double beta1, beta2; /* in [0, 1): of the mean that gives the sign, and of the one that is kept */
    double weight_decay; /* decoupled; >= 0 */
    cairn_switch maximize;
    int unused; /* 0: in place of padding */
};
#define CAIRN_LION_OPTIONS_INIT \
    { sizeof(struct cairn_lion_options), 1e-4, 0.9, 0.99, 0, CAIRN_DEFAULT, 0 }

struct cairn_adagrad_options {
    size_t struct_size;
    double lr;                  /* >= 0 */
    double lr_decay;            /* update t of a parameter has lr / (1 + (t - 1) * lr_decay); >= 0 */
    double eps;                 /* >= 0, and above 0 where initial_accumulator is 0; outside the square root */
    double weight_decay;        /* >= 0 */
    double initial_accumulator; /* what sums of squares begin at; >= 0 */
    cairn_switch decoupled;     /* weight decay joins the step, and not the gradient: apex's adagrad_w_mode */
    cairn_switch maximize;
};
#define CAIRN_ADAGRAD_OPTIONS_INIT \
    { sizeof(struct cairn_adagrad_options), 1e-2, 0, 1e-10, 0, 0, CAIRN_DEFAULT, CAIRN_DEFAULT }

/* LAMB: AdamW's direction u, with a rate for each parameter: w -= lr * |w| / |u| * u. */
struct cairn_lamb_options {
    size_t struct_size;
    double lr;              /* >= 0; in large batches near sqrt(batch) times that of a small one */
    double beta1, beta2;    /* in [0, 1) */
    double eps;             /* > 0; outside the square root, after bias correction */
    double weight_decay;    /* >= 0. Where it is 0, and in a parameter or direction of 0 only, the rate is lr */
    double max_grad_norm;   /* every step clips to it as cairn_clip_grad_norm; equal in all groups; 0 = it does not */
    cairn_switch decoupled; /* weight decay joins the direction, and not the gradient; CAIRN_DEFAULT is on */
    cairn_switch bias_correction; /* CAIRN_DEFAULT is on */
    cairn_switch grad_averaging;  /* the first moment takes (1 - beta1) of a gradient, else all; CAIRN_DEFAULT is on */
    cairn_switch nvlamb;          /* a rate by norms without weight decay too */
    cairn_switch maximize;
    int unused; /* 0: in place of padding */
};
/* clang-format off */
#define CAIRN_LAMB_OPTIONS_INIT                                                               \
    { sizeof(struct cairn_lamb_options), 1e-3, 0.9, 0.999, 1e-6, 1e-2, 1, CAIRN_DEFAULT,      \
      CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, 0 }
/* clang-format on */

/* NovoGrad: the gradient is divided by a mean of its norm over the parameter, d = mean + eps; its momentum m is the
 * step: w -= lr * (m / d + weight_decay * w). */
struct cairn_novograd_options {
    size_t struct_size;
    double lr;                      /* >= 0 */
    double beta1, beta2;            /* in [0, 1): of the momentum, and of the mean of squared norms */
    double eps;                     /* > 0; after bias correction */
    double weight_decay;            /* >= 0 */
    cairn_switch bias_correction;   /* CAIRN_DEFAULT is on */
    cairn_switch grad_averaging;    /* the momentum takes (1 - beta1) of a gradient, else all; CAIRN_DEFAULT is on */
    cairn_switch reg_inside_moment; /* the momentum is of g / d + weight_decay * w, as in the paper */
    cairn_switch init_zero;         /* the mean begins at 0, and not at the first norm */
    cairn_switch max_norm;          /* norms are those of the greatest element; the mean is of themselves */
    cairn_switch maximize;
};
/* clang-format off */
#define CAIRN_NOVOGRAD_OPTIONS_INIT                                                               \
    { sizeof(struct cairn_novograd_options), 1e-3, 0.9, 0.999, 1e-8, 0, CAIRN_DEFAULT,            \
      CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT, CAIRN_DEFAULT }
/* clang-format on */

/* An optimizer over every parameter of set, which must outlive it. Options are copied; NULL = the INIT macro's values.
 *
 * Numerics   f32, as torch.optim.SGD / Adam / AdamW / Adagrad with foreach off, but for the scalars, which are formed
 *            in double and rounded once (1-beta, bias corrections, lr * weight_decay). Lion:
 *                w -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w),  m = beta2 * m + (1 - beta2) * g
 *            where the sign of 0 is 0 and that of NaN is NaN, so that a NaN is seen.
 *            LAMB, NovoGrad: sums of squares and what is made of them in f64; LAMB's weights are the masters.
 * Errors     CAIRN_EINVAL names the value that is out of range; CAIRN_ENOMEM.
 * Cost       state of 4 bytes per parameter for SGD with momentum, Lion and Adagrad, 8 for Adam, 12 with amsgrad; LAMB
 *            has 8 and 4 of scratch, and reads gradients once more to clip. NovoGrad has 4, and 4 in all a parameter.
 *            Where ranks share updates (ddp.h: shard_optimizer), LAMB, NovoGrad and LARC wait for the device and
 *            exchange norms in each step, which cannot be recorded then (cairn_step: CAIRN_ESTATE).
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

/* The same over some parameters of a set: the count at indices, each once. More may follow by add_group, also of other
 * sets of the same environment: one optimizer over several models. Errors: CAIRN_EINVAL an index out of range or
 * twice. */
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

/* A further group of parameters, with hyperparameters of its own; groups are numbered from 0, the one of creation.
 * indices NULL: all of set. adam_add_group is AdamW's too; options NULL = the INIT macro of the optimizer's kind. Fresh
 * parameters begin with fresh moments and their own count of steps. Between steps.
 * Errors, which change nothing: CAIRN_EINVAL another kind of optimizer, an index out of range, a parameter twice (also
 * of another optimizer's), another environment; CAIRN_ESTATE amp has not prepared the set that it should (give its
 * model to amp_initialize), or a graph is alive; CAIRN_ENOMEM. torch.optim.Optimizer.add_param_group */
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

/* Waits for the device. While an amp context uses it, it is kept and the log says so; an amp_scaler lets it go. */
CAIRN_API void cairn_optimizer_destroy(cairn_optimizer **optimizer);

/* Forgets the gradients of the optimizer's parameters (nothing is written to memory) and begins a new step of the
 * environment: results of the last one are gone. NULL does nothing. Where results must live on (a second model, a
 * second loss of the same step), cairn_optimizer_clear_grads forgets the gradients alone; so do
 * cairn_param_set_zero_grad and cairn_module_zero_grad, for all parameters of a set or model. */
CAIRN_API void cairn_zero_grad(cairn_optimizer *optimizer);
CAIRN_API void cairn_optimizer_clear_grads(cairn_optimizer *optimizer);

/* Its name before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("cairn_optimizer_clear_grads") void cairn_clear_grads(cairn_optimizer *optimizer);

/* Clips gradients by the norm of all of them together, before cairn_step: they are multiplied by min(1, max_norm /
 * (norm + 1e-6)), which changes one number and no gradient; what a backward adds later is not clipped. Called again, it
 * clips what is clipped; forgetting the gradients ends it. One read of the gradients, which is amp's look for overflow
 * too, where there was one backward.
 *
 *   norm     the L2 norm of the unscaled gradients, f64 sums (see docs/benchmarks.md for its error); inf where one is
 *            infinite or NaN, and then nothing is changed. NULL = not wanted; else waits for the device
 *
 * Collective where ranks share updates (ddp_options.shard_optimizer), as cairn_step is.
 * Errors: CAIRN_EINVAL max_norm is not above 0; CAIRN_ESTATE a graph is being recorded and norm is set; CAIRN_ENOMEM.
 * torch.nn.utils.clip_grad_norm_ (norm_type 2) */
CAIRN_API cairn_status cairn_clip_grad_norm(cairn_optimizer *optimizer, double max_norm, double *norm);

/* Every unscaled gradient to [-limit, limit]; NaN stays. Makes f32 gradients where they are half. One read and write.
 * Errors: CAIRN_EINVAL limit is not above 0; CAIRN_ENOMEM. torch.nn.utils.clip_grad_value_ */
CAIRN_API cairn_status cairn_clip_grad_value(cairn_optimizer *optimizer, double limit);

/* The L2 norms of the unscaled gradients, with clipping done: of each parameter, 0 where it has none, and of all.
 * Changes no gradient; infinite or NaN where a gradient is. Waits for the device. Collective where ranks share updates
 * (ddp_options.shard_optimizer).
 *
 *   norms    out [count = cairn_optimizer_num_params]; NULL = not wanted
 *   total    out; NULL = not wanted
 *
 * Errors: CAIRN_EINVAL count; CAIRN_ESTATE a graph is being recorded, or gradients travel; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_grad_norms(cairn_optimizer *optimizer, double *norms, size_t count, double *total);

/* Parameters in the order they were given. */
CAIRN_API size_t cairn_optimizer_num_params(const cairn_optimizer *optimizer);

/* What the optimizer updates, [count = cairn_optimizer_num_params]: data is the master of a half parameter, or the
 * parameter itself; grad the unscaled f32 gradient, with clipping done (NULL: none), which this makes, once a backward.
 * Errors: CAIRN_EINVAL count; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_optimizer_masters(cairn_optimizer *optimizer, cairn_param *out, size_t count);
CAIRN_API cairn_status cairn_optimizer_masters_sized(size_t param_nbytes, cairn_optimizer *optimizer, cairn_param *out,
                                                     size_t count);
#define cairn_optimizer_masters(...) cairn_optimizer_masters_sized(sizeof(cairn_param), __VA_ARGS__)

/* Queues an update of every parameter that has a gradient; parameters without one keep weight and state. Where amp
 * found an infinite or NaN gradient, on any rank, nothing is written.
 *
 * Late      On the CPU the step is done when the call returns. On a GPU it is decided and done there, and the host
 *           learns of it later, at the earliest in the next cairn_step: messages, the counters below, CAIRN_ENUMERIC.
 *           After cairn_env_synchronize the host knows of all steps that were queued.
 * Errors    CAIRN_EINVAL NULL; CAIRN_ESTATE the backward before failed, or a scaled loss waits for its end (nothing was
 *           written); CAIRN_ENOMEM; CAIRN_EDEVICE; CAIRN_ENUMERIC the loss scale is at its floor and gradients still
 *           overflow, in this step or (on a GPU) an earlier one. CAIRN_EPEER where ranks share updates and another was
 *           refused, or failed. */
CAIRN_API cairn_status cairn_step(cairn_optimizer *optimizer);

/* 1 if the last step that is known of was skipped. */
CAIRN_API int cairn_optimizer_step_skipped(const cairn_optimizer *optimizer);

/* Its name before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("cairn_optimizer_step_skipped") int cairn_step_skipped(const cairn_optimizer *optimizer);

/* Steps taken and steps skipped, as far as is known. */
CAIRN_API int64_t cairn_optimizer_steps(const cairn_optimizer *optimizer);
CAIRN_API int64_t cairn_optimizer_skipped(const cairn_optimizer *optimizer);

/* The learning rate of all groups, or of one, from the next step on; where a group has a schedule (schedule.h), what
 * the schedule starts from. lr and group_lr give the rate of the next step, as far as the steps before are known.
 * Errors: CAIRN_EINVAL negative or not finite, no such group; CAIRN_ESTATE in a step that is being recorded. */
CAIRN_API cairn_status cairn_optimizer_set_lr(cairn_optimizer *optimizer, double lr);
CAIRN_API cairn_status cairn_optimizer_set_group_lr(cairn_optimizer *optimizer, int group, double lr);
CAIRN_API double cairn_optimizer_lr(const cairn_optimizer *optimizer);                  /* of group 0 */
CAIRN_API double cairn_optimizer_group_lr(const cairn_optimizer *optimizer, int group); /* NaN where there is none */
CAIRN_API int cairn_optimizer_num_groups(const cairn_optimizer *optimizer);

struct cairn_larc_options {
    size_t struct_size;
    double trust_coefficient; /* > 0 */
    double eps;               /* >= 0; beside the gradient's norm */
    cairn_switch
        clip;   /* the rate is only ever brought down, to the local one; OFF: multiplied by it. CAIRN_DEFAULT is on */
    int unused; /* 0: in place of padding */
};
#define CAIRN_LARC_OPTIONS_INIT \
    { sizeof(struct cairn_larc_options), 0.02, 1e-8, CAIRN_DEFAULT, 0 }

/* LARC, for all groups there are, or one, from the next step on: every parameter's gradient g becomes
 *
 *     (g + weight_decay * w) * a,   a = min(r / lr, 1), or r where clip is off,
 *     r = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps)
 *
 * with the norms of the whole parameter, of what is unscaled and clipped, before the update that has then no weight
 * decay of its own, AdamW's neither. Where w or g is 0, g stays, without weight decay. One more read of weights and
 * gradients. For SGD, Adam, AdamW and Adagrad. It is a hyperparameter: a checkpoint's takes its place, also none.
 *
 *   options   copied; NULL: no LARC
 *
 * Errors, which change nothing: CAIRN_EINVAL another kind of optimizer, no such group, what is wrong with an option;
 * CAIRN_ESTATE a captured graph is alive. You, Gitman and Ginsburg, arXiv 1708.03888; apex.parallel.LARC */
CAIRN_API cairn_status cairn_optimizer_set_larc(cairn_optimizer *optimizer, const struct cairn_larc_options *options);
CAIRN_API cairn_status cairn_optimizer_set_group_larc(cairn_optimizer *optimizer, int group,
                                                      const struct cairn_larc_options *options);

/* The set given at creation. */
CAIRN_API cairn_param_set *cairn_optimizer_params(cairn_optimizer *optimizer);

/* The optimizer as a part of a training's state (stateful.h), beside its parameters' own (cairn_module_stateful):
 *
 *   moments      by their parameters' names; those of a parameter that has been frozen from the beginning do not exist,
 *                and a load makes them where the state has some
 *   counters     steps taken, skipped, and missed by each parameter, which Adam's bias correction, schedules and
 *                stochastic rounding read; what is known of the last step, and whether the next will be skipped for
 *                a loss that another optimizer was given too
 *   groups       hyperparameters and base rates: those that are saved take the place of the program's; to go on with
 *                others set them after the load
 *   schedules    the step at which each began. What a schedule is, is the program's, which sets it before the load and
 *                may set another: its position comes from the counters
 *   plateau      the best metric and the counts since, if both runs have called cairn_optimizer_set_plateau
 *
 * Optimizers are made alike: of the same kind, with the same groups in the same order. Refused as
 * cairn_param_set_stateful (param.h) is, and where gradients have been clipped that no step has used; a load also
 * where a captured graph holds other hyperparameters than learning rate and momentum: CAIRN_ESTATE. CAIRN_EINVAL other
 * groups, or numbers that no optimizer is made with (of steps missed: once arrays have been loaded). Over several ranks
 * moments are their parameters', and the rest rank 0's if ddp averages all of them. */
CAIRN_API cairn_stateful cairn_optimizer_stateful(cairn_optimizer *optimizer);

#ifdef __cplusplus
}
#endif

#endif
