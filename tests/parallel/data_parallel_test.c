/* Replicas of a model in threads give the bits of one rank on the whole batch; the data is exact on the CPU. Runs on
 * the device of CAIRN_DEVICE, with several replicas per GPU if there are too few GPUs, and accesses GPU memory only
 * through Cairn.
 *
 * usage: data_parallel_test [cuda | few]    (cuda: exits with 77 if there is no GPU; few: fewer cases, for stand-ins
 *                                           that guard their memory, which is slow) */
#include "chain.h"

#include <malloc.h>
#include <pthread.h>

#include "cairn/interop_cuda.h"
#include "parallel/data_parallel.h"

#include "../on_gpu.h"
#include "../one_env.h"
#include "../waits.h"

static struct outcome whole, out;

static bool few;

static void equals_the_whole_batch(struct chain c) {
    struct chain alone = c;
    alone.dp = 0;
    alone.loss_inside = false;
    const bool on_gpu = is_on_gpu();
    setenv("CAIRN_DEVICE", "cpu", 1);
    chain_run(&alone, &whole);
    if (on_gpu) setenv("CAIRN_DEVICE", "cuda", 1);
    chain_run(&c, &out);
    chain_same(c.name, &out, &whole);
}

static const struct chain levels[] = {
    {"f32", .level = 0},
    {"O0", .level = AMP_O0},
    {"O1 f16", .level = AMP_O1, .half = CAIRN_F16},
    {"O1 bf16", .level = AMP_O1, .half = CAIRN_BF16},
    {"O2 f16", .level = AMP_O2, .half = CAIRN_F16},
    {"O2 bf16", .level = AMP_O2, .half = CAIRN_BF16},
    {"O3 f16", .level = AMP_O3, .half = CAIRN_F16},
    {"O3 bf16", .level = AMP_O3, .half = CAIRN_BF16},
};
enum { LEVELS = sizeof(levels) / sizeof(levels[0]) };

static void every_number_of_replicas_gives_the_bits_of_the_whole_batch(void **state) {
    (void)state;
    for (int i = 0; i < LEVELS; i += few ? 4 : 1) {
        for (int n = few ? 2 : 1; n <= (few ? 3 : 4); n++) {
            struct chain c = levels[i];
            c.exact = true;
            c.loss_scale = c.level ? 8 : 0;
            c.rows = 16;
            c.n_microbatches = 1;
            c.steps = 1;
            c.dp = n;
            equals_the_whole_batch(c);
            c.loss_inside = n != 3; /* thirds of a mean are rounded */
            if (c.loss_inside) equals_the_whole_batch(c);
        }
    }
}

static void rows_that_do_not_come_out_even_give_the_same_bits(void **state) {
    static const int cases[][2] = {{8, 3}, {8, 5}, {4, 8}, {2, 3}, {1, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        equals_the_whole_batch((struct chain){"uneven", .exact = true, .rows = cases[i][0], .n_microbatches = 1,
                                              .steps = 1, .dp = cases[i][1]});
    }
}

static float most_different(const struct outcome *a, const struct outcome *b) {
    float most = 0;
    for (int i = 0; i < LAYERS * WIDTH * WIDTH; i++) {
        const float x = a->weights[i / (WIDTH * WIDTH)][i % (WIDTH * WIDTH)];
        const float y = b->weights[i / (WIDTH * WIDTH)][i % (WIDTH * WIDTH)];
        most = fabsf(x - y) > most ? fabsf(x - y) : most;
    }
    return most;
}

static void other_numbers_give_the_same_but_for_rounding(void **state) {
    static const struct chain cases[] = {
        {"sgd", .rows = 16},
        {"adam", .rows = 16, .kind = CHAIN_ADAM},
        {"uneven", .rows = 13},
        {"loss inside", .rows = 13, .loss_inside = true},
        {"clipped", .rows = 16, .max_norm = 0.05},
        {"two batches a step", .rows = 16, .accumulates = true},
        {"frozen", .rows = 16, .frozen = 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct chain c = cases[i], alone = c;
        c.n_microbatches = alone.n_microbatches = 1;
        c.steps = alone.steps = 4;
        c.dp = 3;
        alone.loss_inside = false;
        chain_run(&alone, &whole);
        chain_run(&c, &out);
        if (!(most_different(&out, &whole) < 1e-6f * (c.kind == CHAIN_ADAM ? 50 : 1)))
            fail_msg("%s: a weight differs by %g", c.name, (double)most_different(&out, &whole));
        for (int s = 0; s < c.steps; s++) {
            if (!(fabs(out.losses[s] - whole.losses[s]) < 1e-6))
                fail_msg("%s: the loss of step %d is %.9g, not %.9g", c.name, s, out.losses[s], whole.losses[s]);
        }
    }
}

static void threads_of_a_replica_change_no_bit(void **state) {
    (void)state;
    for (int i = 0; i < LEVELS; i += few ? 4 : 1) {
        struct chain c = levels[i];
        c.rows = 16;
        c.n_microbatches = 1;
        c.steps = 3;
        c.dp = 2;
        c.threads = 1;
        chain_run(&c, &whole);
        c.threads = 3;
        chain_run(&c, &out);
        chain_same(c.name, &out, &whole);
    }
}

/* ---- a model of one layer ---- */

enum { ROWS = 12, IN = 4, OUT = 2 };

struct maker {
    bool has_norm, has_spare; /* a batch_norm; a layer that forward leaves out */
    double dropout;
    int layers;   /* 0 = 1 */
    int fails_in; /* the replica whose make, or forward, does: from 1 */
    enum { NEVER, IN_MAKE, IN_FORWARD, BY_EXIT } fails;
    bool once;
};

static size_t numel_of(const cairn_param *p) {
    size_t n = 1;
    for (int d = 0; d < p->ndim; d++) n *= (size_t)p->shape[d];
    return n;
}

static void get(cairn_env *env, void *to, const void *from, size_t nbytes) {
    MUST_OK(cairn__device_download(env->device, to, from, nbytes));
}

static void put(cairn_env *env, void *to, const void *from, size_t nbytes) {
    MUST_OK(cairn__device_upload(env->device, to, from, nbytes));
}

/* Quarters, of which nothing has to be rounded: products of other numbers of rows may add in another order. */
static cairn_module *with_exact_weights(cairn_module *model) {
    cairn_param_set *set = cairn_module_params(model);
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        MUST(cairn_param_set_get(set, i, &p) == CAIRN_OK);
        float values[64];
        MUST(numel_of(&p) <= 64);
        for (size_t k = 0; k < numel_of(&p); k++) values[k] = (float)((int)(3 * i + 5 * k) % 7 - 3) / 4;
        put(set->env, p.data, values, numel_of(&p) * sizeof(float));
        MUST(cairn_param_changed(set, i, 0) == CAIRN_OK);
    }
    return model;
}

static cairn_module *make_model(cairn_env *env, const struct maker *m) {
    cairn_module *parts[6];
    int count = 0;
    parts[count++] = cairn_linear(env, IN, OUT);
    for (int i = 1; i < m->layers; i++) parts[count++] = cairn_linear(env, OUT, OUT);
    if (m->has_norm) parts[count++] = cairn_batch_norm(env, OUT, 1e-5, 0.1);
    if (m->dropout > 0) parts[count++] = cairn_dropout(env, m->dropout);
    if (m->has_spare) parts[count++] = cairn_linear(env, OUT, 1);
    return with_exact_weights(cairn_sequential(env, count, parts));
}

static cairn_module *make_replica(void *ctx, cairn_env *env, int replica) {
    const struct maker *m = ctx;
    if (m->fails == IN_MAKE && m->fails_in == replica + 1) return NULL;
    return make_model(env, m);
}

static cairn_tensor *forward_replica(void *ctx, cairn_module *module, cairn_tensor *const *inputs, int count,
                                     int replica) {
    struct maker *m = ctx;
    const bool fails = m->fails_in == replica + 1;
    (void)count;
    if (fails && m->fails == IN_FORWARD) {
        if (m->once) m->fails = NEVER;
        return cairn_reshape(inputs[0], CAIRN_SHAPE(1, 1, 1));
    }
    if (fails && m->fails == BY_EXIT) pthread_exit(NULL);
    return cairn_linear_forward(inputs[0], cairn_module_get(module, "0.weight"), cairn_module_get(module, "0.bias"));
}

static const int *ids_of(const cairn_module *model, int n) {
    return chain_device_ids(cairn__module_env(model), n);
}

static cairn_data_parallel *replicate(cairn_module *model, struct maker *m, int n) {
    cairn_data_parallel *dp = NULL;
    OK(cairn_data_parallel_create(model,
                                  cairn_data_parallel_options(.num_replicas = n, .num_threads = 1, .make = make_replica,
                                                              .ctx = m, .device_ids = ids_of(model, n)),
                                  &dp));
    return dp;
}

static cairn_tensor *numbers(cairn_env *env, int rows, int columns) {
    float x[64];
    for (int i = 0; i < rows * columns; i++) x[i] = (float)(i * 7 % 11 - 5) / 4;
    return cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, columns), x);
}

static void read_rows(cairn_tensor *y, int first, int rows, float *to) {
    OK(cairn_tensor_read(cairn_slice(y, 0, first, first + rows, 1), to, (size_t)(rows * OUT)));
}

static void gradients_come_to_inputs_too(void **state) {
    struct maker m = {.layers = 2};
    float dx[2][ROWS * IN];
    cairn_module *model = make_model(*state, &m);
    cairn_data_parallel *dp = replicate(model, &m, 3);
    cairn_tensor *x = numbers(*state, ROWS, IN);
    OK(cairn_tensor_require_grad(x));
    for (int i = 0; i < 2; i++) {
        cairn_tensor *doubled = cairn_mul_scalar(x, 2);
        OK(cairn_backward(
            cairn_sum(i ? cairn_data_parallel_forward(dp, doubled) : cairn_module_forward(model, doubled))));
        get(*state, dx[i], cairn_tensor_grad(x), sizeof(dx[i]));
        cairn_tensor_clear_grad(x);
        OK(cairn_release_results(*state));
    }
    assert_memory_equal(dx[0], dx[1], sizeof(dx[0]));
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
}

/* The first replica's rows alone, as in torch. */
static void running_statistics_are_the_first_replicas(void **state) {
    struct maker m = {.has_norm = true};
    float mean[2][OUT], y[2][ROWS * OUT];
    cairn_module *model = make_model(*state, &m), *other = make_model(*state, &m);
    cairn_param_set *to = cairn_module_params(other), *from = cairn_module_params(model);
    for (size_t i = 0; i < cairn_param_set_count(from); i++) {
        cairn_param a, b;
        OK(cairn_param_set_get(from, i, &a));
        OK(cairn_param_set_get(to, i, &b));
        OK(cairn__device_copy(to->env->device, b.data, a.data, numel_of(&a) * sizeof(float)));
        OK(cairn_param_changed(to, i, 0));
    }
    cairn_data_parallel *dp = replicate(model, &m, 3);
    cairn_tensor *x = numbers(*state, ROWS, IN);
    for (int step = 0; step < 3; step++) {
        cairn_tensor *all = cairn_data_parallel_forward(dp, x);
        read_rows(all, 0, ROWS, y[0]);
        read_rows(cairn_module_forward(other, cairn_slice(x, 0, 0, ROWS / 3, 1)), 0, ROWS / 3, y[1]);
        assert_memory_equal(y[0], y[1], ROWS / 3 * OUT * sizeof(float));
        OK(cairn_tensor_read(cairn_module_get(model, "1.running_mean"), mean[0], OUT));
        OK(cairn_tensor_read(cairn_module_get(other, "1.running_mean"), mean[1], OUT));
        assert_memory_equal(mean[0], mean[1], sizeof(mean[0]));
    }
    cairn_module_train(model, 0);
    cairn_module_train(other, 0);
    cairn_no_grad_begin(*state);
    read_rows(cairn_data_parallel_forward(dp, x), 0, ROWS, y[0]);
    read_rows(cairn_module_forward(other, x), 0, ROWS, y[1]);
    assert_memory_equal(y[0], y[1], sizeof(y[0]));
    OK(cairn_no_grad_end(*state));
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
    cairn_module_destroy(&other);
    cairn_tensor_destroy(&x);
}

struct drawn {
    float y[3][ROWS / 3];
};

static int draw_as_rank(int rank, void *at) {
    struct drawn *d = at;
    cairn_env *env = NULL;
    MUST(cairn_env_create(NULL, NULL, cairn_env_options(.seed = 7, .device = "cpu"), &env) == CAIRN_OK);
    cairn_tensor *ones = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(ROWS / 3), 1);
    (void)cairn_dropout_forward(ones, 0.5, 1);
    MUST(cairn_tensor_read(cairn_dropout_forward(ones, 0.5, 1), d->y[rank], ROWS / 3) == CAIRN_OK);
    cairn_tensor_destroy(&ones);
    cairn_env_destroy(&env);
    return 0;
}

static cairn_tensor *drop_out(void *ctx, cairn_module *module, cairn_tensor *const *inputs, int count, int replica) {
    (void)ctx, (void)module, (void)count, (void)replica;
    return cairn_dropout_forward(inputs[0], 0.5, 1);
}

static void random_numbers_are_those_of_ranks(void **state) {
    static struct drawn ranks;
    struct maker m = {0};
    float y[2][ROWS];
    cairn_module *model = make_model(*state, &m);
    cairn_data_parallel *dp = NULL;
    cairn_tensor *ones = cairn_full(*state, CAIRN_F32, CAIRN_SHAPE(ROWS), 1);
    OK(cairn_spawn_threads(draw_as_rank, &ranks, 3, NULL));
    OK(cairn_data_parallel_create(model,
                                  cairn_data_parallel_options(.num_replicas = 3, .make = make_replica,
                                                              .forward = drop_out, .ctx = &m,
                                                              .device_ids = ids_of(model, 3)),
                                  &dp));
    for (int i = 0; i < 2; i++) { /* seeding begins them anew */
        cairn_manual_seed(*state, 7);
        assert_non_null(cairn_data_parallel_forward(dp, ones));
        OK(cairn_tensor_read(cairn_data_parallel_forward(dp, ones), y[i], ROWS));
        assert_memory_equal(y[i], ranks.y, sizeof(y[i]));
    }
    OK(cairn_tensor_read(cairn_data_parallel_forward(dp, ones), y[0], ROWS));
    assert_memory_not_equal(y[0], y[1], sizeof(y[0]));
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&ones);
}

static void what_the_program_changes_is_found_by_the_next_forward(void **state) {
    struct maker m = {.layers = 2, .dropout = 0.5};
    float y[2][ROWS * OUT];
    cairn_module *model = make_model(*state, &m);
    cairn_data_parallel *dp = replicate(model, &m, 2);
    cairn_param_set *set = cairn_module_params(model);
    cairn_tensor *x = numbers(*state, ROWS, IN);
    cairn_param p;
    cairn_module_train(model, 0); /* no dropout */
    for (int i = 0; i < 2; i++) {
        read_rows(cairn_data_parallel_forward(dp, x), 0, ROWS, y[0]);
        read_rows(cairn_module_forward(model, x), 0, ROWS, y[1]);
        assert_memory_equal(y[0], y[1], sizeof(y[0]));
        OK(cairn_param_set_get(set, 0, &p));
        float weights[IN * OUT];
        get(*state, weights, p.data, sizeof(weights));
        for (size_t k = 0; k < numel_of(&p); k++) weights[k] += 1;
        put(*state, p.data, weights, sizeof(weights));
        OK(cairn_param_changed(set, 0, 0));
    }
    OK(cairn_param_set_require_grad(set, "1.*", 0));
    OK(cairn_backward(cairn_sum(cairn_data_parallel_forward(dp, x))));
    for (size_t i = 0; i < set->count; i++)
        assert_int_equal(cairn__grad_exists(set->params[i]->gradient), set->params[i]->name[0] == '0');
    OK(cairn_param_set_require_grad(set, "1.*", 1));
    OK(cairn_backward(cairn_sum(cairn_data_parallel_forward(dp, x))));
    for (size_t i = 0; i < set->count; i++) assert_true(cairn__grad_exists(set->params[i]->gradient));
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
}

struct recorded {
    cairn_module *model;
    cairn_optimizer *sgd;
    cairn_tensor *x;
};

static cairn_status step_once(void *at) {
    struct recorded *r = at;
    cairn_zero_grad(r->sgd);
    const cairn_status st = cairn_backward(cairn_sum(cairn_module_forward(r->model, r->x)));
    return st == CAIRN_OK ? cairn_step(r->sgd) : st;
}

/* A replay writes weights without the host. */
static void weights_of_a_replayed_step_are_found_too(void **state) {
    struct maker m = {.layers = 2};
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    struct recorded r = {.model = make_model(*state, &m), .x = numbers(*state, ROWS, IN)};
    cairn_graph *graph = NULL;
    float y[2][ROWS * OUT];
    hyper.lr = 0x1p-6;
    OK(cairn_sgd_create(cairn_module_params(r.model), &hyper, &r.sgd));
    OK(cairn_graph_capture(*state, step_once, &r, &graph));
    cairn_data_parallel *dp = replicate(r.model, &m, 2);
    for (int i = 0; i < 6; i++) {
        OK(cairn_graph_replay(graph));
        read_rows(cairn_data_parallel_forward(dp, r.x), 0, ROWS, y[0]);
        read_rows(cairn_module_forward(r.model, r.x), 0, ROWS, y[1]);
        assert_memory_equal(y[0], y[1], sizeof(y[0]));
    }
    cairn_data_parallel_destroy(&dp);
    cairn_graph_destroy(&graph);
    cairn_optimizer_destroy(&r.sgd);
    cairn_module_destroy(&r.model);
    cairn_tensor_destroy(&r.x);
}

static void parameters_that_no_output_depends_on_have_no_gradient(void **state) {
    struct maker m = {.has_spare = true};
    cairn_module *model = make_model(*state, &m);
    cairn_param_set *set = cairn_module_params(model);
    cairn_data_parallel *dp = NULL;
    cairn_tensor *x = numbers(*state, ROWS, IN);
    OK(cairn_data_parallel_create(model,
                                  cairn_data_parallel_options(.num_replicas = 2, .make = make_replica,
                                                              .forward = forward_replica, .ctx = &m,
                                                              .device_ids = ids_of(model, 2)),
                                  &dp));
    OK(cairn_backward(cairn_sum(cairn_data_parallel_forward(dp, x))));
    for (size_t i = 0; i < set->count; i++)
        assert_int_equal(cairn__grad_exists(set->params[i]->gradient), set->params[i]->name[0] == '0');
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
}

static void several_forwards_may_come_before_a_backward(void **state) {
    struct maker m = {.layers = 2};
    float grads[3][OUT * IN];
    cairn_module *model = make_model(*state, &m);
    cairn_param_set *set = cairn_module_params(model);
    cairn_data_parallel *dp = replicate(model, &m, 2);
    cairn_tensor *x = numbers(*state, ROWS, IN);
    for (int i = 0; i < 3; i++) {
        cairn_tensor *a = i ? cairn_data_parallel_forward(dp, x) : cairn_module_forward(model, x);
        cairn_tensor *more = cairn_mul_scalar(x, 2);
        cairn_tensor *b = i ? cairn_data_parallel_forward(dp, more) : cairn_module_forward(model, more);
        cairn_tensor *loss = cairn_sum(cairn_add(a, b));
        if (i == 2) OK(cairn_backward_with(loss, cairn_backward_options(.retain_graph = CAIRN_ON)));
        OK(cairn_backward(loss));
        assert_int_equal(cairn_backward(loss), CAIRN_ESTATE); /* consumed */
        struct cairn__grad_view sum;
        OK(cairn__grad_prepare_read(set->params[0]->gradient, &sum));
        get(*state, grads[i], sum.x, sizeof(grads[i]));
        cairn_module_zero_grad(model);
        OK(cairn_release_results(*state));
        assert_int_equal(cairn_backward(loss), CAIRN_ESTATE); /* over */
    }
    for (int k = 0; k < OUT * IN; k++) {
        assert_true(fabsf(grads[0][k] - grads[1][k]) < 1e-5f);
        assert_true(fabsf(grads[2][k] - 2 * grads[1][k]) < 1e-5f);
    }
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
}

/* What a GPU's memory is used for, as the sentence of a request that can never be met says; "" on the CPU. */
static void describe_memory(cairn_env *env, char *text, size_t nbytes) {
    void *p = NULL;
    text[0] = '\0';
    if (cairn__is_on_host(env->device)) return;
    assert_int_equal(cairn__device_alloc(env->device, CAIRN__HOLDS_STATE, SIZE_MAX, &p), CAIRN_ENOMEM);
    const char *held = strstr(cairn_last_error(), "held here");
    assert_non_null(held);
    snprintf(text, nbytes, "%s", held);
}

static size_t bytes_in_use(void) {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void memory_does_not_grow_over_micro_batches(void **state) {
    struct maker m = {.layers = 3};
    char first[3][500], last[500];
    size_t peak = 0;
    cairn_module *model = make_model(*state, &m);
    cairn_data_parallel *dp = replicate(model, &m, 2);
    cairn_tensor *x = numbers(*state, ROWS, IN);
    for (int i = 0; i < 300; i++) {
        if (i % 3 == 2) { /* without a backward */
            cairn_no_grad_begin(*state);
            assert_non_null(cairn_data_parallel_forward(dp, x));
            OK(cairn_no_grad_end(*state));
        } else {
            OK(cairn_backward(cairn_sum(cairn_data_parallel_forward(dp, x))));
        }
        OK(cairn_release_results(*state));
        OK(cairn_env_synchronize(*state)); /* or what a stand-in has still to do would count */
        const size_t now = bytes_in_use();
        if (i < 20 && now > peak) peak = now;
        if (now > peak + 65536) fail_msg("batch %d holds %zu bytes, the first twenty held %zu", i, now, peak);
        for (int r = 0; r < 3; r++) {
            cairn_env *env = r < 2 ? dp->replicas[r].env : *state;
            describe_memory(env, i < 20 ? first[r] : last, sizeof(last));
            if (i >= 20) assert_string_equal(last, first[r]);
        }
    }
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
}

static cairn_tensor *add_what_is_given(void *ctx, cairn_module *module, cairn_tensor *const *inputs, int count,
                                       int replica) {
    (void)ctx, (void)replica;
    if (inputs[1] || count != 3) return NULL;
    return cairn_mul(cairn_module_forward(module, inputs[0]), inputs[2]);
}

static void inputs_may_be_left_out(void **state) {
    struct maker m = {0};
    float grads[2][ROWS * OUT];
    cairn_module *model = make_model(*state, &m);
    cairn_data_parallel *dp = NULL;
    cairn_tensor *x = numbers(*state, ROWS, IN), *factors = numbers(*state, ROWS, OUT);
    OK(cairn_tensor_require_grad(factors));
    OK(cairn_data_parallel_create(model,
                                  cairn_data_parallel_options(.num_replicas = 5, .make = make_replica,
                                                              .forward = add_what_is_given, .ctx = &m,
                                                              .device_ids = ids_of(model, 5)),
                                  &dp));
    for (int i = 0; i < 2; i++) {
        cairn_tensor *y = i ? cairn_data_parallel_forward_n(dp, (cairn_tensor *[]){x, NULL, factors}, 3)
                            : cairn_mul(cairn_module_forward(model, x), factors);
        OK(cairn_backward(cairn_sum(y)));
        get(*state, grads[i], cairn_tensor_grad(factors), sizeof(grads[i]));
        cairn_tensor_clear_grad(factors);
    }
    assert_memory_equal(grads[0], grads[1], sizeof(grads[0]));
    assert_null(cairn_data_parallel_forward(dp, NULL));
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&factors);
}

/* ---- overflow ---- */

static void an_overflow_in_one_replicas_rows_skips_the_step(void **state) {
    struct maker m = {0};
    float x[ROWS * IN] = {0};
    struct amp_overflow found[4];
    size_t count = 0;
    for (int bad = 0; bad < 3; bad++) {
        struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
        const struct amp_options level = *amp_options(.opt_level = AMP_O2, .half_type = CAIRN_F16, .verbosity = -1);
        cairn_module *model = make_model(*state, &m);
        cairn_optimizer *sgd = NULL;
        amp_context *amp = NULL;
        cairn_data_parallel *dp = NULL;
        hyper.lr = 0.1;
        OK(cairn_sgd_create(cairn_module_params(model), &hyper, &sgd));
        OK(amp_initialize(*state, model, sgd, &level, &amp));
        OK(cairn_data_parallel_create(model,
                                      cairn_data_parallel_options(.num_replicas = 3, .make = make_replica, .ctx = &m,
                                                                  .amp = &level, .device_ids = ids_of(model, 3)),
                                      &dp));
        for (int step = 0; step < 3; step++) {
            for (int i = 0; i < ROWS * IN; i++) x[i] = step == 1 && i == bad * ROWS / 3 * IN ? 60000 : 1;
            cairn_tensor *in = cairn_tensor_from(*state, CAIRN_F32, CAIRN_SHAPE(ROWS, IN), x);
            cairn_zero_grad(sgd);
            OK(amp_backward(amp, cairn_mean(cairn_data_parallel_forward(dp, in)), sgd));
            OK(cairn_step(sgd));
            OK(cairn_env_synchronize(*state));
            assert_int_equal(cairn_optimizer_step_skipped(sgd), step == 1);
            cairn_tensor_destroy(&in);
        }
        OK(amp_last_overflow(amp, sgd, found, 4, &count));
        assert_int_equal(count, 1);
        assert_string_equal(found[0].name, "0.weight");
        cairn_data_parallel_destroy(&dp);
        amp_destroy(&amp);
        cairn_optimizer_destroy(&sgd);
        cairn_module_destroy(&model);
    }
}

/* ---- waiting ---- */

static cairn_tensor *mean_of_replica(void *ctx, cairn_module *module, cairn_tensor *const *inputs, int count,
                                     int replica) {
    (void)ctx, (void)count, (void)replica;
    return cairn_mean(cairn_module_forward(module, inputs[0]));
}

static void no_step_waits_for_a_gpu(void **state) {
    enum { STEPS = 20 };
    struct maker m = {.layers = 3};
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    const struct amp_options level = *amp_options(.opt_level = AMP_O2, .half_type = CAIRN_F16, .verbosity = -1);
    if (!is_on_gpu() || waits() == 0) SKIP("needs a GPU's stand-in that counts waiting calls");
    cairn_module *model = make_model(*state, &m);
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    cairn_data_parallel *dp = NULL;
    hyper.lr = 0x1p-6;
    OK(cairn_sgd_create(cairn_module_params(model), &hyper, &sgd));
    OK(amp_initialize(*state, model, sgd, &level, &amp));
    OK(cairn_data_parallel_create(model,
                                  cairn_data_parallel_options(.num_replicas = 3, .make = make_replica, .ctx = &m,
                                                              .forward = mean_of_replica, .amp = &level,
                                                              .forward_returns_loss = CAIRN_ON,
                                                              .device_ids = ids_of(model, 3)),
                                  &dp));
    cairn_tensor *x = numbers(*state, ROWS, IN);
    unsigned long long before = 0;
    for (int step = 0; step < STEPS; step++) {
        if (step == STEPS / 2) OK(cairn_env_synchronize(*state));
        if (step == STEPS / 2) before = waits();
        cairn_zero_grad(sgd);
        OK(amp_backward(amp, cairn_data_parallel_forward(dp, x), sgd));
        OK(cairn_step(sgd));
    }
    assert_int_equal(waits() - before, 0);
    cairn_data_parallel_destroy(&dp);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
}

/* ---- what goes wrong ---- */

static void create(cairn_module *model, struct maker *m, const struct amp_options *amp, cairn_status status,
                   const char *words) {
    cairn_data_parallel *dp = NULL;
    REFUSED(cairn_data_parallel_create(model,
                                       cairn_data_parallel_options(.num_replicas = 2, .make = make_replica, .ctx = m,
                                                                   .amp = amp, .device_ids = ids_of(model, 2)),
                                       &dp),
            status, words);
    assert_null(dp);
}

static void a_replica_that_differs_from_the_model_is_refused_by_name(void **state) {
    struct maker m = {.layers = 2}, fewer = {.layers = 1}, spare = {.has_spare = true}, norm = {.has_norm = true};
    struct maker fails = {.layers = 2, .fails = IN_MAKE, .fails_in = 2}, dropout = {.layers = 2, .dropout = 0.5};
    const struct amp_options o2 = *amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1);
    const struct amp_options o1 = *amp_options(.opt_level = AMP_O1, .half_type = CAIRN_BF16, .verbosity = -1);
    cairn_module *model = make_model(*state, &m);
    create(model, &fewer, NULL, CAIRN_EINVAL, "replica 0: make returned a module of 2 parameters, the model has 4");
    create(model, &spare, NULL, CAIRN_EINVAL,
           "parameter '1.weight' of the module that make returned has another shape");
    create(model, &norm, NULL, CAIRN_EINVAL, "parameter '1.weight' of the module that make returned has another shape");
    create(model, &dropout, NULL, CAIRN_EINVAL, "has 2 children there and 3 here");
    create(model, &fails, NULL, CAIRN_EINVAL, "replica 1: make returned NULL");
    create(model, &m, &o2, CAIRN_EINVAL, "give cairn_data_parallel_options.amp the options of amp_initialize");
    create(model, &m, &o1, CAIRN_EINVAL, "was prepared with other amp_options (none)");
    REFUSED(cairn_data_parallel_create(model, cairn_data_parallel_options(.num_replicas = 2),
                                       &(cairn_data_parallel *){0}),
            CAIRN_EINVAL, "make is NULL");
    REFUSED(cairn_data_parallel_create(model, cairn_data_parallel_options(.num_replicas = 300, .make = make_replica),
                                       &(cairn_data_parallel *){0}),
            CAIRN_EINVAL, "num_replicas is 300; it can be 1 to 256, or 0");
    REFUSED(cairn_data_parallel_create(NULL, cairn_data_parallel_options(.make = make_replica),
                                       &(cairn_data_parallel *){0}),
            CAIRN_EINVAL, "model is NULL");
    cairn_data_parallel *dp = replicate(model, &m, 2);
    create(model, &m, NULL, CAIRN_ESTATE, "cairn_data_parallel_create was called for the model before");
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
}

static void refuse_devices(cairn_module *model, const int *ids, int n, const char *words) {
    struct maker m = {0};
    REFUSED(cairn_data_parallel_create(model,
                                       cairn_data_parallel_options(.num_replicas = n, .device_ids = ids,
                                                                   .make = make_replica, .ctx = &m),
                                       &(cairn_data_parallel *){0}),
            CAIRN_EINVAL, words);
}

static void devices_that_are_not_there_are_refused(void **state) {
    struct maker m = {0};
    cairn_module *model = make_model(*state, &m);
    char words[100];
    const int visible = cairn__device_count(((cairn_env *)*state)->device);
    if (!is_on_gpu()) {
        refuse_devices(model, (const int[]){0, 1}, 2, "device_ids names GPUs, but the model is on the CPU");
    } else {
        snprintf(words, sizeof(words), "num_replicas is %d, but this process sees %d GPU", visible + 1, visible);
        refuse_devices(model, NULL, visible + 1, words);
        snprintf(words, sizeof(words), "device_ids[1] is %d, but this process sees %d GPU", visible, visible);
        refuse_devices(model, (const int[]){0, visible}, 2, words);
        refuse_devices(model, (const int[]){0, -1}, 2, "device_ids[1] is -1");
        refuse_devices(model, (const int[]){1, 0}, 2, "device_ids begins with 1, but the model is on cuda:0");
        refuse_devices(model, (const int[]){0, 0}, 0, "device_ids is set, and num_replicas, the number of them, is 0");
    }
    cairn_module_destroy(&model);
}

/* Without numbers: one for each GPU, beginning with the model's. */
static void replicas_are_on_all_gpus(void **state) {
    struct maker m = {.layers = 2};
    float y[2][ROWS * OUT];
    cairn_env *env = *state;
    if (!is_on_gpu()) SKIP("needs GPUs, or their stand-in");
    const int visible = cairn__device_count(env->device), own = visible - 1;
    char device[32];
    snprintf(device, sizeof(device), "cuda:%d", own);
    cairn_env *other = NULL;
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.device = device), &other));
    cairn_module *model = make_model(other, &m);
    cairn_data_parallel *dp = NULL;
    OK(cairn_data_parallel_create(model, cairn_data_parallel_options(.make = make_replica, .ctx = &m), &dp));
    assert_int_equal(cairn_data_parallel_num_replicas(dp), visible);
    for (int i = 0; i < visible; i++) assert_int_equal(cairn_cuda_ordinal(dp->replicas[i].env), i == 0 ? own : i - 1);
    cairn_tensor *x = numbers(other, ROWS, IN);
    read_rows(cairn_data_parallel_forward(dp, x), 0, ROWS, y[0]);
    read_rows(cairn_module_forward(model, x), 0, ROWS, y[1]);
    assert_memory_equal(y[0], y[1], sizeof(y[0]));
    cairn_data_parallel_destroy(&dp);
    cairn_tensor_destroy(&x);
    cairn_module_destroy(&model);
    cairn_env_destroy(&other);
}

static void a_forward_that_fails_says_where_and_the_next_one_goes_on(void **state) {
    struct maker m = {.fails = IN_FORWARD, .fails_in = 2, .once = true};
    float y[2][ROWS * OUT];
    cairn_module *model = make_model(*state, &m);
    cairn_data_parallel *dp = NULL;
    cairn_tensor *x = numbers(*state, ROWS, IN), *short_one = numbers(*state, ROWS - 1, IN);
    OK(cairn_data_parallel_create(model,
                                  cairn_data_parallel_options(.num_replicas = 3, .make = make_replica,
                                                              .forward = forward_replica, .ctx = &m,
                                                              .device_ids = ids_of(model, 3)),
                                  &dp));
    assert_null(cairn_data_parallel_forward(dp, x));
    SAYS("replica 1: ");
    SAYS("reshape");
    assert_int_equal(cairn_backward(cairn_data_parallel_forward_n(dp, (cairn_tensor *[]){x, short_one}, 2)),
                     CAIRN_EINVAL);
    SAYS("input 1 has 11 rows and input 0 has 12");
    read_rows(cairn_data_parallel_forward(dp, x), 0, ROWS, y[0]);
    read_rows(cairn_module_forward(model, x), 0, ROWS, y[1]);
    assert_memory_equal(y[0], y[1], sizeof(y[0]));
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&short_one);
}

/* Several rounds on the CPU: a race with the ending thread's report shows in few of them. */
static void a_thread_that_ends_is_reported_and_all_can_be_ended(void **state) {
    for (int round = 0; round < (is_on_gpu() ? 1 : 20); round++) {
        struct maker m = {.fails = BY_EXIT, .fails_in = 2};
        cairn_module *model = make_model(*state, &m);
        cairn_data_parallel *dp = NULL;
        cairn_tensor *x = numbers(*state, ROWS, IN);
        OK(cairn_data_parallel_create(model,
                                      cairn_data_parallel_options(.num_replicas = 3, .make = make_replica,
                                                                  .forward = forward_replica, .ctx = &m,
                                                                  .device_ids = ids_of(model, 3)),
                                      &dp));
        for (int i = 0; i < 2; i++) {
            assert_null(cairn_data_parallel_forward(dp, x));
            SAYS("replica 1: its thread ended within a function of the program's (pthread_exit)");
        }
        cairn_data_parallel_destroy(&dp);
        cairn_module_destroy(&model);
        cairn_tensor_destroy(&x);
    }
}

static void results_are_over_with_the_replicas(void **state) {
    struct maker m = {0};
    cairn_module *model = make_model(*state, &m);
    cairn_data_parallel *dp = replicate(model, &m, 2);
    cairn_tensor *x = numbers(*state, ROWS, IN), *loss = cairn_sum(cairn_data_parallel_forward(dp, x));
    cairn_data_parallel_destroy(&dp);
    assert_null(dp);
    REFUSED(cairn_backward(loss), CAIRN_ESTATE, "step");
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
}

static char *refuse_ranks(cairn_env *env, void *ctx) {
    cairn_module *model = make_model(env, ctx);
    cairn_data_parallel *dp = NULL;
    EXPECT_REFUSED(cairn_data_parallel_create(model, cairn_data_parallel_options(.make = make_replica, .ctx = ctx),
                                              &dp),
                   CAIRN_ENOTSUP, "the environment has 2 ranks; use ddp over cairn_spawn_threads");
    cairn_module_destroy(&model);
    return NULL;
}

static void an_environment_of_several_ranks_is_refused(void **state) {
    struct maker m = {0};
    (void)state;
    NOT_ON_A_GPU("ranks there need NCCL");
    run_ranks(2, refuse_ranks, &m);
}

/* ---- checkpoints of activations ---- */

static cairn_tensor *through_replicas(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    return cairn_tanh(cairn_data_parallel_forward(ctx, inputs[0]));
}

static void replicas_may_be_run_again_by_a_checkpoint(void **state) {
    struct maker m = {.layers = 2};
    float grads[2][OUT * IN];
    cairn_module *model = make_model(*state, &m);
    cairn_param_set *set = cairn_module_params(model);
    cairn_data_parallel *dp = replicate(model, &m, 2);
    cairn_tensor *x = numbers(*state, ROWS, IN);
    for (int i = 0; i < 2; i++) {
        cairn_tensor *before = cairn_data_parallel_forward(dp, x);
        cairn_tensor *y = i ? cairn_checkpoint(through_replicas, dp, &x, 1) : through_replicas(dp, &x, 1);
        OK(cairn_backward(cairn_sum(cairn_mul(before, y))));
        get(*state, grads[i], cairn__grad_peek(set->params[0]->gradient).x, sizeof(grads[i]));
        cairn_module_zero_grad(model);
    }
    assert_memory_equal(grads[0], grads[1], sizeof(grads[0]));
    cairn_data_parallel_destroy(&dp);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_replicas_gives_the_bits_of_the_whole_batch),
        cmocka_unit_test(rows_that_do_not_come_out_even_give_the_same_bits),
        cmocka_unit_test(other_numbers_give_the_same_but_for_rounding),
        cmocka_unit_test(threads_of_a_replica_change_no_bit),
        cmocka_unit_test(gradients_come_to_inputs_too),
        cmocka_unit_test(inputs_may_be_left_out),
        cmocka_unit_test(running_statistics_are_the_first_replicas),
        cmocka_unit_test(random_numbers_are_those_of_ranks),
        cmocka_unit_test(what_the_program_changes_is_found_by_the_next_forward),
        cmocka_unit_test(weights_of_a_replayed_step_are_found_too),
        cmocka_unit_test(parameters_that_no_output_depends_on_have_no_gradient),
        cmocka_unit_test(several_forwards_may_come_before_a_backward),
        cmocka_unit_test(memory_does_not_grow_over_micro_batches),
        cmocka_unit_test(an_overflow_in_one_replicas_rows_skips_the_step),
        cmocka_unit_test(no_step_waits_for_a_gpu),
        cmocka_unit_test(a_replica_that_differs_from_the_model_is_refused_by_name),
        cmocka_unit_test(devices_that_are_not_there_are_refused),
        cmocka_unit_test(replicas_are_on_all_gpus),
        cmocka_unit_test(a_forward_that_fails_says_where_and_the_next_one_goes_on),
        cmocka_unit_test(a_thread_that_ends_is_reported_and_all_can_be_ended),
        cmocka_unit_test(results_are_over_with_the_replicas),
        cmocka_unit_test(an_environment_of_several_ranks_is_refused),
        cmocka_unit_test(replicas_may_be_run_again_by_a_checkpoint),
    };
    few = argc > 1 && strcmp(argv[1], "few") == 0;
    if (argc > 1 && !few) {
        cairn_env *env = NULL;
        setenv("CAIRN_DEVICE", argv[1], 1);
        if (cairn_env_create(NULL, NULL, NULL, &env) != CAIRN_OK) {
            print_message("there is no GPU here: %s\n", cairn_last_error());
            return 77;
        }
        print_message("%d GPUs\n", cairn__device_count(env->device));
        cairn_env_destroy(&env);
    }
    return cmocka_run_group_tests(tests, make_env, end_env);
}
