/* A training that takes seconds: a small model (models.h) on generated pictures (waves.h), under amp, in its own
 * environment.
 *
 * The same options and seed give the same bits on one machine. Threads: one per trainer at a time. */
#ifndef LAB_TRAINER_H
#define LAB_TRAINER_H

#include "models.h"

struct lab_training {
    enum lab_model model;
    uint64_t seed;                 /* for weights and pictures */
    double lr;                     /* 0 = 0.05, or 1e-3 for AdamW */
    bool adamw;                    /* else SGD with a momentum of 0.9 */
    bool watched;                  /* the trainer's watch sees gradients; costs a copy of every activation */
    bool averaged;                 /* ddp averages gradients over the ranks, each of which has its own batches */
    const struct amp_options *amp; /* read during the call */
};

enum { LAB_BATCH = 32, LAB_TESTED = 32 * LAB_BATCH };

struct lab_trainer {
    cairn_env *env;
    cairn_module *model;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *ddp;    /* NULL = not averaged */
    cairn_tensor *x, *y; /* the batch */
    struct lab_watch watch;
    uint64_t seed;
    double loss;  /* of the last step, without the factor */
    bool skipped; /* whether the last step was skipped */
};

/* Reduces the log to errors, since a scale that is too high causes many warnings. Call before ranks are started. */
void lab_hide_warnings(void);

/* Creates t, overwriting its contents. On a thread of cairn_spawn_threads it joins that rank's group.
 * Errors: those of amp_initialize and of creating its parts; there is nothing to destroy then. */
cairn_status lab_trainer_begin(const struct lab_training *how, struct lab_trainer *t);
void lab_trainer_end(struct lab_trainer *t);

/* Returns the loss scale; and options for a static scale. */
double lab_trainer_scale(struct lab_trainer *t);
struct amp_scaler_options lab_static_scale(double scale);

/* Makes batch `number` of the seed the current batch. */
cairn_status lab_trainer_take_batch(struct lab_trainer *t, uint64_t number);

/* Takes one step on the batch with the gradients of factor * loss. */
cairn_status lab_trainer_step(struct lab_trainer *t, double factor);

/* Computes the gradients of factor * loss on the batch without amp and passes them to look: those of parameters, and of
 * activations if the trainer is watched. The gradients are cleared afterwards. */
cairn_status lab_trainer_look(struct lab_trainer *t, double factor, lab_look look, void *ctx);

/* The largest magnitude among all f16 gradients of a backward of factor * loss, of parameters and of activations, as
 * it is without a scale: the backward is scaled by `scale`, which must not overflow, and its gradients are forgotten.
 * The trainer is watched. */
cairn_status lab_trainer_greatest(struct lab_trainer *t, double factor, double scale, double *out);

/* The largest k with 2^k greatest < 65520: from there on f16 rounds to infinity (core/half.h). greatest: above 0. */
int lab_cliff(double greatest);

/* Computes loss and accuracy on LAB_TESTED pictures outside the training set. */
cairn_status lab_trainer_test(struct lab_trainer *t, double *loss, double *right);

/* Runs a backward of the batch in t and in its f32 twin, and counts elements that are nonzero in the twin and 0 in t.
 * twin is t's counterpart at O0 and receives t's weights. The gradients are cleared afterwards. */
struct lab_lost {
    uint64_t lost, of;
};
cairn_status lab_trainer_lost(struct lab_trainer *t, struct lab_trainer *twin, uint64_t batch, double factor,
                              struct lab_lost *out);

#endif
