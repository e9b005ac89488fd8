/* A job's secret, by which a process authenticates itself to a store on another machine (store/proof.h). It is kept in
 * memory that is in no core dump (libsodium's sodium_malloc), and appears in no message. Without libsodium there are no
 * secrets: calls that make one fail with CAIRN_ENOTBUILT and say what to install. */
#ifndef CAIRN__RENDEZVOUS_SECRET_H
#define CAIRN__RENDEZVOUS_SECRET_H

#include <stdbool.h>
#include <stdint.h>

#include "cairn/core.h"

struct cairn__secret;

enum { CAIRN__SECRET_NBYTES = 32, CAIRN__SECRET_LEAST = 16, CAIRN__SECRET_MOST = 4096, CAIRN__KEYED_NBYTES = 32 };

/* Whether this build has libsodium. */
bool cairn__secret_is_built(void);

cairn_status cairn__secret_random(struct cairn__secret **out);
/* Makes a secret from bytes of any kind, which are hashed; `what` names them in errors. CAIRN_EINVAL for fewer than
 * CAIRN__SECRET_LEAST, or more than CAIRN__SECRET_MOST. */
cairn_status cairn__secret_from(const void *bytes, size_t nbytes, const char *what, struct cairn__secret **out);
/* Reads the whole file, without line ends at its end. Refuses, with CAIRN_EINVAL and what to do: a symbolic link,
 * anything that is not a regular file, another user's file, one that others may read or write. CAIRN_ESYSTEM: the file
 * cannot be read. */
cairn_status cairn__secret_from_file(const char *path, struct cairn__secret **out);
/* Reads an inherited descriptor: a file, which is read from its beginning and stays open, or a pipe, which is read to
 * its end. */
cairn_status cairn__secret_from_descriptor(int fd, struct cairn__secret **out);
/* Uses CAIRN_JOB_SECRET_FD, which cairn-run sets if it has no file, or else CAIRN_JOB_SECRET_FILE; *out = NULL if
 * neither is set. */
cairn_status cairn__secret_from_environment(struct cairn__secret **out);
/* *secret may be NULL. */
void cairn__secret_destroy(struct cairn__secret **secret);

/* Writes a new file at path, mode 0600, with a random secret in hexadecimal. CAIRN_ESYSTEM, also if the path exists. */
cairn_status cairn__secret_write_new(const char *path);
/* A descriptor of memory for cairn__secret_from_descriptor. Programs that are started inherit it; close it then. */
cairn_status cairn__secret_share(const struct cairn__secret *secret, int *fd);

/* The keyed hash (BLAKE2b) of nbytes. */
void cairn__keyed_hash(const struct cairn__secret *secret, const void *data, size_t nbytes,
                       uint8_t out[CAIRN__KEYED_NBYTES]);
/* Compares in constant time. */
bool cairn__keyed_equal(const uint8_t a[CAIRN__KEYED_NBYTES], const uint8_t b[CAIRN__KEYED_NBYTES]);

#endif
