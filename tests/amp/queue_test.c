/* The passes that a step of the quick start queues, each of which is a launch on a GPU. amp may add none if no overflow
 * is possible or the gradients were checked already. */
#include "../ranks.h"
#include "../on_gpu.h"
#include "device/env.h"

enum pass {
    SCALE,
    AXPBY,
    CHECK,
    NORM,
    UPDATE,
    COUNT_UP,
    TAKE,
    SHARE,
    TELL,
    CLIP,
    SCALE_LOSS,
    CLEAR,
    STORE,
    END,
    PASSES
};
static const char *const names[PASSES] = {"scale",      "axpby",       "check",      "l2norm",        "update",
                                          "count_up",   "take_flags",  "share_flag", "scaler_update", "clip",
                                          "scale_loss", "clear_flags", "store",      "step_end"};

static _Thread_local int counted[PASSES];
static _Thread_local const struct cairn__passes *true_passes;

#define COUNTED(pass, member, arguments, values) \
    static void member##_counted arguments {     \
        counted[pass]++;                         \
        true_passes->member values;              \
    }

typedef struct cairn_device dev;
typedef const struct cairn__item *items;

COUNTED(SCALE, scale, (dev * d, items i, size_t n, cairn_dtype to, cairn_dtype from, const float *f, uint32_t *found),
        (d, i, n, to, from, f, found))
COUNTED(AXPBY, axpby,
        (dev * d, items i, size_t n, cairn_dtype to, cairn_dtype from, const float *f, float b, uint32_t *found),
        (d, i, n, to, from, f, b, found))
COUNTED(CHECK, check, (dev * d, items i, size_t n, cairn_dtype t, uint32_t *found), (d, i, n, t, found))
COUNTED(NORM, l2norm,
        (dev * d, items i, size_t n, cairn_dtype t, const float *f, double *norm, double *each, uint32_t *found),
        (d, i, n, t, f, norm, each, found))
COUNTED(UPDATE, update,
        (dev * d, const struct cairn__optim_item *i, size_t n, cairn_dtype g, enum cairn__weight_mode m,
         const struct cairn__optim_rule *r, const struct cairn__rates *lr, const struct cairn__optim_state *s),
        (d, i, n, g, m, r, lr, s))
COUNTED(COUNT_UP, count_up, (dev * d, int64_t *n, const struct cairn__optim_state *s), (d, n, s))
COUNTED(TAKE, take_flags,
        (dev * d, const struct cairn__taken *i, size_t n, uint32_t batch, uint32_t *const *raises, size_t num_raises),
        (d, i, n, batch, raises, num_raises))
COUNTED(SHARE, share_flag, (dev * d, uint32_t *any, uint32_t *const *into, size_t n), (d, any, into, n))
COUNTED(TELL, scaler_update, (dev * d, struct cairn__scaler_state *s, struct cairn__scaler_report *r), (d, s, r))
COUNTED(CLIP, clip, (dev * d, const double *norms, size_t n, double max, struct cairn__optim_state *s, double *total),
        (d, norms, n, max, s, total))
COUNTED(SCALE_LOSS, scale_loss,
        (dev * d, float *dst, const float *x, const struct cairn__scaler_state *s, struct cairn__loss_scale *cell,
         uint32_t *found),
        (d, dst, x, s, cell, found))
COUNTED(CLEAR, clear_flags, (dev * d, uint32_t *flags, size_t n), (d, flags, n))
COUNTED(STORE, store, (dev * d, void *dst, const void *value, size_t nbytes), (d, dst, value, nbytes))
COUNTED(END, step_end, (dev * d, const struct cairn__step_end *end), (d, end))

static const struct cairn__passes *count_passes(struct cairn_device *d, struct cairn__passes *table) {
    true_passes = d->passes;
    *table = *d->passes;
    table->scale = scale_counted;
    table->axpby = axpby_counted;
    table->check = check_counted;
    table->l2norm = l2norm_counted;
    table->update = update_counted;
    table->count_up = count_up_counted;
    table->take_flags = take_flags_counted;
    table->share_flag = share_flag_counted;
    table->scaler_update = scaler_update_counted;
    table->clip = clip_counted;
    table->scale_loss = scale_loss_counted;
    table->clear_flags = clear_flags_counted;
    table->store = store_counted;
    table->step_end = step_end_counted;
    d->passes = table;
    return true_passes;
}

struct row {
    const char *name;
    int ranks;
    struct amp_options options;
    bool clips;
    int micro_batches, want[PASSES];
};

#define OPTIONS(...) \
    { .struct_size = sizeof(struct amp_options), .verbosity = -1, __VA_ARGS__ }
#define STEP [UPDATE] = 1, [END] = 1
#define LOOK [CHECK] = 1, [TAKE] = 1

static const struct row rows[] = {
    {"O0", 1, OPTIONS(.opt_level = AMP_O0), false, 1, {STEP}},
    {"O1", 1, OPTIONS(.opt_level = AMP_O1), false, 1, {STEP, [SCALE_LOSS] = 1, LOOK}},
    {"O2", 1, OPTIONS(.opt_level = AMP_O2), false, 1, {STEP, [SCALE_LOSS] = 1, LOOK}},
    /* the unscaled loss, and the gradients */
    {"O2 static 1", 1, OPTIONS(.opt_level = AMP_O2, .loss_scale = 1), false, 1, {STEP, [CHECK] = 2, [TAKE] = 1}},
    {"O3", 1, OPTIONS(.opt_level = AMP_O3), false, 1, {STEP}},
    {"O2, clipped",
     1,
     OPTIONS(.opt_level = AMP_O2),
     true,
     1,
     {STEP, [SCALE_LOSS] = 1, [NORM] = 1, [CLIP] = 1, [TAKE] = 1}},
    {"O0, clipped", 1, OPTIONS(.opt_level = AMP_O0), true, 1, {STEP, [NORM] = 1, [CLIP] = 1, [CLEAR] = 1}},
    /* weight and bias each: into the sum, and added to it */
    {"O2, two micro-batches",
     1,
     OPTIONS(.opt_level = AMP_O2),
     false,
     2,
     {STEP, [SCALE_LOSS] = 2, [CHECK] = 2, [TAKE] = 3, [SCALE] = 2, [AXPBY] = 2}},
    /* the reduction has checked the gradients; ranks exchange words about losses */
    {"O1 on two ranks", 2, OPTIONS(.opt_level = AMP_O1), false, 1, {STEP, [SCALE_LOSS] = 1, [TAKE] = 1}},
    {"O2 on two ranks", 2, OPTIONS(.opt_level = AMP_O2), false, 1, {STEP, [SCALE_LOSS] = 1, [TAKE] = 1}},
};

static char *differs(const struct row *row, int step) {
    char *text = malloc(1024);
    int used = snprintf(text, 1024, "%s, step %d:", row->name, step);
    for (int i = 0; i < PASSES; i++) {
        if (counted[i] != row->want[i])
            used +=
                snprintf(text + used, 1024 - (size_t)used, " %s %d and not %d;", names[i], counted[i], row->want[i]);
    }
    return text;
}

static char *train(cairn_env *env, void *ctx) {
    const struct row *row = ctx;
    struct cairn__passes table;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, 8)),
                 *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, 2));
    cairn_module *model = cairn_linear(env, 8, 2);
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    char *failure = NULL;
    EXPECT_OK(cairn_sgd_create(cairn_module_params(model), NULL, &sgd));
    EXPECT_OK(amp_initialize(env, model, sgd, &row->options, &amp));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    const struct cairn__passes *before = count_passes(env->device, &table);
    for (int step = 0; step < 4 && !failure; step++) {
        memset(counted, 0, sizeof(counted));
        cairn_zero_grad(sgd);
        for (int m = 0; m < row->micro_batches; m++)
            EXPECT_OK(amp_backward(amp, cairn_mul_scalar(cairn_mse_loss(ddp_forward(net, x), y), 0x1p-10), sgd));
        if (row->clips) EXPECT_OK(cairn_clip_grad_norm(sgd, 1e9, NULL));
        EXPECT_OK(cairn_step(sgd));
        EXPECT(!cairn_optimizer_step_skipped(sgd));
        if (step > 0 && memcmp(counted, row->want, sizeof(counted)) != 0) failure = differs(row, step);
    }
    env->device->passes = before;
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    return failure;
}

static void step_queues_no_pass_that_it_does_not_need(void **state) {
    (void)state;
    NOT_ON_A_GPU("nccl does not look for overflows as it reduces");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct row row = rows[i];
        run_ranks(row.ranks, train, &row);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(step_queues_no_pass_that_it_does_not_need)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
