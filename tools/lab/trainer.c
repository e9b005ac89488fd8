#include "trainer.h"

#include <math.h>

#include "core/convert.h"
#include "core/status.h"
#include "waves.h"

static const double momentum = 0.9;

/* Test pictures, with numbers that no training reaches. */
static const uint64_t first_tested = UINT64_C(1) << 40;

static void show_errors(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    if (level <= CAIRN_LOG_ERROR) fprintf(stderr, "%s\n", message);
}

void lab_hide_warnings(void) {
    cairn_set_log(show_errors, NULL);
}

static cairn_status create_optimizer(const struct lab_training *how, cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_adam_options adamw = CAIRN_ADAMW_OPTIONS_INIT;
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    adamw.lr = how->lr > 0 ? how->lr : 1e-3;
    sgd.lr = how->lr > 0 ? how->lr : 0.05;
    sgd.momentum = momentum;
    return how->adamw ? cairn_adamw_create(set, &adamw, out) : cairn_sgd_create(set, &sgd, out);
}

cairn_status lab_trainer_begin(const struct lab_training *how, struct lab_trainer *t) {
    static const float no_pixels[LAB_BATCH * LAB_PIXELS];
    static const int64_t no_classes[LAB_BATCH];
    struct amp_options amp = *how->amp;
    cairn_status st = CAIRN_OK;
    amp.verbosity = -1;
    *t = (struct lab_trainer){.seed = how->seed};
    TRY(cairn_env_create(NULL, NULL, cairn_env_options(.seed = how->seed, .device = "cpu"), &t->env));
    t->model = lab_model_create(t->env, how->model, how->watched ? &t->watch : NULL);
    if (!t->model) TRY(cairn__last_status());
    TRY(create_optimizer(how, cairn_module_params(t->model), &t->optimizer));
    TRY(amp_initialize(t->env, t->model, t->optimizer, &amp, &t->amp));
    if (how->averaged) TRY(ddp_create(t->model, cairn_env_group(t->env), NULL, &t->ddp));
    t->x = cairn_tensor_from(t->env, CAIRN_F32, CAIRN_SHAPE(LAB_BATCH, LAB_PIXELS), no_pixels);
    t->y = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE(LAB_BATCH), no_classes);
    if (!t->x || !t->y) TRY(cairn__last_status());
    return CAIRN_OK;
out:
    lab_trainer_end(t);
    return st;
}

void lab_trainer_end(struct lab_trainer *t) {
    ddp_destroy(&t->ddp);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
    cairn_env_destroy(&t->env);
}

double lab_trainer_scale(struct lab_trainer *t) {
    return amp_scaler_get_scale(amp_scaler_of(t->amp, 0));
}

struct amp_scaler_options lab_static_scale(double scale) {
    return *amp_scaler_options(.kind = AMP_SCALER_STATIC, .init_scale = scale);
}

static cairn_status take(struct lab_trainer *t, uint64_t first) {
    float pixels[LAB_BATCH][LAB_PIXELS];
    int64_t classes[LAB_BATCH];
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < LAB_BATCH; i++) lab_wave(t->seed, first + (uint64_t)i, pixels[i], &classes[i]);
    TRY(cairn_tensor_write(t->x, pixels, (size_t)LAB_BATCH * LAB_PIXELS));
    TRY(cairn_tensor_write(t->y, classes, LAB_BATCH));
out:
    return st;
}

cairn_status lab_trainer_take_batch(struct lab_trainer *t, uint64_t number) {
    const uint64_t size = (uint64_t)cairn_env_size(t->env), rank = (uint64_t)cairn_env_rank(t->env);
    return take(t, (number * size + rank) * LAB_BATCH);
}

static cairn_tensor *loss_of(struct lab_trainer *t) {
    cairn_tensor *scores = t->ddp ? ddp_forward(t->ddp, t->x) : cairn_module_forward(t->model, t->x);
    return cairn_cross_entropy(scores, t->y, NULL);
}

cairn_status lab_trainer_step(struct lab_trainer *t, double factor) {
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(t->optimizer);
    cairn_tensor *loss = loss_of(t);
    TRY(amp_backward(t->amp, factor != 1 ? cairn_mul_scalar(loss, factor) : loss, t->optimizer));
    TRY(cairn_step(t->optimizer));
    t->loss = (double)cairn_tensor_item(loss);
    t->skipped = cairn_optimizer_step_skipped(t->optimizer) != 0;
out:
    return st;
}

/* Runs backward on scale * loss without amp. The parameters hold the gradients afterwards. */
static cairn_status backward_alone(struct lab_trainer *t, double scale) {
    cairn_zero_grad(t->optimizer);
    return cairn_backward(cairn_mul_scalar(loss_of(t), scale));
}

cairn_status lab_trainer_look(struct lab_trainer *t, double factor, lab_look look, void *ctx) {
    cairn_status st = CAIRN_OK;
    t->watch.look = look;
    t->watch.ctx = ctx;
    TRY(backward_alone(t, factor));
    TRY(lab_watch_params(&t->watch, cairn_module_params(t->model)));
out:
    t->watch.look = NULL;
    cairn_zero_grad(t->optimizer);
    return st;
}

cairn_status lab_trainer_greatest(struct lab_trainer *t, double factor, double scale, double *out) {
    struct lab_greatest greatest = {0};
    cairn_status st = CAIRN_OK;
    TRY(lab_trainer_look(t, factor * scale, lab_look_for_greatest, &greatest));
    REQUIRE(isfinite(greatest.f16) && greatest.f16 > 0, CAIRN_ENUMERIC,
            "at a scale of %g the largest f16 gradient is %g", scale, greatest.f16);
    *out = greatest.f16 / scale;
out:
    return st;
}

int lab_cliff(double greatest) {
    int k;
    const double part = frexp(65520 / greatest, &k); /* 65520 / greatest = part * 2^k, part in [1/2, 1) */
    return part > 0.5 ? k - 1 : k - 2;               /* part = 1/2: 2^(k-1) * greatest is 65520, which overflows */
}

cairn_status lab_trainer_test(struct lab_trainer *t, double *loss, double *right) {
    int64_t guesses[LAB_BATCH], classes[LAB_BATCH];
    cairn_status st = CAIRN_OK;
    double sum = 0;
    int count = 0;
    cairn_module_train(t->model, 0);
    for (uint64_t first = 0; first < LAB_TESTED; first += LAB_BATCH) {
        TRY(take(t, first_tested + first));
        cairn_no_grad_begin(t->env);
        cairn_tensor *scores = cairn_module_forward(t->model, t->x);
        sum += (double)cairn_tensor_item(cairn_cross_entropy(scores, t->y, NULL));
        st = cairn_tensor_read_as(cairn_argmax(scores, 1, 0), CAIRN_I64, guesses, LAB_BATCH);
        TRY(cairn_no_grad_end(t->env) != CAIRN_OK ? cairn__last_status() : st);
        TRY(cairn_tensor_read_as(t->y, CAIRN_I64, classes, LAB_BATCH));
        for (int i = 0; i < LAB_BATCH; i++) count += guesses[i] == classes[i];
    }
    *loss = sum * LAB_BATCH / LAB_TESTED;
    *right = (double)count / LAB_TESTED;
out:
    cairn_module_train(t->model, 1);
    return st;
}

/* ---- lost gradients ---- */

static size_t numel(const cairn_param *p) {
    size_t n = 1;
    for (int d = 0; d < p->ndim; d++) n *= (size_t)p->shape[d];
    return n;
}

static cairn_status copy_weights(cairn_param_set *to, const cairn_param_set *from) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < cairn_param_set_count(from); i++) {
        cairn_param x, y;
        TRY(cairn_param_set_get(from, i, &x));
        TRY(cairn_param_set_get(to, i, &y));
        cairn__convert(y.data, y.dtype, x.data, x.dtype, numel(&x));
        TRY(cairn_param_changed(to, i, 0));
    }
out:
    return st;
}

cairn_status lab_trainer_lost(struct lab_trainer *t, struct lab_trainer *twin, uint64_t batch, double factor,
                              struct lab_lost *out) {
    cairn_param_set *half = cairn_module_params(t->model), *full = cairn_module_params(twin->model);
    struct cairn_twin_loss loss = {0};
    cairn_status st = CAIRN_OK;
    TRY(copy_weights(full, half));
    TRY(lab_trainer_take_batch(t, batch));
    TRY(lab_trainer_take_batch(twin, batch));
    TRY(backward_alone(t, factor * lab_trainer_scale(t)));
    TRY(backward_alone(twin, factor));
    TRY(cairn_exponents_compare_params(half, full, 0, &loss));
    *out = (struct lab_lost){loss.to_zero, loss.nonzero};
out:
    cairn_zero_grad(t->optimizer);
    cairn_zero_grad(twin->optimizer);
    return st;
}
