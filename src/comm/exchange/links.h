/* TCP connections between every two ranks of a group, for an engine that moves bytes through sockets (gloo). Each rank
 * listens and publishes its address in the group's store; a rank connects to all lower ones. Both ends of a connection
 * prove that they know the group's key, 32 random bytes that rank 0 publishes there, too, by the handshake of the store
 * (rendezvous/store/proof.h). Then the connecting rank sends its number, and the other one acknowledges with a byte:
 *
 *   higher  the proof's first message
 *   lower   its second
 *   higher  its third, rank, the key where the build has no proofs
 *   lower   a byte
 *
 * So a connection without proof is closed while the group continues to meet, and a connection that breaks before the
 * last byte is made again. What follows is not encrypted. Without libsodium the key itself is the only proof, and only
 * the higher rank gives it. */
#ifndef CAIRN__COMM_LINKS_H
#define CAIRN__COMM_LINKS_H

#include "comm/exchange/engine.h"

/* Fills fds [size], which the caller closes, with -1 for this rank itself; on failure none is open. Returns within the
 * timeout. CAIRN_ETIMEOUT and CAIRN_EPEER name the missing rank, CAIRN_ESYSTEM says why this rank cannot listen; except
 * for a timeout, all other ranks fail with the same sentence. Does not wait for a rank that has left the parent
 * (has_left). */
cairn_status cairn__links_make(const struct cairn__engine_options *options, int *fds);

/* Deletes this rank's keys in the store. Call it once all ranks have returned from cairn__links_make. */
void cairn__links_forget(const struct cairn__engine_options *options);

#endif
