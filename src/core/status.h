/* Errors inside Cairn. The first function that knows which error it is writes the message with cairn__fail; callers
 * pass the status on with TRY and add nothing. */
#ifndef CAIRN__CORE_STATUS_H
#define CAIRN__CORE_STATUS_H

#include <stdint.h>

#include "cairn/core.h"

/* Writes this thread's last error and returns status. The message holds the values: "n is 3, want 4". */
cairn_status cairn__fail(cairn_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The status of this thread's last failure, CAIRN_OK before any: the cause of a NULL tensor. */
cairn_status cairn__last_status(void);

/* The number of failures of this thread, by which callers detect a new one. */
uint64_t cairn__failures(void);

/* Clears this thread's last error and counts: for a fork child, where its parent's last error is meaningless. */
void cairn__forget_failures(void);

/* Prefixes the last message with "in PLACE: ", at most once per message. */
void cairn__fail_in(const char *place);

/* Appends ": strerror(errnum)" to the formatted message; the status is CAIRN_ESYSTEM (CAIRN_ENOMEM for ENOMEM). */
cairn_status cairn__fail_errno(int errnum, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The front's check: returns from the calling function. */
#define REQUIRE(condition, status, ...)                              \
    do {                                                             \
        if (!(condition)) return cairn__fail((status), __VA_ARGS__); \
    } while (0)

/* Takes the call itself; if it fails, jumps to `out:` with its status in a local `cairn_status st`. */
#define TRY(call)                     \
    do {                              \
        st = (call);                  \
        if (st != CAIRN_OK) goto out; \
    } while (0)

#endif
