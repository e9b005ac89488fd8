/* Reading options structs. */
#include "core/options.h"

#include <string.h>

#include "core/status.h"

cairn_status cairn__options_read(void *own, size_t own_nbytes, const void *given, const char *name) {
    if (!given) return CAIRN_OK;
    size_t given_nbytes;
    memcpy(&given_nbytes, given, sizeof(given_nbytes));
    REQUIRE(given_nbytes >= sizeof(size_t) && given_nbytes <= 65536, CAIRN_EINVAL,
            "%s.struct_size is %zu; set it to sizeof(struct %s), as the macro of that struct does where there is one",
            name, given_nbytes, name);
    for (size_t i = own_nbytes; i < given_nbytes; i++) {
        REQUIRE(((const unsigned char *)given)[i] == 0, CAIRN_EINVAL,
                "%s has a field that this version of Cairn does not know, at byte %zu of %zu", name, i, given_nbytes);
    }
    memcpy(own, given, given_nbytes < own_nbytes ? given_nbytes : own_nbytes);
    memcpy(own, &own_nbytes, sizeof(own_nbytes));
    return CAIRN_OK;
}
