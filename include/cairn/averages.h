/* Averages of the weights during training, with any optimizer: exponential moving averages (EMA), and equally weighted
 * ones of the weights late in training (stochastic weight averaging, SWA).
 *
 *     struct cairn_averages_options options = CAIRN_EMA_OPTIONS_INIT;
 *     options.decay = 0.9999;
 *     CAIRN_CHECK(cairn_averages_create(cairn_module_stateful(model), &options, &averages));
 *     for (...) {
 *         ...
 *         CAIRN_CHECK(cairn_step(optimizer));
 *         CAIRN_CHECK(cairn_averages_update(averages, optimizer));
 *     }
 *     CAIRN_CHECK(cairn_averages_apply(averages));    now evaluate the model, or save its weights
 *     CAIRN_CHECK(cairn_averages_restore(averages));  its own weights are back, to the bit
 *
 * Averages are f32, taken of the master weights where there are any, even if amp changes the model's types later.
 * Frozen parameters are averaged too, so thawing them changes nothing. If ddp keeps weights equal on all ranks, their
 * averages are equal; if each rank has weights of its own (local_sgd.h), it has its own averages.
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
    CAIRN_AVERAGES_SWA = 2  /* the mean of all weights so far: average += (weight - average) / (count + 1) */
} cairn_averages_kind;

struct cairn_averages_options {
    size_t struct_size;
    cairn_averages_kind kind;
    cairn_switch use_buffers; /* ON: buffers of f32 and half types are averaged like weights. OFF: buffers are not
                                 averaged; the model keeps its own when averages are applied */
    double decay;             /* EMA only: in [0, 1) */
    int64_t start, every;     /* weights are averaged after taken steps start + every, start + 2 every, ...; start >= 0,
                                 every >= 1 */
};
#define CAIRN_EMA_OPTIONS_INIT \
    { sizeof(struct cairn_averages_options), CAIRN_AVERAGES_EMA, CAIRN_DEFAULT, 0.999, 0, 1 }
#define CAIRN_SWA_OPTIONS_INIT \
    { sizeof(struct cairn_averages_options), CAIRN_AVERAGES_SWA, CAIRN_DEFAULT, 0, 0, 1 }

/* Makes averages of all parameters of model, which is cairn_module_stateful(module) or cairn_param_set_stateful(set)
 * and must outlive them. They are initialised to the weights; the first update replaces them. Call it before or after
 * amp_initialize and ddp_create, once the model has all its parameters. A model may have several averages, of which one
 * can be applied at a time. options NULL = CAIRN_EMA_OPTIONS_INIT.
 *
 * Numerics   f32; the factor is computed in f64 and rounded once, and an update is torch.lerp. An update below half a
 *            unit in the last place of the average is lost, so averages are within 2^-25 / (1 - decay) of exact ones,
 *            relative to the weights: 3e-5 at 0.999. They are much closer while weights keep moving.
 * Cost       4 bytes per parameter element; one pass over averages and weights for each update.
 * Errors     CAIRN_EINVAL the model is NULL or of another kind, an option is out of range; CAIRN_ESTATE the module is
 *            part of another, or has averages applied; CAIRN_ENOTSUP ranks share updates of half weights
 *            (ddp_options.shard_optimizer), so no rank has all masters; CAIRN_ENOMEM.
 * Source     torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn or get_swa_multi_avg_fn (PyTorch 2.x);
 *            Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018;
 *            Polyak and Juditsky, SIAM J. Control Optim. 30, 1992. */
CAIRN_API cairn_status cairn_averages_create(cairn_stateful model, const struct cairn_averages_options *options,
                                             cairn_averages **out);

/* If the averages are applied, restores the model's own weights first. NULL does nothing. */
CAIRN_API void cairn_averages_destroy(cairn_averages **averages);

/* Call it after every cairn_step of the optimizer. It queues an update of the averages if the step was taken and is one
 * of those that start and every select. The device decides whether the step was skipped; the host does not wait, and a
 * graph records the update. With accumulation call it once per step, not per backward. optimizer NULL: every call
 * counts as a taken step, for programs that update weights themselves.
 * start and every count the optimizer's steps; with another optimizer later, that one's steps, and averages continue. A
 * step counts as taken if the number of taken steps differs from that at the previous call.
 * Errors: CAIRN_ESTATE averages are applied to the model, these or others (call cairn_averages_restore first);
 * CAIRN_EINVAL NULL, another environment; CAIRN_ENOTSUP as create; CAIRN_EDEVICE. */
CAIRN_API cairn_status cairn_averages_update(cairn_averages *averages, cairn_optimizer *optimizer);

/* apply puts the averages in place of the model's weights, with half weights rounded from them; restore puts back the
 * model's own weights, to the bit. In between, the model can be evaluated or saved (cairn_module_save) but not trained:
 * cairn_step, calls with other averages of the model, ddp_create, ddp_weights_average, and amp_initialize if it would
 * change types or masters return CAIRN_ESTATE.
 *
 * Cost     three passes over f32 weights and averages; for half weights without a master, memory for another copy of
 *          them, from the first apply on.
 * Errors   apply: CAIRN_ESTATE averages are already applied to the model, a graph is being recorded, or the call is
 *          within a backward or before the step of a scaled loss; CAIRN_ENOTSUP as create; CAIRN_ENOMEM, which changes
 *          nothing. restore: CAIRN_ESTATE these averages are not applied; or weights were changed meanwhile, by a load
 *          or the replay of a recorded step: the model's own weights are restored all the same, but the averages are
 *          lost and start again from these weights. */
CAIRN_API cairn_status cairn_averages_apply(cairn_averages *averages);
CAIRN_API cairn_status cairn_averages_restore(cairn_averages *averages);

/* Copies the averages into the model's weights permanently, masters and half weights; the optimizer keeps its state.
 * Errors: as apply. */
CAIRN_API cairn_status cairn_averages_copy(cairn_averages *averages);

/* The number of updates of the averages; waits for the device. 0 for NULL. (torch: n_averaged) */
CAIRN_API int64_t cairn_averages_count(const cairn_averages *averages);

/* The average of parameter i of the model's set, [shape] in device memory; NULL if there is none, or while it is
 * applied. */
CAIRN_API const float *cairn_averages_param(const cairn_averages *averages, size_t i);

/* The averages' state for a checkpoint: arrays by the names of parameters and buffers, and counts. Kind, decay, start
 * and every are not saved; the program sets them. Averages are shared by all ranks or each rank's own as the parameters
 * are. Saving and loading return CAIRN_ESTATE while averages are applied. */
CAIRN_API cairn_stateful cairn_averages_stateful(cairn_averages *averages);

#ifdef __cplusplus
}
#endif

#endif
