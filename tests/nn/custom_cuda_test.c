/* custom_cuda_test DEVICE [required]
 *
 * Custom operations on a GPU with their own kernels (custom_kernels.cu). op_cases_test covers types, shapes and finite
 * differences. Exits with 77 if the device does not exist. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cairn/cairn.h"
#include "cairn/interop_cuda.h"
#include "custom_kernels.h"
#include "../check.h"
#include "device/env.h"
#include "nn/tensor.h"
#include "../waits.h"

enum { N = 300, ROWS = 8, D = 16, WARM_UP = 5, STEPS = 12 };

static const char *device_name;

static int make_env(void **state) {
    cairn_env *env = NULL;
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.device = device_name), &env));
    *state = env;
    return 0;
}

static int end_env(void **state) {
    cairn_env *env = *state;
    cairn_env_destroy(&env);
    assert_null(env);
    return 0;
}

/* ---- y = a * b ---- */

struct calls {
    int forward, backward;
    void *stream;           /* of the last call */
    int gpu;                /* the current one then */
    cairn_status fail;      /* what both return instead, */
    bool fails_in_backward; /* or the latter alone */
    bool waits;
};

static cairn_status status_of(int cuda_error) {
    return cuda_error ? CAIRN_EDEVICE : CAIRN_OK;
}

static cairn_status note(struct calls *c, int *count, void *stream) {
    ++*count;
    c->stream = stream, c->gpu = current_gpu();
    if (c->waits) return status_of(wait_for_stream(stream));
    return count == &c->forward && c->fails_in_backward ? CAIRN_OK : c->fail;
}

static cairn_status times_forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x,
                                  int count, void *stream) {
    struct calls *c = ctx;
    assert_int_equal(count, 2);
    const cairn_status st = note(c, &c->forward, stream);
    return st ? st : status_of(launch_multiply(y->data, x[0].data, x[1].data, y->n, stream));
}

static cairn_status times_backward(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                   const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                   void *stream) {
    struct calls *c = ctx;
    cairn_status st = note(c, &c->backward, stream);
    for (int i = 0; i < count && st == CAIRN_OK; i++) {
        if (dx[i].data) st = status_of(launch_multiply(dx[i].data, dy->data, x[1 - i].data, y->n, stream));
    }
    return st;
}

static const struct cairn_custom_op times = {.struct_size = sizeof(times),
                                             .name = "times",
                                             .forward_cuda = times_forward,
                                             .backward_cuda = times_backward};

static cairn_tensor *apply_times(struct calls *c, cairn_tensor *a, cairn_tensor *b) {
    cairn_tensor *in[] = {a, b};
    return cairn_custom(&times, c, CAIRN_F32, CAIRN_SHAPE(N), in, 2);
}

static void fill(float *x, float first) {
    for (int i = 0; i < N; i++) x[i] = first + (float)i / 8;
}

static cairn_tensor *leaf(cairn_env *env, float first, bool wants_grad) {
    float values[N];
    fill(values, first);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N), values);
    if (wants_grad) OK(cairn_tensor_require_grad(x));
    return x;
}

static void assert_holds(cairn_tensor *y, const float *expected) {
    float got[N];
    assert_non_null(y);
    OK(cairn_tensor_read(y, got, N));
    for (int i = 0; i < N; i++) {
        if (got[i] != expected[i]) fail_msg("element %d is %g, not %g", i, got[i], expected[i]);
    }
}

static void assert_grad(cairn_tensor *x, const float *expected) {
    float got[N];
    assert_non_null(cairn_tensor_grad(x));
    OK(cairn__device_download(x->env->device, got, cairn_tensor_grad(x), sizeof(got)));
    for (int i = 0; i < N; i++) {
        if (got[i] != expected[i]) fail_msg("gradient %d is %g, not %g", i, got[i], expected[i]);
    }
}

static void functions_get_the_gpus_memory_and_stream(void **state) {
    struct calls c = {0};
    float a[N], b[N], product[N];
    fill(a, 1), fill(b, -2);
    for (int i = 0; i < N; i++) product[i] = a[i] * b[i];
    cairn_tensor *x = leaf(*state, 1, true), *w = leaf(*state, -2, true), *still = leaf(*state, -2, false);
    cairn_tensor *y = apply_times(&c, x, w);
    assert_ptr_equal(c.stream, cairn_cuda_stream(*state));
    assert_holds(y, product);
    OK(cairn_backward(cairn_sum(y)));
    assert_grad(x, b);
    assert_grad(w, a);
    OK(cairn_backward(cairn_sum(apply_times(&c, x, still))));
    for (int i = 0; i < N; i++) b[i] *= 2;
    assert_grad(x, b);
    assert_true(c.forward == 2 && c.backward == 2);
    assert_int_equal(c.gpu, cairn_cuda_ordinal(*state));
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&w);
    cairn_tensor_destroy(&still);
}

/* The stand-in refuses launches on another GPU's stream, as CUDA does. */
static void the_gpu_is_the_current_one_in_functions(void **state) {
    struct calls c = {0};
    setenv("CAIRN_STANDIN_GPUS", "2", 1);
    cairn_tensor *x = leaf(*state, 1, true);
    if (set_gpu(1) == 0) {
        cairn_tensor *y = apply_times(&c, x, x);
        assert_int_equal(c.gpu, 0);
        cairn_tensor *loss = cairn_sum(y);
        OK(cairn_backward(loss)); /* the second time memory is there */
        assert_int_equal(set_gpu(1), 0);
        assert_non_null(apply_times(&c, x, x));
        assert_int_equal(c.gpu, 0);
        assert_int_equal(set_gpu(1), 0);
        assert_non_null(cairn_cuda_stream(*state));
        assert_int_equal(current_gpu(), 0);
    }
    unsetenv("CAIRN_STANDIN_GPUS");
    cairn_tensor_destroy(&x);
}

/* ---- half types ---- */

static cairn_status negate_forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x,
                                   int count, void *stream) {
    (void)count;
    *(cairn_dtype *)ctx = x->dtype;
    return status_of(launch_negate_half(y->data, x->data, y->n, stream));
}

static cairn_status negate_backward(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                    const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                    void *stream) {
    (void)y, (void)count;
    return dy->dtype != x->dtype ? CAIRN_EINTERNAL : negate_forward(ctx, dx, dy, 1, stream);
}

static const struct cairn_custom_op negate = {.struct_size = sizeof(negate),
                                              .name = "negate",
                                              .forward_cuda = negate_forward,
                                              .backward_cuda = negate_backward};

static void half_types_come_and_go_as_they_are(void **state) {
    for (int i = 0; i < 2; i++) {
        const cairn_dtype half = i ? CAIRN_BF16 : CAIRN_F16;
        cairn_dtype seen = CAIRN_F32;
        float negative[N];
        cairn_tensor *x = cairn_full(*state, CAIRN_F32, CAIRN_SHAPE(N), 2.5);
        OK(cairn_tensor_require_grad(x));
        cairn_tensor *in[] = {cairn_cast(x, half)};
        cairn_tensor *y = cairn_custom(&negate, &seen, half, CAIRN_SHAPE(N), in, 1);
        assert_int_equal(seen, half);
        for (int k = 0; k < N; k++) negative[k] = -2.5f;
        assert_holds(cairn_cast(y, CAIRN_F32), negative);
        OK(cairn_backward(cairn_sum(cairn_cast(y, CAIRN_F32))));
        for (int k = 0; k < N; k++) negative[k] = -1;
        assert_grad(x, negative);
        cairn_tensor_destroy(&x);
    }
}

/* ---- what is refused, what fails ---- */

static cairn_status on_the_cpu(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)y, (void)x, (void)count;
    return CAIRN_EINTERNAL;
}

static cairn_status back_on_the_cpu(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                    const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)dx, (void)dy;
    return on_the_cpu(ctx, NULL, x, y ? count : 0);
}

static void functions_of_the_cpu_alone_are_refused(void **state) {
    struct calls c = {0};
    cairn_tensor *x = leaf(*state, 1, true), *in[] = {x, x};
    struct cairn_custom_op op = {.struct_size = sizeof(op), .name = "host", .forward = on_the_cpu};
    static const char *const sentence = "host: its functions are given memory of the CPU, and 'cuda' has its own; set "
                                        "forward_cuda, or use device \"cpu\"";
    NO_TENSOR(cairn_custom(&op, &c, CAIRN_F32, CAIRN_SHAPE(N), in, 2), sentence);
    assert_int_equal(cairn_backward(NULL), CAIRN_ENOTSUP);
    op.struct_size =
        offsetof(struct cairn_custom_op, forward_cuda); /* a program of 0.8.0: what lies behind is not read */
    op.forward_cuda = times_forward, op.backward_cuda = times_backward;
    NO_TENSOR(cairn_custom(&op, &c, CAIRN_F32, CAIRN_SHAPE(N), in, 2), sentence);
    op.struct_size = sizeof(op);
    op.backward = back_on_the_cpu, op.backward_cuda = NULL;
    NO_TENSOR(cairn_custom(&op, &c, CAIRN_F32, CAIRN_SHAPE(N), in, 2),
              "host: an input requires a gradient, and there is no backward for 'cuda'; set backward_cuda");
    in[0] = in[1] = cairn_detach(x);
    assert_non_null(cairn_custom(&op, &c, CAIRN_F32, CAIRN_SHAPE(N), in, 2));
    in[0] = x, op.backward = NULL;
    cairn_tensor *y = cairn_custom(&op, &c, CAIRN_F32, CAIRN_SHAPE(N), in, 2);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_EINVAL); /* it requires no gradient */
    assert_int_equal(c.forward, 2);
    cairn_tensor_destroy(&x);
}

static void a_status_of_the_functions_is_that_of_the_call(void **state) {
    struct calls c = {.fail = CAIRN_ENOTSUP};
    float twice[N];
    cairn_tensor *x = leaf(*state, 1, true);
    NO_TENSOR(apply_times(&c, x, x), "times: its forward returned ENOTSUP");
    assert_int_equal(cairn_backward(NULL), CAIRN_ENOTSUP);
    c = (struct calls){.fail = CAIRN_ENUMERIC, .fails_in_backward = true};
    REFUSED(cairn_backward(cairn_sum(apply_times(&c, x, x))), CAIRN_ENUMERIC, "times: its backward returned ENUMERIC");
    c = (struct calls){0};
    OK(cairn_backward(cairn_sum(apply_times(&c, x, x))));
    fill(twice, 1);
    for (int i = 0; i < N; i++) twice[i] *= 2;
    assert_grad(x, twice);
    cairn_tensor_destroy(&x);
}

static cairn_status too_many(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                             void *stream) {
    (void)ctx, (void)x, (void)count;
    return status_of(launch_too_many_threads(y->data, stream));
}

static void a_launch_that_fails_is_the_operations_alone(void **state) {
    const struct cairn_custom_op op = {.struct_size = sizeof(op), .name = "crowd", .forward_cuda = too_many};
    cairn_tensor *x = leaf(*state, 1, false);
    float twice[N];
    NO_TENSOR(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(N), &x, 1), "crowd: its forward returned EDEVICE");
    fill(twice, 1);
    for (int i = 0; i < N; i++) twice[i] *= 2;
    assert_holds(cairn_add(x, x), twice);
    OK(cairn_env_synchronize(*state));
    cairn_tensor_destroy(&x);
}

/* ---- steps: a layer, whose outputs are squared by the operation ---- */

struct net {
    cairn_env *env;
    cairn_module *layer;
    cairn_optimizer *adam;
    amp_context *amp;
    cairn_tensor *x, *target, *loss;
    struct calls calls;
};

static cairn_status step(void *user) {
    struct net *n = user;
    cairn_zero_grad(n->adam);
    cairn_tensor *h = cairn_module_forward(n->layer, n->x), *in[] = {h, h};
    h = cairn_cast(h, CAIRN_F32), in[0] = in[1] = h;
    n->loss = cairn_mse_loss(cairn_custom(&times, &n->calls, CAIRN_F32, CAIRN_SHAPE(ROWS, D), in, 2), n->target);
    const cairn_status st = amp_backward(n->amp, n->loss, n->adam);
    return st == CAIRN_OK ? cairn_step(n->adam) : st;
}

static void net_create(struct net *n, amp_opt_level level, cairn_dtype half) {
    static float values[ROWS * D];
    *n = (struct net){.env = NULL};
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.device = device_name), &n->env));
    for (int i = 0; i < ROWS * D; i++) values[i] = (float)(i % 7 - 3) / 4;
    n->x = cairn_tensor_from(n->env, CAIRN_F32, CAIRN_SHAPE(ROWS, D), values);
    n->target = cairn_full(n->env, CAIRN_F32, CAIRN_SHAPE(ROWS, D), 0.25);
    n->layer = cairn_linear(n->env, D, D);
    OK(cairn_adamw_create(cairn_module_params(n->layer), NULL, &n->adam));
    OK(amp_initialize(n->env, n->layer, n->adam, amp_options(.opt_level = level, .half_type = half, .verbosity = -1),
                      &n->amp));
}

static void net_destroy(struct net *n) {
    amp_destroy(&n->amp);
    cairn_optimizer_destroy(&n->adam);
    cairn_module_destroy(&n->layer);
    cairn_tensor_destroy(&n->x);
    cairn_tensor_destroy(&n->target);
    cairn_env_destroy(&n->env);
    assert_null(n->env);
}

static void masters_of(struct net *n, float values[D * D + D]) {
    cairn_param p[2];
    OK(amp_master_params(n->amp, NULL, p, 2));
    size_t at = 0;
    for (int i = 0; i < 2; i++) {
        const size_t count = i == 0 ? D * D : D;
        OK(cairn__device_download(n->env->device, values + at, p[i].data, count * sizeof(float)));
        at += count;
    }
}

static void check_replays(amp_opt_level level, cairn_dtype half) {
    struct net eager, replayed;
    cairn_graph *graph = NULL;
    unsigned long long before = 0;
    net_create(&eager, level, half);
    net_create(&replayed, level, half);
    OK(cairn_graph_capture(replayed.env, step, &replayed, &graph));
    for (int s = 0; s < STEPS; s++) {
        if (s == WARM_UP) before = waits();
        OK(step(&eager));
        OK(cairn_graph_replay(graph));
    }
    if (waits() != before) fail_msg("%llu calls that wait", waits() - before);
    assert_int_equal(cairn_graph_is_recorded(graph), 1);
    assert_int_equal(replayed.calls.forward, CAIRN_GRAPH_WARMUP + 1);
    assert_int_equal(replayed.calls.backward, CAIRN_GRAPH_WARMUP + 1);
    assert_int_equal(eager.calls.forward, STEPS);
    float a[D * D + D], b[D * D + D];
    assert_true(cairn_tensor_item(eager.loss) == cairn_tensor_item(replayed.loss));
    masters_of(&eager, a);
    masters_of(&replayed, b);
    assert_memory_equal(a, b, sizeof(a));
    cairn_graph_destroy(&graph);
    net_destroy(&eager);
    net_destroy(&replayed);
}

static void steps_wait_for_nothing_and_replays_equal_them(void **state) {
    (void)state;
    check_replays(AMP_O0, CAIRN_F16);
    check_replays(AMP_O1, CAIRN_F16);
    check_replays(AMP_O1, CAIRN_BF16);
    check_replays(AMP_O2, CAIRN_F16);
    check_replays(AMP_O2, CAIRN_BF16);
}

/* In its warm-up and while it is recorded: both times the step is not taken, and training goes on. */
static void a_failure_is_the_replays(void **state) {
    (void)state;
    struct net n;
    cairn_graph *graph = NULL;
    net_create(&n, AMP_O2, CAIRN_F16);
    OK(cairn_graph_capture(n.env, step, &n, &graph));
    OK(cairn_graph_replay(graph));
    n.calls.fail = CAIRN_ENUMERIC, n.calls.fails_in_backward = true;
    REFUSED(cairn_graph_replay(graph), CAIRN_ENUMERIC, "times: its backward returned ENUMERIC");
    n.calls.fail = CAIRN_OK;
    for (int s = 1; s < CAIRN_GRAPH_WARMUP; s++) OK(cairn_graph_replay(graph));
    n.calls.fail = CAIRN_ENUMERIC;
    REFUSED(cairn_graph_replay(graph), CAIRN_ENUMERIC, "times: its backward returned ENUMERIC");
    n.calls.fail = CAIRN_OK;
    for (int s = 0; s < 3; s++) OK(cairn_graph_replay(graph));
    assert_int_equal(cairn_graph_is_recorded(graph), 0);
    OK(cairn_env_synchronize(n.env));
    assert_int_equal(cairn_optimizer_steps(n.adam), CAIRN_GRAPH_WARMUP + 3);
    cairn_graph_destroy(&graph);
    net_destroy(&n);
}

/* CUDA says so; the program may return that or not. */
static void a_function_that_waits_is_not_recorded(void **state) {
    (void)state;
    struct net n;
    cairn_graph *graph = NULL;
    net_create(&n, AMP_O2, CAIRN_F16);
    OK(cairn_graph_capture(n.env, step, &n, &graph));
    n.calls.waits = true;
    for (int s = 0; s < CAIRN_GRAPH_WARMUP; s++) OK(cairn_graph_replay(graph));
    REFUSED(cairn_graph_replay(graph), CAIRN_EDEVICE, "times: its forward returned EDEVICE");
    for (int s = 0; s < 3; s++) OK(cairn_graph_replay(graph));
    assert_int_equal(cairn_graph_is_recorded(graph), 0);
    OK(cairn_env_synchronize(n.env));
    assert_int_equal(cairn_optimizer_steps(n.adam), CAIRN_GRAPH_WARMUP + 3);
    cairn_graph_destroy(&graph);
    net_destroy(&n);
}

#define WITH_ENV(f) cmocka_unit_test_setup_teardown(f, make_env, end_env)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        WITH_ENV(functions_get_the_gpus_memory_and_stream),
        WITH_ENV(the_gpu_is_the_current_one_in_functions),
        WITH_ENV(half_types_come_and_go_as_they_are),
        WITH_ENV(functions_of_the_cpu_alone_are_refused),
        WITH_ENV(a_status_of_the_functions_is_that_of_the_call),
        WITH_ENV(a_launch_that_fails_is_the_operations_alone),
        cmocka_unit_test(steps_wait_for_nothing_and_replays_equal_them),
        cmocka_unit_test(a_failure_is_the_replays),
        cmocka_unit_test(a_function_that_waits_is_not_recorded),
    };
    cairn_env *probe = NULL;
    device_name = argc > 1 ? argv[1] : "cuda";
    if (cairn_env_create(NULL, NULL, cairn_env_options(.device = device_name), &probe) != CAIRN_OK) {
        printf("there is no %s here: %s\n", device_name, cairn_last_error());
        return argc > 2 && strcmp(argv[2], "required") == 0 ? 1 : 77;
    }
    cairn_env_destroy(&probe);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
