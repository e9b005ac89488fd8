/* CSV files. */
#ifndef CAIRN__OBSERVE_CSV_H
#define CAIRN__OBSERVE_CSV_H

#include "cairn/observe.h"

/* cairn_csv_create for a rank that has no environment yet. */
cairn_status cairn__csv_open(int rank, int size, const char *path, cairn_writer **out);

#endif
