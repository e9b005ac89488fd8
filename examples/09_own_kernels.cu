/* The trainer of 02_own_buffers.c on a GPU, in the style of llm.c: the program owns its kernels, memory and stream, and
 * calls Cairn three times per step, between its launches. The host waits only where it prints a loss. All memory is
 * f32; at O2 weights and gradients hold half values (docs/from-apex.md, "A trainer with its own buffers").
 *
 *     ./09_own_kernels --steps 500 --opt-level O2 */
#include <cairn/cairn.h>
#include <cairn/interop_cuda.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 64, C = 16, H = 32, V = 4, N = H * C + H + V * H + V, PARAMS = 4, THREADS = 64 };

static const float LR = 0.1f;

static void die(const char *why) {
    fprintf(stderr, "09_own_kernels: %s\n", why);
    exit(1);
}

static void check(cudaError_t error) {
    if (error != cudaSuccess) die(cudaGetErrorString(error));
}

/* ---- kernels: one thread per element of the result ---- */

/* y[B, O] = x[B, I] w[O, I]^T + b[O], followed by relu if relu is set. */
__global__ void linear(float *y, const float *x, const float *w, const float *b, int I, int O, bool relu) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x, row = at / O, o = at % O;
    if (row >= B) return;
    float sum = b[o];
    for (int i = 0; i < I; i++) sum += w[o * I + i] * x[row * I + i];
    y[at] = relu ? fmaxf(sum, 0) : sum;
}

/* Computes each row's cross entropy and p[B, V], the class probabilities. */
__global__ void cross_entropy(float *losses, float *p, const float *logits, const int *target) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= B) return;
    float largest = logits[row * V], sum = 0;
    for (int v = 0; v < V; v++) largest = fmaxf(largest, logits[row * V + v]);
    for (int v = 0; v < V; v++) sum += p[row * V + v] = expf(logits[row * V + v] - largest);
    for (int v = 0; v < V; v++) p[row * V + v] /= sum;
    losses[row] = -logf(p[row * V + target[row]]);
}

/* The gradient of *scale times the mean loss; *scale is the step's loss scale, in device memory. */
__global__ void cross_entropy_backward(float *dlogits, const float *p, const int *target, const float *scale) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x, row = at / V, v = at % V;
    if (row < B) dlogits[at] = (p[at] - (float)(v == target[row])) / B * *scale;
}

/* dx[B, I] of a linear layer whose input x is the output of a relu. */
__global__ void linear_backward_x(float *dx, const float *dy, const float *w, const float *x, int I, int O) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x, row = at / I, i = at % I;
    if (row >= B) return;
    float sum = 0;
    for (int o = 0; o < O; o++) sum += dy[row * O + o] * w[o * I + i];
    dx[at] = x[at] > 0 ? sum : 0;
}

/* dw[O, I] and db[O]: the last of each I + 1 threads computes the bias gradient. */
__global__ void linear_backward_w(float *dw, float *db, const float *dy, const float *x, int I, int O) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x, o = at / (I + 1), i = at % (I + 1);
    if (o >= O) return;
    float sum = 0;
    for (int row = 0; row < B; row++) sum += dy[row * O + o] * (i < I ? x[row * I + i] : 1);
    if (i < I) dw[o * I + i] = sum;
    else db[o] = sum;
}

/* ---- the trainer ---- */

static cudaStream_t stream;
static float *weights, *grads, *x, *hidden, *logits, *p, *losses, *dlogits, *dhidden; /* device memory */
static float *w1, *b1, *w2, *b2, *dw1, *db1, *dw2, *db2;                              /* parts of weights and grads */
static int *target;

static float *allocate(size_t count) {
    void *memory = NULL;
    check(cudaMalloc(&memory, count * sizeof(float)));
    return (float *)memory;
}

static void parts_of(float *all, float **of_w1, float **of_b1, float **of_w2, float **of_b2) {
    *of_w1 = all, *of_b1 = all + H * C, *of_w2 = all + H * C + H, *of_b2 = all + N - V;
}

static int blocks(int threads) {
    return (threads + THREADS - 1) / THREADS;
}

static void forward(void) {
    linear<<<blocks(B * H), THREADS, 0, stream>>>(hidden, x, w1, b1, C, H, true);
    linear<<<blocks(B * V), THREADS, 0, stream>>>(logits, hidden, w2, b2, H, V, false);
    cross_entropy<<<blocks(B), THREADS, 0, stream>>>(losses, p, logits, target);
}

static void backward(const float *scale) {
    cross_entropy_backward<<<blocks(B * V), THREADS, 0, stream>>>(dlogits, p, target, scale);
    linear_backward_w<<<blocks(V * (H + 1)), THREADS, 0, stream>>>(dw2, db2, dlogits, hidden, H, V);
    linear_backward_x<<<blocks(B * H), THREADS, 0, stream>>>(dhidden, dlogits, w2, hidden, H, V);
    linear_backward_w<<<blocks(H * (C + 1)), THREADS, 0, stream>>>(dw1, db1, dhidden, x, C, H);
    check(cudaGetLastError());
}

/* Uniform in -1 to 1. */
static float draw(void) {
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 23) - 1;
}

/* The class is which of the first V inputs is the largest. */
static void make_batch(void) {
    static float inputs[B][C];
    static int classes[B];
    for (int b = 0; b < B; b++) {
        for (int c = 0; c < C; c++) inputs[b][c] = draw();
        classes[b] = 0;
        for (int v = 1; v < V; v++) classes[b] = inputs[b][v] > inputs[b][classes[b]] ? v : classes[b];
    }
    check(cudaMemcpyAsync(x, inputs, sizeof(inputs), cudaMemcpyHostToDevice, stream));
    check(cudaMemcpyAsync(target, classes, sizeof(classes), cudaMemcpyHostToDevice, stream));
}

static float mean_loss(void) {
    float each[B], loss = 0;
    check(cudaMemcpyAsync(each, losses, sizeof(each), cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    for (int b = 0; b < B; b++) loss += each[b] / B;
    return loss;
}

static void make_net(void) {
    static float first[N];
    for (int i = 0; i < H * C; i++) first[i] = draw() / 4;
    for (int i = 0; i < V * H; i++) first[H * C + H + i] = draw() / 6;
    weights = allocate(N), grads = allocate(N);
    parts_of(weights, &w1, &b1, &w2, &b2);
    parts_of(grads, &dw1, &db1, &dw2, &db2);
    x = allocate(B * C), hidden = allocate(B * H), logits = allocate(B * V), p = allocate(B * V), losses = allocate(B);
    dlogits = allocate(B * V), dhidden = allocate(B * H), target = (int *)allocate(B);
    check(cudaMemcpyAsync(weights, first, sizeof(first), cudaMemcpyHostToDevice, stream));
}

int main(int argc, char **argv) {
    struct amp_options choice = {};
    choice.struct_size = sizeof(choice), choice.opt_level = AMP_O2;
    long steps = 500;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--steps") == 0) steps = strtol(value, NULL, 10);
        if (strcmp(argv[i], "--opt-level") == 0) CAIRN_CHECK(amp_opt_level_parse(value, &choice.opt_level));
    }
    if (steps < 1) die("--steps takes a number from 1");

    struct cairn_env_options where = {};
    where.struct_size = sizeof(where), where.device = "cuda";
    cairn_env *env;
    CAIRN_CHECK(cairn_env_create(&argc, &argv, &where, &env)); /* makes its GPU current */
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CAIRN_CHECK(cairn_cuda_set_stream(env, stream));
    make_net();
    const cairn_param net[PARAMS] = {{"w1", w1, dw1, CAIRN_F32, 2, {H, C}, CAIRN_OFF},
                                     {"b1", b1, db1, CAIRN_F32, 1, {H}, CAIRN_OFF},
                                     {"w2", w2, dw2, CAIRN_F32, 2, {V, H}, CAIRN_OFF},
                                     {"b2", b2, db2, CAIRN_F32, 1, {V}, CAIRN_OFF}};
    cairn_param_set *set;
    CAIRN_CHECK(cairn_param_set_create(env, net, PARAMS, &set));
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = LR, hyper.momentum = 0.9;
    cairn_optimizer *sgd;
    CAIRN_CHECK(cairn_sgd_create(set, &hyper, &sgd));
    amp_context *amp;
    CAIRN_CHECK(amp_initialize_params(env, set, sgd, &choice, &amp));

    for (long t = 1; t <= steps; t++) {
        make_batch();
        forward();
        const float *scale = amp_next_scale_device(amp); /* 1. the loss scale's address */
        if (!scale) die(cairn_last_error());
        backward(scale);
        CAIRN_CHECK(cairn_grads_ready(set, 0, PARAMS)); /* 2. the kernels that write the gradients are queued */
        CAIRN_CHECK(cairn_step(sgd));                   /* 3. unscales and updates, or skips: the GPU decides */
        if (t % 50 == 0 || t == 1) printf("step %ld  loss %.9g\n", t, mean_loss());
    }
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_param_set_destroy(&set);
    cairn_env_destroy(&env);
    float *const memory[] = {weights, grads, x, hidden, logits, p, losses, dlogits, dhidden, (float *)target};
    for (float *one : memory) check(cudaFree(one));
    check(cudaStreamDestroy(stream));
    return 0;
}
