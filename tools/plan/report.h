/* cairn-plan's output about steps: a table for readers, JSON for programs. */
#ifndef PLAN_REPORT_H
#define PLAN_REPORT_H

#include "simulate.h"

/* What all steps of a report have in common. */
struct plan {
    const struct profile *profile;
    const struct network *net;
    struct step *steps; /* [count] */
    size_t count;
    size_t best; /* index of the suggested one; count = none */
};

void report_text(const struct plan *plan);
void report_json(const struct plan *plan);

enum { TEXT_NBYTES = 32 };

/* "1.25 ms", "25 MiB": four digits at most. */
const char *time_text(double ns, char text[TEXT_NBYTES]);
const char *bytes_text(double nbytes, char text[TEXT_NBYTES]);

/* "ring over shm", "ring over ib-ndr, 8 ranks a node over nvlink4". Made with malloc. */
char *network_text(const struct network *net);

#endif
