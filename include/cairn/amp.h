/* Automatic mixed precision: the opt levels O0 to O3, loss scaling, fp32 masters, skipped steps.
 *
 * Follows apex.amp (NVIDIA/apex 25.04, apex/amp) in levels, properties, override rules and the default scaler;
 * docs/from-apex.md puts each of its calls beside ours, with every difference. The main ones: works on the CPU; f16 or
 * bf16 at every level; an object, not global state; the scale has a floor of 1; a static scale skips non-finite steps
 * too; a scaler is updated once a step, not once a backward; masters are made at once, from the original bits.
 * Threads: one thread per context at a time; contexts of different environments are independent. */
#ifndef CAIRN_AMP_H
#define CAIRN_AMP_H

#include <math.h>

#include "autocast.h"
#include "core.h"
#include "env.h"
#include "fp8.h"
#include "nn.h"
#include "optim.h"
#include "scaler.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct amp_context amp_context;

typedef enum amp_opt_level {
    AMP_O0 = 1, /* everything in f32: the baseline */
    AMP_O1 = 2, /* f32 weights, the type of each operation chosen by a table */
    AMP_O2 = 3, /* half weights and inputs, f32 normalisation and fp32 masters */
    AMP_O3 = 4, /* half everything, no masters: a speed ceiling, not a recipe */
} amp_opt_level;

/* A loss_scale that grows and shrinks by itself. */
#define AMP_DYNAMIC HUGE_VAL

/* A cast_model_type: weights and buffers keep the types they have (apex: cast_model_type=False). */
#define AMP_KEEP_TYPES ((cairn_dtype)0x7fff)

enum { AMP_MAX_LOSSES = 64 };

/* Choices; 0 takes the level's default, so a switch is turned off by CAIRN_OFF and not by false. An option that
 * contradicts the level or another field, or that would have no effect, is an error whose message says what to do; one
 * that the level implies may be set. */
struct amp_options {
    size_t struct_size;
    amp_opt_level opt_level; /* O1 */
    cairn_dtype half_type;   /* f16, or what cast_model_type says; or bf16 */

    cairn_dtype cast_model_type;      /* of weights, f32 buffers and inputs. O0: f32, O2 and O3: the half type (or f32),
                                         O1: they are left alone; or AMP_KEEP_TYPES */
    cairn_switch patch_ops;           /* on at O1 only: casts around operations (apex: patch_torch_functions). O1 with
                                         it OFF: casts come from amp_autocast scopes alone */
    cairn_switch keep_batchnorm_fp32; /* O2: on, O3: off; normalisation parameters stay f32. Not with O1 */
    cairn_switch master_weights;      /* O2: on, O3: off; of half weights, so not ON with O0 or f32, and not with O1 */
    double loss_scale;                /* a number > 0: static; or AMP_DYNAMIC, which begins at 65536, or at .scaler's
                                         init_scale. O1, O2 in f16: AMP_DYNAMIC; everything else: 1. With a static scale
                                         .scaler is an error, unless it has a kind */
    double min_loss_scale;            /* dynamic only: the floor, 1 */
    double max_loss_scale;            /* dynamic only: the ceiling, 2^24 */
    cairn_dtype cast_model_outputs;   /* f32 where cast_model_type is set; else outputs are left alone */
    cairn_switch skip_nonfinite;      /* skip a step when a gradient, or the loss before it is scaled, is infinite or
                                         NaN. On, but for O0 and O3 with a static scale of 1 */
    cairn_switch enabled;             /* OFF: every call passes through, nothing is cast, scaled or checked */
    /* 0 = 1: rank 0 logs the level and what differs from it in one notice, and every setting at info (CAIRN_LOG=info);
     * 2: every setting, and every cast of O1, as notices; -1: no setting. Skipped steps are logged in any case. */
    int verbosity;

    int num_losses; /* 0 = 1; at most AMP_MAX_LOSSES. Each has a scaler of its own, all alike: */
    /* Read during the call; NULL = apex's where the scale is dynamic. Scale, floor and ceiling are set here or in the
     * fields above, not in both. If the scaler has a kind, it decides whether the scale is dynamic, at every level;
     * otherwise loss_scale and level do. */
    const struct amp_scaler_options *scaler;
    /* bf16 weights without masters are rounded up or down with the probability of the distance, so that small updates
     * are not lost; OFF. For O3 in bf16. Its numbers: Philox of seed, parameter, element and step; equal on all
     * ranks. */
    cairn_switch stochastic_rounding;
    uint64_t rounding_seed;
    /* ON: the message about a skipped step names the operation that made the first infinite or NaN value; slow: on a
     * GPU every operation waits for it, and steps that a graph replays are not looked at. OFF */
    cairn_switch explain_overflow;
    /* O1 alone, on the CPU alone: linear and matmul, and what amp_op_set_cast gives AMP_CAST_FP8, multiply operands
     * that went through fp8, by this recipe, which is read during the call; docs/fp8.md. NULL = none (since 0.9.0) */
    const struct cairn_fp8_recipe *fp8;
};
#define amp_options(...) (&(struct amp_options){.struct_size = sizeof(struct amp_options), __VA_ARGS__})

/* From a command line: "O1"; "dynamic" or a number > 0, finite. *out is written on success only.
 * Errors: CAIRN_EINVAL with the words that are allowed. */
CAIRN_API cairn_status amp_opt_level_parse(const char *text, amp_opt_level *out);
CAIRN_API cairn_status amp_loss_scale_parse(const char *text, double *out);
/* "f16" (also "fp16", "float16", "half") or "bf16" (also "bfloat16"). */
CAIRN_API cairn_status amp_half_type_parse(const char *text, cairn_dtype *out);

/* Prepares a model and its optimizer for a level: casts the weights, makes masters from their original f32 bits,
 * installs the casts of operations, inputs and outputs, and the scalers. Before ddp_create.
 *
 *   env        the model's
 *   model      f32 parameters
 *   optimizer  over parameters of the model; NULL = none, to evaluate
 *   options    NULL = all defaults, O1 in f16
 *   out        destroyed before the optimizer and the model
 *
 * At O2 and O3 the results of the current step are gone, as after cairn_zero_grad, since the weights are replaced. The
 * model's f32 buffers become half there too, but for statistics of normalisation layers and what cairn_buffer_keep_type
 * named, which stay f32 at every level. Tensors that a module keeps besides, over the user's memory too
 * (cairn_tensor_over), are the user's and stay as they are.
 *
 * O1's casts hold for every operation of the environment, inside the model and outside (the loss), as apex's do
 * (autocast.h); so an environment has one O1 context at a time.
 *
 * Errors   Nothing was changed. CAIRN_EINVAL an option or a pair of options, a parameter that is not f32 or belongs to
 *          no model given; CAIRN_ESTATE already initialised, another O1 context in this environment, or ddp_create came
 *          first; CAIRN_ENOMEM.
 * Source   apex/amp/frontend.py, _initialize.py and _process_optimizer.py at 25.04. */
CAIRN_API cairn_status amp_initialize(cairn_env *env, cairn_module *model, cairn_optimizer *optimizer,
                                      const struct amp_options *options, amp_context **out);

/* Optimizers as the arguments "count, optimizers"; models are CAIRN_MODULES(a, b). */
#define CAIRN_OPTIMIZERS(...)                                                                              \
    (int)(sizeof((cairn_optimizer *[]){__VA_ARGS__}) / sizeof(cairn_optimizer *)), (cairn_optimizer *[]) { \
        __VA_ARGS__                                                                                        \
    }

/* The same for several models and optimizers, which may share models: amp_initialize_all(env, CAIRN_MODULES(g, d),
 * CAIRN_OPTIMIZERS(opt_g, opt_d), amp_options(.num_losses = 2), &amp). An optimizer's parameters may come from several
 * models. Parameters that no optimizer has are cast like the others. */
CAIRN_API cairn_status amp_initialize_all(cairn_env *env, int num_models, cairn_module *const *models,
                                          int num_optimizers, cairn_optimizer *const *optimizers,
                                          const struct amp_options *options, amp_context **out);

/* The same for parameters in the user's own memory, whose forward and backward are the user's (docs/from-apex.md,
 * examples/02_own_buffers.c). The loss scale is a number to begin the backward with, amp_next_scale; gradients are
 * declared by cairn_grads_ready. O1's casts then concern only what is computed with Cairn's operations.
 *
 *   set        made by cairn_param_set_create. Its f32 parameters take half values at O2 and O3 and stay where they
 *              are: weights are rounded to the half type in f32 memory, at once and after every step, gradients when
 *              they are declared ready, so that one which is too large for the half type is an overflow. That saves
 *              bytes which travel between ranks, and neither time nor memory. Normalisation parameters (is_norm) stay
 *              f32 where the level keeps them so. Half parameters stay what they are, of the half type. O2 makes
 *              masters of both, f32 ones from the original bits, and takes those that an earlier context left; O3 makes
 *              none. AMP_KEEP_TYPES: f32 ones stay f32, and half ones, of whichever type, get masters at O2.
 *   optimizer  over parameters of the set; NULL: the user updates (amp_begin_step)
 *
 * Ranks      ddp_create_params averages gradients, and all ranks see the same overflow. Without it cairn_step
 *            decides on this rank alone: the user has averaged gradients before declaring them ready (or does not
 *            average). amp_begin_step agrees with the other ranks.
 * Errors     as amp_initialize; CAIRN_EINVAL a module's set, a parameter of the other half type, stochastic_rounding of
 *            values in f32 memory. */
CAIRN_API cairn_status amp_initialize_params(cairn_env *env, cairn_param_set *set, cairn_optimizer *optimizer,
                                             const struct amp_options *options, amp_context **out);

/* Waits for the device, so that no report of a skipped step is lost; takes the guards off the optimizers and frees the
 * context. Weights stay in the type they have, so that a half model can neither be initialised again nor take f32
 * inputs; pending gradients keep their scale; results of the step are gone, as after cairn_zero_grad. */
CAIRN_API void amp_destroy(amp_context **amp);

/* ---- scaled losses ---- */

/* Short form of one scaled backward: amp_scale_loss, cairn_backward, amp_scale_loss_end. loss may be NULL: returns the
 * error that made it so. optimizer: the one whose step follows; NULL: all of the context. Errors: theirs. */
CAIRN_API cairn_status amp_backward(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer);

/* Long form, and several backwards before a step: divide each loss by their number, and for each call amp_scale_loss,
 * which returns loss * scale as f32; call cairn_backward on that, then amp_scale_loss_end. Where a gradient of any of
 * the optimizers given is infinite or NaN, none of them takes its next step, and the loss's scaler is updated at the
 * first of these steps; where all gradients of an optimizer are forgotten before its step, only the scaler's found_inf
 * is kept.
 * So it is where the loss itself is infinite or NaN before it is scaled, whatever its gradients are: the mean of an
 * infinity has finite ones. Under ddp all ranks skip for the loss of one, also of a micro-batch under ddp_no_sync. A
 * scaler cannot tell bad data from a scale that is too high: a dynamic scale is lowered for either, and a batch whose
 * loss is NaN at any scale, again and again, ends in CAIRN_ENUMERIC at the floor; a static scale skips every such step
 * and training continues. For trainers with own buffers only gradients are checked, since Cairn sees no loss; so it is
 * with the explicit way (scaler.h), as in torch. Gradients are checked late, at the next of: another scaled loss, a
 * step, clipping, zero_grad; a call that reads them anyway is then the only read.
 * A begin without an end is reported at the next begin.
 * Errors: CAIRN_EINVAL; CAIRN_ESTATE a begin without an end, or the other way round, or a loss that is scaled already;
 * CAIRN_ENOMEM; NULL loss: its cause. */
CAIRN_API cairn_status amp_scale_loss(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer,
                                      cairn_tensor **scaled);
CAIRN_API cairn_status amp_scale_loss_end(amp_context *amp);

struct amp_loss_options {
    size_t struct_size;
    int loss_id;                        /* in [0, num_losses): whose scaler */
    int num_optimizers;                 /* of optimizers; 0 and NULL = all of the context */
    cairn_optimizer *const *optimizers; /* every one whose parameters get gradients from this loss */
    /* ON: a further backward before the step follows. Gradients are unscaled in the step in any case, each by the scale
     * of its own backward; but they are checked once, together with those of the next loss of the same loss_id and
     * optimizers, whose micro-batch the report then names. OFF. The second is another name of the first: no overflow
     * that was found is forgotten. */
    cairn_switch delay_unscale, delay_overflow_check;
    /* Of amp_backward_with alone (since 0.9.0): the gradient of `loss`, which then is any tensor, of its shape; NULL =
     * there is none. It is that of a loss which another rank has multiplied by the scale that this scaler has too: of a
     * later part of the model. */
    cairn_tensor *grad;
    int64_t
        micro_batch; /* what messages and amp_overflow call it, from 1; 0 = the count of losses since the last step */
};
#define amp_loss_options(...) (&(struct amp_loss_options){.struct_size = sizeof(struct amp_loss_options), __VA_ARGS__})

/* The same with options, which may be NULL. apex: scale_loss(loss, optimizers, loss_id, delay_unscale,
 * delay_overflow_check) */
CAIRN_API cairn_status amp_scale_loss_with(amp_context *amp, cairn_tensor *loss, const struct amp_loss_options *options,
                                           cairn_tensor **scaled);
CAIRN_API cairn_status amp_backward_with(amp_context *amp, cairn_tensor *loss, const struct amp_loss_options *options);

/* ---- a trainer with its own buffers ---- */

/* The scale that the next loss is multiplied by, after the last step whose report has been read (on a GPU late, see
 * cairn_step). Where ddp averages the gradients it waits for the device, so that all ranks return the same.
 *
 * In a context of amp_initialize_params gradients that are declared ready from here on count as multiplied by what this
 * returned last, even if the device has changed the scale since; before the first call they count as unscaled. A loss
 * counts once gradients are declared after the call: a call to print the scale changes nothing. From a loss that counts
 * to the step that follows it the number stays the same, so that further micro-batches may add to gradients in place.
 * Several losses whose scales differ: cairn_grads_taken between them.
 * NaN for NULL, where there is no such loss, and in a graph that is being recorded unless the scale is static. 1 where
 * amp is not enabled. */
CAIRN_API double amp_next_scale(amp_context *amp);
CAIRN_API double amp_next_scale_of(amp_context *amp, int loss_id);

/* The same where the device's kernels find it, so that the host need not know it: memory of the environment's device in
 * which the scale stands for what is queued behind this call (interop_cuda.h), such as the first kernel of the
 * backward. It waits for nothing, also where ddp averages the gradients, and can be recorded (graph.h): every replay
 * multiplies by the scale as it is then. Only with AMP_SCALER_USER under ddp it waits, and cannot be recorded.
 *
 * Gradients that are declared ready from here on count as multiplied by what this or amp_next_scale returned last; what
 * is said there holds here. The scale stays there until the step that follows; each call may return another address. A
 * number asked for between this and the step is the same scale, for which the host waits.
 * On the CPU it can be read at once. 1 where amp is not enabled. NULL on error: CAIRN_EINVAL amp is NULL, there is no
 * such loss; CAIRN_ESTATE a context with models, gradients that are being averaged; CAIRN_ENOMEM. */
CAIRN_API const float *amp_next_scale_device(amp_context *amp);
CAIRN_API const float *amp_next_scale_device_of(amp_context *amp, int loss_id);

/* Their names before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("amp_next_scale") double amp_loss_scale(amp_context *amp);
CAIRN_API CAIRN_DEPRECATED("amp_next_scale_of") double amp_loss_scale_of(amp_context *amp, int loss_id);

/* For the user's own update, in place of cairn_step, in a context of amp_initialize_params without an optimizer.
 *
 * Begin checks the gradients, agrees with the other ranks of the environment (all must call it: where one overflowed
 * all skip, and every rank's report names parameter and rank), and unscales. f32 gradients are unscaled where they are,
 * in the user's memory; what is half or was accumulated is read through amp_master_params. *skip = 1: an overflow;
 * leave weights alone, gradients mean nothing. Waits for the device where gradients are checked. On several ranks
 * gradients may be averaged now.
 * The user then updates what amp_master_params shows as data: masters, or his own weights where there are none.
 * End writes the weights rounded from the masters, or rounds f32 memory with half values, and reports; after a skip
 * too. The next amp_next_scale returns the scale that follows.
 * Errors: CAIRN_EINVAL; CAIRN_ESTATE out of order, the context has an optimizer or models, or a graph is being
 * recorded; CAIRN_ENOMEM; CAIRN_ENUMERIC from end: an overflow at the floor; CAIRN_EPEER, CAIRN_ETIMEOUT from begin. */
CAIRN_API cairn_status amp_begin_step(amp_context *amp, int *skip);
CAIRN_API cairn_status amp_end_step(amp_context *amp);

/* Between begin and end, once ranks have averaged what they average, and not after a skip: cairn_clip_grad_norm,
 * cairn_clip_grad_value and cairn_grad_norms for the user's own update. What amp_master_params then shows as grad is
 * clipped; f32 gradients are so where they are. Their arguments and errors; CAIRN_ESTATE outside of a step.
 *
 *   norm, norms, total   out, or NULL; norms [count = parameters of the set] */
CAIRN_API cairn_status amp_clip_grad_norm(amp_context *amp, double max_norm, double *norm);
CAIRN_API cairn_status amp_clip_grad_value(amp_context *amp, double limit);
CAIRN_API cairn_status amp_grad_norms(amp_context *amp, double *norms, size_t count, double *total);

/* What an optimizer updates, in the order it was given them: [0, count) of cairn_optimizer_num_params: data is the
 * master or, where there is none, the parameter itself, of dtype; grad the unscaled f32 gradient (NULL: none). Makes
 * the latter, once a backward. optimizer NULL: the only one; or none, in a context of a set, which then shows all
 * parameters of it. Pointers of masters stay the same. Call cairn_param_changed after writing data, except in the
 * update between amp_begin_step and amp_end_step.
 * Errors: CAIRN_EINVAL count; CAIRN_ENOMEM. apex: amp.master_params */
CAIRN_API cairn_status amp_master_params(amp_context *amp, cairn_optimizer *optimizer, cairn_param *out, size_t count);
CAIRN_API cairn_status amp_master_params_sized(size_t param_nbytes, amp_context *amp, cairn_optimizer *optimizer,
                                               cairn_param *out, size_t count);
#define amp_master_params(...) amp_master_params_sized(sizeof(cairn_param), __VA_ARGS__)

/* ---- scalers, state ---- */

/* The scaler of a loss, owned by the context; NULL where there is none. */
CAIRN_API amp_scaler *amp_scaler_of(amp_context *amp, int loss_id);

/* Its name before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("amp_scaler_of") amp_scaler *amp_loss_scaler(amp_context *amp, int loss_id);

/* Which tensor of a product with a parameter. */
typedef enum amp_fp8_tensor {
    AMP_FP8_INPUT = 1,
    AMP_FP8_WEIGHT = 2,
    AMP_FP8_GRADIENT = 3, /* of the result */
} amp_fp8_tensor;

/* The scale by which a tensor of the products with a parameter ("0.weight", of the first model that has one of that
 * name) is cast to fp8 next, with delayed scaling. NaN where there is none: no recipe, no such parameter, or it was not
 * used yet. */
CAIRN_API float amp_fp8_scale(const amp_context *amp, const char *param, amp_fp8_tensor tensor);

/* Steps without overflow since the scale of loss 0 last changed, known as late as the scale. */
CAIRN_API int64_t amp_unskipped_steps(amp_context *amp);

/* All scalers as text, a field a line: "loss_scaler0.scale 65536". Length and room as snprintf; -1 on error. Waits for
 * the device. Weights, masters and moments are not in it. apex: amp.state_dict */
CAIRN_API int amp_state_dict(amp_context *amp, char *text, size_t nbytes);

/* Reads such text; also apex's own two fields of each, loss_scale and unskipped. With more or fewer scalers than losses
 * it logs a warning and loads those in both. Errors, which change nothing: CAIRN_EINVAL names an unknown key or an
 * invalid value (amp_scaler_set_state); CAIRN_ESTATE likewise. apex: amp.load_state_dict */
CAIRN_API cairn_status amp_load_state_dict(amp_context *amp, const char *text);

/* The context as a part of a training's state (stateful.h), beside its models' and optimizers' own: every field of
 * every loss scaler, which of the losses since an optimizer's last step are its, and where the user makes the steps
 * (amp_begin_step) their counters. What overflowed last (amp_last_overflow) is no part of it, nor are level and types:
 * the context that loads is made with the options of the one that saved. Loading takes over a scaler's kind and limits
 * too, as amp_load_state_dict does.
 *
 * Refused as cairn_param_set_stateful (param.h) is, and between amp_begin_step and amp_end_step: CAIRN_ESTATE.
 * CAIRN_EINVAL another number of losses; and as amp_scaler_set_state. */
CAIRN_API cairn_stateful amp_stateful(amp_context *amp);

/* ---- what went wrong ---- */

/* One parameter of an optimizer's last skipped step that is known of; or a loss that was infinite or NaN itself. */
struct amp_overflow {
    const char *name;    /* owned by the parameter set; of a pipeline's by amp, until the next step that it skips;
                            "(loss)", whose counts are 0, for the loss */
    uint64_t infs, nans; /* elements of its gradient as it was found */
    int micro_batch; /* the scaled loss since the last step, from 1, after which it was found first: in it, or, where
                        losses were delayed (delay_unscale), in one before it */
    int rank;        /* whose; -1 = several ranks', or not known, since ranks had been added up. Of the loss: the lowest
                        of those whose loss was */
    int64_t stage;   /* of a pipeline: which has the parameter, or computes the loss; -1 = there is no pipeline
                            (since 0.9.0) */
};

/* Why the optimizer skipped its last skipped step: the loss, where it was infinite or NaN itself, then the parameters
 * whose gradients were; up to count of them in out; *found is their number. None where no step was skipped; steps
 * taken since change nothing. Of a pipeline (pipeline.h) those of all its stages, the same on each of its ranks.
 * optimizer NULL: as amp_master_params. Errors: CAIRN_EINVAL; CAIRN_ESTATE amp is not enabled. */
CAIRN_API cairn_status amp_last_overflow(amp_context *amp, cairn_optimizer *optimizer, struct amp_overflow *out,
                                         size_t count, size_t *found);
CAIRN_API cairn_status amp_last_overflow_sized(size_t overflow_nbytes, amp_context *amp, cairn_optimizer *optimizer,
                                               struct amp_overflow *out, size_t count, size_t *found);
#define amp_last_overflow(...) amp_last_overflow_sized(sizeof(struct amp_overflow), __VA_ARGS__)

/* How one gradient is represented in its half type: the scaled gradient, as it is stored. */
struct amp_gradient_report {
    const char *name;
    cairn_dtype dtype; /* of its values */
    uint64_t n, zeros, subnormals, infs, nans;
    int max_exponent, min_exponent; /* of finite values but 0: 2^e <= |x| < 2^(e+1); 0 where there is none */
    double scale;                   /* that it is multiplied by */
};

/* Reads every gradient of the optimizer (NULL: as amp_master_params) and waits. Between backward and step. count:
 * cairn_optimizer_num_params. A parameter without a gradient has n = 0. Errors: CAIRN_EINVAL; CAIRN_ESTATE amp is not
 * enabled, or a graph is being recorded; CAIRN_EDEVICE. */
CAIRN_API cairn_status amp_gradient_reports(amp_context *amp, cairn_optimizer *optimizer,
                                            struct amp_gradient_report *out, size_t count);
CAIRN_API cairn_status amp_gradient_reports_sized(size_t report_nbytes, amp_context *amp, cairn_optimizer *optimizer,
                                                  struct amp_gradient_report *out, size_t count);
#define amp_gradient_reports(...) amp_gradient_reports_sized(sizeof(struct amp_gradient_report), __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
