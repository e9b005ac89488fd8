/* Autograd from inside: the two passes of a backward, and the checks of anomaly mode. */
#ifndef CAIRN__NN_BACKWARD_H
#define CAIRN__NN_BACKWARD_H

#include "nn/ops.h"

/* Marks the nodes of tape that from depends on with a new backward number, and counts the contributions that each
 * tensor's gradient will get. On a checkpoint's tape, tensors outside the checkpoint are listed in tape->outside
 * instead. Nothing else changes. Errors: CAIRN_ESTATE a consumed graph. */
cairn_status cairn__backward_mark(struct cairn__tape *tape, cairn_tensor *from);

/* Propagates from's gradient through the nodes that the last cairn__backward_mark marked. */
cairn_status cairn__backward_walk(struct cairn__tape *tape, const cairn_tensor *from);

/* ---- anomaly.c: CAIRN_OK unless cairn_detect_anomaly is on and a value is infinite or NaN ---- */

/* Checks the result of node, which forward has just computed. */
cairn_status cairn__check_result(const struct cairn__tape *tape, const struct cairn__node *node);

/* Whether values are checked at all: in anomaly mode, or while the first anomaly is noted (cairn__note_anomalies). */
bool cairn__looks_for_anomalies(const struct cairn__tape *tape);

/* Checks a contribution to t's gradient, computed by the node that is being walked. */
cairn_status cairn__check_contribution(const struct cairn__tape *tape, const cairn_tensor *t, const void *dx);

/* Checks a complete gradient: of node's result, or of a leaf or parameter t (t->n elements of dtype at sum). */
cairn_status cairn__check_sum(const struct cairn__tape *tape, const struct cairn__node *node);
cairn_status cairn__check_total(const struct cairn__tape *tape, const cairn_tensor *t, cairn_dtype dtype,
                                const void *sum);

#endif
