/* Reports of steps, for optim's files only. */
#ifndef CAIRN__OPTIM_REPORT_H
#define CAIRN__OPTIM_REPORT_H

#include "optim/optim.h"

/* Passes on the reports that have arrived since the last call, in order. Returns the worst status. Never waits. */
cairn_status cairn__optimizer_read_reports(struct cairn_optimizer *o);

/* From now on cairn_env_synchronize and a graph's replay read this optimizer's reports. */
void cairn__optimizer_link_reader(struct cairn_optimizer *o);
void cairn__optimizer_unlink_reader(struct cairn_optimizer *o);

#endif
