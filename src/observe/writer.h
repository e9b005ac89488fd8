/* Writers: event sinks that can be ended. */
#ifndef CAIRN__OBSERVE_WRITER_H
#define CAIRN__OBSERVE_WRITER_H

#include <stdbool.h>

#include "cairn/observe.h"
#include "core/trace.h"

/* The functions of a kind of writer. Called under the lock of events, except end. */
struct cairn__writer_kind {
    void (*hear)(struct cairn_writer *writer, const struct cairn__event *event);
    cairn_status (*flush)(struct cairn_writer *writer); /* (optional: nothing is buffered) */
    /* is_own false: in a forked child, whose parent continues to write. */
    void (*end)(struct cairn_writer *writer, bool is_own);
};

/* First member of a kind's struct. */
struct cairn_writer {
    const struct cairn__writer_kind *kind;
    int rank;       /* whose events it gets if ranks are threads; -1 = all */
    unsigned forks; /* of the process that created it */
};

/* From now on the writer gets events. Its kind and rank must be set. Errors: CAIRN_ESTATE. */
cairn_status cairn__writer_begin(struct cairn_writer *writer);

#endif
