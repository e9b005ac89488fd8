/* Fake modules: one that works, and others that are unusable for one reason each: FAKE_EMPTY has no entry point,
 * FAKE_STALE has the tables of another build. */
#include "fake_module.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "device/device.h"

#ifdef FAKE_STALE
enum { MISSING = 8 };
#else
enum { MISSING = 0 };
#endif

#ifdef FAKE_EMPTY
CAIRN_API int cairn__another_entry(void);
int cairn__another_entry(void) {
    return 0;
}
#else

static const struct cairn__device_ops device = {.size = sizeof(device) - MISSING, .name = "fake"};

static cairn_status complain(const char *what) {
    return cairn__fail(CAIRN_EPEER, "the fake says %s", what);
}

static void say(const char *what) {
    cairn__log(CAIRN_LOG_WARNING, "the fake says %s", what);
}

static cairn_status alloc_zeroed(size_t nbytes, void **out) {
    void *other = NULL;
    cairn_status st = cairn__alloc(nbytes, &other);
    if (st != CAIRN_OK) return st;
    cairn__free(other);
    return cairn__calloc(nbytes, 1, out);
}

static const struct fake_engine engine = {
    sizeof(engine) - MISSING, complain, say, alloc_zeroed, cairn__grow, cairn__free};

const struct cairn__module_tables cairn__module_tables = {
    .name = "fake",
    .all = {{"device", &device}, {"group backend", &engine}},
};
#endif
