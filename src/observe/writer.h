/* Writers: sinks of events with an end. */
#ifndef CAIRN__OBSERVE_WRITER_H
#define CAIRN__OBSERVE_WRITER_H

#include <stdbool.h>

#include "cairn/observe.h"
#include "core/trace.h"

/* What a kind of writer does; called under the lock of events, but for end. */
struct cairn__writer_kind {
    void (*hear)(struct cairn_writer *writer, const struct cairn__event *event);
    cairn_status (*flush)(struct cairn_writer *writer);    /* (optional: there is nothing to write) */
    void (*end)(struct cairn_writer *writer, bool is_own); /* is_own false: in a child of fork, whose parent goes on */
};

/* A kind's struct begins with it. */
struct cairn_writer {
    const struct cairn__writer_kind *kind;
    int rank;       /* whose events it hears where ranks are threads; -1 = all */
    unsigned forks; /* of the process that made it */
};

/* writer's kind and rank are set. From now on it hears events. Errors: CAIRN_ESTATE. */
cairn_status cairn__writer_begin(struct cairn_writer *writer);

#endif
