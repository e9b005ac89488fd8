/* The table of backends. Probing a backend that needs a module opens the module. */
#include <string.h>

#include "comm/group_backend.h"
#include "core/status.h"

const struct cairn__group_backend *const cairn__backends[CAIRN__NUM_BACKENDS] = {
    [CAIRN__BACKEND_SELF] = &cairn__group_self, [CAIRN__BACKEND_SHM] = &cairn__group_shm,
    [CAIRN__BACKEND_MPI] = &cairn__group_mpi,   [CAIRN__BACKEND_GLOO] = &cairn__group_gloo,
    [CAIRN__BACKEND_NCCL] = &cairn__group_nccl,
};

cairn_status cairn__backend_find(const char *name, int *row) {
    *row = -1;
    if (!name || strcmp(name, "auto") == 0) return CAIRN_OK;
    for (int i = 0; i < CAIRN__NUM_BACKENDS; i++) {
        if (strcmp(name, cairn__backends[i]->name) == 0) *row = i;
    }
    REQUIRE(*row >= 0, CAIRN_EINVAL, "there is no group backend '%s'; choose auto, self, shm, mpi, gloo or nccl", name);
    return CAIRN_OK;
}

cairn_status cairn__backend_probe(int row, const struct cairn__group_create_options *options) {
    const struct cairn__group_backend *b = cairn__backends[row];
    return b->probe ? b->probe(options) : CAIRN_OK;
}
