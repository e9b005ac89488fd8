/* Reading options structs; reading and writing elements of arrays. */
#include "core/options.h"

#include <string.h>

#include "core/status.h"

enum { MOST = 65536 }; /* limit of a struct's size in bytes */

static cairn_status check_rest(const unsigned char *given, size_t from, size_t to, const char *name) {
    for (size_t i = from; i < to; i++) {
        REQUIRE(given[i] == 0, CAIRN_EINVAL,
                "%s has a field that this version of Cairn does not know, at byte %zu of %zu", name, i, to);
    }
    return CAIRN_OK;
}

cairn_status cairn__options_read(void *own, size_t own_nbytes, const void *given, const char *name) {
    if (!given) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    size_t given_nbytes;
    memcpy(&given_nbytes, given, sizeof(given_nbytes));
    REQUIRE(given_nbytes >= sizeof(size_t) && given_nbytes <= MOST, CAIRN_EINVAL,
            "%s.struct_size is %zu; set it to sizeof(struct %s), as the macro of that struct does where there is one",
            name, given_nbytes, name);
    TRY(check_rest(given, own_nbytes, given_nbytes, name));
    memcpy(own, given, given_nbytes < own_nbytes ? given_nbytes : own_nbytes);
    memcpy(own, &own_nbytes, sizeof(own_nbytes));
out:
    return st;
}

cairn_status cairn__element_check(size_t element_nbytes, const char *name) {
    REQUIRE(element_nbytes >= sizeof(void *) && element_nbytes <= MOST && element_nbytes % sizeof(void *) == 0,
            CAIRN_EINVAL, "%s: %zu is not a size of that struct; call the macro, which passes it", name,
            element_nbytes);
    return CAIRN_OK;
}

cairn_status cairn__element_read(void *own, size_t own_nbytes, const void *array, size_t element_nbytes, size_t i,
                                 const char *name) {
    const unsigned char *const given = (const unsigned char *)array + i * element_nbytes;
    cairn_status st = CAIRN_OK;
    TRY(check_rest(given, own_nbytes, element_nbytes, name));
    memcpy(own, given, element_nbytes < own_nbytes ? element_nbytes : own_nbytes);
out:
    return st;
}

void cairn__element_write(void *array, size_t element_nbytes, size_t i, const void *own, size_t own_nbytes) {
    unsigned char *const to = (unsigned char *)array + i * element_nbytes;
    const size_t known = element_nbytes < own_nbytes ? element_nbytes : own_nbytes;
    memcpy(to, own, known);
    memset(to + known, 0, element_nbytes - known);
}
