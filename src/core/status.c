/* Status names and the thread's last error. */
#include "core/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/printable.h"

static _Thread_local char last_error[1024];
static _Thread_local cairn_status last_status;
static _Thread_local uint64_t failures, placed; /* placed: the failure whose message names its place */

static const struct {
    const char *name;
    const char *sentence;
} statuses[] = {
#define CAIRN__X(code, name, sentence) [code] = {name, sentence},
    CAIRN_STATUS_LIST(CAIRN__X)
#undef CAIRN__X
};

static int is_status(cairn_status status) {
    return (size_t)status < sizeof(statuses) / sizeof(statuses[0]);
}

const char *cairn_status_name(cairn_status status) {
    return is_status(status) ? statuses[status].name : "?";
}

const char *cairn_status_string(cairn_status status) {
    return is_status(status) ? statuses[status].sentence : "not a Cairn status";
}

const char *cairn_last_error(void) {
    return last_error;
}

/* Arguments may point into last_error itself (a message passed on), so the text is built beside it. */
static void write_message(const char *format, va_list args, const char *suffix) {
    char text[sizeof(last_error)];
    int length = vsnprintf(text, sizeof(text), format, args);
    size_t used = length < 0 ? 0 : (size_t)length < sizeof(text) ? (size_t)length : sizeof(text) - 1;
    if (suffix) snprintf(text + used, sizeof(text) - used, ": %s", suffix);
    cairn__write_printable(last_error, sizeof(last_error), text, true); /* it may quote a stranger */
    failures++;
}

cairn_status cairn__fail(cairn_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    write_message(format, args, NULL);
    va_end(args);
    return last_status = status;
}

cairn_status cairn__last_status(void) {
    return last_status;
}

uint64_t cairn__failures(void) {
    return failures;
}

void cairn__forget_failures(void) {
    last_error[0] = '\0';
    last_status = CAIRN_OK;
    failures = placed = 0;
}

void cairn__fail_in(const char *place) {
    if (placed == failures) return;
    (void)cairn__fail(last_status, "in %s: %s", place, last_error);
    placed = failures;
}

cairn_status cairn__fail_errno(int errnum, const char *format, ...) {
    char room[128];
    const char *reason = strerror_r(errnum, room, sizeof(room)); /* GNU's, which returns the text */
    va_list args;
    va_start(args, format);
    write_message(format, args, reason);
    va_end(args);
    return last_status = errnum == ENOMEM ? CAIRN_ENOMEM : CAIRN_ESYSTEM;
}
