/* What the environment's watcher sees of nn (param/watcher.h). */
#ifndef CAIRN__NN_WATCHED_H
#define CAIRN__NN_WATCHED_H

#include "nn/tensor.h"

/* m has returned y, and the environment has a watcher. */
void cairn__show_result(const cairn_module *m, cairn_tensor *y);

/* dy is the whole gradient of t, which was shown. */
void cairn__show_gradient(const struct cairn__tape *tape, const cairn_tensor *t, const void *dy);

#endif
