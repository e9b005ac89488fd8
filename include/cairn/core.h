/* The basis of all public headers: status codes, element types, switches, the log.
 *
 * Conventions:
 *   - Calls return a cairn_status, CAIRN_OK on success; calls that build a graph return a tensor, or NULL. On failure
 *   cairn_last_error() gives the cause, with values.
 *   - Objects are opaque: x_create(..., &out) makes one; x_destroy(&h) destroys it, accepts NULL in h, and sets h to
 *   NULL. Outputs are written only on success.
 *   - Counts are in elements; a size in bytes is always called nbytes. Ranks are int.
 *   - Options structs begin with struct_size; a field that is 0 takes its documented default. Options are read only
 *   during the call; what is kept is copied. Hyperparameters, for which 0 is a valid value, are initialised with
 *   CAIRN_X_OPTIONS_INIT instead.
 *   - Yes/no options are cairn_switch, whose 0 is the default. Yes/no arguments and results are int: results are 0 or
 *   1, and an argument of 0 is no. Arguments called "on" or "is_norm" accept CAIRN_OFF for no as well.
 *   - Structs without struct_size in the API (cairn_param, amp_overflow, ...) are elements of arrays, or written by the
 *   library. Like options they grow at their end, so calls pass their size: a function x that takes such structs is
 *   also a macro, which calls x_sized with the sizeof that the program was compiled with. Fields that a program does
 *   not have take their default, and are not written; fields that the library does not know must be 0. The functions x
 *   themselves take the structs as of 0.8.0: for programs compiled before, and for other languages, which should call
 *   x_sized.
 *   - C++: CAIRN_X_OPTIONS_INIT works. The x_options(...) macros, and INIT macros that only set struct_size, are for C;
 *   in C++ zero the struct: amp_options o = {}; o.struct_size = sizeof(o);
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

/* Marks a deprecated name: it is removed from the headers one minor version later. */
#if defined(__GNUC__)
#define CAIRN_DEPRECATED(new_name) __attribute__((deprecated("use " new_name)))
#else
#define CAIRN_DEPRECATED(new_name)
#endif

/* The version of the running library, as CAIRN_VERSION of its own headers, and as text: "0.8.0". A program compiled
 * against another header checks it: if cairn_version() >= CAIRN_VERSION and the soname is the same, the library has
 * every function and field of the header. An older library refuses fields that it does not know, unless they are 0
 * (CAIRN_EINVAL). Any thread. */
CAIRN_API int cairn_version(void);
CAIRN_API const char *cairn_version_string(void);

/* Every status: enumerator, short name, meaning. */
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

/* "EINVAL" for CAIRN_EINVAL; "?" for an unknown number. Any thread. */
CAIRN_API const char *cairn_status_name(cairn_status status);

/* The meaning of the code in CAIRN_STATUS_LIST. Any thread. */
CAIRN_API const char *cairn_status_string(cairn_status status);

/* The message of this thread's last failing call, with values: "rank 3: got 4096 bytes, want 8192". Never NULL; ""
 * before any failure. Owned by Cairn and valid until the next failing call on this thread; successful calls do not
 * change it. */
CAIRN_API const char *cairn_last_error(void);

/* For programs that end at the first error: evaluates call once and, unless it is CAIRN_OK, prints "file:line: " and
 * cairn_last_error() to stderr and calls exit(1). It is an expression without a value, usable in a function of any
 * type; an else after it belongs to the surrounding if. A program that can continue, or has to clean up, checks the
 * status instead. Not for calls that return a pointer: cairn_backward returns their cause. */
#define CAIRN_CHECK(call) \
    ((call) == CAIRN_OK   \
         ? (void)0        \
         : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cairn_last_error()), exit(EXIT_FAILURE)))

/* Element types. No enumerator is 0, so in an options struct 0 means "the default". */
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

/* Bytes per element; 0 for an invalid dtype. Any thread. */
CAIRN_API size_t cairn_dtype_nbytes(cairn_dtype dtype);

/* A switch in an options struct; 0 is the documented default. */
typedef enum cairn_switch { CAIRN_DEFAULT = 0, CAIRN_ON = 1, CAIRN_OFF = 2 } cairn_switch;

#define CAIRN_MAX_DIMS 8

/* Log levels; CAIRN_LOG=error|warning|notice|info|debug in the environment sets the highest that is shown (default
 * notice). */
typedef enum cairn_log_level {
    CAIRN_LOG_ERROR = 1,
    CAIRN_LOG_WARNING = 2,
    CAIRN_LOG_NOTICE = 3,
    CAIRN_LOG_INFO = 4,
    CAIRN_LOG_DEBUG = 5,
} cairn_log_level;

typedef void (*cairn_log_fn)(void *cookie, cairn_log_level level, const char *message);

/* Sends every message of this process to fn instead of stderr, on all ranks: if each process sets its own, all ranks'
 * messages arrive. NULL restores the default sink, which writes to stderr, and below error level only on rank 0. The
 * default sink's lines begin with the rank if it is not 0, "[rank 3]", and for a rank in a grid (pipeline.h) with its
 * place: "[rank 3, replica 1, stage 1]"; messages passed to fn do not, and have no newline at the end. fn may be called
 * from any thread that calls Cairn. Call it before other threads use Cairn. */
CAIRN_API void cairn_set_log(cairn_log_fn fn, void *cookie);

/* Sets the number of threads of this rank, including the caller's, which divide its larger passes. Initially 1 for a
 * process, or OMP_NUM_THREADS when the number is first needed (ranks on one machine share its processors: divide them);
 * for a rank that is a thread the number from cairn_spawn_threads. Results do not depend on it. The threads
 * ("cairn-pool") start with the first large pass and sleep between passes. If two environments compute at the same time
 * in two threads that are not ranks, one uses the process's pool and the other computes alone. A child of fork has its
 * own pool, but computes products in one thread if its parent had made an environment. Takes effect with the next pass.
 * Errors: CAIRN_EINVAL n is not in [1, 1024]. torch.set_num_threads */
CAIRN_API cairn_status cairn_set_num_threads(int n);
CAIRN_API int cairn_num_threads(void);

#ifdef __cplusplus
}
#endif

#endif
