/* secret.h in a build without libsodium. */
#include <string.h>

#include "core/status.h"
#include "core/vars.h"
#include "rendezvous/secret.h"

static cairn_status fail_not_built(void) {
    return cairn__fail(CAIRN_ENOTBUILT,
                       "this build of Cairn has no job secrets (meson option 'sodium'; Debian: libsodium-dev)");
}

bool cairn__secret_is_built(void) {
    return false;
}

cairn_status cairn__secret_random(struct cairn__secret **out) {
    (void)out;
    return fail_not_built();
}

cairn_status cairn__secret_from(const void *bytes, size_t nbytes, const char *what, struct cairn__secret **out) {
    (void)bytes, (void)nbytes, (void)what, (void)out;
    return fail_not_built();
}

cairn_status cairn__secret_from_file(const char *path, struct cairn__secret **out) {
    (void)path, (void)out;
    return fail_not_built();
}

cairn_status cairn__secret_from_descriptor(int fd, struct cairn__secret **out) {
    (void)fd, (void)out;
    return fail_not_built();
}

cairn_status cairn__secret_from_environment(struct cairn__secret **out) {
    *out = NULL;
    return cairn__var("CAIRN_JOB_SECRET_FD") || cairn__var("CAIRN_JOB_SECRET_FILE") ? fail_not_built() : CAIRN_OK;
}

void cairn__secret_destroy(struct cairn__secret **secret) {
    *secret = NULL;
}

cairn_status cairn__secret_write_new(const char *path) {
    (void)path;
    return fail_not_built();
}

cairn_status cairn__secret_share(const struct cairn__secret *secret, int *fd) {
    (void)secret, (void)fd;
    return fail_not_built();
}

void cairn__keyed_hash(const struct cairn__secret *secret, const void *data, size_t nbytes,
                       uint8_t out[CAIRN__KEYED_NBYTES]) {
    (void)secret, (void)data, (void)nbytes;
    memset(out, 0, CAIRN__KEYED_NBYTES);
}

bool cairn__keyed_equal(const uint8_t a[CAIRN__KEYED_NBYTES], const uint8_t b[CAIRN__KEYED_NBYTES]) {
    (void)a, (void)b;
    return false;
}
