/* Automatic mixed precision: opt levels O0 to O3, loss scaling, f32 master weights, skipped steps.
 *
 * Follows apex.amp (NVIDIA/apex 25.04, apex/amp) in levels, properties, override rules and the default scaler;
 * docs/from-apex.md lists each of its calls with Cairn's, and every difference. The main ones: it works on the CPU; f16
 * or bf16 at every level; a context object instead of global state; the scale has a floor of 1; a static scale skips
 * non-finite steps too; a scaler is updated once a step, not once a backward; masters are made immediately, from the
 * original bits.
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

/* A value of loss_scale: dynamic, the scale grows and shrinks by itself. */
#define AMP_DYNAMIC HUGE_VAL

/* A value of cast_model_type: weights and buffers keep their types (apex: cast_model_type=False). */
#define AMP_KEEP_TYPES ((cairn_dtype)0x7fff)

enum { AMP_MAX_LOSSES = 64 };

/* Choices; 0 takes the level's default, so turn a switch off with CAIRN_OFF, not with false. An option that contradicts
 * the level or another field, or that would have no effect, is an error whose message says what to do; an option that
 * only repeats the level's default is allowed. */
struct amp_options {
    size_t struct_size;
    amp_opt_level opt_level; /* O1 */
    cairn_dtype half_type;   /* f16, or cast_model_type if that is a half type; or bf16 */

    cairn_dtype cast_model_type;      /* of weights, f32 buffers and inputs. O0: f32; O2 and O3: the half type (or f32);
                                         O1: unchanged; or AMP_KEEP_TYPES */
    cairn_switch patch_ops;           /* on at O1 only: casts around operations (apex: patch_torch_functions). O1 with
                                         it OFF casts only inside amp_autocast scopes */
    cairn_switch keep_batchnorm_fp32; /* O2: on, O3: off; normalisation parameters stay f32. Not with O1 */
    cairn_switch master_weights;      /* O2: on, O3: off; for half weights, so not ON with O0 or f32, and not with O1 */
    double loss_scale;                /* a number > 0: static; or AMP_DYNAMIC, starting at 65536 or at .scaler's
                                         init_scale. Default for O1, O2 in f16: AMP_DYNAMIC; otherwise 1. With a static
                                         scale .scaler is an error, unless it has a kind */
    double min_loss_scale;            /* dynamic only: the floor, 1 */
    double max_loss_scale;            /* dynamic only: the ceiling, 2^24 */
    cairn_dtype cast_model_outputs;   /* f32 if cast_model_type is set; otherwise outputs are unchanged */
    cairn_switch skip_nonfinite;      /* skip a step if a gradient, or the loss before scaling, is infinite or NaN. On,
                                         except for O0 and O3 with a static scale of 1 */
    cairn_switch enabled;             /* OFF: calls pass through: nothing is cast, scaled or checked */
    /* 0 = 1: rank 0 logs one notice with the level and all deviations from it, and every setting at info
     * (CAIRN_LOG=info); 2: every setting, and every cast of O1, as notices; -1: no setting. Skipped steps are logged in
     * any case. */
    int verbosity;

    int num_losses; /* 0 = 1; at most AMP_MAX_LOSSES. Each loss has its own scaler, all with the same options: */
    /* Read during the call; NULL = apex's, if the scale is dynamic. Set scale, floor and ceiling either here or in the
     * fields above. If the scaler has a kind, the kind decides at every level whether the scale is dynamic; otherwise
     * loss_scale and the level do. */
    const struct amp_scaler_options *scaler;
    /* ON: bf16 weights without masters are rounded stochastically, with a probability given by the distance, so small
     * updates are not lost. For O3 in bf16. Random numbers: Philox of seed, parameter, element and step; equal on all
     * ranks. Default OFF */
    cairn_switch stochastic_rounding;
    uint64_t rounding_seed;
    /* ON: the message about a skipped step names the operation that made the first infinite or NaN value. Slow: on a
     * GPU every operation waits for it, and steps replayed from a graph are not examined. Default OFF */
    cairn_switch explain_overflow;
    /* O1 on the CPU only: linear and matmul, and operations of class AMP_CAST_FP8, multiply operands rounded to fp8, by
     * this recipe, which is read during the call; docs/fp8.md. NULL = no fp8 (since 0.9.0) */
    const struct cairn_fp8_recipe *fp8;
};
#define amp_options(...) (&(struct amp_options){.struct_size = sizeof(struct amp_options), __VA_ARGS__})

/* Parse command-line arguments: "O1"; "dynamic" or a finite number > 0. *out is written only on success.
 * Errors: CAIRN_EINVAL with the allowed words. */
CAIRN_API cairn_status amp_opt_level_parse(const char *text, amp_opt_level *out);
CAIRN_API cairn_status amp_loss_scale_parse(const char *text, double *out);
/* "f16" (also "fp16", "float16", "half") or "bf16" (also "bfloat16"). */
CAIRN_API cairn_status amp_half_type_parse(const char *text, cairn_dtype *out);

/* Prepares a model and its optimizer for a level: casts the weights, makes masters from their original f32 bits, and
 * installs the casts of operations, inputs and outputs, and the scalers. Call it before ddp_create.
 *
 *   env        the model's
 *   model      has f32 parameters
 *   optimizer  over parameters of the model; NULL = none, for evaluation
 *   options    NULL = all defaults, O1 in f16
 *   out        must be destroyed before the optimizer and the model
 *
 * At O2 and O3 the weights are replaced, so results of the current step become invalid, as after cairn_zero_grad. The
 * model's f32 buffers become half too, except statistics of normalisation layers and buffers named to
 * cairn_buffer_keep_type, which stay f32 at every level. Other tensors that a module holds, including those over the
 * user's memory (cairn_tensor_over), belong to the user and are unchanged.
 *
 * O1's casts apply to every operation of the environment, inside the model and outside (the loss), as in apex
 * (autocast.h); so an environment has at most one O1 context at a time.
 *
 * Errors   Nothing was changed. CAIRN_EINVAL an option or a pair of options, a parameter that is not f32 or belongs to
 *          none of the models; CAIRN_ESTATE already initialised, another O1 context in this environment, or ddp_create
 *          was called before; CAIRN_ENOMEM.
 * Source   apex/amp/frontend.py, _initialize.py and _process_optimizer.py at 25.04. */
CAIRN_API cairn_status amp_initialize(cairn_env *env, cairn_module *model, cairn_optimizer *optimizer,
                                      const struct amp_options *options, amp_context **out);

/* Expands optimizers to the arguments "count, optimizers"; for models use CAIRN_MODULES(a, b). */
#define CAIRN_OPTIMIZERS(...)                                                                              \
    (int)(sizeof((cairn_optimizer *[]){__VA_ARGS__}) / sizeof(cairn_optimizer *)), (cairn_optimizer *[]) { \
        __VA_ARGS__                                                                                        \
    }

/* The same for several models and optimizers: amp_initialize_all(env, CAIRN_MODULES(g, d), CAIRN_OPTIMIZERS(opt_g,
 * opt_d), amp_options(.num_losses = 2), &amp). Optimizers may share models, and an optimizer's parameters may come from
 * several models. Parameters without an optimizer are cast like the others. */
CAIRN_API cairn_status amp_initialize_all(cairn_env *env, int num_models, cairn_module *const *models,
                                          int num_optimizers, cairn_optimizer *const *optimizers,
                                          const struct amp_options *options, amp_context **out);

/* The same for parameters in the user's own memory, with the user's own forward and backward (docs/from-apex.md,
 * examples/02_own_buffers.c). The backward starts from the loss scale that amp_next_scale returns; gradients are
 * declared with cairn_grads_ready. O1's casts then affect only what is computed with Cairn's operations.
 *
 *   set        made by cairn_param_set_create. At O2 and O3 its f32 parameters get half values in f32 memory and stay
 *              where they are: weights are rounded to the half type at once and after every step, gradients when they
 *              are declared ready, so a gradient too large for the half type is an overflow. That saves bytes sent
 *              between ranks, but saves neither time nor memory. Normalisation parameters (is_norm) stay f32 where the
 *              level says so. Half parameters must have the half type and stay unchanged. O2 makes f32 masters of both
 *              from the original bits, or takes those left by an earlier context; O3 makes none. AMP_KEEP_TYPES: f32
 *              parameters stay f32, and half ones, of either type, get masters at O2.
 *   optimizer  over parameters of the set; NULL: the user updates the weights (amp_begin_step)
 *
 * Ranks      With ddp_create_params gradients are averaged and all ranks see the same overflow. Without it cairn_step
 *            decides on this rank alone: average gradients before declaring them ready, if at all. amp_begin_step
 *            agrees with the other ranks.
 * Errors     as amp_initialize; CAIRN_EINVAL a module's set, a parameter of the other half type, stochastic_rounding of
 *            values in f32 memory. */
CAIRN_API cairn_status amp_initialize_params(cairn_env *env, cairn_param_set *set, cairn_optimizer *optimizer,
                                             const struct amp_options *options, amp_context **out);

/* Waits for the device, so that no report of a skipped step is lost, removes the guards from the optimizers and frees
 * the context. Weights keep their current type, so a half model can neither be initialised again nor take f32 inputs.
 * Pending gradients keep their scale; results of the step become invalid, as after cairn_zero_grad. */
CAIRN_API void amp_destroy(amp_context **amp);

/* ---- scaled losses ---- */

/* Short form of one scaled backward: amp_scale_loss, cairn_backward, amp_scale_loss_end. If loss is NULL it returns the
 * error that made it NULL. optimizer: the one that steps next; NULL = all of the context. Errors: as these calls. */
CAIRN_API cairn_status amp_backward(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer);

/* Long form, also for several backwards before a step: divide each loss by their number; for each loss call
 * amp_scale_loss, which returns loss * scale as f32, then cairn_backward on that, then amp_scale_loss_end. If a
 * gradient of any of the given optimizers is infinite or NaN, all of them skip their next step, and the loss's scaler
 * is updated at the first of these steps. If all gradients of an optimizer are forgotten before its step, it does not
 * skip, and only the scaler's found_inf is kept.
 *
 * The same happens if the loss itself is infinite or NaN before it is scaled, even if its gradients are finite, as
 * those of the mean of an infinity are. Under ddp all ranks skip for the loss of one rank, including a micro-batch
 * under ddp_no_sync. A scaler cannot tell bad data from a scale that is too high: a dynamic scale is lowered for
 * either, and a batch whose loss is NaN at any scale, repeated, ends in CAIRN_ENUMERIC at the floor; a static scale
 * skips every such step and training continues. For trainers with their own buffers only gradients are checked, since
 * Cairn does not see the loss; the same holds for explicit scaling (scaler.h), as in torch.
 *
 * Gradients are checked late, by the next of: another scaled loss, a step, clipping, zero_grad; if that call reads them
 * anyway, they are read only once. A begin without an end is reported by the next begin.
 * Errors: CAIRN_EINVAL; CAIRN_ESTATE a begin without an end, an end without a begin, or a loss that is already scaled;
 * CAIRN_ENOMEM; loss NULL: its cause. */
CAIRN_API cairn_status amp_scale_loss(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer,
                                      cairn_tensor **scaled);
CAIRN_API cairn_status amp_scale_loss_end(amp_context *amp);

struct amp_loss_options {
    size_t struct_size;
    int loss_id;                        /* in [0, num_losses): which scaler to use */
    int num_optimizers;                 /* number of optimizers; 0 and NULL = all of the context */
    cairn_optimizer *const *optimizers; /* all whose parameters get gradients from this loss */
    /* ON: another backward follows before the step. The step unscales each gradient by the scale of its own backward in
     * any case, but gradients are checked once, together with those of the next loss with the same loss_id and
     * optimizers; the report then names that loss's micro-batch. Default OFF. Both fields have the same effect: no
     * overflow that was found is forgotten. */
    cairn_switch delay_unscale, delay_overflow_check;
    /* For amp_backward_with only (since 0.9.0): the gradient of `loss`, which may then be any tensor, with the same
     * shape; NULL = none. It comes from a later part of the model on another rank, whose loss was multiplied by the
     * same scale as this scaler's. */
    cairn_tensor *grad;
    int64_t
        micro_batch; /* its number in messages and amp_overflow, from 1; 0 = the count of losses since the last step */
};
#define amp_loss_options(...) (&(struct amp_loss_options){.struct_size = sizeof(struct amp_loss_options), __VA_ARGS__})

/* The same with options, which may be NULL. apex: scale_loss(loss, optimizers, loss_id, delay_unscale,
 * delay_overflow_check) */
CAIRN_API cairn_status amp_scale_loss_with(amp_context *amp, cairn_tensor *loss, const struct amp_loss_options *options,
                                           cairn_tensor **scaled);
CAIRN_API cairn_status amp_backward_with(amp_context *amp, cairn_tensor *loss, const struct amp_loss_options *options);

/* ---- trainers with their own buffers ---- */

/* The scale to multiply the next loss by, as of the last step whose report has been read (on a GPU reports arrive late,
 * see cairn_step). If ddp averages the gradients, the call waits for the device, so all ranks return the same.
 *
 * In a context of amp_initialize_params, gradients that are declared ready from now on count as multiplied by the value
 * returned last, even if the device has changed the scale since; before the first call they count as unscaled. A loss
 * counts once gradients are declared after the call, so calling it only to print the scale changes nothing. From a loss
 * that counts to the following step the value does not change, so further micro-batches may add to the gradients in
 * place. For several losses with different scales, call cairn_grads_taken between them.
 * Returns NaN for NULL, for an invalid loss_id, and while a graph is being recorded unless the scale is static; 1 if
 * amp is not enabled. */
CAIRN_API double amp_next_scale(amp_context *amp);
CAIRN_API double amp_next_scale_of(amp_context *amp, int loss_id);

/* The same scale in device memory, so the host need not know it: an address at which work queued after this call, such
 * as the first kernel of the backward (interop_cuda.h), finds the scale. It does not wait, even if ddp averages the
 * gradients, and can be recorded (graph.h): every replay uses the current scale. Only with AMP_SCALER_USER under ddp it
 * waits and cannot be recorded.
 *
 * Gradients that are declared ready from now on count as multiplied by the value that this call or amp_next_scale
 * returned last, with the same rules. The value is valid until the following step; each call may return another
 * address. A call of amp_next_scale between this and the step returns the same scale, after waiting for the device. On
 * the CPU it can be read at once. 1 if amp is not enabled. NULL on error: CAIRN_EINVAL amp is NULL, or there is no such
 * loss; CAIRN_ESTATE a context with models, gradients that are being averaged; CAIRN_ENOMEM. */
CAIRN_API const float *amp_next_scale_device(amp_context *amp);
CAIRN_API const float *amp_next_scale_device_of(amp_context *amp, int loss_id);

/* Deprecated names, used before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("amp_next_scale") double amp_loss_scale(amp_context *amp);
CAIRN_API CAIRN_DEPRECATED("amp_next_scale_of") double amp_loss_scale_of(amp_context *amp, int loss_id);

/* For the user's own update instead of cairn_step, in a context of amp_initialize_params without an optimizer.
 *
 * amp_begin_step checks the gradients, agrees with the other ranks of the environment (all must call it: if one
 * overflowed all skip, and every rank's report names parameter and rank), and unscales. f32 gradients are unscaled in
 * place, in the user's memory; half or accumulated ones are read through amp_master_params. *skip = 1: an overflow; do
 * not update weights, the gradients are meaningless. It waits for the device if gradients are checked. With several
 * ranks, gradients may be averaged after it.
 * The user then updates what amp_master_params returns as data: masters, or the user's own weights without masters.
 * amp_end_step writes the weights rounded from the masters, or rounds f32 memory with half values, and reports; call it
 * after a skip too. The next amp_next_scale returns the updated scale.
 * Errors: CAIRN_EINVAL; CAIRN_ESTATE calls out of order, a context with an optimizer or models, or a graph is being
 * recorded; CAIRN_ENOMEM; CAIRN_ENUMERIC from end: an overflow at the floor; CAIRN_EPEER, CAIRN_ETIMEOUT from begin. */
CAIRN_API cairn_status amp_begin_step(amp_context *amp, int *skip);
CAIRN_API cairn_status amp_end_step(amp_context *amp);

/* cairn_clip_grad_norm, cairn_clip_grad_value and cairn_grad_norms for the user's own update: call them between begin
 * and end, after the ranks have averaged gradients, and not after a skip. They clip what amp_master_params returns as
 * grad; f32 gradients are clipped in place. Arguments and errors as theirs; CAIRN_ESTATE outside a step.
 *
 *   norm, norms, total   out, or NULL; norms [count = parameters of the set] */
CAIRN_API cairn_status amp_clip_grad_norm(amp_context *amp, double max_norm, double *norm);
CAIRN_API cairn_status amp_clip_grad_value(amp_context *amp, double limit);
CAIRN_API cairn_status amp_grad_norms(amp_context *amp, double *norms, size_t count, double *total);

/* The tensors that an optimizer updates, in the order of its parameters, [0, count) of cairn_optimizer_num_params. data
 * is the master or, without one, the parameter itself, of dtype; grad is the unscaled f32 gradient (NULL: none),
 * computed once per backward. optimizer NULL: the only one; in a context of a set without an optimizer, all parameters
 * of the set. Pointers to masters do not change. Call cairn_param_changed after writing data, except in the update
 * between amp_begin_step and amp_end_step.
 * Errors: CAIRN_EINVAL count; CAIRN_ENOMEM. apex: amp.master_params */
CAIRN_API cairn_status amp_master_params(amp_context *amp, cairn_optimizer *optimizer, cairn_param *out, size_t count);
CAIRN_API cairn_status amp_master_params_sized(size_t param_nbytes, amp_context *amp, cairn_optimizer *optimizer,
                                               cairn_param *out, size_t count);
#define amp_master_params(...) amp_master_params_sized(sizeof(cairn_param), __VA_ARGS__)

/* ---- scalers, state ---- */

/* The scaler of a loss, owned by the context; NULL for an invalid loss_id. */
CAIRN_API amp_scaler *amp_scaler_of(amp_context *amp, int loss_id);

/* Deprecated name, used before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("amp_scaler_of") amp_scaler *amp_loss_scaler(amp_context *amp, int loss_id);

/* The tensors of a product with a parameter. */
typedef enum amp_fp8_tensor {
    AMP_FP8_INPUT = 1,
    AMP_FP8_WEIGHT = 2,
    AMP_FP8_GRADIENT = 3, /* of the result */
} amp_fp8_tensor;

/* The scale that a tensor of the products with a parameter ("0.weight", of the first model with a parameter of that
 * name) is cast to fp8 with next, with delayed scaling. NaN without a recipe, without such a parameter, or before its
 * first use. */
CAIRN_API float amp_fp8_scale(const amp_context *amp, const char *param, amp_fp8_tensor tensor);

/* Steps without overflow since the scale of loss 0 last changed; updated as late as the scale. */
CAIRN_API int64_t amp_unskipped_steps(amp_context *amp);

/* Writes all scalers as text, one field a line: "loss_scaler0.scale 65536". Returns the length and truncates as
 * snprintf; -1 on error. Waits for the device. Does not include weights, masters and moments. apex: amp.state_dict */
CAIRN_API int amp_state_dict(amp_context *amp, char *text, size_t nbytes);

/* Reads such text, also apex's two fields per scaler, loss_scale and unskipped. If the text has another number of
 * scalers than the context has losses, it logs a warning and loads those in both. Errors, which change nothing:
 * CAIRN_EINVAL names an unknown key or an invalid value (amp_scaler_set_state); CAIRN_ESTATE likewise. apex:
 * amp.load_state_dict */
CAIRN_API cairn_status amp_load_state_dict(amp_context *amp, const char *text);

/* The context's state for a checkpoint (stateful.h), to be saved together with its models' and optimizers': every field
 * of every loss scaler, which of the losses since an optimizer's last step belong to it, and, if the user makes the
 * steps (amp_begin_step), their counters. The last overflow (amp_last_overflow), level and types are not included:
 * create the loading context with the options of the saving one. Loading replaces a scaler's kind and limits too, as
 * amp_load_state_dict does.
 *
 * Errors from saving and loading: CAIRN_ESTATE as cairn_param_set_stateful (param.h), and between amp_begin_step and
 * amp_end_step; CAIRN_EINVAL another number of losses; and as amp_scaler_set_state. */
CAIRN_API cairn_stateful amp_stateful(amp_context *amp);

/* ---- what went wrong ---- */

/* One cause of an optimizer's last reported skipped step: a parameter, or a loss that was itself infinite or NaN. */
struct amp_overflow {
    const char *name;    /* owned by the parameter set; for a pipeline by amp, until the next step that it skips;
                            "(loss)", whose counts are 0, for the loss */
    uint64_t infs, nans; /* elements of its gradient when it was checked */
    int micro_batch; /* after which scaled loss since the last step, from 1, it was first found: it comes from that loss
                        or, with delayed losses (delay_unscale), from one before it */
    int rank;        /* the rank; -1 = several ranks, or unknown since the ranks' gradients had been summed. For the
                        loss: the lowest rank whose loss was infinite or NaN */
    int64_t stage;   /* the stage of a pipeline that has the parameter or computes the loss; -1 = no pipeline
                            (since 0.9.0) */
};

/* Why the optimizer skipped its last skipped step: the loss, if it was itself infinite or NaN, then the parameters
 * whose gradients were. Writes up to count of them to out and their total number, which may be greater, to *found; 0 if
 * no step was skipped. Steps taken since do not change it. For a pipeline (pipeline.h) it covers all stages and is the
 * same on each rank. optimizer NULL: as amp_master_params. Errors: CAIRN_EINVAL; CAIRN_ESTATE amp is not enabled. */
CAIRN_API cairn_status amp_last_overflow(amp_context *amp, cairn_optimizer *optimizer, struct amp_overflow *out,
                                         size_t count, size_t *found);
CAIRN_API cairn_status amp_last_overflow_sized(size_t overflow_nbytes, amp_context *amp, cairn_optimizer *optimizer,
                                               struct amp_overflow *out, size_t count, size_t *found);
#define amp_last_overflow(...) amp_last_overflow_sized(sizeof(struct amp_overflow), __VA_ARGS__)

/* How the half type represents one gradient: the scaled gradient as it is stored. */
struct amp_gradient_report {
    const char *name;
    cairn_dtype dtype; /* of its values */
    uint64_t n, zeros, subnormals, infs, nans;
    int max_exponent, min_exponent; /* of finite nonzero values: 2^e <= |x| < 2^(e+1); 0 if there are none */
    double scale;                   /* the loss scale that it is multiplied by */
};

/* Reads every gradient of the optimizer (NULL: as amp_master_params) and waits for the device. Call it between backward
 * and step. count: cairn_optimizer_num_params. A parameter without a gradient has n = 0. Errors: CAIRN_EINVAL;
 * CAIRN_ESTATE amp is not enabled, or a graph is being recorded; CAIRN_EDEVICE. */
CAIRN_API cairn_status amp_gradient_reports(amp_context *amp, cairn_optimizer *optimizer,
                                            struct amp_gradient_report *out, size_t count);
CAIRN_API cairn_status amp_gradient_reports_sized(size_t report_nbytes, amp_context *amp, cairn_optimizer *optimizer,
                                                  struct amp_gradient_report *out, size_t count);
#define amp_gradient_reports(...) amp_gradient_reports_sized(sizeof(struct amp_gradient_report), __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
