/* Averages of weights over a training, beside any optimizer: exponential moving averages (EMA), and equal ones of the
 * weights at the end of a training (stochastic weight averaging, SWA).
 *
 *     struct cairn_averages_options options = CAIRN_EMA_OPTIONS_INIT;
 *     options.decay = 0.9999;
 *     CAIRN_CHECK(cairn_averages_create(cairn_module_stateful(model), &options, &averages));
 *     for (...) {
 *         ...
 *         CAIRN_CHECK(cairn_step(optimizer));
 *         CAIRN_CHECK(cairn_averages_update(averages, optimizer));
 *     }
 *     CAIRN_CHECK(cairn_averages_apply(averages));    the model has the averages: evaluate it, or save its weights
 *     CAIRN_CHECK(cairn_averages_restore(averages));  and its own weights again, to the bit
 *
 * Averages are f32, of masters where there are some, whatever amp has made of the model since. Frozen parameters have
 * averages too, so that a thaw changes nothing. Where ddp's ranks have equal weights their averages are equal; those of
 * each rank's own weights (local_sgd.h) are the rank's own.
 * Threads: as the environment, one at a time. */
#ifndef CAIRN_AVERAGES_H
#define CAIRN_AVERAGES_H

#include "core.h"
#include "optim.h"
#include "stateful.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_averages cairn_averages;

typedef enum cairn_averages_kind {
    CAIRN_AVERAGES_EMA = 1, /* average += (1 - decay) * (weight - average) */
    CAIRN_AVERAGES_SWA = 2  /* the mean of all weights so far: average += (weight - average) / (number + 1) */
} cairn_averages_kind;

struct cairn_averages_options {
    size_t struct_size;
    cairn_averages_kind kind;
    cairn_switch use_buffers; /* ON: buffers of f32 and half types are averaged as weights are. OFF: they are left
                                 alone, and averages are used with the model's own */
    double decay;             /* of EMA: in [0, 1) */
    int64_t start, every;     /* weights are averaged after taken steps start + every, start + 2 every, ...; start >= 0,
                                 every >= 1 */
};
#define CAIRN_EMA_OPTIONS_INIT \
    { sizeof(struct cairn_averages_options), CAIRN_AVERAGES_EMA, CAIRN_DEFAULT, 0.999, 0, 1 }
#define CAIRN_SWA_OPTIONS_INIT \
    { sizeof(struct cairn_averages_options), CAIRN_AVERAGES_SWA, CAIRN_DEFAULT, 0, 0, 1 }

/* Averages of all parameters of model, which is cairn_module_stateful(module) or cairn_param_set_stateful(set) and
 * outlives them. They begin as the weights are; what is averaged first takes their place. Before or after
 * amp_initialize and ddp_create, once the model has all its parameters. A model may have several, of which it has one
 * applied at a time. options NULL = CAIRN_EMA_OPTIONS_INIT.
 *
 * Numerics   f32: the share is formed in f64 and rounded once, and an update is torch.lerp. It is lost where it is
 *            below half a unit in the last place of the average, so averages are within 2^-25 / (1 - decay) of exact
 *            ones, relative to the weights: 3e-5 at 0.999. They are much nearer where weights keep moving.
 * Cost       4 bytes a parameter; one pass over averages and weights an update.
 * Errors     CAIRN_EINVAL the model is NULL or of another kind, an option is out of range; CAIRN_ESTATE the module
 *            belongs to another, or has averages instead of its weights; CAIRN_ENOTSUP ranks share updates of half
 *            weights (ddp_options.shard_optimizer), so that none has all masters; CAIRN_ENOMEM.
 * Source     torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn or get_swa_multi_avg_fn (PyTorch 2.x);
 *            Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018;
 *            Polyak and Juditsky, SIAM J. Control Optim. 30, 1992. */
CAIRN_API cairn_status cairn_averages_create(cairn_stateful model, const struct cairn_averages_options *options,
                                             cairn_averages **out);

/* Gives the model its own weights back where it has the averages. NULL does nothing. */
CAIRN_API void cairn_averages_destroy(cairn_averages **averages);

/* After every cairn_step of the optimizer: queues an update of the averages where the step was taken and is one of
 * those that start and every name. Where it runs it sees whether the step was skipped; nothing waits for it, and a
 * graph records it. With accumulation there is a call for each step, not for each backward. optimizer NULL: every call
 * is after a taken step (of updates of the user's own).
 * Steps are the optimizer's: where another one takes over, start and every go by its steps, and averages go on. A step
 * was taken where their number differs from that of the call before.
 * Errors: CAIRN_ESTATE the model has averages, these or others (cairn_averages_restore comes first); CAIRN_EINVAL NULL,
 * another environment; CAIRN_ENOTSUP as create; CAIRN_EDEVICE. */
CAIRN_API cairn_status cairn_averages_update(cairn_averages *averages, cairn_optimizer *optimizer);

/* The model has the averages, half weights rounded from them, until restore gives it its own weights back, to the bit.
 * In between it is evaluated or saved (cairn_module_save), not trained: cairn_step, calls with other averages of the
 * model, ddp_create, ddp_weights_average, and amp_initialize where it changes types or masters return CAIRN_ESTATE.
 *
 * Cost     three passes over f32 weights and averages; of half weights without a master as much memory again, from the
 *          first apply on.
 * Errors   CAIRN_ESTATE the model has averages already, a graph is being recorded, within a backward or before the
 *          step of a scaled loss; CAIRN_ENOTSUP as create; CAIRN_ENOMEM, which changes nothing. restore: CAIRN_ESTATE
 *          the model does not have these; or weights were changed in between, by a load or the replay of a recorded
 *          step: the model's own are back all the same, but the averages are lost and begin anew as these are. */
CAIRN_API cairn_status cairn_averages_apply(cairn_averages *averages);
CAIRN_API cairn_status cairn_averages_restore(cairn_averages *averages);

/* The averages become the model's weights for good, masters and half weights; the optimizer keeps its state. Errors: as
 * apply. */
CAIRN_API cairn_status cairn_averages_copy(cairn_averages *averages);

/* How often weights have been averaged; waits for the device. 0 for NULL. (torch: n_averaged) */
CAIRN_API int64_t cairn_averages_count(const cairn_averages *averages);

/* The average of parameter i of the model's set, [shape] in device memory; NULL where there is none, and while the
 * model has it. */
CAIRN_API const float *cairn_averages_param(const cairn_averages *averages, size_t i);

/* The averages as a part of a training's state: by the names of parameters and buffers, with the counts. Kind, decay,
 * start and every are the program's. Over several ranks as the parameters are. CAIRN_ESTATE while the model has the
 * averages. */
CAIRN_API cairn_stateful cairn_averages_stateful(cairn_averages *averages);

#ifdef __cplusplus
}
#endif

#endif
