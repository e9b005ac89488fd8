/* Names of the uses of memory; compiled into the modules too. */
#include "device/device.h"

static const char *const names[CAIRN__NUM_HOLDERS] = {
#define CAIRN__X(holder, name) [holder] = name,
    CAIRN__HOLDER_LIST(CAIRN__X)
#undef CAIRN__X
};

const char *cairn__holder_name(enum cairn__holder holder) {
    return (unsigned)holder < CAIRN__NUM_HOLDERS ? names[holder] : "?";
}
