/* Numbers and tensors over ranks, and metrics of evaluation: accuracy, top-k, mean, perplexity, confusion matrix, F1.
 *
 * A metric adds up over batches on each rank, and at the end over the ranks, all metrics in one small collective:
 *
 *     CAIRN_CHECK(cairn_accuracy_create(1, NULL, &accuracy));
 *     CAIRN_CHECK(cairn_mean_create(&loss));
 *     while ((n = cairn_sampler_next(sampler, batch, BATCH)) > 0) {     a sampler with .pad = CAIRN_OFF
 *         cairn_no_grad_begin(env);
 *         cairn_tensor *scores = ddp_forward(net, inputs_of(batch, n));
 *         CAIRN_CHECK(cairn_metric_update(accuracy, scores, targets));
 *         CAIRN_CHECK(cairn_metric_add(loss, cairn_tensor_item(cairn_cross_entropy(scores, targets, NULL)), n));
 *         CAIRN_CHECK(cairn_no_grad_end(env));                          which gives the batch's results back
 *     }
 *     CAIRN_CHECK(cairn_metrics_reduce((cairn_metric *[]){accuracy, loss}, 2, group));
 *     printf("%.4f %.4f\n", cairn_metric_value(accuracy), cairn_metric_value(loss));
 *
 * Numbers   counts are whole numbers in f64, exact up to 2^53, so that the same examples on any number of ranks give
 *           the same accuracy, confusion matrix and F1. Sums of values are in f64 too, in the order of batches and then
 *           of ranks: means over other ranks or batches differ by f64's rounding alone.
 * Ranks     may have made unequal numbers of batches, also none: nothing is exchanged before cairn_metrics_reduce.
 * Threads   a metric is used by one thread at a time, and cairn_metrics_reduce as a collective of its group. */
#ifndef CAIRN_METRICS_H
#define CAIRN_METRICS_H

#include "core.h"
#include "dist.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- numbers ---- */

/* values [n] of the host become the sums over the group's ranks, the same bits on each: added in f64 in rank order.
 * group NULL is one rank. Collective, whatever the group's backend and device; waits.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_EPEER also for ranks with different n; CAIRN_ETIMEOUT.
 * Cost: an all-gather of 8 n bytes a rank. */
CAIRN_API cairn_status ddp_sum(double *values, size_t n, cairn_group *group);

/* *value becomes the mean over the ranks of all values, each counted weight times, as the loss of weight examples: sum
 * of value * weight over sum of weight. A rank with weight 0 may have any value, as NaN; NaN where no rank has weight.
 * Otherwise as ddp_sum. apex's examples: reduce_tensor */
CAIRN_API cairn_status ddp_mean(double *value, double weight, cairn_group *group);

/* ---- tensors ----
 *
 * Collectives of cairn/dist.h on tensors, of the CPU or a GPU. Tensors are contiguous leaves without a gradient, or
 * module buffers; shape and type are the same on every rank. The calls return when the tensor may be used: on a GPU
 * that is what is queued after them.
 * Errors: CAIRN_EINVAL NULL, or a tensor of another device than the group's; CAIRN_ESTATE a result (cairn_tensor_keep
 * makes a leaf of it) or a parameter (its weights are the optimizer's); those of the collective. */

/* x becomes the combination of every rank's x. torch.distributed.all_reduce */
CAIRN_API cairn_status cairn_tensor_allreduce(cairn_tensor *x, cairn_redop op, cairn_group *group);

/* x becomes a copy of rank root's. torch.distributed.broadcast */
CAIRN_API cairn_status cairn_tensor_broadcast(cairn_tensor *x, int root, cairn_group *group);

/* *out, a new leaf [p * N, ...] that the caller destroys, has every rank's x [N, ...] in rank order; of scalars it is
 * [p]. x may be a result, and stays as it is. torch.distributed.all_gather_into_tensor */
CAIRN_API cairn_status cairn_tensor_allgather(const cairn_tensor *x, cairn_group *group, cairn_tensor **out);

/* ---- metrics ---- */

typedef struct cairn_metric cairn_metric;

struct cairn_metric_options {
    size_t struct_size;
    int64_t ignore_index;      /* a target that counts nothing; 0 = -100, as of cairn_cross_entropy */
    cairn_switch ignores_zero; /* ON: the ignored target is class 0, which ignore_index cannot say */
};
#define cairn_metric_options(...) \
    (&(struct cairn_metric_options){.struct_size = sizeof(struct cairn_metric_options), __VA_ARGS__})

/* The mean of the values that cairn_metric_add gives, by their weights. */
CAIRN_API cairn_status cairn_mean_create(cairn_metric **out);

/* The share of examples whose target is among the k highest scores: k = 1 is accuracy. Of equal scores the lower class
 * ranks higher, NaN above all numbers. options NULL = all defaults; the others likewise. */
CAIRN_API cairn_status cairn_accuracy_create(int k, const struct cairn_metric_options *options, cairn_metric **out);

/* exp of the mean over all targets of -log softmax(scores)[target], computed in f64. cairn_metric_add(m, mean loss,
 * targets) counts the same from a loss that is known, and saves reading the scores. */
CAIRN_API cairn_status cairn_perplexity_create(const struct cairn_metric_options *options, cairn_metric **out);

/* How often target i was taken for class j, the highest score (of equal ones the lower class): cairn_metric_read gives
 * the counts [classes, classes], the targets in rows. Its value is the accuracy. */
CAIRN_API cairn_status cairn_confusion_matrix_create(int classes, const struct cairn_metric_options *options,
                                                     cairn_metric **out);

typedef enum cairn_average {
    CAIRN_AVERAGE_BINARY = 1,   /* of class 1, of two classes */
    CAIRN_AVERAGE_MICRO = 2,    /* of the counts of all classes added up: the accuracy */
    CAIRN_AVERAGE_MACRO = 3,    /* the mean over classes that are a target or a prediction somewhere */
    CAIRN_AVERAGE_WEIGHTED = 4, /* the mean over classes, by how often each is a target */
} cairn_average;

/* F1 = 2 tp / (2 tp + fp + fn), of the highest score; 0 where that is 0 / 0. cairn_metric_read gives the confusion
 * matrix. scikit-learn: f1_score */
CAIRN_API cairn_status cairn_f1_create(int classes, cairn_average average, const struct cairn_metric_options *options,
                                       cairn_metric **out);

CAIRN_API void cairn_metric_destroy(cairn_metric **metric);

/* Counts a batch: scores [N, C, ...] of a float type, targets i32 or i64 [N, ...] as cairn_cross_entropy takes them;
 * [C] and a target of one element too. Both are read to the host, which waits for the device.
 * Errors, after which nothing of the batch counts: CAIRN_EINVAL shapes or types that do not fit, other classes than
 * the metric's, a target that is no class, or a mean, which has no scores; CAIRN_ESTATE a stale result, or the metric
 * has been reduced; CAIRN_ENOMEM; CAIRN_EDEVICE. */
CAIRN_API cairn_status cairn_metric_update(cairn_metric *metric, const cairn_tensor *scores,
                                           const cairn_tensor *targets);

/* Counts a value weight times, for means and perplexities. Weight 0 counts nothing, also of a NaN.
 * Errors: CAIRN_EINVAL another metric, or a weight that is negative or not finite; CAIRN_ESTATE it has been reduced. */
CAIRN_API cairn_status cairn_metric_add(cairn_metric *metric, double value, double weight);

/* Adds up metrics [count] over the ranks, each of them once: from now on they hold the totals, the same on each rank,
 * until cairn_metric_reset. group NULL is one rank. One collective, which waits: every rank calls it with the same
 * kinds of metrics in the same order.
 * Errors: CAIRN_EINVAL; CAIRN_ESTATE one has been reduced; CAIRN_ENOMEM; CAIRN_EPEER also where ranks bring other
 * metrics; CAIRN_ETIMEOUT. */
CAIRN_API cairn_status cairn_metrics_reduce(cairn_metric *const *metrics, int count, cairn_group *group);

/* What has been counted: before the reduction on this rank, after it on all. NaN where nothing has, and for NULL. */
CAIRN_API double cairn_metric_value(const cairn_metric *metric);

/* Copies the counts out: of confusion matrix and F1 [classes * classes]; of the others [2], the weighted sum and the
 * weight. Errors: CAIRN_EINVAL NULL, or n is another number. */
CAIRN_API cairn_status cairn_metric_read(const cairn_metric *metric, double *counts, size_t n);

/* Counts from nothing again. NULL is fine. */
CAIRN_API void cairn_metric_reset(cairn_metric *metric);

#ifdef __cplusplus
}
#endif

#endif
