/* The rates of an optimizer's groups, for optim's files only. */
#ifndef CAIRN__OPTIM_RATES_H
#define CAIRN__OPTIM_RATES_H

#include "optim/optim.h"

/* Allocates a table for `groups` groups, contents undefined. Errors: CAIRN_ENOMEM; free *table with cairn__rates_free
 * then too. */
cairn_status cairn__rates_make(struct cairn_device *d, size_t groups, struct cairn__rate_table *table);
void cairn__rates_free(struct cairn_device *d, struct cairn__rate_table *table);

/* Replaces the optimizer's table, which is freed, by one for the current groups. Carries over the rates last used.
 * Cannot fail. */
void cairn__rates_replace(cairn_optimizer *o, struct cairn__rate_table *table);

/* Sends base rate and schedule of group g to the device, which recomputes its rates. */
void cairn__rates_store(cairn_optimizer *o, size_t g);

/* The rates of group g's next step, as far as the host knows them. */
struct cairn__rates cairn__rates_known(const cairn_optimizer *o, size_t g);

/* Frees the parts of a group's schedule, on the host and on the device. */
void cairn__group_drop_schedule(struct cairn_device *d, struct cairn__param_group *group);

/* Checks options before they are given to a group. momentum_cycles: the schedule may change the group's momentum.
 * Errors: CAIRN_EINVAL. */
cairn_status cairn__schedule_check(const struct cairn_schedule_options *options, bool momentum_cycles);

#endif
