/* Launch facts as lines of text. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/launch/launch.h"

struct text {
    char *at;
    size_t room;
};

static void put(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(t->at, t->room, format, args);
    va_end(args);
    const size_t used = length > 0 && (size_t)length < t->room ? (size_t)length : t->room - 1;
    t->at += used;
    t->room -= used;
}

void cairn__launch_describe(const struct cairn__launch *launch, char *text, size_t nbytes) {
    const struct cairn__meeting *m = &launch->meeting;
    struct text t = {.at = text, .room = nbytes};
    if (nbytes == 0) return;
    text[0] = '\0';
    put(&t, "launcher: %s; rank %d of %d, local rank %d", launch->launcher, launch->rank, launch->size,
        launch->local_rank);
    if (launch->local_size) put(&t, " of %d", launch->local_size);
    if (launch->variables[0]) put(&t, " (%s)", launch->variables);
    if (launch->restart_count) put(&t, ", restart %d", launch->restart_count);
    put(&t, "\n");
    if (m->num_hosts) {
        put(&t, "meeting: at ");
        for (int i = 0; i < m->num_hosts; i++) put(&t, "%s%s", i ? " or " : "", m->hosts[i]);
        put(&t, " port %d", m->ports[0]);
        if (m->num_ports > 1) put(&t, " or one of %d more", m->num_ports - 1);
        put(&t, " (%s), served by %s\n", m->from, m->agent_store ? "the launcher" : "rank 0");
    }
    for (const char *line = launch->notes; *line;) {
        const size_t length = strcspn(line, "\n");
        put(&t, "note: %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
}
