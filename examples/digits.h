/* Shared by 05_mlp, 06_resnet and 07_transformer: a data set of 1797 handwritten digits of 8 x 8 pixels, and the
 * training loop.
 *
 * The digits are scikit-learn's (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998), one line of text
 * each: 64 pixels from 0 to 16, then the class. A fixed seed shuffles them into 1437 for training and 360 for testing.
 *
 *     zcat /usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz > digits.csv
 *     ./06_resnet digits.csv --opt-level O1 --half bf16 */
#ifndef EXAMPLES_DIGITS_H
#define EXAMPLES_DIGITS_H

#include <cairn/cairn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"

enum { PIXELS = 64, CLASSES = 10, PICTURES = 1797, TESTED = 360, TRAINED = PICTURES - TESTED, BATCH = 32 };

struct digits {
    float pixels[PICTURES][PIXELS]; /* the first TRAINED are the training set */
    int64_t classes[PICTURES];
};

struct training {
    cairn_module *(*build)(cairn_env *env); /* from [N, 1, 8, 8] to scores [N, CLASSES] */
    int epochs;
    unsigned long long seed; /* of the initial weights */
    double lr, weight_decay;
};

struct trainer {
    cairn_env *env;
    cairn_module *model;
    cairn_optimizer *adamw;
    amp_context *amp;
    cairn_tensor *x, *y; /* the batch */
    cairn_sampler *sampler;
    double loss; /* of the last step */
    struct checkpoint checkpoint;
};

static inline void die(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static inline void read_digits(const char *path, struct digits *d) {
    static int64_t order[PICTURES];
    cairn_sampler *mixed;
    FILE *f = fopen(path, "r");
    if (!f) die("there is no such file of digits; examples/digits.h says where to get it");
    CAIRN_CHECK(cairn_sampler_create(PICTURES, NULL, &mixed));
    cairn_sampler_next(mixed, order, PICTURES);
    cairn_sampler_destroy(&mixed);
    for (int i = 0; i < PICTURES; i++) {
        float value = 0;
        for (int p = 0; p < PIXELS; p++) {
            if (fscanf(f, "%f ,", &value) != 1) die("the file of digits is cut");
            d->pixels[order[i]][p] = value / 8 - 1;
        }
        if (fscanf(f, "%f", &value) != 1) die("the file of digits is cut");
        d->classes[order[i]] = (int64_t)value;
    }
    fclose(f);
}

static inline void begin(struct trainer *t, const struct training *how, const struct amp_options *amp) {
    static const float no_pixels[BATCH][PIXELS];
    static const int64_t no_classes[BATCH];
    struct cairn_adam_options hyper = CAIRN_ADAMW_OPTIONS_INIT;
    hyper.lr = how->lr;
    hyper.weight_decay = how->weight_decay;
    t->model = how->build(t->env);
    if (!t->model) die(cairn_last_error());
    CAIRN_CHECK(cairn_adamw_create(cairn_module_params(t->model), &hyper, &t->adamw));
    CAIRN_CHECK(amp_initialize(t->env, t->model, t->adamw, amp, &t->amp));
    CAIRN_CHECK(cairn_sampler_create(TRAINED, NULL, &t->sampler));
    t->x = cairn_tensor_from(t->env, CAIRN_F32, CAIRN_SHAPE(BATCH, 1, 8, 8), no_pixels);
    t->y = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE(BATCH), no_classes);
    if (!t->x || !t->y) die(cairn_last_error());
    checkpoint_begin(&t->checkpoint, t->env, t->model, t->adamw, t->amp, NULL, t->sampler);
    if (t->checkpoint.state) CAIRN_CHECK(cairn_state_add_f64(t->checkpoint.state, "loss", &t->loss));
    checkpoint_resume(&t->checkpoint);
}

static inline void end(struct trainer *t) {
    checkpoint_end(&t->checkpoint);
    cairn_sampler_destroy(&t->sampler);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->adamw);
    cairn_module_destroy(&t->model);
}

/* One training step on the batch in t->x and t->y. Returns the loss. */
static inline cairn_tensor *step(struct trainer *t) {
    cairn_zero_grad(t->adamw);
    cairn_tensor *scores = cairn_module_forward(t->model, t->x);
    cairn_tensor *loss = cairn_cross_entropy(scores, t->y, cairn_loss_options(.label_smoothing = 0.1));
    CAIRN_CHECK(amp_backward(t->amp, loss, t->adamw));
    CAIRN_CHECK(cairn_step(t->adamw));
    return loss;
}

/* One epoch over the full batches, or after a restart the rest of one. Over the whole training the learning rate falls
 * to 0 along half a cosine. */
static inline void train_epoch(struct trainer *t, const struct digits *d, const struct training *how, int epoch) {
    static float pixels[BATCH][PIXELS];
    static int64_t classes[BATCH];
    int64_t batch[BATCH];
    if (cairn_sampler_epoch(t->sampler) != epoch) CAIRN_CHECK(cairn_sampler_set_epoch(t->sampler, epoch));
    while (cairn_sampler_next(t->sampler, batch, BATCH) == BATCH) {
        for (int i = 0; i < BATCH; i++) {
            memcpy(pixels[i], d->pixels[batch[i]], sizeof(pixels[i]));
            classes[i] = d->classes[batch[i]];
        }
        CAIRN_CHECK(cairn_tensor_write(t->x, pixels, BATCH * PIXELS));
        CAIRN_CHECK(cairn_tensor_write(t->y, classes, BATCH));
        const double done = (epoch + (double)cairn_sampler_position(t->sampler) / TRAINED) / how->epochs;
        CAIRN_CHECK(cairn_optimizer_set_lr(t->adamw, how->lr * (1 + cos(3.14159265358979 * done)) / 2));
        t->loss = cairn_tensor_item(step(t));
        checkpoint_step(&t->checkpoint);
    }
}

/* In percent. */
static inline double accuracy(struct trainer *t, const struct digits *d) {
    static int64_t guesses[TESTED];
    int right = 0;
    cairn_module_train(t->model, 0);
    cairn_no_grad_begin(t->env);
    cairn_tensor *x = cairn_tensor_from(t->env, CAIRN_F32, CAIRN_SHAPE(TESTED, 1, 8, 8), d->pixels[TRAINED]);
    cairn_tensor *guess = cairn_argmax(cairn_module_forward(t->model, x), 1, 0);
    if (!guess) die(cairn_last_error());
    CAIRN_CHECK(cairn_tensor_read_as(guess, CAIRN_I64, guesses, TESTED));
    CAIRN_CHECK(cairn_no_grad_end(t->env));
    cairn_tensor_destroy(&x);
    cairn_module_train(t->model, 1);
    for (int i = 0; i < TESTED; i++) right += guesses[i] == d->classes[TRAINED + i];
    return 100.0 * right / TESTED;
}

static inline void parse(int argc, char **argv, struct amp_options *amp, struct training *how,
                         struct checkpoint *checkpoint) {
    if (argc < 2)
        die("usage: DIGITS.csv [--opt-level O0..O3] [--half f16|bf16] [--epochs N] [--seed N] [--checkpoint FOLDER] "
            "[--save-every STEPS]");
    for (int i = 2; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--opt-level") == 0) {
            CAIRN_CHECK(amp_opt_level_parse(value, &amp->opt_level));
        } else if (strcmp(name, "--half") == 0) {
            CAIRN_CHECK(amp_half_type_parse(value, &amp->half_type));
        } else if (strcmp(name, "--epochs") == 0 && atoi(value) > 0) {
            how->epochs = atoi(value);
        } else if (strcmp(name, "--seed") == 0) {
            how->seed = strtoull(value, NULL, 10);
        } else if (!checkpoint_option(checkpoint, name, value)) {
            die("the options are --opt-level O0..O3, --half f16|bf16, --epochs from 1, --seed, --checkpoint, "
                "--save-every "
                "from 1");
        }
    }
}

static inline int digits_main(int argc, char **argv, struct training how) {
    static struct digits digits;
    struct amp_options amp = *amp_options(.opt_level = AMP_O0);
    struct trainer t = {.env = NULL};
    cairn_progress *progress;
    char tested[64] = "";
    CAIRN_CHECK(cairn_env_create(&argc, &argv, NULL, &t.env));
    parse(argc, argv, &amp, &how, &t.checkpoint);
    read_digits(argv[1], &digits);
    cairn_manual_seed(t.env, how.seed);
    begin(&t, &how, &amp);
    const int begun = (int)cairn_sampler_epoch(t.sampler);
    CAIRN_CHECK(
        cairn_progress_create(t.env, how.epochs, cairn_progress_options(.title = "epoch", .done = begun), &progress));
    for (int e = begun; e < how.epochs; e++) {
        train_epoch(&t, &digits, &how, e);
        if ((e + 1) % 5 == 0) snprintf(tested, sizeof(tested), "test accuracy %.2f %%", accuracy(&t, &digits));
        if (cairn_progress_step(progress))
            cairn_progress_show(progress, cairn_progress_values(.loss = t.loss, .lr = cairn_optimizer_lr(t.adamw),
                                                                .skipped = cairn_optimizer_skipped(t.adamw),
                                                                .more = tested[0] ? tested : NULL));
    }
    cairn_progress_destroy(&progress);
    printf("skipped steps = %lld\ntest accuracy = %.2f %%\n", (long long)cairn_optimizer_skipped(t.adamw),
           accuracy(&t, &digits));
    end(&t);
    cairn_env_destroy(&t.env);
    return 0;
}

#endif
