/* Loss scalers: the rules by which a loss scale changes, and explicit scaling as with torch's GradScaler.
 *
 * A scaler is a state machine whose input is whether a gradient was infinite or NaN. It is updated once for every step
 * that its losses lead to, however many losses, micro-batches and optimizers the step had. The scale is in device
 * memory; these calls return it as of the last report that was read: on the CPU the current scale, on a GPU one that
 * may be some steps old, since reports arrive late (see cairn_step).
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

/* The rules; docs/training.md compares them. found: an overflow was found. Every rule keeps the scale between min_scale
 * and max_scale. If an overflow would lower a scale that is at its floor, cairn_step returns CAIRN_ENUMERIC. */
typedef enum amp_scaler_kind {
    /* The scale never changes; init_scale is the only option below that applies. */
    AMP_SCALER_STATIC = 1,
    /* found: times backoff_factor. After growth_interval clean steps since the last change or overflow: times
     * growth_factor. Source: apex/amp/scaler.py at 25.04, LossScaler; the floor is ours. */
    AMP_SCALER_APEX = 2,
    /* As apex's, but scale, floor and ceiling are f32, and the scale never grows to infinity. Source:
     * torch/amp/grad_scaler.py, PyTorch 2.x. */
    AMP_SCALER_TORCH = 3,
    /* The first hysteresis - 1 overflows only use up hysteresis; it is refilled when the scale grows, or with
     * consecutive_hysteresis by every clean step. Grows when the number of clean steps since the last overflow, not
     * counting the first, is a multiple of growth_interval. Source: deepspeed/runtime/fp16/loss_scaler.py,
     * DynamicLossScaler, of late 2025; earlier versions grew one clean step earlier. */
    AMP_SCALER_DEEPSPEED = 4,
    /* The first hysteresis - 1 overflows only use up hysteresis; it is refilled only when the scale grows. Scale, floor
     * and ceiling are f32. Source: megatron/core/optimizer/grad_scaler.py, DynamicGradScaler. */
    AMP_SCALER_MEGATRON = 5,
    /* The callback update or update_by_statistics, below, decides, on the host. */
    AMP_SCALER_USER = 6,
    /* Every update sets the scale from a log-normal model of g, the step's largest unscaled |gradient|:
     *     x = log2 g, or log_max when found or where a gradient is not finite
     *     mean: the running mean of x by beta1;  deviation: the root of x's running variance by beta2 (both with Adam's
     *     bias correction)
     *     scale = 2^(log_max - (mean + overflow_std_dev * deviation)), within floor and ceiling
     * so one step in a thousand exceeds 2^log_max, at 3.09 deviations of a normal x. If all gradients are 0, g has no
     * logarithm, and the step changes neither model nor scale. In general the scale is not a power of two.
     * Source: NVIDIA/OpenSeq2Seq, open_seq2seq/optimizers/automatic_loss_scaler.py, LogMaxScaler. Differences: f64; the
     * source's means become infinite if all gradients are 0; the 16 in its last line is log_max here; and on an
     * overflow the source uses x = 2^log_max, 65536 where 16 is meant, which keeps the scale at its floor for hundreds
     * of steps: set overflow_feeds_power = CAIRN_ON to do the same. */
    AMP_SCALER_LOGMAX = 7,
    /* Keeps the share of saturating gradients below a bound, so that the scale is lowered before an overflow costs a
     * step. An element g saturates at scale S if |g| S >= 2^saturation_log (by default the top binade of f16), or if it
     * is infinite or NaN. Shares are of the nonzero elements.
     *     found, or more than saturation_share saturates at S: times backoff_factor
     *     else, once at most saturation_share would have saturated at S growth_factor in growth_interval steps in a
     *     row: times growth_factor
     * A step without nonzero elements counts in neither. Source: ours, after the bound of Zhao, Vogel, Ahmed
     * (layer_scales.h) on the share that underflows. */
    AMP_SCALER_HISTOGRAM = 8,
} amp_scaler_kind;

struct amp_scaler_state; /* below */

/* Statistics of a step's unscaled gradients; collected only for AMP_SCALER_LOGMAX, AMP_SCALER_HISTOGRAM and
 * update_by_statistics. They cost one read of the gradients a step (two if saturating ones are counted, that is except
 * for logmax), and a step on a GPU waits for it; such a scaler cannot be recorded into a graph. They cover the
 * optimizer whose step updates the scaler, as the step finds its gradients, before the coefficient of clipping by norm;
 * with explicit scaling, all optimizers that were unscaled or stepped since the last update. If ddp has reduced the
 * gradients, all ranks have equal ones and equal statistics; in a step between amp_begin_step and amp_end_step, and for
 * stages of a pipeline, all ranks see the counts summed over the ranks, and the largest of all. All 0: no gradient was
 * counted. */
struct amp_scaler_statistics {
    size_t struct_size;
    double largest;            /* the largest |gradient| of the finite elements; 0 if there are none */
    int64_t elements;          /* of all parameters that have a gradient */
    int64_t zeros, infs, nans; /* among these elements */
    /* As for AMP_SCALER_HISTOGRAM: at the current scale, and at growth_factor times it. */
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
 * An init outside [floor, ceiling] is set to the nearer of them. */
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

    /* AMP_SCALER_USER: *state holds the current values; the callback writes the next scale and, if it uses them,
     * growth_tracker, hysteresis_left and user[]. Called once a step; on a GPU when the step's report is read, which is
     * later: the new scale applies to losses that are scaled after that. A scale outside floor and ceiling is clamped;
     * one that is not a finite number above 0 is CAIRN_EINVAL, and the state stays unchanged. */
    void (*update)(void *ctx, struct amp_scaler_state *state, int found);
    void *ctx;

    /* AMP_SCALER_LOGMAX */
    double log_max;                    /* 16; log2 of what overflows; from -126 to 126 */
    double beta1, beta2;               /* 0.99, 0.999; in (0, 1) */
    double overflow_std_dev;           /* 3.09; > 0 */
    cairn_switch overflow_feeds_power; /* OFF: an overflow uses x = log_max; ON: 2^log_max, as the source's code */

    /* AMP_SCALER_USER, instead of update: the same, with statistics of the step's gradients. */
    void (*update_by_statistics)(void *ctx, struct amp_scaler_state *state, int found,
                                 const struct amp_scaler_statistics *statistics);

    /* AMP_SCALER_HISTOGRAM, and the statistics for update_by_statistics */
    double saturation_share; /* 1e-4; in (0, 1); histogram only */
    double saturation_log;   /* 15; from -126 to 126 */
};
#define amp_scaler_options(...) \
    (&(struct amp_scaler_options){.struct_size = sizeof(struct amp_scaler_options), __VA_ARGS__})

/* The complete state of a scaler, its options and its progress, for saving and loading. */
struct amp_scaler_state {
    size_t struct_size;
    amp_scaler_kind kind;
    double scale;
    double growth_factor, backoff_factor, min_scale, max_scale;
    int64_t growth_interval;
    int64_t growth_tracker; /* clean steps since the scale changed; torch: _growth_tracker, apex: unskipped */
    int64_t updates;        /* total number; deepspeed: cur_iter */
    int64_t
        last_overflow; /* index of the last update that found one, from 0; -1: none; deepspeed: last_overflow_iter */
    int hysteresis, hysteresis_left;
    int consecutive_hysteresis;
    double user[4]; /* for the user's own update */

    /* AMP_SCALER_LOGMAX: its options, then values with the source's names: the sums behind the running means, and the
     * powers of beta1 and beta2 that correct them. 0 for other kinds. */
    double log_max, beta1, beta2, overflow_std_dev;
    double x_hat, slow_x_hat, xsquared_hat, b1_correction, b2_correction;
    int64_t overflow_feeds_power; /* 0 or 1 */

    double saturation_share, saturation_log; /* AMP_SCALER_HISTOGRAM; 0 for other kinds */
};
#define AMP_SCALER_STATE_INIT \
    { .struct_size = sizeof(struct amp_scaler_state) }

typedef struct amp_scaler amp_scaler;

/* ---- reading, saving, loading: a scaler made by amp_scaler_create, or amp_scaler_of a context ---- */

/* The scale that the next loss will be multiplied by. NaN for NULL. torch: get_scale */
CAIRN_API double amp_scaler_get_scale(const amp_scaler *scaler);

/* Deprecated name, used before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("amp_scaler_get_scale") double amp_scaler_scale_now(const amp_scaler *scaler);

/* Reads the state; initialise *state with AMP_SCALER_STATE_INIT. Waits for the device. Errors: CAIRN_EINVAL;
 * CAIRN_ESTATE a graph is being recorded; CAIRN_EDEVICE; an error of an AMP_SCALER_USER update that is called now. */
CAIRN_API cairn_status amp_scaler_get_state(const amp_scaler *scaler, struct amp_scaler_state *state);

/* Sets every field except struct_size. A scale outside [min_scale, max_scale] is set to the nearer of them, and
 * hysteresis_left is clamped to [0, hysteresis], except for AMP_SCALER_USER. Waits for the device. Errors, which change
 * nothing: CAIRN_EINVAL names an invalid field, a state of AMP_SCALER_USER for a scaler without an update, or a dynamic
 * state for a context that never skips steps (skip_nonfinite); CAIRN_ESTATE scaled losses have not been stepped yet, or
 * a graph is being recorded; CAIRN_EDEVICE. */
CAIRN_API cairn_status amp_scaler_set_state(amp_scaler *scaler, const struct amp_scaler_state *state);

/* The same state for a checkpoint (stateful.h), for a scaler made by amp_scaler_create: a context saves its own
 * (amp_stateful). Errors of saving and loading: those of set_state; CAIRN_ESTATE during a backward, or while a scaled
 * loss is open or has no step yet, with what to call first. */
CAIRN_API cairn_stateful amp_scaler_stateful(amp_scaler *scaler);

/* One update in a trace. */
struct amp_scaler_update_record {
    int64_t step;           /* the number of the update, from 1 */
    double scale;           /* after it */
    int64_t growth_tracker; /* after it */
    int found;
};

/* Writes every further update to records, up to capacity, until the next call; NULL, 0 stops it. records must outlive
 * that. amp_scaler_recorded returns the number of updates. On a GPU records arrive as late as reports. Errors:
 * CAIRN_EINVAL */
CAIRN_API cairn_status amp_scaler_record(amp_scaler *scaler, struct amp_scaler_update_record *records, size_t capacity);
CAIRN_API cairn_status amp_scaler_record_sized(size_t record_nbytes, amp_scaler *scaler,
                                               struct amp_scaler_update_record *records, size_t capacity);
#define amp_scaler_record(...) amp_scaler_record_sized(sizeof(struct amp_scaler_update_record), __VA_ARGS__)

/* The number of updates since amp_scaler_record, including those beyond capacity. */
CAIRN_API size_t amp_scaler_recorded(const amp_scaler *scaler);

/* ---- explicit scaling: scale, backward, unscale, step, update ---- */

/* Makes a scaler without a context, for programs that step as with torch's GradScaler:
 *
 *     cairn_backward(amp_scaler_scale(scaler, loss));
 *     amp_scaler_unscale(scaler, optimizer);              (optional: to look at gradients, to change them)
 *     amp_scaler_step(scaler, optimizer, &stepped);
 *     amp_scaler_update(scaler);                          (once, after all optimizers)
 *
 * An optimizer whose own gradients overflowed does not step; the others do. amp_scaler_update tells the scaler once
 * whether any of them overflowed. Several losses and backwards may precede a step: their gradients add up, each
 * unscaled by its own scale. The forward may be inside amp_autocast_begin and _end; the backward need not be.
 *
 * The same calls work with a context's own scaler (amp_scaler_of) and the optimizers given to its amp_initialize, at
 * every level; such a context may step either way, changing from step to step. Gradients are then checked only if the
 * context checks them (skip_nonfinite). If amp is not enabled, the calls pass through.
 * From its first unscale or step on, which allocates and waits for the device, an optimizer belongs to its scaler:
 * other scalers and amp_initialize refuse it until amp_scaler_destroy. cairn_step of that optimizer also checks for
 * overflow, but updates no scaler.
 *
 * options may be NULL: AMP_SCALER_TORCH; in messages its loss_id is 0. Errors: CAIRN_EINVAL; CAIRN_ENOMEM.
 * Source: torch/amp/grad_scaler.py, PyTorch 2.x. Differences: a floor, f16 gradients can be unscaled, and unscaled
 * gradients can be accumulated further. */
CAIRN_API cairn_status amp_scaler_create(cairn_env *env, const struct amp_scaler_options *options, amp_scaler **out);

/* Waits for the device, so that no report is lost. Call it before env is destroyed; before or after optimizers. Pending
 * gradients keep their scale. For a context's scaler it only sets *scaler to NULL. */
CAIRN_API void amp_scaler_destroy(amp_scaler **scaler);

/* loss * scale, f32. NULL on error, and if loss is NULL; cairn_backward(NULL) returns the cause. */
CAIRN_API cairn_tensor *amp_scaler_scale(amp_scaler *scaler, cairn_tensor *loss);

/* Checks for overflow and unscales the optimizer's gradients to f32: read them with cairn_optimizer_masters, for f32
 * parameters also with cairn_param_set_get. Costs a read and write of the gradients, and for half ones f32 memory at
 * the first call; clipping by norm (cairn_clip_grad_norm) does not need it. Does not wait, unless ranks share updates
 * (ddp_options.shard_optimizer): then it is collective and waits for them.
 * Errors: CAIRN_ESTATE "unscale has already been called on this optimizer since the last update", or it is called after
 * step; no loss was scaled yet, the last backward failed, or the optimizer belongs to another scaler or context;
 * CAIRN_EINVAL; CAIRN_ENOMEM. */
CAIRN_API cairn_status amp_scaler_unscale(amp_scaler *scaler, cairn_optimizer *optimizer);

/* Steps, unless the optimizer's gradients overflowed. *stepped: 1 if it stepped, otherwise 0; stepped may be NULL,
 * otherwise the call waits for the device. Errors: CAIRN_ESTATE "step has already been called since the last update",
 * "no inf checks were recorded for this optimizer" (no parameter of it has a gradient), stepped is set while a graph is
 * being recorded, and those of unscale; those of cairn_step. */
CAIRN_API cairn_status amp_scaler_step(amp_scaler *scaler, cairn_optimizer *optimizer, int *stepped);

/* Updates the scaler. It counts what an unscale found even if its step was not made, and then forgets it. Does not
 * wait.
 * Errors: CAIRN_ESTATE "no inf checks were recorded prior to update": no step or unscale of gradients since the last
 * update; CAIRN_ENUMERIC an overflow at the floor, on a GPU also an earlier one; an error of an AMP_SCALER_USER update;
 * CAIRN_EDEVICE. */
CAIRN_API cairn_status amp_scaler_update(amp_scaler *scaler);

/* Sets the scale instead of an update, as torch's update(new_scale): overflows that were found are dropped, the growth
 * tracker stays. For a context's scaler without explicit scaling, only the scale changes. Losses that were scaled
 * before keep their scale. Does not wait.
 * Errors: CAIRN_EINVAL outside [min_scale, max_scale]; CAIRN_ESTATE a graph is being recorded. */
CAIRN_API cairn_status amp_scaler_set_scale(amp_scaler *scaler, double scale);

#ifdef __cplusplus
}
#endif

#endif
