/* Modules that cannot be used, each for its own reason, and one that can: FAKE_EMPTY has no entry, FAKE_OTHER is of another
 * build and says so, FAKE_STALE has another build's table. */
#include "device/module.h"

static const struct cairn__device_ops ops = {
#ifdef FAKE_STALE
    .size = 8,
#else
    .size = sizeof(struct cairn__device_ops),
#endif
    .name = "fake",
};

CAIRN_API const struct cairn__device_ops *
#ifdef FAKE_EMPTY
cairn__another_entry(const struct cairn__module_host *host);
const struct cairn__device_ops *cairn__another_entry(const struct cairn__module_host *host) {
#else
cairn__module_entry(const struct cairn__module_host *host);
const struct cairn__device_ops *cairn__module_entry(const struct cairn__module_host *host) {
#endif
#ifdef FAKE_OTHER
    return host->fail(CAIRN_EINTERNAL, "the fake is of another build") == CAIRN_OK ? &ops : NULL;
#else
    host->log(CAIRN_LOG_DEBUG, "opened");
    return &ops;
#endif
}
