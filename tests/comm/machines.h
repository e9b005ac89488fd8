/* Makes Cairn believe that ranks are on several machines. Link the program with -Wl,--wrap=cairn__var. */
#ifndef TESTS_COMM_MACHINES_H
#define TESTS_COMM_MACHINES_H

#include "group_ranks.h"

#include "core/vars.h"

/* Rank r's machine is letter r, repeated after the last; NULL = all ranks are on this machine.
 * machines_from_environment sets it from CAIRN_TEST_MACHINES. */
static const char *machines;
static const char *hierarchy; /* CAIRN_HIERARCHY of all ranks; NULL = not set */
static int flat_rank = -1;    /* this rank has CAIRN_HIERARCHY=flat; -1 = none */

static inline void machines_from_environment(void) {
    machines = getenv("CAIRN_TEST_MACHINES");
}

const char *__real_cairn__var(const char *name);
const char *__wrap_cairn__var(const char *name);
const char *__wrap_cairn__var(const char *name) {
    static _Thread_local char host[2];
    if (strcmp(name, "CAIRN_HIERARCHY") == 0 && (hierarchy || joining == flat_rank))
        return hierarchy ? hierarchy : "flat";
    if (!machines || strcmp(name, "CAIRN_HOST_ID") != 0) return __real_cairn__var(name);
    host[0] = machines[(size_t)joining % strlen(machines)];
    return host;
}

#endif
