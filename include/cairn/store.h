/* Stores: keys and values shared by all processes of a run, through which they find each other. Modelled on PyTorch's
 * TCPStore, FileStore, HashStore and PrefixStore, with TCPStore's bytes on the wire: processes of torch and of Cairn
 * may share a TCP store.
 *
 * An environment makes and destroys its own store (cairn_env_create); a program makes stores for other purposes: to
 * meet without a launcher (cairn_env_options.store), to agree on a file's name, to count.
 *
 * Keys    C strings of 1 to 8191 bytes. Values: bytes, up to 8 MiB.
 * Time    every call returns within the store's timeout, in seconds (at most half a second later if a TCP store's
 *         server hangs; resolving a host name takes as long as the system takes). If a key is still missing then, the
 *         call returns CAIRN_ETIMEOUT with its name, and the store can still be used.
 * Threads one caller per store at a time; a hash store takes any number.
 * Forks   a store belongs to the process that made it: a forked child may only destroy its copy of a TCP store.
 * Errors  CAIRN_EINVAL a key or value beyond the limits, or a required pointer that is NULL; CAIRN_ENOMEM;
 *         CAIRN_ETIMEOUT; CAIRN_EPEER the server is gone (every later call fails likewise); CAIRN_ESYSTEM a file that
 *         cannot be read or written.
 * Cost    TCP: one round trip per call, two for get. Not meant for tensors.
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
    cairn_switch is_server; /* ON: this process also serves the store, in a thread "cairn-store". Default OFF */
    int world_size;     /* with is_server: creation waits until this many clients, including its own, have joined; 0 =
                               does not wait. torch's wait_for_workers */
    double timeout;     /* 0 = CAIRN_TIMEOUT, or 300 */
    const void *secret; /* 16 to 4096 bytes; client and server prove to each other that they know it; NULL = none. Needs
                               libsodium: CAIRN_ENOTBUILT */
    size_t secret_nbytes;
};
#define cairn_tcp_store_options(...) \
    (&(struct cairn_tcp_store_options){.struct_size = sizeof(struct cairn_tcp_store_options), __VA_ARGS__})

/* Joins the store at host:port, retrying until one answers or the timeout is over. The store may be Cairn's or
 * PyTorch's of any version from 1.13 (CAIRN_STORE_DIALECT=1.13, 2.1 or 2.2 skips the detection). With is_server this
 * process serves it, on host's address (127.0.0.1: reachable on this machine only), or on all addresses if host has
 * several or is another machine's; port 0 = a free one (cairn_store_port). options may be NULL.
 * On one machine only processes of the same user are served and trusted. Clients from other machines must prove that
 * they know the secret, or are trusted if there is none (docs/security.md).
 * Errors: CAIRN_EINVAL host, port, options; CAIRN_ESYSTEM port in use; CAIRN_ETIMEOUT no store answered, or fewer than
 * world_size clients joined. torch: TCPStore */
CAIRN_API cairn_status cairn_tcp_store_create(const char *host, int port, const struct cairn_tcp_store_options *options,
                                              cairn_store **out);

/* A store in the file at path, which may be on a file system shared by machines (with working locks). The file is
 * created if missing. world_size stores use it, one per process or thread, none made before a fork; the last of them to
 * be destroyed removes the file; 0 = it is kept. A killed process does no harm: a partial write is ignored, and the
 * file is kept. A file left by an earlier run still has its keys: use a new path for each run. The format is Cairn's
 * own, not compatible with PyTorch's FileStore. timeout: seconds, 0 = CAIRN_TIMEOUT, or 300. Errors: CAIRN_EINVAL, also
 * for a file of another format, a symbolic link, a file with several hard links, a file that another user owns or can
 * write, and a folder that another user owns or can write (root's sticky ones, such as /tmp, are fine); CAIRN_ESYSTEM;
 * later CAIRN_EPEER the file was removed or truncated. torch: FileStore */
CAIRN_API cairn_status cairn_file_store_create(const char *path, int world_size, double timeout, cairn_store **out);

/* A store for the threads of one process. timeout as above. torch: HashStore */
CAIRN_API cairn_status cairn_hash_store_create(double timeout, cairn_store **out);

/* Prefixes every key with "prefix/" and stores it in store, which is the caller's and must outlive this one; timeout
 * and thread rules are those of store. torch: PrefixStore */
CAIRN_API cairn_status cairn_prefix_store_create(const char *prefix, cairn_store *store, cairn_store **out);

/* Leaves the store; with is_server it also stops the server, for all clients. */
CAIRN_API void cairn_store_destroy(cairn_store **store);

/* In seconds, positive. A prefix store sets it in its underlying store. */
CAIRN_API cairn_status cairn_store_set_timeout(cairn_store *store, double timeout);

/* The port that a TCP store is served at; 0 for other stores. */
CAIRN_API int cairn_store_port(const cairn_store *store);

/* Sets key, replacing an earlier value. A TCP store returns before the server has seen it; calls stay in order. */
CAIRN_API cairn_status cairn_store_set(cairn_store *store, const char *key, const void *value, size_t nbytes);

/* Waits for key. *value is the caller's, with a NUL after its *nbytes bytes; free it with cairn_store_free. nbytes may
 * be NULL. */
CAIRN_API cairn_status cairn_store_get(cairn_store *store, const char *key, void **value, size_t *nbytes);
CAIRN_API void cairn_store_free(void *value);

/* Adds delta to the decimal integer that key holds; a missing key counts as 0. sum may be NULL.
 * Errors: CAIRN_EINVAL the value is not a number (hash and file stores; a TCP store's server closes the connection, as
 * torch's does: CAIRN_EPEER). */
CAIRN_API cairn_status cairn_store_add(cairn_store *store, const char *key, int64_t delta, int64_t *sum);

/* Waits until all n keys exist. n: up to 131072, with at most 16 MiB of names. */
CAIRN_API cairn_status cairn_store_wait(cairn_store *store, const char *const *keys, size_t n);

/* *present = 1 if all n keys exist now, otherwise 0. */
CAIRN_API cairn_status cairn_store_check(cairn_store *store, const char *const *keys, size_t n, int *present);

/* Sets key to desired if it holds expected, or if it is missing and nexpected is 0. *value is then the value of key or,
 * for a missing key and a non-empty expected, expected (as in torch); it is the caller's, as with get. value may be
 * NULL. */
CAIRN_API cairn_status cairn_store_compare_set(cairn_store *store, const char *key, const void *expected,
                                               size_t nexpected, const void *desired, size_t ndesired, void **value,
                                               size_t *nbytes);

/* Appends value to key's value; the result must be within the limit (errors otherwise as cairn_store_add's). */
CAIRN_API cairn_status cairn_store_append(cairn_store *store, const char *key, const void *value, size_t nbytes);

/* Deletes key; *deleted = 1 if it existed. deleted may be NULL. */
CAIRN_API cairn_status cairn_store_delete(cairn_store *store, const char *key, int *deleted);

/* The number of keys; a prefix store counts all keys of its store, a TCP store one more, in which it counts its
 * clients. */
CAIRN_API cairn_status cairn_store_num_keys(cairn_store *store, int64_t *count);

#ifdef __cplusplus
}
#endif

#endif
