#include "secret.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "rendezvous/address.h"
#include "rendezvous/secret.h"
#include "text.h"

static cairn_status read_secret(struct options *o) {
    if (o->secret_file) return cairn__secret_from_file(o->secret_file, &o->secret);
    if (o->secret_fd >= 0) return cairn__secret_from_descriptor(o->secret_fd, &o->secret);
    return cairn__secret_from_environment(&o->secret);
}

/* Ranks open a secret file themselves. A secret from a descriptor may have been read from a pipe, so it is passed to
 * the ranks in memory that they inherit. */
static cairn_status settle_for_ranks(struct options *o) {
    o->secret_fd = -1;
    return o->secret && !o->secret_file ? cairn__secret_share(o->secret, &o->secret_fd) : CAIRN_OK;
}

/* If the endpoint is a loopback address, all nodes are on this machine. */
static bool is_loopback(const char *host) {
    return !*host || strcmp(host, "localhost") == 0 || cairn__address_is_loopback(host);
}

bool secret_open(struct options *o) {
    if (o->insecure) setenv("CAIRN_INSECURE", "1", 1); /* for the ranks too */
    if (read_secret(o) != CAIRN_OK || settle_for_ranks(o) != CAIRN_OK) {
        say("%s", cairn_last_error());
        return false;
    }
    if (o->secret || o->max_nodes == 1 || o->insecure || is_loopback(o->endpoint_host)) return true;
    if (!cairn__secret_is_built()) {
        say("this build has no libsodium, so nodes cannot prove themselves; install libsodium-dev and build again, or "
            "give --insecure to trust whoever reaches the store's port (docs/security.md)");
        return false;
    }
    say("nodes are trusted without proof: whoever reaches the store's port can join this run; give all nodes one "
        "--secret-file, or --insecure if that is meant (docs/security.md)");
    return true;
}

void secret_close(struct options *o) {
    cairn__secret_destroy(&o->secret);
    if (o->secret_fd >= 0) close(o->secret_fd);
}

int secret_make(const struct options *o) {
    if (cairn__secret_write_new(o->new_secret) == CAIRN_OK) return 0;
    say("%s", cairn_last_error());
    return 1;
}
