/* Overhead of the tape, the loss and the bias around the two products of the quick start (Linear 1024 -> 16, batch 64,
 * mse, f32): median time of forward and backward against the two bare products, alternating in one run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/trace.h"
#include "device/env.h"
#include "nn/tape.h"

enum { BATCH = 64, IN = 1024, OUT = 16, WARM_UP = 200, ROUNDS = 4001 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof(values[0]), by_value);
    return values[ROUNDS / 2];
}

static void require(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "%s: %s\n", what, cairn_last_error());
    exit(1);
}

struct bench {
    cairn_env *env;
    cairn_tensor *x, *y;
    cairn_module *model;
    float *flat_x, *flat_w, *flat_dy, *out, *dw;
};

static float *flat(size_t n) {
    float *p = NULL;
    require(cairn__alloc(n * sizeof(float), (void **)&p) == CAIRN_OK, "memory");
    for (size_t i = 0; i < n; i++) p[i] = (float)((int)(i % 13) - 6);
    return p;
}

static void products(struct bench *b) {
    const struct cairn__matmul forward = {.m = BATCH,
                                          .n = OUT,
                                          .k = IN,
                                          .trans_b = true,
                                          .in_type = CAIRN_F32,
                                          .out_type = CAIRN_F32,
                                          .a = b->flat_x,
                                          .b = b->flat_w,
                                          .c = b->out};
    const struct cairn__matmul weight = {.m = OUT,
                                         .n = IN,
                                         .k = BATCH,
                                         .trans_a = true,
                                         .in_type = CAIRN_F32,
                                         .out_type = CAIRN_F32,
                                         .a = b->flat_dy,
                                         .b = b->flat_x,
                                         .c = b->dw};
    require(cairn__device_matmul(b->env->device, &forward) == CAIRN_OK, "product");
    require(cairn__device_matmul(b->env->device, &weight) == CAIRN_OK, "product");
}

static void step(struct bench *b) {
    cairn__param_set_zero_grad(cairn_module_params(b->model));
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(b->model, b->x), b->y);
    require(cairn_backward(loss) == CAIRN_OK, "backward");
}

static double timed(void (*f)(struct bench *), struct bench *b) {
    uint64_t begin = cairn__now_ns();
    f(b);
    return (double)(cairn__now_ns() - begin) * 1e-3;
}

int main(void) {
    static double of_products[ROUNDS], of_steps[ROUNDS];
    struct cairn_env env = {.size = 1, .seed = 1};
    struct bench b = {.env = &env};
    require(cairn__device_open("cpu", 0, &env.device) == CAIRN_OK, "device");
    require(cairn__tape_create(&env) == CAIRN_OK, "tape");
    b.x = cairn_randn(&env, CAIRN_F32, CAIRN_SHAPE(BATCH, IN));
    b.y = cairn_randn(&env, CAIRN_F32, CAIRN_SHAPE(BATCH, OUT));
    b.model = cairn_linear(&env, IN, OUT);
    b.flat_x = flat((size_t)BATCH * IN), b.flat_w = flat((size_t)OUT * IN), b.flat_dy = flat((size_t)BATCH * OUT);
    b.out = flat((size_t)BATCH * OUT), b.dw = flat((size_t)OUT * IN);
    for (int i = 0; i < WARM_UP; i++) products(&b), step(&b);
    for (int i = 0; i < ROUNDS; i++) {
        of_products[i] = timed(products, &b);
        of_steps[i] = timed(step, &b);
    }
    double bare = median(of_products), whole = median(of_steps);
    printf("%s\nLinear %d -> %d, batch %d, mse, f32; %d rounds after %d, medians\n", cairn_device_describe(env.device),
           IN, OUT, BATCH, ROUNDS, WARM_UP);
    printf("  two bare products     %7.2f us\n  forward and backward  %7.2f us\n  around the products   %7.2f us\n",
           bare, whole, whole - bare);
    cairn_module_destroy(&b.model);
    cairn__free(b.flat_x), cairn__free(b.flat_w), cairn__free(b.flat_dy), cairn__free(b.out), cairn__free(b.dw);
    cairn__tape_destroy(&env);
    cairn__device_close(&env.device);
    return 0;
}
