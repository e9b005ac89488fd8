/* What the files of autograd share. */
#ifndef CAIRN__NN_BACKWARD_H
#define CAIRN__NN_BACKWARD_H

#include "nn/ops.h"

/* Marks the nodes of tape that from depends on, with a new number of a backward, and counts the contributions that
 * every tensor will get. On a checkpoint's tape, those outside it are listed in tape->outside instead. Nothing else
 * changes.
 * Errors: CAIRN_ESTATE a consumed graph. */
cairn_status cairn__backward_mark(struct cairn__tape *tape, cairn_tensor *from);

/* Propagates from's gradient through the nodes marked last. */
cairn_status cairn__backward_walk(struct cairn__tape *tape, const cairn_tensor *from);

/* ---- anomaly.c: CAIRN_OK unless cairn_detect_anomaly is on and a value is infinite or NaN ---- */

/* The result of node, made from its inputs. */
cairn_status cairn__check_result(const struct cairn__tape *tape, const struct cairn__node *node);

/* Whether any value is looked at: in anomaly mode, or where the first anomaly is to be noted. */
bool cairn__looks_for_anomalies(const struct cairn__tape *tape);

/* A contribution to the gradient of t, made by the node that is being walked; */
cairn_status cairn__check_contribution(const struct cairn__tape *tape, const cairn_tensor *t, const void *dx);

/* and the sum of them: of node's result, or of a leaf or parameter, t->n elements of dtype at sum. */
cairn_status cairn__check_sum(const struct cairn__tape *tape, const struct cairn__node *node);
cairn_status cairn__check_total(const struct cairn__tape *tape, const cairn_tensor *t, cairn_dtype dtype,
                                const void *sum);

#endif
