/* A training of seconds: a small model (models.h) on made pictures (waves.h), under amp, in an environment of its own.
 *
 * The same options and seed give the same bits on one machine. Threads: one per trainer at a time. */
#ifndef LAB_TRAINER_H
#define LAB_TRAINER_H

#include "models.h"

struct lab_training {
    enum lab_model model;
    uint64_t seed;                 /* of weights and pictures */
    double lr;                     /* 0 = 0.05, and 1e-3 of AdamW */
    bool adamw;                    /* else SGD with a momentum of 0.9 */
    bool watched;                  /* the trainer's watch sees gradients; costs a copy of every activation */
    bool averaged;                 /* ddp averages gradients over the ranks, each of which has batches of its own */
    const struct amp_options *amp; /* read during the call */
};

enum { LAB_BATCH = 32, LAB_TESTED = 32 * LAB_BATCH };

struct lab_trainer {
    cairn_env *env;
    cairn_module *model;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *ddp;    /* NULL: not averaged */
    cairn_tensor *x, *y; /* the batch */
    struct lab_watch watch;
    uint64_t seed;
    double loss;  /* of the last step, before a factor */
    bool skipped; /* whether it was */
};

/* From here on the log shows errors alone: a scale that is too high has many warnings. Before ranks are started. */
void lab_hide_warnings(void);

/* Makes t, over whatever was in it. On a thread of cairn_spawn_threads it is that rank's.
 * Errors: those of amp_initialize and of what it is made of; then there is nothing to end. */
cairn_status lab_trainer_begin(const struct lab_training *how, struct lab_trainer *t);
void lab_trainer_end(struct lab_trainer *t);

/* The scale of its loss; and options for one that stays. */
double lab_trainer_scale(struct lab_trainer *t);
struct amp_scaler_options lab_static_scale(double scale);

/* Batch `number` of the seed's becomes the one that is trained on. */
cairn_status lab_trainer_take_batch(struct lab_trainer *t, uint64_t number);

/* One step on the batch; gradients are those of factor * loss. */
cairn_status lab_trainer_step(struct lab_trainer *t, double factor);

/* Gradients of factor * loss on the batch, as a backward has them that amp knows nothing of, go to look: those of
 * parameters, and of activations where the trainer is watched. Then they are forgotten. */
cairn_status lab_trainer_look(struct lab_trainer *t, double factor, lab_look look, void *ctx);

/* The largest magnitude among all f16 gradients of a backward of factor * loss, of parameters and of activations, as
 * it is without a scale: the backward is scaled by `scale`, which must not overflow, and its gradients are forgotten.
 * The trainer is watched. */
cairn_status lab_trainer_greatest(struct lab_trainer *t, double factor, double scale, double *out);

/* The largest k with 2^k greatest < 65520: from there on f16 rounds to infinity (core/half.h). greatest: above 0. */
int lab_cliff(double greatest);

/* Loss and share of right answers over LAB_TESTED pictures that are not trained on. */
cairn_status lab_trainer_test(struct lab_trainer *t, double *loss, double *right);

/* The gradients of both backwards of a batch: how many of an f32 twin's that are not 0 are 0 in t's. twin is t's
 * counterpart at O0, and gets t's weights. Gradients are forgotten. */
struct lab_lost {
    uint64_t lost, of;
};
cairn_status lab_trainer_lost(struct lab_trainer *t, struct lab_trainer *twin, uint64_t batch, double factor,
                              struct lab_lost *out);

#endif
