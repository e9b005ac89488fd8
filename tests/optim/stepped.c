/* Steps an optimizer with gradients from a file, for test_torch.py. The file has (STEPS + 1) * N f32 numbers; the first
 * N are the initial weights. A line of input is
 *
 *     KIND TYPE FIELD VALUE ...        TYPE: f32, or of halves beside f32 masters
 *
 * where fields are those of the kind's options; the reply is a line with all weights and one line per state. Gradients
 * are multiplied by a loss scale, which the step divides out. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/cairn.h"
#include "core/dtype.h"
#include "optim/optim.h"
#include "param/param.h"

enum { N = 257, MATRIX = 256, STEPS = 100 };

#define MUST_BE_OK(call)                                            \
    do {                                                            \
        if ((call) != CAIRN_OK) {                                   \
            fprintf(stderr, "%s: %s\n", #call, cairn_last_error()); \
            exit(1);                                                \
        }                                                           \
    } while (0)

static float numbers[STEPS + 1][N];
static const struct cairn__loss_scale SCALE = {128, 1.0f / 128};

/* ---- options ---- */

struct field {
    const char *name;
    size_t offset;
    bool is_switch;
};

#define REAL(owner, name) \
    { #name, offsetof(struct cairn_##owner##_options, name), false }
#define SWITCH(owner, name) \
    { #name, offsetof(struct cairn_##owner##_options, name), true }
#define NO_MORE \
    { NULL, 0, false }

static const struct field of_sgd[] = {REAL(sgd, lr),
                                      REAL(sgd, momentum),
                                      REAL(sgd, dampening),
                                      REAL(sgd, weight_decay),
                                      SWITCH(sgd, nesterov),
                                      SWITCH(sgd, maximize),
                                      NO_MORE};
static const struct field of_adam[] = {REAL(adam, lr),           REAL(adam, beta1),
                                       REAL(adam, beta2),        REAL(adam, eps),
                                       REAL(adam, weight_decay), SWITCH(adam, amsgrad),
                                       SWITCH(adam, maximize),   NO_MORE};
static const struct field of_muon[] = {REAL(muon, lr), REAL(muon, momentum), REAL(muon, weight_decay), NO_MORE};
static const struct field of_adagrad[] = {REAL(adagrad, lr),
                                          REAL(adagrad, lr_decay),
                                          REAL(adagrad, eps),
                                          REAL(adagrad, weight_decay),
                                          REAL(adagrad, initial_accumulator),
                                          SWITCH(adagrad, maximize),
                                          NO_MORE};

static cairn_status create_sgd(cairn_param_set *set, const void *h, cairn_optimizer **out) {
    return cairn_sgd_create(set, h, out);
}

static cairn_status create_adam(cairn_param_set *set, const void *h, cairn_optimizer **out) {
    return cairn_adam_create(set, h, out);
}

static cairn_status create_adamw(cairn_param_set *set, const void *h, cairn_optimizer **out) {
    return cairn_adamw_create(set, h, out);
}

static cairn_status create_adagrad(cairn_param_set *set, const void *h, cairn_optimizer **out) {
    return cairn_adagrad_create(set, h, out);
}

static cairn_status create_muon(cairn_param_set *set, const void *h, cairn_optimizer **out) {
    return cairn_muon_create_over(set, (size_t[]){0}, 1, h, out);
}

static const struct cairn_sgd_options sgd_defaults = CAIRN_SGD_OPTIONS_INIT;
static const struct cairn_adam_options adam_defaults = CAIRN_ADAM_OPTIONS_INIT;
static const struct cairn_adam_options adamw_defaults = CAIRN_ADAMW_OPTIONS_INIT;
static const struct cairn_adagrad_options adagrad_defaults = CAIRN_ADAGRAD_OPTIONS_INIT;
static const struct cairn_muon_options muon_defaults = CAIRN_MUON_OPTIONS_INIT;

static const struct kind {
    const char *name;
    cairn_status (*create)(cairn_param_set *set, const void *options, cairn_optimizer **out);
    const void *defaults;
    size_t nbytes;
    const struct field *fields;
    int64_t rows; /* of a matrix of the first 256 numbers; 0 = a vector of all */
} kinds[] = {
    {"sgd", create_sgd, &sgd_defaults, sizeof(sgd_defaults), of_sgd, 0},
    {"adam", create_adam, &adam_defaults, sizeof(adam_defaults), of_adam, 0},
    {"adamw", create_adamw, &adamw_defaults, sizeof(adamw_defaults), of_adam, 0},
    {"adagrad", create_adagrad, &adagrad_defaults, sizeof(adagrad_defaults), of_adagrad, 0},
    {"muon_wide", create_muon, &muon_defaults, sizeof(muon_defaults), of_muon, 8},
    {"muon_tall", create_muon, &muon_defaults, sizeof(muon_defaults), of_muon, 32},
};

static const struct kind *kind_of(const char *name) {
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].name, name) == 0) return &kinds[i];
    }
    fprintf(stderr, "there is no kind %s\n", name);
    exit(1);
}

static void set(void *options, const struct field *fields, const char *name, const char *value) {
    const struct field *f = fields;
    while (f->name && strcmp(f->name, name) != 0) f++;
    if (!f->name) {
        fprintf(stderr, "there is no field %s\n", name);
        exit(1);
    }
    void *at = (char *)options + f->offset;
    if (f->is_switch) *(cairn_switch *)at = CAIRN_ON;
    else *(double *)at = strtod(value, NULL);
}

/* ---- steps ---- */

static void write_gradient(struct cairn__param *p, int t) {
    void *slot = NULL;
    const struct cairn__dtype *type = cairn__dtype(p->dtype);
    MUST_BE_OK(cairn__grad_begin_write(p->gradient, &slot));
    for (size_t i = 0; i < p->n; i++) type->from_f32((char *)slot + i * type->nbytes, numbers[t][i] * SCALE.scale);
    cairn__param_grad_ready(p);
}

static void print_row(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) printf("%.9g ", (double)x[i]);
    printf("\n");
}

static void run(cairn_env *env, const struct kind *kind, const char *type, const void *options) {
    cairn_param_set *params = NULL;
    cairn_optimizer *o = NULL;
    struct cairn__param *p = NULL;
    MUST_BE_OK(cairn__param_set_new(env, &params));
    const int64_t vector[] = {N}, matrix[] = {kind->rows, kind->rows ? MATRIX / kind->rows : 0};
    MUST_BE_OK(cairn__param_set_add(params, "w", kind->rows ? 2 : 1, kind->rows ? matrix : vector, false, &p));
    memcpy(p->data, numbers[0], p->n * sizeof(float));
    if (strcmp(type, "f32") != 0)
        MUST_BE_OK(cairn__param_set_to_half(params, strcmp(type, "f16") == 0 ? CAIRN_F16 : CAIRN_BF16, true, false));
    params->scale = &SCALE;
    MUST_BE_OK(kind->create(params, options, &o));
    for (int t = 1; t <= STEPS; t++) {
        cairn_zero_grad(o);
        write_gradient(p, t);
        MUST_BE_OK(cairn_step(o));
    }
    print_row(cairn_param_master(params, 0), p->n);
    for (int s = 0; s < CAIRN__MAX_STATES && o->arrays.moments[0].array[s]; s++)
        print_row(o->arrays.moments[0].array[s], p->n);
    printf("end\n");
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&params);
}

int main(int argc, char **argv) {
    union {
        struct cairn_sgd_options sgd;
        struct cairn_adam_options adam;
        struct cairn_adagrad_options adagrad;
        struct cairn_muon_options muon;
    } options;
    char line[512];
    cairn_env *env = NULL;
    FILE *f = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!f || fread(numbers, sizeof(numbers), 1, f) != 1) {
        fprintf(stderr, "usage: stepped FILE, of %zu bytes\n", sizeof(numbers));
        return 1;
    }
    fclose(f);
    MUST_BE_OK(cairn_env_create(NULL, NULL, NULL, &env));
    while (fgets(line, sizeof(line), stdin)) {
        const struct kind *kind = kind_of(strtok(line, " \n"));
        const char *type = strtok(NULL, " \n"), *name;
        memcpy(&options, kind->defaults, kind->nbytes);
        while ((name = strtok(NULL, " \n"))) set(&options, kind->fields, name, strtok(NULL, " \n"));
        run(env, kind, type, &options);
    }
    cairn_env_destroy(&env);
    return 0;
}
