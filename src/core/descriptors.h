/* Whether as many files can be opened as what is about to begin needs: so that it fails with a sentence at once, and
 * not half-way, where a lack of descriptors looks like another rank that does not answer. */
#ifndef CAIRN__CORE_DESCRIPTORS_H
#define CAIRN__CORE_DESCRIPTORS_H

#include "cairn/core.h"

/* CAIRN_ESYSTEM "cairn-run with 2 ranks opens 12 files, and this process can open 5 more: 8 may be open at a time;
 * raise that to 15 or more (ulimit -n 15)" where fewer than n descriptors are free. Costs n system calls and one for
 * each that is in use. */
cairn_status cairn__check_descriptors(int n, const char *what);

#endif
