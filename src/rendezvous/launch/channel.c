/* Gets the job's secret through PMIx, the launcher's own channel, which mpirun and srun --mpi=pmix provide. */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/status.h"
#include "core/vars.h"
#include "device/module.h"
#include "rendezvous/launch/launch.h"
#include "rendezvous/pmix/channel.h"

/* Whether PMIx started this process and gave it the rank that it has here. */
static bool has_pmix(const struct cairn__launch *launch) {
    const char *rank = cairn__var("PMIX_RANK");
    char *end = NULL;
    return launch->is_mpi && cairn__var("PMIX_NAMESPACE") && rank && strtol(rank, &end, 10) == launch->rank && !*end;
}

cairn_status cairn__launch_secret(const struct cairn__launch *launch, double timeout, struct cairn__secret **out) {
    const struct cairn__module_use use = {.kind = "launcher's channel",
                                          .instead = "CAIRN_JOB_SECRET_FILE",
                                          .nbytes = sizeof(struct cairn__pmix)};
    const void *found = NULL;
    uint8_t bytes[CAIRN__PMIX_SECRET_NBYTES];
    cairn_status st = CAIRN_OK;
    *out = NULL;
    if (!cairn__secret_is_built() || !has_pmix(launch)) return CAIRN_OK;
    st = cairn__module_open(&use, "pmix", &found);
    if (st == CAIRN_ENOTBUILT) {
        cairn__log(CAIRN_LOG_INFO, "%s", cairn_last_error());
        return CAIRN_OK;
    }
    if (st != CAIRN_OK) return st;
    const struct cairn__pmix *pmix = found;
    TRY(pmix->share(launch->rank, timeout, bytes));
    TRY(cairn__secret_from(bytes, sizeof(bytes), "PMIx", out));
    cairn__log(CAIRN_LOG_INFO, "rank 0 shared the job's secret through PMIx");
out:
    explicit_bzero(bytes, sizeof(bytes));
    return st;
}
