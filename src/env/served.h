/* The stores that this process serves for its environments. Environments of one meeting share a store, because they
 * look for it at the same port; the last to leave ends it.
 *
 * A store that lives as long as its environments does not end while other ranks use it, because they may be about to
 * create their next environment there: it stays until the last connection is closed, and an environment created
 * meanwhile takes it over. So ranks can destroy and create environments in any order and still meet in one store. */
#ifndef CAIRN__ENV_SERVED_H
#define CAIRN__ENV_SERVED_H

#include "cairn/store.h"
#include "rendezvous/launch/launch.h"
#include "rendezvous/secret.h"

struct cairn__served;

/* Serves a store at the first free port of the meeting, at the address that the other ranks connect to, or shares the
 * one that is served already. Takes *secret over (*secret NULL = none); leaves it if the store is served already.
 * Errors: CAIRN_ESYSTEM. */
cairn_status cairn__served_share(const struct cairn__launch *launch, struct cairn__secret **secret,
                                 struct cairn__served **out);

/* This process's own connection to it. */
cairn_status cairn__served_connect(struct cairn__served *served, double timeout, cairn_store **out);

enum cairn__served_end {
    CAIRN__SERVED_ENDS,  /* now, unless another environment uses it or left it to stay */
    CAIRN__SERVED_STAYS, /* until all others have left too */
};

/* *served may be NULL. */
void cairn__served_leave(struct cairn__served **served, enum cairn__served_end how);

#endif
