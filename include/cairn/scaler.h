/* Loss scalers: how large the scale is, and when it changes; and the explicit way to use one, as torch's GradScaler.
 *
 * A scaler is a state machine over "a gradient was infinite or NaN". It is updated once for every step that its losses
 * lead to, however many losses, micro-batches and optimizers that step had. The scale is in device memory; these calls
 * return it as of the last report that was read: on the CPU the current one, on a GPU as late as cairn_step says.
 * Threads: one thread per scaler at a time. */
#ifndef CAIRN_SCALER_H
#define CAIRN_SCALER_H

#include "core.h"
#include "env.h"
#include "nn.h"
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rules; docs/training.md compares them. found: an overflow. Every rule keeps the scale between min_scale and
 * max_scale; an overflow that would lower a scale which is at its floor is CAIRN_ENUMERIC from cairn_step. */
typedef enum amp_scaler_kind {
    /* The scale never changes; of the options below init_scale alone is its. */
    AMP_SCALER_STATIC = 1,
    /* Times backoff_factor when found; times growth_factor after growth_interval clean steps since it last changed or
     * an overflow. Source: apex/amp/scaler.py at 25.04, LossScaler; the floor is ours. */
    AMP_SCALER_APEX = 2,
    /* As apex's; scale, floor and ceiling are f32, and it grows only to a finite one. Source: torch/amp/grad_scaler.py,
     * PyTorch 2.x. */
    AMP_SCALER_TORCH = 3,
    /* The first hysteresis - 1 overflows only use up hysteresis; it is refilled when the scale grows, or with
     * consecutive_hysteresis by every clean step. Grows when the clean steps since the last overflow, but for the
     * first, are a multiple of growth_interval. Source: deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler, of
     * late 2025; before, it grew a clean step earlier. */
    AMP_SCALER_DEEPSPEED = 4,
    /* The first hysteresis - 1 overflows only use up hysteresis; it is refilled when the scale grows and not before.
     * Scale, floor and ceiling are f32. Source: megatron/core/optimizer/grad_scaler.py, DynamicGradScaler. */
    AMP_SCALER_MEGATRON = 5,
    /* update or update_by_statistics, below, decides, on the host. */
    AMP_SCALER_USER = 6,
    /* A log-normal model of the largest |gradient| of a step, g, unscaled, sets the scale anew at every update:
     *     x = log2 g, or log_max when found or where a gradient is not finite
     *     mean: the running mean of x by beta1;  deviation: the root of x's running variance by beta2 (both corrected
     *     for their start from 0, as Adam's)
     *     scale = 2^(log_max - (mean + overflow_std_dev * deviation)), within floor and ceiling
     * so that 2^log_max is passed by one step in a thousand, at 3.09 deviations of a normal x. Where all gradients are
     * 0, g has no logarithm: the step leaves model and scale alone. The scale is in general no power of two.
     * Source: NVIDIA/OpenSeq2Seq, open_seq2seq/optimizers/automatic_loss_scaler.py, LogMaxScaler. Other than there: in
     * f64; all gradients 0 make the source's means infinite; its 16 in the last line is log_max here; and on an
     * overflow it feeds x = 2^log_max, 65536 where 16 is meant, which keeps the scale at its floor for hundreds of
     * steps: overflow_feeds_power = CAIRN_ON does as its code does. */
    AMP_SCALER_LOGMAX = 7,
    /* Keeps the share of saturating gradients under a bound, and so lowers the scale before it costs a step. An element
     * g saturates at scale S where |g| S >= 2^saturation_log, the top binade of f16 by default, or where it is infinite
     * or NaN; shares are of the elements but 0.
     *     found, or more than saturation_share saturates at S: times backoff_factor
     *     else, once at most saturation_share would have saturated at S growth_factor in growth_interval steps in a
     *     row: times growth_factor
     * A step that has no element but 0 counts in neither. Source: ours, after the bound of Zhao, Vogel, Ahmed
     * (layer_scales.h) on the share that leaves the range at the other end. */
    AMP_SCALER_HISTOGRAM = 8,
} amp_scaler_kind;

struct amp_scaler_state; /* below */

/* What the gradients of a step were, unscaled; counted for AMP_SCALER_LOGMAX, AMP_SCALER_HISTOGRAM and
 * update_by_statistics alone, at the price of one read of the gradients a step (of two where it counts what saturates:
 * not for logmax), for which a step on a GPU waits: such a scaler cannot be recorded into a
 * graph. Of the optimizer whose step updates the scaler, as the step finds them, before the coefficient of clipping by
 * norm; the explicit way: of all optimizers that were unscaled or stepped since the last update. Ranks whose gradients
 * ddp has reduced hold equal ones, and see the same; in a step between amp_begin_step and amp_end_step each rank's own
 * count, and all ranks see their sum; so do a pipeline's stages. All 0: no gradient was counted. */
struct amp_scaler_statistics {
    size_t struct_size;
    double largest;            /* |gradient| of the finite elements; 0 where there is none */
    int64_t elements;          /* of parameters that have a gradient */
    int64_t zeros, infs, nans; /* among them */
    /* As AMP_SCALER_HISTOGRAM has it: at the scale as it is, and at growth_factor times that. */
    int64_t saturating, saturating_if_grown;
};

/* Choices; 0 takes the default of the kind:
 *               init     growth  backoff  interval  hysteresis  floor  ceiling
 *   static      1        -       -        -         -           -      -
 *   apex        2^16     2       1/2      2000      -           1      2^24
 *   torch       2^16     2       1/2      2000      -           1      2^126
 *   deepspeed   2^16     2       1/2      1000      2           1      2^126
 *   megatron    2^32     2       1/2      1000      2           1      2^126
 *   user        2^16     2       1/2      2000      1           1      2^126
 *   logmax      1        -       -        -         -           1      2^24
 *   histogram   2^16     2       1/2      100       -           1      2^24
 * An init outside [floor, ceiling] begins at the nearer of them. */
struct amp_scaler_options {
    size_t struct_size;
    amp_scaler_kind kind;    /* AMP_SCALER_APEX */
    double init_scale;       /* finite; from 2^-126 to 2^126, so that scale and inverse are normal f32 numbers */
    double growth_factor;    /* > 1 */
    double backoff_factor;   /* in (0, 1) */
    int64_t growth_interval; /* > 0 */
    int hysteresis;          /* > 0; deepspeed (delayed_shift), megatron, user */
    cairn_switch consecutive_hysteresis; /* OFF; deepspeed */
    double min_scale, max_scale;         /* floor and ceiling, in init_scale's range */

    /* Of AMP_SCALER_USER: writes the next scale, and if it uses them growth_tracker, hysteresis_left and user[], into
     * *state, which holds the present ones. Called once a step; on a GPU when that step is known of, which is late: the
     * new scale holds for losses that are scaled after. A scale outside of floor and ceiling is clamped; one that is
     * not a finite number above 0 is CAIRN_EINVAL, and the state stays. */
    void (*update)(void *ctx, struct amp_scaler_state *state, int found);
    void *ctx;

    /* Of AMP_SCALER_LOGMAX. */
    double log_max;                    /* 16; log2 of what overflows; from -126 to 126 */
    double beta1, beta2;               /* 0.99, 0.999; in (0, 1) */
    double overflow_std_dev;           /* 3.09; > 0 */
    cairn_switch overflow_feeds_power; /* OFF: an overflow feeds log_max; ON: 2^log_max, as the source's code */

    /* Of AMP_SCALER_USER, in place of update: the same, with what the gradients of the step were. */
    void (*update_by_statistics)(void *ctx, struct amp_scaler_state *state, int found,
                                 const struct amp_scaler_statistics *statistics);

    /* Of AMP_SCALER_HISTOGRAM, and of what update_by_statistics is shown. */
    double saturation_share; /* 1e-4; in (0, 1); histogram alone */
    double saturation_log;   /* 15; from -126 to 126 */
};
#define amp_scaler_options(...) \
    (&(struct amp_scaler_options){.struct_size = sizeof(struct amp_scaler_options), __VA_ARGS__})

/* The whole state of a scaler: its options and its progress. To be saved, and loaded again. */
struct amp_scaler_state {
    size_t struct_size;
    amp_scaler_kind kind;
    double scale;
    double growth_factor, backoff_factor, min_scale, max_scale;
    int64_t growth_interval;
    int64_t growth_tracker; /* clean steps since the scale changed; torch: _growth_tracker, apex: unskipped */
    int64_t updates;        /* in all; deepspeed: cur_iter */
    int64_t
        last_overflow; /* number of the update that found one last, from 0; -1: none; deepspeed: last_overflow_iter */
    int hysteresis, hysteresis_left;
    int consecutive_hysteresis;
    double user[4]; /* of an update of the user's own */

    /* Of AMP_SCALER_LOGMAX: its options, then what its source calls so: the sums behind the running means, and the
     * powers of beta1 and beta2 that correct them. 0 of other kinds. */
    double log_max, beta1, beta2, overflow_std_dev;
    double x_hat, slow_x_hat, xsquared_hat, b1_correction, b2_correction;
    int64_t overflow_feeds_power; /* 0 or 1 */

    double saturation_share, saturation_log; /* of AMP_SCALER_HISTOGRAM; 0 of other kinds */
};
#define AMP_SCALER_STATE_INIT \
    { .struct_size = sizeof(struct amp_scaler_state) }

typedef struct amp_scaler amp_scaler;

/* ---- reading, saving, loading: of a scaler that amp_scaler_create made, or amp_scaler_of of a context ---- */

/* The scale that the next loss is multiplied by. NaN for NULL. torch: get_scale */
CAIRN_API double amp_scaler_get_scale(const amp_scaler *scaler);

/* Its name before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("amp_scaler_get_scale") double amp_scaler_scale_now(const amp_scaler *scaler);

/* state: AMP_SCALER_STATE_INIT. Waits for the device. Errors: CAIRN_EINVAL; CAIRN_ESTATE a graph is being recorded;
 * CAIRN_EDEVICE; what an update of AMP_SCALER_USER that is called now did wrong. */
CAIRN_API cairn_status amp_scaler_get_state(const amp_scaler *scaler, struct amp_scaler_state *state);

/* Takes every field but struct_size; a scale outside of [min_scale, max_scale] becomes the nearer of them, and
 * hysteresis_left comes into [0, hysteresis], but for AMP_SCALER_USER. Waits for the device. Errors, which change
 * nothing: CAIRN_EINVAL names an invalid field, a state of AMP_SCALER_USER for a scaler without an update, or a dynamic
 * one for a context that skips no step (skip_nonfinite); CAIRN_ESTATE scaled losses were not stepped yet, or a graph is
 * being recorded; CAIRN_EDEVICE. */
CAIRN_API cairn_status amp_scaler_set_state(amp_scaler *scaler, const struct amp_scaler_state *state);

/* The same as a part of a training's state (stateful.h), for a scaler that amp_scaler_create made: a context saves its
 * own (amp_stateful). Errors of saving and loading: those of set_state; CAIRN_ESTATE a backward is running, a scaled
 * loss is open or waits for its step, with what to call first. */
CAIRN_API cairn_stateful amp_scaler_stateful(amp_scaler *scaler);

/* One update, as a trace has it. */
struct amp_scaler_update_record {
    int64_t step;           /* the number of the update, from 1 */
    double scale;           /* after it */
    int64_t growth_tracker; /* after it */
    int found;
};

/* Every further update is written to records, up to capacity, until another call; NULL, 0 ends it. records must outlive
 * that. Which number was last: amp_scaler_recorded. On a GPU records come as late as reports. Errors: CAIRN_EINVAL */
CAIRN_API cairn_status amp_scaler_record(amp_scaler *scaler, struct amp_scaler_update_record *records, size_t capacity);
CAIRN_API cairn_status amp_scaler_record_sized(size_t record_nbytes, amp_scaler *scaler,
                                               struct amp_scaler_update_record *records, size_t capacity);
#define amp_scaler_record(...) amp_scaler_record_sized(sizeof(struct amp_scaler_update_record), __VA_ARGS__)

/* Updates since amp_scaler_record, including those that did not fit. */
CAIRN_API size_t amp_scaler_recorded(const amp_scaler *scaler);

/* ---- the explicit way: scale, backward, unscale, step, update ---- */

/* A scaler by itself, for programs that step as torch's do:
 *
 *     cairn_backward(amp_scaler_scale(scaler, loss));
 *     amp_scaler_unscale(scaler, optimizer);              (optional: to look at gradients, to change them)
 *     amp_scaler_step(scaler, optimizer, &stepped);
 *     amp_scaler_update(scaler);                          (once, after all optimizers)
 *
 * An optimizer whose own gradients overflowed does not step; the others do. The scaler learns once, in update,
 * whether any did. Several losses and backwards may come before: they add up, each by the scale it was multiplied by.
 * The forward may be inside amp_autocast_begin and _end; the backward is no part of that.
 *
 * The same calls work with a context's own scaler (amp_scaler_of) and the optimizers that were given to its
 * amp_initialize, at every level; such a context may step either way, from one step to the next. Then a gradient is
 * looked at where the context looks at all (skip_nonfinite). Where amp is not enabled, the calls pass through.
 * From the first unscale or step on, which allocates and waits for the device, an optimizer belongs to its scaler:
 * another one, and amp_initialize, refuse it until amp_scaler_destroy. Its cairn_step looks for overflow too, and tells
 * no scaler.
 *
 * options may be NULL: AMP_SCALER_TORCH; loss_id is 0 in messages. Errors: CAIRN_EINVAL; CAIRN_ENOMEM.
 * Source: torch/amp/grad_scaler.py, PyTorch 2.x. Other than there: a floor, f16 gradients may be unscaled, and
 * gradients that were unscaled may be added to. */
CAIRN_API cairn_status amp_scaler_create(cairn_env *env, const struct amp_scaler_options *options, amp_scaler **out);

/* Waits for the device, so that no report is lost. Before env; before or after optimizers. Pending gradients keep their
 * scale. Of a context's scaler: nothing happens but *scaler = NULL. */
CAIRN_API void amp_scaler_destroy(amp_scaler **scaler);

/* loss * scale, f32. NULL on error, and where loss is NULL; cairn_backward(NULL) returns the cause. */
CAIRN_API cairn_tensor *amp_scaler_scale(amp_scaler *scaler, cairn_tensor *loss);

/* Checks for overflow, and makes the optimizer's gradients unscaled f32 ones: cairn_optimizer_masters shows them, and
 * of f32 parameters cairn_param_set_get too. A read and write of the gradients, and for half ones f32 memory at the
 * first call; clipping by norm (cairn_clip_grad_norm) does not need it. Does not wait; but it is collective where ranks
 * share updates (ddp_options.shard_optimizer), and then waits for them.
 * Errors: CAIRN_ESTATE "unscale has already been called on this optimizer since the last update", or it is called after
 * step; no loss was scaled yet, the last backward failed, or the optimizer belongs to another scaler or context;
 * CAIRN_EINVAL; CAIRN_ENOMEM. */
CAIRN_API cairn_status amp_scaler_unscale(amp_scaler *scaler, cairn_optimizer *optimizer);

/* Steps, unless the optimizer's gradients overflowed. *stepped (may be NULL; else waits for the device): 1 if it did.
 * Errors: CAIRN_ESTATE "step has already been called since the last update", "no inf checks were recorded for this
 * optimizer" (no parameter of it has a gradient), stepped is set while a graph is being recorded, and those of unscale;
 * those of cairn_step. */
CAIRN_API cairn_status amp_scaler_step(amp_scaler *scaler, cairn_optimizer *optimizer, int *stepped);

/* Updates the scaler, also with what an unscale found for a step that was not made, which is then forgotten. Does not
 * wait.
 * Errors: CAIRN_ESTATE "no inf checks were recorded prior to update": no step or unscale of gradients since the last
 * one; CAIRN_ENUMERIC an overflow at the floor, on a GPU an earlier one's too; what an update of AMP_SCALER_USER did
 * wrong; CAIRN_EDEVICE. */
CAIRN_API cairn_status amp_scaler_update(amp_scaler *scaler);

/* torch: update(new_scale), in place of an update: overflows that were found are dropped, the growth tracker stays. Of
 * a context's scaler that is not used the explicit way only the scale changes. Losses scaled before keep their own.
 * Does not wait.
 * Errors: CAIRN_EINVAL out of [min_scale, max_scale]; CAIRN_ESTATE a graph is being recorded. */
CAIRN_API cairn_status amp_scaler_set_scale(amp_scaler *scaler, double scale);

#ifdef __cplusplus
}
#endif

#endif
