/* Environment variables: the table of all of them, and strict parsing. */
#include "core/vars.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

const struct cairn__var_info cairn__vars[] = {
    {"CAIRN_LOG", "highest log level shown: error, warning, notice (default), info, debug"},
    {"CAIRN_CPU", "highest instruction set used: ref, avx2, avx512, avx512_bf16; can only remove"},
    {"CAIRN_DEVICE", "device of environments that name none: cpu (default), cuda, cuda:N, auto"},
    {"CAIRN_MODULE_PATH", "folder in which modules such as libcairn_cuda.so are looked for, and no other"},
    {"CAIRN_TIMEOUT", "seconds a rank waits for another before it gives up (300)"},
    {"CAIRN_HOST_ID", "overrides the boot id by which ranks tell that they share a host"},
    {"OMP_NUM_THREADS",
     "threads inside a rank, the first number of a list; 1, unless cairn_set_num_threads says otherwise"},
    {"RANK", "this process's rank, as torchrun sets it"},
    {"WORLD_SIZE", "number of ranks, as torchrun sets it"},
    {"LOCAL_RANK", "rank on this machine, as torchrun sets it"},
    {"LOCAL_WORLD_SIZE", "ranks on this machine, as torchrun sets it"},
    {"MASTER_ADDR", "address of the store where ranks meet"},
    {"MASTER_PORT", "port of the store where ranks meet"},
    {"TORCHELASTIC_USE_AGENT_STORE", "\"True\": the launcher hosts the store and every rank is a client"},
    {"TORCHELASTIC_RESTART_COUNT", "how often the launcher restarted the ranks; part of the store's key prefix"},
    {"TORCHELASTIC_RUN_ID", "name of the run; part of the store's key prefix"},
    {NULL, NULL},
};

#ifndef NDEBUG
static bool is_known(const char *name) {
    for (const struct cairn__var_info *v = cairn__vars; v->name; v++) {
        if (strcmp(v->name, name) == 0) return true;
    }
    return false;
}
#endif

const char *cairn__var(const char *name) {
    assert(is_known(name));
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

/* strtol and strtod skip white space and take signs, hexadecimals and "nan"; an environment that says such is mistaken. */
static bool consists_of(const char *text, const char *characters) {
    return text[strspn(text, characters)] == '\0';
}

cairn_status cairn__var_int(const char *name, long least, long most, bool *present, long *value) {
    const char *text = cairn__var(name);
    *present = text != NULL;
    if (!text) return CAIRN_OK;
    char *end = NULL;
    errno = 0;
    long parsed = strtol(text, &end, 10);
    REQUIRE(consists_of(text, "-0123456789") && errno == 0 && end != text && *end == '\0' && parsed >= least &&
                parsed <= most,
            CAIRN_EINVAL, "%s='%s' in the environment is not a whole number in [%ld, %ld]", name, text, least, most);
    *value = parsed;
    return CAIRN_OK;
}

cairn_status cairn__var_seconds(const char *name, double *value) {
    const char *text = cairn__var(name);
    if (!text) return CAIRN_OK;
    char *end = NULL;
    double parsed = strtod(text, &end);
    REQUIRE(consists_of(text, "0123456789.eE+-") && end != text && *end == '\0' && isfinite(parsed) && parsed > 0,
            CAIRN_EINVAL, "%s='%s' in the environment is not a positive number of seconds", name, text);
    *value = parsed;
    return CAIRN_OK;
}
