/* PowerSGD against a model in double, which simulates all ranks and starts from Cairn's first Q. With CAIRN_TEST_SHORT
 * in the environment 20 steps instead of 50, of one rank with a third of the options, and a rank gives up 8 times
 * instead of 20. */
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

void *aligned_alloc(size_t align, size_t nbytes);
static _Thread_local size_t allocated; /* by this thread, in front of the C library's, which cairn__alloc calls */

void *aligned_alloc(size_t align, size_t nbytes) {
    void *p = NULL;
    allocated += nbytes;
    return posix_memalign(&p, align, nbytes) == 0 ? p : NULL;
}

#include "../on_gpu.h"
#include "../state_in_memory.h"
#include "core/status.h"
#include "given_grads.h"

enum { MAX_RANKS = 4, MOST_RANK = 4 };

#define POWERSGD(...) \
    { .struct_size = sizeof(struct ddp_powersgd_options), .start_powerSGD_iter = 2, __VA_ARGS__ }

/* ---- the model ---- */

struct model {
    int p;
    double divisor; /* of the sum over the ranks */
    struct ddp_powersgd_options options;
    double error[MAX_RANKS][GIVEN][GIVEN_MOST];
    double q[GIVEN][MOST_RANK][30]; /* by columns */
    double out[GIVEN][GIVEN_MOST];
};

static int rank_of(const struct model *m, int k) {
    const struct given_shape *s = &given_shapes[k];
    int64_t r = m->options.matrix_approximation_rank;
    if (r > s->rows) r = s->rows;
    if (r > s->cols) r = s->cols;
    return (double)((s->rows + s->cols) * r) * m->options.min_compression_rate < (double)(s->rows * s->cols) ? (int)r
                                                                                                             : 0;
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void orthonormalize(double (*x)[30], int r, int64_t n, double epsilon) {
    for (int i = 0; i < r; i++) {
        for (int j = 0; j < i; j++) {
            const double c = dot(x[j], x[i], n);
            for (int64_t e = 0; e < n; e++) x[i][e] -= c * x[j][e];
        }
        const double norm = sqrt(dot(x[i], x[i], n)) + epsilon;
        for (int64_t e = 0; e < n; e++) x[i][e] = norm > 0 ? x[i][e] / norm : 0;
    }
}

static void model_matrix(struct model *m, const struct given_values *inputs, int k, int r) {
    const int64_t rows = given_shapes[k].rows, cols = given_shapes[k].cols;
    double p[MOST_RANK][30] = {{0}}, q[MOST_RANK][30] = {{0}}, input[MAX_RANKS][GIVEN_MOST];
    orthonormalize(m->q[k], r, cols, m->options.orthogonalization_epsilon);
    for (int rank = 0; rank < m->p; rank++) {
        for (int64_t at = 0; at < rows * cols; at++) {
            input[rank][at] = inputs[rank].of[k][at] + m->error[rank][k][at];
            for (int c = 0; c < r; c++) p[c][at / cols] += input[rank][at] * m->q[k][c][at % cols];
        }
    }
    orthonormalize(p, r, rows, m->options.orthogonalization_epsilon);
    for (int rank = 0; rank < m->p; rank++) {
        for (int64_t at = 0; at < rows * cols; at++) {
            for (int c = 0; c < r; c++) q[c][at % cols] += input[rank][at] * p[c][at / cols] / m->divisor;
        }
    }
    memcpy(m->q[k], q, sizeof(q));
    for (int64_t at = 0; at < rows * cols; at++) {
        m->out[k][at] = 0;
        for (int c = 0; c < r; c++) m->out[k][at] += p[c][at / cols] * q[c][at % cols];
        for (int rank = 0; rank < m->p && m->options.use_error_feedback != CAIRN_OFF; rank++)
            m->error[rank][k][at] = input[rank][at] - m->out[k][at] * m->divisor / m->p;
    }
}

static void model_step(struct model *m, int step, const struct given_values *inputs) {
    for (int k = 0; k < GIVEN; k++) {
        const int r = step < m->options.start_powerSGD_iter ? 0 : rank_of(m, k);
        if (r > 0) model_matrix(m, inputs, k, r);
        for (size_t i = 0; r == 0 && i < given_n(k); i++) {
            m->out[k][i] = 0;
            for (int rank = 0; rank < m->p; rank++) m->out[k][i] += inputs[rank].of[k][i] / m->divisor;
        }
    }
}

/* ---- Cairn ---- */

struct training {
    cairn_module *model;
    struct cairn_param_set *set;
    cairn_optimizer *sgd;
    amp_context *amp;
    ddp_context *net;
    struct given_inputs x;
};

static char *begin_training(cairn_env *env, const struct amp_options *amp, const struct ddp_options *ddp,
                            const struct ddp_powersgd_options *options, struct training *t) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    sgd.lr = 0x1p-6;
    *t = (struct training){.model = make_given(env)};
    EXPECT(t->model);
    t->set = cairn_module_params(t->model);
    PASS(make_given_inputs(env, &t->x));
    EXPECT_OK(cairn_sgd_create(t->set, &sgd, &t->sgd));
    EXPECT_OK(
        amp_initialize(env, t->model, t->sgd, amp ? amp : amp_options(.opt_level = AMP_O0, .verbosity = -1), &t->amp));
    EXPECT_OK(ddp_create(t->model, cairn_env_group(env), ddp, &t->net));
    if (options) EXPECT_OK(ddp_powersgd_register(t->net, options));
    return NULL;
}

static void end_training(struct training *t) {
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_module_destroy(&t->model);
    end_given_inputs(&t->x);
}

/* Without a step: weights stay 0. */
static cairn_status run_backward(struct training *t, const struct given_values *g) {
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(t->sgd);
    for (int k = 0; k < GIVEN; k++) TRY(cairn_tensor_write(t->x.of[k], g->of[k], (int64_t)given_n(k)));
    TRY(amp_backward(t->amp, ddp_forward_n(t->net, t->x.of, GIVEN), t->sgd));
out:
    return st;
}

/* An array of the context's state, on the host. */
static char *peek(cairn_env *env, ddp_context *net, const char *name, float *out) {
    const cairn_stateful state = ddp_stateful(net);
    struct cairn__entries entries = {.env = env, .object = "ddp"};
    EXPECT_OK(state.ops->list(state.object, &entries));
    const struct cairn__entry *e = cairn__entries_find(&entries, name);
    EXPECT(e && e->memory);
    EXPECT_OK(cairn__device_download(env->device, out, e->memory, e->nbytes));
    cairn__entries_clear(&entries);
    return NULL;
}

static char *give_first_q(cairn_env *env, ddp_context *net, struct model *m) {
    for (int k = 0; k < GIVEN; k++) {
        float q[MOST_RANK * 30];
        char name[64];
        const int64_t cols = given_shapes[k].cols;
        snprintf(name, sizeof(name), "powersgd.q.%s", given_shapes[k].name);
        if (rank_of(m, k) == 0) continue;
        PASS(peek(env, net, name, q));
        for (int64_t i = 0; i < rank_of(m, k) * cols; i++) m->q[k][i / cols][i % cols] = q[i];
    }
    return NULL;
}

static double largest(const double *x, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
    return most;
}

static char *compare(cairn_env *env, struct training *t, const struct model *m, double scale, double tolerance,
                     int step) {
    float got[GIVEN_MOST];
    for (int k = 0; k < GIVEN; k++) {
        const double bound = tolerance * largest(m->out[k], given_n(k));
        PASS(read_given(env, t->model, k, got));
        for (size_t i = 0; i < given_n(k); i++) {
            char text[200];
            const double off = fabs(got[i] / scale - m->out[k][i]);
            snprintf(text, sizeof(text), "step %d, %s[%zu]: %g is within %g of %g", step, given_shapes[k].name, i,
                     got[i] / scale, bound, m->out[k][i]);
            if (!(off <= bound)) return FAILURE(text);
        }
    }
    return NULL;
}

/* ---- beside the model ---- */

struct beside {
    struct ddp_powersgd_options options;
    struct ddp_options ddp;
    struct amp_options amp;
    double scale;     /* of the loss */
    double divisor;   /* 0 = the number of ranks */
    double tolerance; /* of the largest of a gradient */
};

#define DDP(...) \
    { .struct_size = sizeof(struct ddp_options), __VA_ARGS__ }
#define AMP(...) \
    { .struct_size = sizeof(struct amp_options), .verbosity = -1, __VA_ARGS__ }

static const struct beside besides[] = {
    {POWERSGD(.matrix_approximation_rank = 1), DDP(.wire = 0), AMP(.opt_level = AMP_O0), 1, 0, 1e-5},
    {POWERSGD(.matrix_approximation_rank = 2), DDP(.bucket_nbytes = 1), AMP(.opt_level = AMP_O0), 1, 0, 1e-5},
    {POWERSGD(.matrix_approximation_rank = 3, .min_compression_rate = 1), DDP(.gradient_as_bucket_view = CAIRN_OFF),
     AMP(.opt_level = AMP_O0), 1, 0, 1e-5},
    {POWERSGD(.matrix_approximation_rank = 4, .min_compression_rate = 1), DDP(.wire = 0),
     AMP(.opt_level = AMP_O0, .loss_scale = 1024), 1024, 0, 1e-5},
    {POWERSGD(.orthogonalization_epsilon = 1e-3), DDP(.wire = 0), AMP(.opt_level = AMP_O0), 1, 0, 1e-5},
    {POWERSGD(.use_error_feedback = CAIRN_OFF), DDP(.wire = 0), AMP(.opt_level = AMP_O0), 1, 0, 1e-5},
    {POWERSGD(.matrix_approximation_rank = 2), DDP(.gradient_average = CAIRN_OFF), AMP(.opt_level = AMP_O0), 1, 1,
     1e-5},
    {POWERSGD(.matrix_approximation_rank = 2), DDP(.gradient_average = CAIRN_OFF, .gradient_predivide_factor = 4),
     AMP(.opt_level = AMP_O0), 1, 4, 1e-5},
};
enum { NUM_BESIDES = sizeof(besides) / sizeof(besides[0]) };

static char *follow(cairn_env *env, const struct beside *b) {
    struct training t;
    struct given_values *inputs = calloc(MAX_RANKS, sizeof(inputs[0]));
    struct model *m = calloc(1, sizeof(*m));
    const int rank = cairn_env_rank(env);
    *m = (struct model){.p = cairn_env_size(env), .options = b->options};
    m->divisor = b->divisor > 0 ? b->divisor : m->p;
    if (m->options.matrix_approximation_rank == 0) m->options.matrix_approximation_rank = 1;
    if (m->options.min_compression_rate == 0) m->options.min_compression_rate = 2;
    PASS(begin_training(env, &b->amp, &b->ddp, &b->options, &t));
    PASS(give_first_q(env, t.net, m));
    for (int step = 0; step < (check_is_short() ? 20 : 50); step++) {
        for (int r = 0; r < m->p; r++) given_gradients(m->options.matrix_approximation_rank, r, step, &inputs[r]);
        EXPECT_OK(run_backward(&t, &inputs[rank]));
        /* A sum divided before: the model's errors are of what is divided after. */
        model_step(m, step, inputs);
        PASS(compare(env, &t, m, b->scale, b->tolerance, step));
    }
    end_training(&t);
    free(inputs);
    free(m);
    return NULL;
}

static char *follow_all(cairn_env *env, void *ctx) {
    (void)ctx;
    const bool few = is_on_gpu() || (check_is_short() && cairn_env_size(env) == 1);
    for (int i = 0; i < NUM_BESIDES; i += few ? 3 : 1) PASS(follow(env, &besides[i]));
    return NULL;
}

static void steps_are_those_of_a_model_in_double(void **state) {
    (void)state;
    if (!is_on_gpu()) run_ranks(1, follow_all, NULL);
    run_ranks(3, follow_all, NULL);
}

/* ---- exactness ---- */

/* Every rank's gradient is a sum of at most r products of the same columns with rows of its own. Without error
 * feedback, since errors of ranks, whose sum is 0, would grow large. */
static float low_rank_number(int r, int rank, int step, int k, int64_t i, int64_t j) {
    double x = 0;
    for (int d = 0; d < r; d++)
        x += (double)((i * (d + 1) + step + k) % 5 - 2) *
             (double)((j * (d + 2) + rank * 3) % 7 - 3); /* no step's are orthogonal to those of the last */
    return (float)x;
}

static char *send_low_rank(cairn_env *env, const struct ddp_powersgd_options *options) {
    const int r = options->matrix_approximation_rank, p = cairn_env_size(env);
    struct training t;
    struct given_values g;
    float got[GIVEN_MOST];
    PASS(begin_training(env, NULL, NULL, options, &t));
    for (int step = 0; step < 6; step++) {
        for (int k = 0; k < GIVEN; k++) {
            for (int64_t at = 0; at < (int64_t)given_n(k); at++)
                g.of[k][at] = low_rank_number(r, cairn_env_rank(env), step, k, at / given_shapes[k].cols,
                                              at % given_shapes[k].cols);
        }
        EXPECT_OK(run_backward(&t, &g));
        for (int k = 0; k < GIVEN; k++) {
            PASS(read_given(env, t.model, k, got));
            for (int64_t at = 0; at < (int64_t)given_n(k); at++) {
                double want = 0;
                for (int rank = 0; rank < p; rank++)
                    want += low_rank_number(r, rank, step, k, at / given_shapes[k].cols, at % given_shapes[k].cols);
                EXPECT(fabs(got[at] - want / p) <= 12 * r * 1e-5);
            }
        }
    }
    end_training(&t);
    return NULL;
}

static char *send_all_low_ranks(cairn_env *env, void *ctx) {
    (void)ctx;
    for (int r = 1; r <= MOST_RANK; r += is_on_gpu() ? 2 : 1) {
        struct ddp_powersgd_options options =
            POWERSGD(.matrix_approximation_rank = r, .min_compression_rate = 0.5, .use_error_feedback = CAIRN_OFF);
        PASS(send_low_rank(env, &options));
        options.warm_start = CAIRN_OFF;
        PASS(send_low_rank(env, &options));
    }
    return NULL;
}

static void gradients_of_low_rank_travel_exactly(void **state) {
    (void)state;
    run_ranks(1, send_all_low_ranks, NULL);
    run_ranks(3, send_all_low_ranks, NULL);
}

/* What went in is what came out and what is kept. */
static char *add_up(cairn_env *env, void *ctx) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 1);
    const int p = cairn_env_size(env);
    struct training t;
    struct given_values g;
    float got[GIVEN_MOST];
    double *sums = calloc(3 * GIVEN_MOST, sizeof(sums[0])), *in = sums, *out = in + GIVEN_MOST,
           *kept = out + GIVEN_MOST;
    (void)ctx;
    PASS(begin_training(env, NULL, NULL, &options, &t));
    for (int step = 0; step < 30; step++) {
        given_gradients(4, cairn_env_rank(env), step, &g);
        EXPECT_OK(run_backward(&t, &g));
        PASS(read_given(env, t.model, 1, got));
        for (size_t i = 0; i < given_n(1); i++) {
            in[i] += g.of[1][i];
            out[i] += (double)got[i] / p; /* of every rank's sum */
        }
    }
    PASS(peek(env, t.net, "powersgd.error.tall", got));
    for (size_t i = 0; i < given_n(1); i++) kept[i] = got[i];
    EXPECT_OK(env->sum(env, sums, 3 * GIVEN_MOST));
    for (size_t i = 0; i < given_n(1); i++) EXPECT(fabs(in[i] - p * out[i] - kept[i]) < 30 * 30 * p * 2e-7);
    free(sums);
    end_training(&t);
    return NULL;
}

static void what_is_lost_is_kept_as_error(void **state) {
    (void)state;
    run_ranks(3, add_up, NULL);
}

/* ---- what is not compressed ---- */

static char *begin_plain(cairn_env *env, void *ctx) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 1);
    struct training t, plain;
    struct given_values g;
    float got[GIVEN_MOST], want[GIVEN_MOST];
    (void)ctx;
    PASS(begin_training(env, NULL, NULL, &options, &t));
    PASS(begin_training(env, NULL, NULL, NULL, &plain));
    for (int step = 0; step < 5; step++) {
        given_gradients(3, cairn_env_rank(env), step, &g);
        EXPECT_OK(run_backward(&t, &g));
        EXPECT_OK(run_backward(&plain, &g));
        for (int k = 0; k < GIVEN; k++) {
            PASS(read_given(env, t.model, k, got));
            PASS(read_given(env, plain.model, k, want));
            EXPECT((memcmp(got, want, given_n(k) * sizeof(float)) == 0) == (step < 2 || k >= 3));
        }
    }
    end_training(&t);
    end_training(&plain);
    return NULL;
}

static void vectors_small_matrices_and_the_first_backwards_are_those_of_the_plain_all_reduce(void **state) {
    (void)state;
    run_ranks(3, begin_plain, NULL);
}

/* A parameter larger than a bucket. */
static char *keep_whole(cairn_env *env, void *ctx) {
    struct ddp_bucket bucket = DDP_BUCKET_INIT;
    ddp_context *net = NULL;
    cairn_module *model = cairn_linear(env, 400, 300);
    (void)ctx;
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.bucket_nbytes = 1 << 16), &net));
    EXPECT(ddp_bucket_count(net) > 2);
    EXPECT_OK(ddp_powersgd_register(net, NULL));
    EXPECT(ddp_bucket_count(net) == 1);
    EXPECT_OK(ddp_bucket_get(net, 0, &bucket));
    EXPECT(bucket.num_params == 2 && bucket.n >= 400 * 300 + 300);
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static void buckets_hold_whole_parameters(void **state) {
    (void)state;
    run_ranks(2, keep_whole, NULL);
}

static char *send_zeros(cairn_env *env, void *ctx) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 2);
    struct training t;
    struct given_values zeros, g;
    float before[60], q[60], got[GIVEN_MOST];
    (void)ctx;
    memset(&zeros, 0, sizeof(zeros));
    PASS(begin_training(env, NULL, NULL, &options, &t));
    PASS(peek(env, t.net, "powersgd.q.wide", before));
    for (int step = 0; step < 4; step++) {
        EXPECT_OK(run_backward(&t, &zeros));
        PASS(read_given(env, t.model, 0, got));
        for (size_t i = 0; i < given_n(0); i++) EXPECT(got[i] == 0);
    }
    PASS(peek(env, t.net, "powersgd.q.wide", q));
    EXPECT(memcmp(q, before, sizeof(q)) == 0);
    given_gradients(2, 0, 0, &g);
    EXPECT_OK(run_backward(&t, &g));
    PASS(read_given(env, t.model, 0, got));
    double off = 0, all = 0;
    for (size_t i = 0; i < given_n(0); i++) {
        off += pow(got[i] - g.of[0][i], 2);
        all += pow(g.of[0][i], 2);
    }
    EXPECT(off < 0.01 * all);
    end_training(&t);
    return NULL;
}

static void gradients_of_zero_stay_zero_and_leave_q_as_it_is(void **state) {
    (void)state;
    run_ranks(2, send_zeros, NULL);
}

/* ---- halves and overflow ---- */

static const struct amp_scaler_options scaler = {.struct_size = sizeof(struct amp_scaler_options),
                                                 .init_scale = 64,
                                                 .min_scale = 1,
                                                 .growth_interval = 1000};

/* The same gradients at any loss scale: errors are unscaled. In halves what is applied is rounded, and the rounding is
 * an error like any other. */
static char *change_scales(cairn_env *env, void *ctx) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 2);
    const cairn_dtype half = *(const cairn_dtype *)ctx;
    const int p = cairn_env_size(env);
    struct amp_options amp = AMP(.opt_level = AMP_O2, .half_type = half, .loss_scale = AMP_DYNAMIC, .scaler = &scaler);
    struct training t;
    struct given_values *inputs = calloc(MAX_RANKS, sizeof(inputs[0]));
    struct model *m = calloc(1, sizeof(*m));
    *m = (struct model){.p = p, .divisor = p, .options = options};
    m->options.min_compression_rate = 2;
    PASS(begin_training(env, &amp, NULL, &options, &t));
    PASS(give_first_q(env, t.net, m));
    for (int step = 0; step < 20; step++) {
        for (int r = 0; r < p; r++) {
            given_gradients(2, r, step, &inputs[r]);
            for (int k = 0; k < GIVEN; k++) {
                for (size_t i = 0; i < given_n(k); i++) {
                    char narrow[4];
                    cairn__dtype(half)->from_f32(narrow, inputs[r].of[k][i]);
                    inputs[r].of[k][i] = cairn__dtype(half)->to_f32(narrow);
                }
            }
        }
        const double scale = step % 3 == 0 ? 64 : 256;
        EXPECT_OK(amp_scaler_set_scale(amp_scaler_of(t.amp, 0), scale));
        EXPECT_OK(run_backward(&t, &inputs[cairn_env_rank(env)]));
        model_step(m, step, inputs);
        PASS(compare(env, &t, m, scale, half == CAIRN_F16 ? 3e-3 : 2e-2, step));
        EXPECT_OK(cairn_step(t.sgd));
        for (int k = 0; k < GIVEN; k++) { /* losses stay 0 */
            const struct cairn__param *param = t.set->params[k];
            env->device->passes->fill(env->device, param->dtype, param->data, param->n, 0.0f);
        }
    }
    free(inputs);
    free(m);
    end_training(&t);
    return NULL;
}

static void errors_do_not_depend_on_the_loss_scale(void **state) {
    (void)state;
    cairn_dtype halves[] = {CAIRN_F16, CAIRN_BF16};
    for (int i = 0; i < 2; i++) run_ranks(2, change_scales, &halves[i]);
}

enum poison { POISON_MATRIX, POISON_VECTOR, POISON_LOSS };

static char *overflow(cairn_env *env, enum poison poison) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 2);
    struct amp_options amp = AMP(.opt_level = AMP_O2, .loss_scale = AMP_DYNAMIC, .scaler = &scaler);
    struct training t;
    struct given_values g;
    struct kept_state before = {.count = 0}, after = {.count = 0};
    PASS(begin_training(env, &amp, NULL, &options, &t));
    const cairn_stateful state = ddp_stateful(t.net);
    for (int step = 0; step < 6; step++) {
        const bool bad = step == 4;
        given_gradients(2, cairn_env_rank(env), step, &g);
        const bool mine = bad && cairn_env_rank(env) == 1;
        if (mine && poison == POISON_MATRIX) g.of[0][17] = 1100; /* times 64 is infinite in f16 */
        if (mine && poison == POISON_VECTOR) g.of[3][3] = 1100;
        if (mine && poison == POISON_LOSS) g.of[0][17] = NAN;
        if (bad) PASS(keep_state(&before, &state, 1));
        EXPECT_OK(run_backward(&t, &g));
        EXPECT_OK(cairn_step(t.sgd));
        EXPECT(cairn_optimizer_skipped(t.sgd) == (step >= 4));
        if (bad) {
            PASS(keep_state(&after, &state, 1));
            for (size_t i = 0; i < before.objects[0].entries.count; i++) {
                const struct cairn__entry *e = &before.objects[0].entries.at[i];
                if (e->memory) EXPECT(same_entry(&before.objects[0], &after.objects[0], i));
            }
        }
        for (int k = 0; k < GIVEN; k++) {
            const struct cairn__param *param = t.set->params[k];
            env->device->passes->fill(env->device, param->dtype, param->data, param->n, 0.0f);
        }
    }
    drop_state(&before);
    drop_state(&after);
    end_training(&t);
    return NULL;
}

static char *overflow_in_all_ways(cairn_env *env, void *ctx) {
    (void)ctx;
    PASS(overflow(env, POISON_MATRIX));
    PASS(overflow(env, POISON_VECTOR));
    PASS(overflow(env, POISON_LOSS));
    return NULL;
}

static void a_skipped_step_leaves_errors_and_q_as_they_were(void **state) {
    (void)state;
    run_ranks(2, overflow_in_all_ways, NULL);
}

/* ---- state ---- */

static char *go_on(cairn_env *env, void *ctx) {
    const struct ddp_powersgd_options *options = ctx;
    struct training t, u;
    struct given_values g;
    struct kept_state kept = {.count = 0};
    float got[GIVEN_MOST], want[GIVEN_MOST];
    PASS(begin_training(env, NULL, NULL, options, &t));
    for (int step = 0; step < 6; step++) {
        given_gradients(3, cairn_env_rank(env), step, &g);
        EXPECT_OK(run_backward(&t, &g));
    }
    cairn_stateful state = ddp_stateful(t.net);
    cairn_zero_grad(t.sgd);
    PASS(keep_state(&kept, &state, 1));
    PASS(begin_training(env, NULL, NULL, options, &u));
    state = ddp_stateful(u.net);
    PASS(bring_back(&kept, &state, 1));
    for (int step = 6; step < 10; step++) {
        given_gradients(3, cairn_env_rank(env), step, &g);
        EXPECT_OK(run_backward(&t, &g));
        EXPECT_OK(run_backward(&u, &g));
        for (int k = 0; k < GIVEN; k++) {
            PASS(read_given(env, t.model, k, want));
            PASS(read_given(env, u.model, k, got));
            EXPECT(memcmp(got, want, given_n(k) * sizeof(float)) == 0);
        }
    }
    drop_state(&kept);
    end_training(&t);
    end_training(&u);
    return NULL;
}

static void a_loaded_training_goes_on_with_the_same_bits(void **state) {
    (void)state;
    struct ddp_powersgd_options options[] = {POWERSGD(.matrix_approximation_rank = 2),
                                             POWERSGD(.warm_start = CAIRN_OFF, .random_seed = 3),
                                             POWERSGD(.use_error_feedback = CAIRN_OFF)};
    for (int i = 0; i < 3; i++) run_ranks(2, go_on, &options[i]);
}

/* Of a training without PowerSGD. */
static char *load_into(cairn_env *env, void *ctx) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 1);
    struct training t, plain;
    struct kept_state kept = {.count = 0}, begun = {.count = 0}, now = {.count = 0};
    struct given_values g;
    (void)ctx;
    PASS(begin_training(env, NULL, NULL, NULL, &plain));
    PASS(begin_training(env, NULL, NULL, &options, &t));
    cairn_stateful state = ddp_stateful(plain.net);
    PASS(keep_state(&kept, &state, 1));
    state = ddp_stateful(t.net);
    PASS(keep_state(&begun, &state, 1));
    for (int step = 0; step < 4; step++) {
        given_gradients(3, cairn_env_rank(env), step, &g);
        EXPECT_OK(run_backward(&t, &g));
    }
    cairn_zero_grad(t.sgd);
    PASS(bring_back(&kept, &state, 1));
    PASS(keep_state(&now, &state, 1));
    for (size_t i = 0; i < now.objects[0].entries.count; i++) {
        const bool is_its = strncmp(now.objects[0].entries.at[i].name, "powersgd", 8) == 0;
        EXPECT(!is_its || same_entry(&begun.objects[0], &now.objects[0], i));
    }
    drop_state(&kept);
    drop_state(&begun);
    drop_state(&now);
    end_training(&t);
    end_training(&plain);
    return NULL;
}

static void a_state_without_powersgd_resets_it(void **state) {
    (void)state;
    run_ranks(2, load_into, NULL);
}

/* ---- ranks without a gradient ---- */

/* Parameter 0 is used by no rank in step 3, parameter 1 by rank 0 alone. */
static char *use_some(cairn_env *env, void *ctx) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 2);
    const struct ddp_options *ddp = ctx;
    struct training t;
    struct given_values g;
    float before[GIVEN_MOST], after[GIVEN_MOST], q[60];
    PASS(begin_training(env, NULL, ddp, &options, &t));
    struct given *given = cairn__module_context(t.model);
    for (int step = 0; step < 6; step++) {
        given_gradients(3, cairn_env_rank(env), step, &g);
        given->used = step == 3 ? cairn_env_rank(env) == 0 ? 0x1e : 0x1c : 0x1f;
        if (step == 3) PASS(peek(env, t.net, "powersgd.error.wide", before));
        EXPECT_OK(run_backward(&t, &g));
        if (step != 3) continue;
        PASS(peek(env, t.net, "powersgd.error.wide", after));
        EXPECT(memcmp(before, after, given_n(0) * sizeof(float)) == 0);
        EXPECT(!cairn__grad_exists(t.set->params[0]->gradient) && cairn__grad_exists(t.set->params[1]->gradient));
        PASS(peek(env, t.net, "powersgd.q.tall", q));
        for (int i = 0; i < 40; i++) EXPECT(isfinite(q[i]));
    }
    end_training(&t);
    return NULL;
}

static void parameters_that_no_rank_uses_keep_their_errors(void **state) {
    (void)state;
    struct ddp_options options[] = {DDP(.find_unused_parameters = CAIRN_ON),
                                    DDP(.find_unused_parameters = CAIRN_ON, .skip_all_reduce_unused_params = CAIRN_ON,
                                        .bucket_nbytes = 1)};
    for (int i = 0; i < 2; i++) run_ranks(2, use_some, &options[i]);
}

/* Rank 1 has no input in odd steps: averages are over the others, and all that was put in comes out. */
static char *run_out(cairn_env *env, void *ctx) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 2);
    struct training t;
    struct given_values *inputs = calloc(MAX_RANKS, sizeof(inputs[0]));
    struct model *m = calloc(1, sizeof(*m));
    const int rank = cairn_env_rank(env);
    (void)ctx;
    *m = (struct model){.p = cairn_env_size(env), .options = options};
    m->options.min_compression_rate = 2;
    PASS(begin_training(env, NULL, ddp_options(.join_divide_by_initial_world_size = CAIRN_OFF), &options, &t));
    PASS(give_first_q(env, t.net, m));
    for (int step = 0; step < 10; step++) {
        int active = 0;
        for (int r = 0; r < m->p; r++) {
            given_gradients(2, r, step, &inputs[r]);
            if (r == 1 && step % 2 == 1) memset(&inputs[r], 0, sizeof(inputs[r]));
        }
        EXPECT_OK(ddp_join(t.net, rank != 1 || step % 2 == 0, &active));
        m->divisor = active;
        EXPECT(active == m->p - step % 2);
        EXPECT_OK(run_backward(&t, &inputs[rank]));
        model_step(m, step, inputs);
        PASS(compare(env, &t, m, 1, 1e-5, step));
    }
    free(inputs);
    free(m);
    end_training(&t);
    return NULL;
}

static void averages_over_the_ranks_with_input_lose_nothing(void **state) {
    (void)state;
    run_ranks(3, run_out, NULL);
}

/* ---- memory of the user's ---- */

/* Gradients are copied into buckets and back; their averages are a module's. */
static char *train_arrays(cairn_env *env, void *ctx) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 2);
    static _Thread_local float weights[GIVEN][GIVEN_MOST];
    struct training t;
    struct given_values g, mine;
    float want[GIVEN_MOST];
    cairn_param params[GIVEN];
    cairn_param_set *set = NULL;
    ddp_context *net = NULL;
    (void)ctx;
    memset(params, 0, sizeof(params));
    for (int k = 0; k < GIVEN; k++) {
        const struct given_shape *s = &given_shapes[k];
        params[k] = (cairn_param){.name = s->name, .data = weights[k], .grad = mine.of[k], .dtype = CAIRN_F32};
        params[k].ndim = s->ndim;
        memcpy(params[k].shape, s->shape, (size_t)s->ndim * sizeof(s->shape[0]));
    }
    EXPECT_OK(cairn_param_set_create(env, params, GIVEN, &set));
    EXPECT_OK(ddp_create_params(set, cairn_env_group(env), NULL, &net));
    EXPECT_OK(ddp_powersgd_register(net, &options));
    PASS(begin_training(env, NULL, NULL, &options, &t));
    for (int step = 0; step < 6; step++) {
        given_gradients(3, cairn_env_rank(env), step, &g);
        mine = g;
        EXPECT_OK(ddp_grads_ready(net, 0, GIVEN));
        EXPECT_OK(ddp_wait(net));
        EXPECT_OK(run_backward(&t, &g));
        for (int k = 0; k < GIVEN; k++) {
            PASS(read_given(env, t.model, k, want));
            EXPECT(memcmp(mine.of[k], want, given_n(k) * sizeof(float)) == 0);
        }
    }
    end_training(&t);
    ddp_destroy(&net);
    cairn_param_set_destroy(&set);
    return NULL;
}

static void gradients_in_the_users_memory_become_those_of_a_module(void **state) {
    (void)state;
    NOT_ON_A_GPU("the arrays are the host's");
    run_ranks(2, train_arrays, NULL);
}

/* ---- getting it wrong ---- */

static char *register_wrongly(cairn_env *env, void *ctx) {
    static const struct {
        struct ddp_powersgd_options options;
        const char *sentence;
    } wrong[] = {
        {POWERSGD(.matrix_approximation_rank = -1), "matrix_approximation_rank is -1; it must be positive, or 0 for 1"},
        {POWERSGD(.min_compression_rate = -1), "min_compression_rate is -1; it must be positive, or 0 for 2"},
        {POWERSGD(.orthogonalization_epsilon = -0.5), "orthogonalization_epsilon is -0.5; it must be 0 or more"},
        {POWERSGD(.warm_start = 7), "warm_start is 7; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF"},
    };
    struct ddp_powersgd_options options = POWERSGD(.random_seed = 5);
    struct training t;
    struct given_values g;
    (void)ctx;
    PASS(begin_training(env, NULL, NULL, NULL, &t));
    EXPECT(ddp_powersgd_register(NULL, NULL) == CAIRN_EINVAL);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        EXPECT(ddp_powersgd_register(t.net, &wrong[i].options) == CAIRN_EINVAL);
        EXPECT(strstr(cairn_last_error(), wrong[i].sentence));
    }
    options.matrix_approximation_rank = cairn_env_rank(env) == 1 ? 3 : 2;
    EXPECT(ddp_powersgd_register(t.net, &options) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "matrix_approximation_rank is 2 on rank 0 but 3 on rank 1"));
    options.matrix_approximation_rank = 2;
    options.random_seed = (uint64_t)cairn_env_rank(env);
    EXPECT(ddp_powersgd_register(t.net, &options) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "random_seed is 0 on rank 0 but 1 on rank 1"));
    EXPECT_OK(ddp_powersgd_register(t.net, NULL));
    EXPECT(ddp_powersgd_register(t.net, NULL) == CAIRN_ESTATE);
    EXPECT(strstr(cairn_last_error(), "has a hook already ('powersgd')"));
    EXPECT(ddp_register_comm_hook(t.net, ddp_allreduce_hook()) == CAIRN_ESTATE);
    given_gradients(2, 0, 0, &g);
    EXPECT_OK(run_backward(&t, &g));
    end_training(&t);
    PASS(begin_training(env, NULL, NULL, NULL, &t));
    EXPECT_OK(run_backward(&t, &g));
    EXPECT(ddp_powersgd_register(t.net, NULL) == CAIRN_ESTATE);
    EXPECT(strstr(cairn_last_error(), "a backward has run already"));
    EXPECT_OK(run_backward(&t, &g));
    end_training(&t);
    return NULL;
}

static void wrong_options_fail_with_a_message_on_every_rank(void **state) {
    (void)state;
    run_ranks(2, register_wrongly, NULL);
}

static const char *describe_as_older(const struct cairn_device *d) {
    (void)d;
    return "ref, products 1.0, 2 threads";
}

static const char *describe_as_wider(const struct cairn_device *d) {
    (void)d;
    return "ref, products 1.0, 8 threads";
}

static const char *describe_as_newer(const struct cairn_device *d) {
    (void)d;
    return "ref, products 2.0, 2 threads";
}

/* Rank 1's device says something else of itself. */
static char *differ_in_kernels(cairn_env *env, void *ctx) {
    const bool is_it = cairn_env_rank(env) == 1;
    const struct cairn__device_ops *const ops = env->device->ops;
    struct cairn__device_ops said = *ops;
    struct training t;
    (void)ctx;
    PASS(begin_training(env, NULL, NULL, NULL, &t));
    env->device->ops = &said;
    said.describe = is_it ? describe_as_newer : describe_as_older;
    EXPECT(ddp_powersgd_register(t.net, NULL) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "ref, products 1.0' but rank 1 by '"));
    EXPECT(strstr(cairn_last_error(), "ref, products 2.0', which round otherwise"));
    said.describe = is_it ? describe_as_wider : describe_as_older;
    EXPECT_OK(ddp_powersgd_register(t.net, NULL));
    env->device->ops = ops;
    end_training(&t);
    return NULL;
}

static void a_rank_with_other_kernels_fails_on_all_and_one_with_more_threads_does_not(void **state) {
    (void)state;
    run_ranks(3, differ_in_kernels, NULL);
}

/* What this rank's thread allocates. */
static char *register_with_a_rank(cairn_env *env, void *ctx) {
    const int *ranks = ctx;
    size_t nbytes[2];
    for (int i = 0; i < 2; i++) {
        struct training t;
        PASS(begin_training(env, NULL, NULL, NULL, &t));
        const size_t before = allocated;
        EXPECT_OK(ddp_powersgd_register(t.net, ddp_powersgd_options(.matrix_approximation_rank = ranks[i],
                                                                    .min_compression_rate = 0.1)));
        nbytes[i] = allocated - before;
        end_training(&t);
    }
    EXPECT(nbytes[0] == nbytes[1]);
    return NULL;
}

static void a_rank_above_all_matrices_takes_no_more_memory_than_theirs(void **state) {
    int ranks[2] = {24, INT_MAX};
    (void)state;
    NOT_ON_A_GPU("what is counted is the host's");
    run_ranks(1, register_with_a_rank, ranks);
}

static char *differ_in_hooks(cairn_env *env, void *ctx) {
    struct training t;
    (void)ctx;
    PASS(begin_training(env, NULL, NULL, NULL, &t));
    const cairn_status st =
        cairn_env_rank(env) == 1 ? ddp_register_comm_hook(t.net, ddp_noop_hook()) : ddp_powersgd_register(t.net, NULL);
    EXPECT(st == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "rank 0 registers the hook 'powersgd' but rank 1 'noop'"));
    end_training(&t);
    return NULL;
}

static void a_rank_with_another_hook_fails_on_all(void **state) {
    (void)state;
    run_ranks(2, differ_in_hooks, NULL);
}

/* Rank 1 leaves between two backwards. */
static char *leave_early(cairn_env *env, void *ctx) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 2);
    struct training t;
    struct given_values g;
    (void)ctx;
    PASS(begin_training(env, NULL, NULL, &options, &t));
    given_gradients(2, cairn_env_rank(env), 0, &g);
    for (int step = 0; step < 4; step++) EXPECT_OK(run_backward(&t, &g));
    if (cairn_env_rank(env) != 1) {
        EXPECT(run_backward(&t, &g) == CAIRN_EPEER);
        EXPECT(strstr(cairn_last_error(), "ddp: bucket 0 (") && strstr(cairn_last_error(), "rank 1"));
    }
    end_training(&t);
    return NULL;
}

static void a_rank_that_leaves_is_named_with_the_bucket(void **state) {
    (void)state;
    NOT_ON_A_GPU("there ranks notice by the timeout");
    run_ranks(3, leave_early, NULL);
}

/* Rank 1 gives up at some moment of its own. */
static void *abort_soon(void *ctx) {
    ddp_context *net = ctx;
    usleep((useconds_t)(cairn__philox(9, (uint64_t)(uintptr_t)net, 0).word[0] % 3000));
    cairn_group_abort(ddp_group(net));
    return NULL;
}

static char *give_up(cairn_env *env, void *ctx) {
    static const struct ddp_powersgd_options options = POWERSGD(.matrix_approximation_rank = 2);
    const bool is_it = cairn_env_rank(env) == 1;
    struct training t;
    struct given_values g;
    pthread_t thread;
    cairn_status st = CAIRN_OK;
    (void)ctx;
    PASS(begin_training(env, NULL, ddp_options(.bucket_nbytes = 1), &options, &t));
    given_gradients(2, cairn_env_rank(env), 0, &g);
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    if (is_it) EXPECT(pthread_create(&thread, NULL, abort_soon, t.net) == 0);
    while (st == CAIRN_OK) st = run_backward(&t, &g);
    if (is_it) pthread_join(thread, NULL);
    EXPECT(st == CAIRN_EPEER || (is_it && st == CAIRN_ESTATE));
    EXPECT(strstr(cairn_last_error(), is_it ? "abort" : "rank 1"));
    end_training(&t);
    return NULL;
}

static void a_rank_that_aborts_at_any_moment_fails_all_with_a_message(void **state) {
    (void)state;
    NOT_ON_A_GPU("there ranks notice by the timeout");
    for (int i = 0; i < (check_is_short() ? 8 : 20); i++) run_ranks(3, give_up, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_a_model_in_double),
        cmocka_unit_test(gradients_of_low_rank_travel_exactly),
        cmocka_unit_test(what_is_lost_is_kept_as_error),
        cmocka_unit_test(vectors_small_matrices_and_the_first_backwards_are_those_of_the_plain_all_reduce),
        cmocka_unit_test(buckets_hold_whole_parameters),
        cmocka_unit_test(gradients_of_zero_stay_zero_and_leave_q_as_it_is),
        cmocka_unit_test(errors_do_not_depend_on_the_loss_scale),
        cmocka_unit_test(a_skipped_step_leaves_errors_and_q_as_they_were),
        cmocka_unit_test(a_loaded_training_goes_on_with_the_same_bits),
        cmocka_unit_test(a_state_without_powersgd_resets_it),
        cmocka_unit_test(parameters_that_no_rank_uses_keep_their_errors),
        cmocka_unit_test(averages_over_the_ranks_with_input_lose_nothing),
        cmocka_unit_test(gradients_in_the_users_memory_become_those_of_a_module),
        cmocka_unit_test(wrong_options_fail_with_a_message_on_every_rank),
        cmocka_unit_test(a_rank_with_other_kernels_fails_on_all_and_one_with_more_threads_does_not),
        cmocka_unit_test(a_rank_above_all_matrices_takes_no_more_memory_than_theirs),
        cmocka_unit_test(a_rank_with_another_hook_fails_on_all),
        cmocka_unit_test(a_rank_that_leaves_is_named_with_the_bucket),
        cmocka_unit_test(a_rank_that_aborts_at_any_moment_fails_all_with_a_message),
    };
    cairn_set_log(log_nothing, NULL); /* of steps that are skipped */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
