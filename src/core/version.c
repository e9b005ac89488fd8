/* The version of the library, as opposed to that of the headers a program was compiled with. */
#include "core/version.h"

#include "cairn/core.h"

int cairn_version(void) {
    return CAIRN_VERSION;
}

const char *cairn_version_string(void) {
    return CAIRN__VERSION_TEXT;
}
