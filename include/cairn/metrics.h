/* Sums and means over ranks, collectives on tensors, and metrics for evaluation: accuracy, top-k, mean, perplexity,
 * confusion matrix, F1.
 *
 * A metric accumulates batches on each rank; at the end one small collective reduces all metrics over the ranks:
 *
 *     CAIRN_CHECK(cairn_accuracy_create(1, NULL, &accuracy));
 *     CAIRN_CHECK(cairn_mean_create(&loss));
 *     while ((n = cairn_sampler_next(sampler, batch, BATCH)) > 0) {     a sampler with .pad = CAIRN_OFF
 *         cairn_no_grad_begin(env);
 *         cairn_tensor *scores = ddp_forward(net, inputs_of(batch, n));
 *         CAIRN_CHECK(cairn_metric_update(accuracy, scores, targets));
 *         CAIRN_CHECK(cairn_metric_add(loss, cairn_tensor_item(cairn_cross_entropy(scores, targets, NULL)), n));
 *         CAIRN_CHECK(cairn_no_grad_end(env));                          frees the batch's results
 *     }
 *     CAIRN_CHECK(cairn_metrics_reduce((cairn_metric *[]){accuracy, loss}, 2, group));
 *     printf("%.4f %.4f\n", cairn_metric_value(accuracy), cairn_metric_value(loss));
 *
 * Numbers   counts are integers in f64, exact up to 2^53, so the same examples give the same accuracy, confusion matrix
 *           and F1 on any number of ranks. Sums of values are in f64 too, in the order of batches, then ranks: means
 *           over other divisions into ranks or batches differ only by f64 rounding.
 * Ranks     may process unequal numbers of batches, or none: nothing is exchanged before cairn_metrics_reduce.
 * Threads   a metric is used by one thread at a time; cairn_metrics_reduce as other collectives of its group. */
#ifndef CAIRN_METRICS_H
#define CAIRN_METRICS_H

#include "core.h"
#include "dist.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- numbers ---- */

/* Replaces values [n], in host memory, by their sums over the group's ranks: added in f64 in rank order, the same bits
 * on each rank. group NULL is one rank. Collective, for any backend and device of the group; blocks.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_EPEER also if ranks pass different n; CAIRN_ETIMEOUT.
 * Cost: an all-gather of 8 n bytes per rank. */
CAIRN_API cairn_status ddp_sum(double *values, size_t n, cairn_group *group);

/* Replaces *value by the weighted mean over the ranks: sum of value * weight over sum of weight; use the number of
 * examples as the weight of a mean loss. On a rank with weight 0 the value is ignored, even NaN; the result is NaN if
 * all weights are 0. Otherwise as ddp_sum. apex's examples: reduce_tensor */
CAIRN_API cairn_status ddp_mean(double *value, double weight, cairn_group *group);

/* ---- tensors ----
 *
 * Collectives of cairn/dist.h on tensors on the CPU or a GPU. A tensor must be a contiguous leaf without a gradient, or
 * a module buffer, with the same shape and type on every rank. The calls return when the tensor can be used: on a GPU,
 * by work that is queued after them.
 * Errors: CAIRN_EINVAL NULL, or a tensor on another device than the group's; CAIRN_ESTATE a result (make a leaf of it
 * with cairn_tensor_keep) or a parameter (whose weights belong to the optimizer); those of the collective. */

/* Reduces x over all ranks, in place. torch.distributed.all_reduce */
CAIRN_API cairn_status cairn_tensor_allreduce(cairn_tensor *x, cairn_redop op, cairn_group *group);

/* Overwrites x with rank root's x. torch.distributed.broadcast */
CAIRN_API cairn_status cairn_tensor_broadcast(cairn_tensor *x, int root, cairn_group *group);

/* *out is a new leaf [p * N, ...], owned by the caller, with every rank's x [N, ...] in rank order; for scalars it is
 * [p]. x may be a result, and is not changed. torch.distributed.all_gather_into_tensor */
CAIRN_API cairn_status cairn_tensor_allgather(const cairn_tensor *x, cairn_group *group, cairn_tensor **out);

/* ---- metrics ---- */

typedef struct cairn_metric cairn_metric;

struct cairn_metric_options {
    size_t struct_size;
    int64_t ignore_index;      /* targets with this class are not counted; 0 = -100, as of cairn_cross_entropy */
    cairn_switch ignores_zero; /* ON: targets of class 0, which ignore_index cannot name, are not counted */
};
#define cairn_metric_options(...) \
    (&(struct cairn_metric_options){.struct_size = sizeof(struct cairn_metric_options), __VA_ARGS__})

/* The weighted mean of the values passed to cairn_metric_add. */
CAIRN_API cairn_status cairn_mean_create(cairn_metric **out);

/* The share of examples whose target is among the k highest scores: k = 1 is accuracy. Of equal scores the lower class
 * ranks higher; NaN ranks above all numbers. options NULL = all defaults, here and below. */
CAIRN_API cairn_status cairn_accuracy_create(int k, const struct cairn_metric_options *options, cairn_metric **out);

/* exp of the mean over all targets of -log softmax(scores)[target], computed in f64. If the mean loss is known already,
 * cairn_metric_add(m, mean loss, targets) counts the same without reading the scores. */
CAIRN_API cairn_status cairn_perplexity_create(const struct cairn_metric_options *options, cairn_metric **out);

/* Counts how often target i was predicted as class j, the one with the highest score (of equal scores the lower class):
 * cairn_metric_read returns the counts [classes, classes], one row per target. Its value is the accuracy. */
CAIRN_API cairn_status cairn_confusion_matrix_create(int classes, const struct cairn_metric_options *options,
                                                     cairn_metric **out);

typedef enum cairn_average {
    CAIRN_AVERAGE_BINARY = 1,   /* of class 1; classes must be 2 */
    CAIRN_AVERAGE_MICRO = 2,    /* of the counts summed over all classes: the accuracy */
    CAIRN_AVERAGE_MACRO = 3,    /* the mean over classes that occur as a target or a prediction */
    CAIRN_AVERAGE_WEIGHTED = 4, /* the mean over classes, weighted by their number of targets */
} cairn_average;

/* F1 = 2 tp / (2 tp + fp + fn) of the class with the highest score; 0 for 0 / 0. cairn_metric_read returns the
 * confusion matrix. scikit-learn: f1_score */
CAIRN_API cairn_status cairn_f1_create(int classes, cairn_average average, const struct cairn_metric_options *options,
                                       cairn_metric **out);

CAIRN_API void cairn_metric_destroy(cairn_metric **metric);

/* Counts a batch: scores [N, C, ...] of a float type and targets i32 or i64 [N, ...], as for cairn_cross_entropy; also
 * scores [C] with a target of one element. Both are copied to the host, which waits for the device.
 * Errors, after which nothing of the batch is counted: CAIRN_EINVAL shapes or types that do not match, a number of
 * classes other than the metric's, a target that is no class, or a mean, which takes no scores; CAIRN_ESTATE a stale
 * result, or a metric that has been reduced; CAIRN_ENOMEM; CAIRN_EDEVICE. */
CAIRN_API cairn_status cairn_metric_update(cairn_metric *metric, const cairn_tensor *scores,
                                           const cairn_tensor *targets);

/* Adds a value with a weight, to a mean or a perplexity. With weight 0 nothing is added, even for a NaN.
 * Errors: CAIRN_EINVAL a metric of another kind, or a weight that is negative or not finite; CAIRN_ESTATE it has been
 * reduced. */
CAIRN_API cairn_status cairn_metric_add(cairn_metric *metric, double value, double weight);

/* Reduces metrics [count] over the ranks, each of them once: they then hold the totals, the same on each rank, until
 * cairn_metric_reset. group NULL is one rank. One blocking collective: every rank must pass the same kinds of metrics
 * in the same order.
 * Errors: CAIRN_EINVAL; CAIRN_ESTATE a metric has been reduced before; CAIRN_ENOMEM; CAIRN_EPEER also if ranks pass
 * different metrics; CAIRN_ETIMEOUT. */
CAIRN_API cairn_status cairn_metrics_reduce(cairn_metric *const *metrics, int count, cairn_group *group);

/* The metric's value: before the reduction of this rank, after it of all ranks. NaN if nothing was counted, and for
 * NULL. */
CAIRN_API double cairn_metric_value(const cairn_metric *metric);

/* Copies the counts: [classes * classes] for a confusion matrix or F1; [2], the weighted sum and the weight, for the
 * others. Errors: CAIRN_EINVAL NULL, or n is not this size. */
CAIRN_API cairn_status cairn_metric_read(const cairn_metric *metric, double *counts, size_t n);

/* Resets all counts to 0. NULL is fine. */
CAIRN_API void cairn_metric_reset(cairn_metric *metric);

#ifdef __cplusplus
}
#endif

#endif
