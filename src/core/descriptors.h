/* Checks for free file descriptors before an operation that needs several, so that it fails at once with a clear
 * message. Half-way through, a lack of descriptors would look like another rank that does not answer. */
#ifndef CAIRN__CORE_DESCRIPTORS_H
#define CAIRN__CORE_DESCRIPTORS_H

#include "cairn/core.h"

/* CAIRN_ESYSTEM "cairn-run with 2 ranks opens 12 files, and this process can open 5 more: 8 may be open at a time;
 * raise that to 15 or more (ulimit -n 15)" if fewer than n descriptors are free. Costs n system calls, and one for each
 * descriptor in use. */
cairn_status cairn__check_descriptors(int n, const char *what);

#endif
