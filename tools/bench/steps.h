/* A rank that trains any of the models for tools/cairn-bench:
 *
 *   bench-bert, bench-resnet SOCKET SIDE FILE     meets the other ranks in FILE, if there are several, and averages
 *                                                 gradients
 *
 * It connects to the socket and sleeps in read() while other sides run. Protocol, in lines:
 *   rank   hello <side> <rank> <what it is>
 *   bench  start <layers> <f32|bf16|f16> <O0..O3> <dropout> <steps> <folder>
 *                                  a fresh model, and so many steps without dropout. Rank 0 puts into the folder what
 *                                  PyTorch compares with (bench_save); "-": nothing. Later steps have dropout
 *   rank   ok <loss of the first step>; of PyTorch also two relative differences, of gradients and of how far weights
 *          have moved
 *   bench  steps <n>               one step that brings the ranks together, then n that are timed
 *   rank   ok <us of a step> <us of processor time> <last loss> <hash of the weights>, or: failed <why>, and it ends
 *   bench  products <n>            the products of a step alone, n times, where a model has them
 *   rank   ok <us> <us of processor time>
 *   bench  peak
 *   rank   ok <KiB>                the most memory that the process has held, VmHWM
 *   bench  end
 * Weights and data are what the side of PyTorch makes too, so that losses can be compared. */
#ifndef BENCH_STEPS_H
#define BENCH_STEPS_H

#include <stdbool.h>

#include "cairn/cairn.h"
#include "device/env.h"

enum { BENCH_MOST_INPUTS = 3 };

struct bench_training;

struct bench_model {
    const char *program;
    int num_inputs;
    bool drops; /* has dropout, which the first steps do not use */
    cairn_module *(*create)(cairn_env *env, int size, double dropout);
    cairn_status (*fill_weights)(cairn_param_set *params);
    bool (*make_batch)(struct bench_training *t); /* inputs and labels */
    cairn_status (*create_optimizer)(cairn_param_set *params, cairn_optimizer **out);
    double max_norm;                                    /* of clipping; 0 = none */
    cairn_status (*products)(struct bench_training *t); /* runs only the products of one step; NULL = not measured */
};

struct bench_training {
    const struct bench_model *of;
    cairn_env *env;
    const char *side;
    int rank, size;   /* size: the model's size parameter, such as layers */
    cairn_dtype type; /* of products */
    cairn_module *model;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *ddp;
    cairn_tensor *inputs[BENCH_MOST_INPUTS], *labels;
    void *operands; /* for products; freed with the training */
};

/* The program's main: serves cairn-bench until that is done. */
int bench_train(const struct bench_model *model, int argc, char **argv);

#endif
