/* The timeline of one rank. */
#ifndef CAIRN__OBSERVE_TIMELINE_H
#define CAIRN__OBSERVE_TIMELINE_H

#include "cairn/observe.h"

/* cairn_timeline_create for a rank that has no environment yet. */
cairn_status cairn__timeline_open(int rank, int size, const char *path, cairn_writer **out);

#endif
