/* The rates of an optimizer's groups, for optim's own files. */
#ifndef CAIRN__OPTIM_RATES_H
#define CAIRN__OPTIM_RATES_H

#include "optim/optim.h"

/* A table for `groups` groups; contents undefined. Errors: CAIRN_ENOMEM; *table may then be half-made, and is freed
 * alike. */
cairn_status cairn__rates_make(struct cairn_device *d, size_t groups, struct cairn__rate_table *table);
void cairn__rates_free(struct cairn_device *d, struct cairn__rate_table *table);

/* The table, of the groups there are now, takes the place of the optimizer's, which ends. Rates that were used are
 * carried over. Cannot fail. */
void cairn__rates_replace(cairn_optimizer *o, struct cairn__rate_table *table);

/* Sends base rate and schedule of group g to the device, which forms its rates anew. */
void cairn__rates_store(cairn_optimizer *o, size_t g);

/* The rates of group g's next step, as far as is known here. */
struct cairn__rates cairn__rates_known(const cairn_optimizer *o, size_t g);

/* The parts of a group's schedule end, here and on the device. */
void cairn__group_drop_schedule(struct cairn_device *d, struct cairn__param_group *group);

/* Checks options before they are given to a group. momentum_cycles: the group has a momentum that may move. Errors:
 * CAIRN_EINVAL. */
cairn_status cairn__schedule_check(const struct cairn_schedule_options *options, bool momentum_cycles);

#endif
