/* Subnormal numbers, and the processor's modes that flush them to zero. */
#ifndef CAIRN__CORE_SUBNORMALS_H
#define CAIRN__CORE_SUBNORMALS_H

#include <stdbool.h>

/* Turns these modes off in this thread. Returns whether one was on, as in a program linked with -ffast-math, whose
 * start-up code (crtfastmath) sets them in the first thread; new threads inherit them. */
bool cairn__keep_subnormals(void);

#endif
