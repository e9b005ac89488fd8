/* Files for cairn-lab. */
#ifndef CAIRN__OBSERVE_LAB_H
#define CAIRN__OBSERVE_LAB_H

#include <stdbool.h>

#include "cairn/observe.h"

/* cairn_lab_create for a rank that has no environment yet, with CAIRN_LAB_EVERY in the first line. */
cairn_status cairn__lab_open(int rank, int size, const char *folder, cairn_writer **out);

/* CAIRN_LAB_EVERY; 10 if it is not set or not a number. logs: logs the latter case. */
int64_t cairn__lab_every(bool logs);

#endif
