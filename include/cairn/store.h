/* Stores: a few keys and values that all processes of a run see, by which they find each other. PyTorch's TCPStore,
 * FileStore, HashStore and PrefixStore, and the same bytes on the wire: a process of torch and one of Cairn may share
 * one.
 *
 * An environment makes and ends its own store (cairn_env_create); a program makes stores for other purposes: to meet
 * without a launcher (cairn_env_options.store), to agree on a file's name, to count.
 *
 * Keys    C strings of 1 to 8191 bytes. Values: bytes, up to 8 MiB.
 * Time    every call returns within the store's timeout, in seconds (half a second later at most where a TCP store's
 *         server hangs; finding a host's address takes what the system takes). A key that is still missing then is
 *         CAIRN_ETIMEOUT with its name, and the store lives on.
 * Threads one caller per store at a time; a hash store takes any number.
 * Forks   a store belongs to the process that made it: a forked child may only destroy its copy of a TCP store.
 * Errors  CAIRN_EINVAL a key or value beyond the limits, or a required pointer that is NULL; CAIRN_ENOMEM;
 *         CAIRN_ETIMEOUT; CAIRN_EPEER the server went away (every later call fails likewise); CAIRN_ESYSTEM a file that
 *         cannot be read or written.
 * Cost    TCP: one round trip a call, get two. Not for tensors.
 * Source  PyTorch torch/csrc/distributed/c10d/Store.hpp, TCPStore.cpp, FileStore.cpp, HashStore.cpp,
 *         PrefixStore.cpp. */
#ifndef CAIRN_STORE_H
#define CAIRN_STORE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_store cairn_store;

struct cairn_tcp_store_options {
    size_t struct_size;
    cairn_switch is_server; /* ON: this process serves as well, in one thread "cairn-store"; OFF */
    int world_size;     /* with is_server: creation waits until so many clients, its own among them, have joined; 0 =
                               does not wait. torch's wait_for_workers */
    double timeout;     /* 0 = CAIRN_TIMEOUT, or 300 */
    const void *secret; /* 16 to 4096 bytes that client and server prove to each other to know; NULL = none. Needs
                               libsodium: CAIRN_ENOTBUILT */
    size_t secret_nbytes;
};
#define cairn_tcp_store_options(...) \
    (&(struct cairn_tcp_store_options){.struct_size = sizeof(struct cairn_tcp_store_options), __VA_ARGS__})

/* Joins the store at host:port, retrying until a store answers there or the timeout is over; it may be Cairn's or
 * PyTorch's of any version from 1.13 on (CAIRN_STORE_DIALECT=1.13, 2.1 or 2.2 skips the detection). With is_server it
 * is served here, on the address that host stands for (127.0.0.1: this machine alone), or on every one if host stands
 * for several or is another machine's; port 0 = a free one (cairn_store_port). options may be NULL.
 * On one machine the processes of one user find each other, and nobody else's are served or believed. Whoever comes
 * from another machine proves that he knows the secret, or is trusted if there is none (docs/security.md).
 * Errors: CAIRN_EINVAL host, port, options; CAIRN_ESYSTEM port in use; CAIRN_ETIMEOUT no store answered, or fewer than
 * world_size joined. torch: TCPStore */
CAIRN_API cairn_status cairn_tcp_store_create(const char *host, int port, const struct cairn_tcp_store_options *options,
                                              cairn_store **out);

/* Keeps everything in the file at path, which may be on a file system that machines share (with working locks). It is
 * made if missing. world_size stores use it, one a process or thread, none made before a fork; the last of them to be
 * destroyed removes it; 0 = it stays. A killed process does no harm: a partial write is ignored, and the file stays. A
 * file left by an earlier run still has its keys: use a new path for each run. The file's bytes are Cairn's own:
 * PyTorch's FileStore does not read them, nor the reverse. timeout: seconds, 0 = CAIRN_TIMEOUT, or 300. Errors:
 * CAIRN_EINVAL, also for a file that is something else, is a symbolic link, has several names, or that another user
 * owns or can write, and for a folder that another user owns or can write (root's sticky ones, as /tmp, are fine);
 * CAIRN_ESYSTEM; later CAIRN_EPEER the file was removed or truncated. torch: FileStore */
CAIRN_API cairn_status cairn_file_store_create(const char *path, int world_size, double timeout, cairn_store **out);

/* For the threads of one process. timeout as above. torch: HashStore */
CAIRN_API cairn_status cairn_hash_store_create(double timeout, cairn_store **out);

/* Every key gets "prefix/" in front and lands in store, which is the caller's and outlives this one; its timeout, its
 * threads. torch: PrefixStore */
CAIRN_API cairn_status cairn_prefix_store_create(const char *prefix, cairn_store *store, cairn_store **out);

/* Leaves the store; with is_server also ends the service, for all that have joined. */
CAIRN_API void cairn_store_destroy(cairn_store **store);

/* Seconds, positive. A prefix store passes it on to its store. */
CAIRN_API cairn_status cairn_store_set_timeout(cairn_store *store, double timeout);

/* The port a TCP store is served at, 0 for others. */
CAIRN_API int cairn_store_port(const cairn_store *store);

/* Sets key, over any earlier value. A TCP store returns before the server has seen it; the order of calls is kept. */
CAIRN_API cairn_status cairn_store_set(cairn_store *store, const char *key, const void *value, size_t nbytes);

/* Waits for key. *value is the caller's, with a NUL beyond *nbytes; free it with cairn_store_free. nbytes may be
 * NULL. */
CAIRN_API cairn_status cairn_store_get(cairn_store *store, const char *key, void **value, size_t *nbytes);
CAIRN_API void cairn_store_free(void *value);

/* Adds delta to the whole number, in decimal, that key holds; a missing one counts as 0. sum may be NULL.
 * Errors: CAIRN_EINVAL the value is not a number (hash and file stores; a TCP store's server closes the connection
 * then, as torch's does: CAIRN_EPEER). */
CAIRN_API cairn_status cairn_store_add(cairn_store *store, const char *key, int64_t delta, int64_t *sum);

/* Waits until all n keys exist. n: up to 131072, with names of 16 MiB together. */
CAIRN_API cairn_status cairn_store_wait(cairn_store *store, const char *const *keys, size_t n);

/* *present = 1 if all n keys exist now. */
CAIRN_API cairn_status cairn_store_check(cairn_store *store, const char *const *keys, size_t n, int *present);

/* If key holds expected, or is missing and nexpected is 0: sets it to desired. *value is the value of key then, or, for
 * a missing key and a non-empty expected, expected (as torch's does); the caller's, as get's. value may be NULL. */
CAIRN_API cairn_status cairn_store_compare_set(cairn_store *store, const char *key, const void *expected,
                                               size_t nexpected, const void *desired, size_t ndesired, void **value,
                                               size_t *nbytes);

/* Puts value behind what key holds; together they must keep to the limit (errors otherwise as cairn_store_add's). */
CAIRN_API cairn_status cairn_store_append(cairn_store *store, const char *key, const void *value, size_t nbytes);

/* *deleted = 1 where the key was there. deleted may be NULL. */
CAIRN_API cairn_status cairn_store_delete(cairn_store *store, const char *key, int *deleted);

/* How many keys there are; a prefix store counts its store's, a TCP store one more, in which it counts its clients. */
CAIRN_API cairn_status cairn_store_num_keys(cairn_store *store, int64_t *count);

#ifdef __cplusplus
}
#endif

#endif
