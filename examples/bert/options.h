/* The command line of bert_mnli. */
#ifndef EXAMPLES_BERT_OPTIONS_H
#define EXAMPLES_BERT_OPTIONS_H

#include <cairn/cairn.h>

#include "../checkpoint.h"

enum { MOST_EVALS = 4 };

struct options {
    const char *model;                                 /* a folder in Hugging Face's format */
    const char *train, *evals[MOST_EVALS];             /* train: NULL = evaluate only */
    const char *save, *report, *opt_level, *half_type; /* NULL = none, or the default */
    struct checkpoint checkpoint;
    struct amp_options amp;
    int64_t batch_size, accumulate, epochs, max_steps, warmup_steps, max_length, workers, seed, log_every;
    double lr, weight_decay, clip; /* clip: 0 = no clipping */
    int num_evals, from_scratch, gradient_checkpointing, in_order;
};

/* Parses the command line. On an error prints it and exits; with --help prints the usage and exits. */
void options_parse(int argc, char **argv, struct options *out);

#endif
