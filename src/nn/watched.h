/* Reports module results and their gradients to the environment's watcher (param/watcher.h). */
#ifndef CAIRN__NN_WATCHED_H
#define CAIRN__NN_WATCHED_H

#include "nn/tensor.h"

/* Shows y, which m has returned, to the watcher. Precondition: the environment has one. */
void cairn__show_result(const cairn_module *m, cairn_tensor *y);

/* Shows dy, the complete gradient of t, to the watcher. Precondition: t was shown. */
void cairn__show_gradient(const struct cairn__tape *tape, const cairn_tensor *t, const void *dy);

#endif
