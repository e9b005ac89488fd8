/* The command line of bert_mnli. */
#ifndef EXAMPLES_BERT_OPTIONS_H
#define EXAMPLES_BERT_OPTIONS_H

#include <cairn/cairn.h>

#include "../checkpoint.h"

enum { MOST_EVALS = 4 };

struct options {
    const char *model;                                 /* a folder of Hugging Face's */
    const char *train, *evals[MOST_EVALS];             /* train NULL = nothing is trained */
    const char *save, *report, *opt_level, *half_type; /* NULL = none; the default */
    struct checkpoint checkpoint;
    struct amp_options amp;
    int64_t batch_size, accumulate, epochs, max_steps, warmup_steps, max_length, workers, seed, log_every;
    double lr, weight_decay, clip; /* clip 0 = gradients are not clipped */
    int num_evals, from_scratch, gradient_checkpointing, in_order;
};

/* Reads the command line, or ends the program with a sentence that says what is wrong; with --help by the usage. */
void options_parse(int argc, char **argv, struct options *out);

#endif
