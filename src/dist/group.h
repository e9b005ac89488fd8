/* Process groups from inside: the front, what a backend fills, and what ddp needs beyond the public calls. */
#ifndef CAIRN__DIST_GROUP_H
#define CAIRN__DIST_GROUP_H

#include "cairn/dist.h"
#include "cairn/store.h"
#include "device/device.h"

/* How the ranks of one group find each other. */
struct cairn__group_options {
    int rank, size;
    double timeout;              /* seconds without the other ranks; > 0 */
    cairn_store *store;          /* used during create only; NULL is fine where size is 1 */
    const char *prefix;          /* of every key used, so that groups and restarts do not meet */
    const char *backend;         /* NULL or "auto"; "self", "shm"; others say CAIRN_ENOTBUILT or CAIRN_EINVAL */
    struct cairn_device *device; /* whose memory is reduced; shm knows the host's only, and takes NULL */
};

/* Collective over all ranks; returns when all have joined, after which none needs the store. Errors: CAIRN_EINVAL; CAIRN_ENOTSUP ranks on several machines (both named);
 * CAIRN_EPEER a rank died meanwhile; CAIRN_ETIMEOUT names the ranks that did not come; CAIRN_ESYSTEM; CAIRN_ENOMEM. */
cairn_status cairn__group_create(const struct cairn__group_options *options, cairn_group **out);

/* Not collective: leaves at once; what others still read stays mapped in them. Outstanding work is abandoned, and works
 * and group memory are gone with the group. Ranks that wait for this one get CAIRN_EPEER "rank 2 left the group ...". */
void cairn__group_destroy(cairn_group **group);

/* Moves outstanding collectives on without waiting: cheap enough for every backward node (an uncontended load or two
 * when nothing can move). Returns the group's first cause once it is dead. */
cairn_status cairn__group_progress(cairn_group *group);

/* Whose memory the group reduces; NULL = the host's. */
struct cairn_device *cairn__group_device(const cairn_group *group);

/* Whether a reduction notices infinite and NaN results on its way: shm does, a group of one does not even read. */
bool cairn__group_looks(const cairn_group *group);

/* cairn_work_wait that also sets *found to 1 where any stored result of an all-reduce of a float type was infinite or NaN
 * on any rank: every rank gets the same answer. Otherwise *found stays as it was; NULL = nobody asks. */
cairn_status cairn__work_finish(cairn_work **work, uint32_t *found);

#endif
