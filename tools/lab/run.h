/* One run of an experiment: its options, its seed, and what it finds. */
#ifndef LAB_RUN_H
#define LAB_RUN_H

#include "result.h"

enum { LAB_MAX_OPTIONS = 32 };

struct lab_run {
    const struct lab_experiment *experiment;
    char values[LAB_MAX_OPTIONS][64]; /* of its options, in their order; numbers as number_text writes them */
    uint64_t seed;
    struct lab_result result;
    double shown;  /* when a progress line was last shown, or the run began; cairn__clock_seconds */
    bool is_shown; /* one stands in the terminal's line */
};

/* With all options at their usual values and seed 1. An experiment whose own values do not fit ends the program. */
void run_init(struct lab_run *run, const struct lab_experiment *experiment);

/* False after a message: there is no such option (the one that was probably meant is named), or it does not take the
 * value. "seed" is one of them. */
bool run_set(struct lab_run *run, const char *option, const char *value);

/* Runs it; run->result then has its settings and what it found. Free with result_free(&run->result) also after a
 * failure. */
cairn_status run_start(struct lab_run *run);

/* Whether the result is of this experiment with these options and this seed. */
bool run_is_of(const struct lab_run *run, const struct lab_result *result);

const struct lab_option *run_options(const struct lab_experiment *experiment, size_t *count);

#endif
