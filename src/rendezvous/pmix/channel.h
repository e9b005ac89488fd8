/* PMIx, the launcher's own channel between ranks: the table that libcairn_pmix.so exports. It is a module, so that
 * libcairn does not need libpmix. */
#ifndef CAIRN__RENDEZVOUS_PMIX_CHANNEL_H
#define CAIRN__RENDEZVOUS_PMIX_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

enum { CAIRN__PMIX_SECRET_NBYTES = 32 };

struct cairn__pmix {
    size_t nbytes; /* of this table */
    /* Writes the same random bytes on every rank of PMIx's job, whenever and however often it is called: rank 0 makes
     * them, the others wait for them, for at most timeout seconds. PMIx then stays open until the process ends. Any
     * thread, one at a time. Errors: CAIRN_ETIMEOUT the launcher or rank 0 did not answer; CAIRN_EPEER PMIx failed;
     * CAIRN_ESTATE in a child of fork whose parent opened PMIx; CAIRN_ESYSTEM, CAIRN_ENOMEM. */
    cairn_status (*share)(int rank, double timeout, uint8_t secret[CAIRN__PMIX_SECRET_NBYTES]);
};

#endif
