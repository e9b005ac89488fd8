/* One run of an experiment: its options, its seed, and its result. */
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

/* Initializes a run with default options and seed 1. Invalid defaults of an experiment exit the program. */
void run_init(struct lab_run *run, const struct lab_experiment *experiment);

/* Sets an option, or "seed". Returns false after a message: the option is unknown (the message suggests the nearest
 * name), or the value is invalid. */
bool run_set(struct lab_run *run, const char *option, const char *value);

/* Runs the experiment; run->result then has its settings and findings. Free with result_free(&run->result), also after
 * a failure. */
cairn_status run_start(struct lab_run *run);

/* Whether the result belongs to this experiment with these options and this seed. */
bool run_is_of(const struct lab_run *run, const struct lab_result *result);

const struct lab_option *run_options(const struct lab_experiment *experiment, size_t *count);

#endif
