/* Subnormal numbers, and processors that are told to take them for zero. */
#ifndef CAIRN__CORE_SUBNORMALS_H
#define CAIRN__CORE_SUBNORMALS_H

#include <stdbool.h>

/* This thread computes with subnormal numbers from here on. true: it took them for zero before, as in a program that is
 * linked with -ffast-math, whose start-up code (crtfastmath) says so for the first thread; threads begin as the thread
 * that starts them. */
bool cairn__keep_subnormals(void);

#endif
