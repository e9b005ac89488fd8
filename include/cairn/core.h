/* What every public header of Cairn stands on: status codes, element types, switches, the log.
 *
 * Conventions that hold everywhere:
 *   - Calls return a cairn_status, CAIRN_OK on success; graph-building calls return a tensor, or NULL. Either way
 *     cairn_last_error() then tells the cause, with values.
 *   - Objects are opaque: x_create(..., &out) makes one, x_destroy(&h) ends it, takes NULL inside and writes NULL back.
 *     Outputs are written on success only.
 *   - Counts are in elements; a size in bytes is always called nbytes. Ranks are int.
 *   - Options structs begin with struct_size; a field left 0 takes its documented default. Options are read during the
 *     call only; what is kept is copied. Hyperparameters, where 0 is a value, start from CAIRN_X_OPTIONS_INIT instead.
 *   - Options have cairn_switch, whose 0 is the default. Arguments and results that say yes or no are int: results are
 *     0 or 1, and of arguments 0 is no. Arguments called "on" or "is_norm" take CAIRN_OFF for no as well.
 *   - Structs without struct_size that cross (cairn_param, amp_overflow, ...) are elements of arrays, or written by the
 *     library. They grow at their end as options do, so their size comes with the call: a function x that takes some is
 *     also a macro, which calls x_sized with sizeof of the struct that the program was compiled with. Fields that a
 *     program does not have take their default, and are not written; fields that the library does not know are 0, or
 *     refused. The functions x themselves take the structs as they were in 0.8.0: for programs compiled before, and for
 *     other languages, which better call x_sized.
 *   - C++: CAIRN_X_OPTIONS_INIT is the same. The x_options(...) macros, and the other INIT macros, which fill
 *     struct_size alone, are C's; there make the struct, zeroed: amp_options o = {}; o.struct_size = sizeof(o);
 */
#ifndef CAIRN_CORE_H
#define CAIRN_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CAIRN_API __attribute__((visibility("default")))
#else
#define CAIRN_API
#endif

/* A name that has a new one: it leaves the headers one minor version later. */
#if defined(__GNUC__)
#define CAIRN_DEPRECATED(new_name) __attribute__((deprecated("use " new_name)))
#else
#define CAIRN_DEPRECATED(new_name)
#endif

/* The version of the library that runs, as CAIRN_VERSION of its own headers, and as text: "0.8.0". A program that was
 * compiled against another header looks here: with cairn_version() >= CAIRN_VERSION, and the same soname, the library
 * has every function and field of the header. An older library refuses fields that it does not know, unless they are 0
 * (CAIRN_EINVAL). Any thread. */
CAIRN_API int cairn_version(void);
CAIRN_API const char *cairn_version_string(void);

/* Every status: enumerator, short name, whose fault it is. */
#define CAIRN_STATUS_LIST(X)                                                                            \
    X(CAIRN_OK, "OK", "success")                                                                        \
    X(CAIRN_EINVAL, "EINVAL", "an argument is wrong")                                                   \
    X(CAIRN_ESTATE, "ESTATE", "the call came at the wrong time")                                        \
    X(CAIRN_ENOMEM, "ENOMEM", "memory ran out")                                                         \
    X(CAIRN_ESYSTEM, "ESYSTEM", "the operating system refused")                                         \
    X(CAIRN_EDEVICE, "EDEVICE", "the device failed")                                                    \
    X(CAIRN_EPEER, "EPEER", "another rank died or disagrees; the group allows destroy only")            \
    X(CAIRN_ETIMEOUT, "ETIMEOUT", "another rank did not answer in time; the group allows destroy only") \
    X(CAIRN_ENOTBUILT, "ENOTBUILT", "this build of Cairn leaves that out")                              \
    X(CAIRN_ENOTSUP, "ENOTSUP", "Cairn does not support that combination")                              \
    X(CAIRN_ENUMERIC, "ENUMERIC", "the numbers went wrong and training cannot go on")                   \
    X(CAIRN_EINTERNAL, "EINTERNAL", "a bug in Cairn; please report it")

typedef enum cairn_status {
#define CAIRN__X(code, name, sentence) code,
    CAIRN_STATUS_LIST(CAIRN__X)
#undef CAIRN__X
} cairn_status;

/* "EINVAL" for CAIRN_EINVAL; "?" for a number that is no status. Any thread. */
CAIRN_API const char *cairn_status_name(cairn_status status);

/* The sentence beside the code in CAIRN_STATUS_LIST. Any thread. */
CAIRN_API const char *cairn_status_string(cairn_status status);

/* What went wrong in the last failing call of this thread, with values: "rank 3: got 4096 bytes, want 8192". Never
 * NULL; "" before any failure. Owned by Cairn and valid until the next call that fails on this thread. A success leaves
 * it. */
CAIRN_API const char *cairn_last_error(void);

/* For programs that end at the first error: unless call, which is evaluated once, gives CAIRN_OK, prints "file:line: "
 * and cairn_last_error() to stderr and ends the process by exit(1). An expression without a value, in a function of any
 * type; an else after it is the surrounding if's. A program that can go on, or has to clean up, looks at the status
 * instead. Of calls that return a pointer it cannot be used: cairn_backward tells their cause. */
#define CAIRN_CHECK(call) \
    ((call) == CAIRN_OK   \
         ? (void)0        \
         : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cairn_last_error()), exit(EXIT_FAILURE)))

/* Element types. No enumerator is 0, so that 0 in an options struct means "the default". */
typedef enum cairn_dtype {
    CAIRN_F32 = 1,
    CAIRN_F16 = 2,  /* IEEE 754 binary16 */
    CAIRN_BF16 = 3, /* the upper half of an f32 */
    CAIRN_I32 = 4,
    CAIRN_I64 = 5,
    CAIRN_F64 = 6,  /* for checks: finite differences, references */
    CAIRN_BOOL = 7, /* one byte, 0 or 1 */
    CAIRN_U8 = 8,   /* one byte, unsigned: for process groups (dist.h); tensors have no such elements */
} cairn_dtype;

/* "f32", "f16", "bf16", "i32", "i64", "f64", "bool", "u8"; "?" for anything else. Any thread. */
CAIRN_API const char *cairn_dtype_name(cairn_dtype dtype);

/* Bytes per element, 0 for no dtype. Any thread. */
CAIRN_API size_t cairn_dtype_nbytes(cairn_dtype dtype);

/* A switch of an options struct, whose 0 means "as documented". */
typedef enum cairn_switch { CAIRN_DEFAULT = 0, CAIRN_ON = 1, CAIRN_OFF = 2 } cairn_switch;

#define CAIRN_MAX_DIMS 8

/* Log levels; CAIRN_LOG=error|warning|notice|info|debug in the environment sets the highest that is shown (notice). */
typedef enum cairn_log_level {
    CAIRN_LOG_ERROR = 1,
    CAIRN_LOG_WARNING = 2,
    CAIRN_LOG_NOTICE = 3,
    CAIRN_LOG_INFO = 4,
    CAIRN_LOG_DEBUG = 5,
} cairn_log_level;

typedef void (*cairn_log_fn)(void *cookie, cairn_log_level level, const char *message);

/* Sends every message of this process to fn instead of stderr, whatever its rank: with each process setting its own,
 * all ranks' messages arrive. NULL brings the default sink back, which writes to stderr and below error level only on
 * rank 0. Its lines begin with the rank where that is not 0, "[rank 3]", and of a rank in a grid (pipeline.h) with the
 * place: "[rank 3, replica 1, stage 1]". Messages have neither, and no newline at the end. fn may be called from any
 * thread that calls Cairn. Call it before other threads use Cairn. */
CAIRN_API void cairn_set_log(cairn_log_fn fn, void *cookie);

/* Threads inside this rank, that of the caller among them: what its larger passes are cut over. Of a process 1, unless
 * OMP_NUM_THREADS said otherwise when it was first needed (ranks that share a machine share its processors: give each
 * its part); of a rank that is a thread what cairn_spawn_threads gave it. Results do not depend on it. The threads
 * ("cairn-pool") start with the first large pass and sleep between passes. Of two environments that compute at one time
 * in two threads that are no ranks, one has the process's pool and the other computes alone. A child of fork has a pool
 * of its own, but multiplies in one thread if its parent had made an environment. Takes effect with the next pass.
 * Errors: CAIRN_EINVAL n is not in [1, 1024]. torch.set_num_threads */
CAIRN_API cairn_status cairn_set_num_threads(int n);
CAIRN_API int cairn_num_threads(void);

#ifdef __cplusplus
}
#endif

#endif
