/* A trainer that owns its buffers: two layers, written with plain arrays and loops. 02_own_buffers_plain.c is the
 * original program, 02_own_buffers.c the same program with Cairn's mixed precision; docs/from-apex.md shows the diff.
 * The net learns which of the first V of its C inputs is the largest.
 *
 *     ./02_own_buffers --steps 500 --opt-level O2      (02_own_buffers_plain has no --opt-level) */
#include <cairn/cairn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 64, C = 16, H = 32, V = 4, N = H * C + H + V * H + V, PARAMS = 4 };

static float weights[N], *w1 = weights, *b1 = weights + H * C, *w2 = weights + H * C + H, *b2 = weights + N - V;
static float grads[N], *dw1 = grads, *db1 = grads + H * C, *dw2 = grads + H * C + H, *db2 = grads + N - V;
static float x[B][C], hidden[B][H], p[B][V];
static int target[B];

static const float LR = 0.1f;

static void die(const char *why) {
    fprintf(stderr, "02_own_buffers: %s\n", why);
    exit(1);
}

/* Uniform in -1 to 1. */
static float draw(void) {
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 23) - 1;
}

static void make_batch(void) {
    for (int b = 0; b < B; b++) {
        for (int c = 0; c < C; c++) x[b][c] = draw();
        target[b] = 0;
        for (int v = 1; v < V; v++) target[b] = x[b][v] > x[b][target[b]] ? v : target[b];
    }
}

static void softmax(float *row) {
    float largest = row[0], sum = 0;
    for (int v = 1; v < V; v++) largest = fmaxf(largest, row[v]);
    for (int v = 0; v < V; v++) sum += row[v] = expf(row[v] - largest);
    for (int v = 0; v < V; v++) row[v] /= sum;
}

/* The mean cross entropy of the batch. */
static float forward(void) {
    float loss = 0;
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            float sum = b1[h];
            for (int c = 0; c < C; c++) sum += w1[h * C + c] * x[b][c];
            hidden[b][h] = fmaxf(sum, 0);
        }
        for (int v = 0; v < V; v++) {
            p[b][v] = b2[v];
            for (int h = 0; h < H; h++) p[b][v] += w2[v * H + h] * hidden[b][h];
        }
        softmax(p[b]);
        loss -= logf(p[b][target[b]]) / B;
    }
    return loss;
}

/* Computes the gradients of scale * loss. */
static void backward(float scale) {
    memset(grads, 0, sizeof(grads));
    for (int b = 0; b < B; b++) {
        float dhidden[H] = {0};
        for (int v = 0; v < V; v++) {
            const float d = (p[b][v] - (float)(v == target[b])) / B * scale;
            db2[v] += d;
            for (int h = 0; h < H; h++) dw2[v * H + h] += d * hidden[b][h];
            for (int h = 0; h < H; h++) dhidden[h] += d * w2[v * H + h];
        }
        for (int h = 0; h < H; h++) {
            if (hidden[b][h] <= 0) continue;
            db1[h] += dhidden[h];
            for (int c = 0; c < C; c++) dw1[h * C + c] += dhidden[h] * x[b][c];
        }
    }
}

int main(int argc, char **argv) {
    struct amp_options choice = *amp_options(.opt_level = AMP_O2);
    long steps = 500;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--steps") == 0) steps = strtol(value, NULL, 10);
        if (strcmp(argv[i], "--opt-level") == 0) CAIRN_CHECK(amp_opt_level_parse(value, &choice.opt_level));
    }
    if (steps < 1) die("--steps takes a number from 1");
    for (int i = 0; i < H * C; i++) w1[i] = draw() / 4;
    for (int i = 0; i < V * H; i++) w2[i] = draw() / 6;
    const cairn_param net[PARAMS] = {{"w1", w1, dw1, CAIRN_F32, 2, {H, C}, CAIRN_OFF},
                                     {"b1", b1, db1, CAIRN_F32, 1, {H}, CAIRN_OFF},
                                     {"w2", w2, dw2, CAIRN_F32, 2, {V, H}, CAIRN_OFF},
                                     {"b2", b2, db2, CAIRN_F32, 1, {V}, CAIRN_OFF}};
    cairn_env *env;
    CAIRN_CHECK(cairn_env_create(&argc, &argv, NULL, &env));
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
        const float loss = forward();
        backward((float)amp_next_scale(amp));
        CAIRN_CHECK(cairn_grads_ready(set, 0, PARAMS));
        CAIRN_CHECK(cairn_step(sgd));
        if (t % 50 == 0 || t == 1) printf("step %ld  loss %.9g\n", t, loss);
    }
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_param_set_destroy(&set);
    cairn_env_destroy(&env);
    return 0;
}
