/* Reports of steps, for optim's own files. */
#ifndef CAIRN__OPTIM_REPORT_H
#define CAIRN__OPTIM_REPORT_H

#include "optim/optim.h"

/* Passes on what has come since the last time, in order; the worst status. Never waits. */
cairn_status cairn__optimizer_read_reports(struct cairn_optimizer *o);

/* From now on cairn_env_synchronize and a graph's replay read this optimizer's reports. */
void cairn__optimizer_link_reader(struct cairn_optimizer *o);
void cairn__optimizer_unlink_reader(struct cairn_optimizer *o);

#endif
