/* A trainer in the shape of llm.c's train_gpt2.c: 16 parameter tensors, of which 12 have a slice for each layer, all in
 * one allocation; gradients in another, AdamW over both. A gated mean over earlier tokens replaces attention and uses
 * the same tensors. stacked.c is the same trainer with Cairn; docs/from-apex.md shows the diff.
 *
 *     ./stacked_plain STEPS */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 4, T = 12, V = 24, C = 16, L = 3, BT = B * T };

enum { WTE, WPE, LN1W, LN1B, QKVW, QKVB, PROJW, PROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB, LNFW, LNFB, TENSORS };

static const size_t sizes[TENSORS] = {V * C, T *C, L *C,         L *C,      L * 3 * C *C, L * 3 * C, L *C *C, L *C,
                                      L *C,  L *C, L * 4 * C *C, L * 4 * C, L *C * 4 * C, L *C,      C,       C};

static float *params, *grads, *m, *v;
static float *w[TENSORS], *dw[TENSORS]; /* into params and grads */
static int tokens[BT], targets[BT];

/* What each layer leaves for its backward. */
static struct layer {
    float in[BT * C], ln1[BT * C], qkv[BT * 3 * C], mix[BT * C], mid[BT * C], ln2[BT * C], fc[BT * 4 * C],
        gelu[BT * 4 * C];
} acts[L];
static float out[BT * C], lnf[BT * C], probs[BT * V];

static size_t num_params(void) {
    size_t n = 0;
    for (int i = 0; i < TENSORS; i++) n += sizes[i];
    return n;
}

static float *malloc_and_point(float **tensors) {
    float *memory = calloc(num_params(), sizeof(float)), *at = memory;
    for (int i = 0; i < TENSORS; at += sizes[i++]) tensors[i] = at;
    return memory;
}

/* Uniform in -1 to 1. */
static float draw(void) {
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 23) - 1;
}

static void init(void) {
    for (int i = 0; i < TENSORS; i++) {
        const int is_ln_weight = i == LN1W || i == LN2W || i == LNFW;
        for (size_t k = 0; k < sizes[i]; k++) w[i][k] = is_ln_weight ? 1 : draw() / 5;
    }
}

/* Process rank's of a batch a process, as llm.c's loader gives them. The next token follows from this one and the one
 * before. */
static void next_batch(int rank, int processes) {
    for (int i = 0; i < processes * B; i++) {
        int before = (int)((draw() + 1) * V / 2) % V, token = (int)((draw() + 1) * V / 2) % V;
        for (int t = 0; t < T; t++) {
            const int next = (token * 5 + before + 3) % V;
            if (i / B == rank) tokens[i % B * T + t] = token, targets[i % B * T + t] = next;
            before = token % 2, token = next;
        }
    }
}

static void matmul(float *y, const float *x, const float *weight, const float *bias, int in, int n) {
    for (int i = 0; i < BT; i++) {
        for (int o = 0; o < n; o++) {
            float sum = bias ? bias[o] : 0;
            for (int k = 0; k < in; k++) sum += x[i * in + k] * weight[o * in + k];
            y[i * n + o] = sum;
        }
    }
}

static void matmul_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *x,
                            const float *weight, int in, int n) {
    for (int i = 0; i < BT; i++) {
        for (int o = 0; o < n; o++) {
            const float d = dy[i * n + o];
            if (dbias) dbias[o] += d;
            for (int k = 0; k < in; k++) dx[i * in + k] += d * weight[o * in + k];
            for (int k = 0; k < in; k++) dweight[o * in + k] += d * x[i * in + k];
        }
    }
}

static void moments(const float *x, float *mean, float *rstd) {
    float sum = 0, squares = 0;
    for (int c = 0; c < C; c++) sum += x[c];
    *mean = sum / C;
    for (int c = 0; c < C; c++) squares += (x[c] - *mean) * (x[c] - *mean);
    *rstd = 1 / sqrtf(squares / C + 1e-5f);
}

static void layernorm(float *y, const float *x, const float *weight, const float *bias) {
    for (int i = 0; i < BT * C; i += C) {
        float mean, rstd;
        moments(x + i, &mean, &rstd);
        for (int c = 0; c < C; c++) y[i + c] = (x[i + c] - mean) * rstd * weight[c] + bias[c];
    }
}

static void layernorm_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *x,
                               const float *weight) {
    for (int i = 0; i < BT * C; i += C) {
        float mean, rstd, sum = 0, weighted = 0;
        moments(x + i, &mean, &rstd);
        for (int c = 0; c < C; c++) {
            const float norm = (x[i + c] - mean) * rstd, d = dy[i + c] * weight[c];
            dbias[c] += dy[i + c], dweight[c] += dy[i + c] * norm;
            sum += d / C, weighted += d * norm / C;
        }
        for (int c = 0; c < C; c++) {
            const float norm = (x[i + c] - mean) * rstd;
            dx[i + c] += (dy[i + c] * weight[c] - sum - norm * weighted) * rstd;
        }
    }
}

/* mix[t] = q[t] * mean over s <= t of k[s] * v[s] */
static void mix(float *y, const float *qkv) {
    for (int b = 0; b < B; b++) {
        for (int c = 0; c < C; c++) {
            float sum = 0;
            for (int t = 0; t < T; t++) {
                const float *at = qkv + (b * T + t) * 3 * C + c;
                sum += at[C] * at[2 * C];
                y[(b * T + t) * C + c] = at[0] * sum / (float)(t + 1);
            }
        }
    }
}

static void mix_backward(float *dqkv, const float *dy, const float *qkv) {
    for (int b = 0; b < B; b++) {
        for (int c = 0; c < C; c++) {
            float sums[T], sum = 0, later = 0;
            for (int t = 0; t < T; t++) {
                const float *at = qkv + (b * T + t) * 3 * C + c;
                sums[t] = sum += at[C] * at[2 * C];
            }
            for (int t = T - 1; t >= 0; t--) {
                const float *at = qkv + (b * T + t) * 3 * C + c, d = dy[(b * T + t) * C + c] / (float)(t + 1);
                float *dat = dqkv + (b * T + t) * 3 * C + c;
                later += d * at[0];
                dat[0] += d * sums[t], dat[C] += later * at[2 * C], dat[2 * C] += later * at[C];
            }
        }
    }
}

static void add(float *y, const float *a, const float *b) {
    for (int i = 0; i < BT * C; i++) y[i] = a[i] + b[i];
}

static float gelu_of(float x, float *slope) {
    const float u = 0.79788456f * (x + 0.044715f * x * x * x), th = tanhf(u);
    *slope = 0.5f * (1 + th) + 0.5f * x * (1 - th * th) * 0.79788456f * (1 + 0.134145f * x * x);
    return 0.5f * x * (1 + th);
}

/* The mean cross entropy of the batch. */
static float forward(void) {
    float tmp[BT * C], slope, loss = 0;
    for (int i = 0; i < BT * C; i++) acts[0].in[i] = w[WTE][tokens[i / C] * C + i % C] + w[WPE][i / C % T * C + i % C];
    for (int l = 0; l < L; l++) {
        struct layer *a = &acts[l];
        layernorm(a->ln1, a->in, w[LN1W] + l * C, w[LN1B] + l * C);
        matmul(a->qkv, a->ln1, w[QKVW] + l * 3 * C * C, w[QKVB] + l * 3 * C, C, 3 * C);
        mix(a->mix, a->qkv);
        matmul(tmp, a->mix, w[PROJW] + l * C * C, w[PROJB] + l * C, C, C);
        add(a->mid, a->in, tmp);
        layernorm(a->ln2, a->mid, w[LN2W] + l * C, w[LN2B] + l * C);
        matmul(a->fc, a->ln2, w[FCW] + l * 4 * C * C, w[FCB] + l * 4 * C, C, 4 * C);
        for (int i = 0; i < BT * 4 * C; i++) a->gelu[i] = gelu_of(a->fc[i], &slope);
        matmul(tmp, a->gelu, w[FCPROJW] + l * C * 4 * C, w[FCPROJB] + l * C, 4 * C, C);
        add(l + 1 < L ? acts[l + 1].in : out, a->mid, tmp);
    }
    layernorm(lnf, out, w[LNFW], w[LNFB]);
    matmul(probs, lnf, w[WTE], NULL, C, V);
    for (int i = 0; i < BT; i++) {
        float *p = probs + i * V, largest = p[0], sum = 0;
        for (int k = 1; k < V; k++) largest = fmaxf(largest, p[k]);
        for (int k = 0; k < V; k++) sum += p[k] = expf(p[k] - largest);
        for (int k = 0; k < V; k++) p[k] /= sum;
        loss -= logf(p[targets[i]]) / BT;
    }
    return loss;
}

static void backward(void) {
    static float dlogits[BT * V], dlnf[BT * C], dmid[BT * C], dln[BT * C], dwide[BT * 4 * C], dmix[BT * C], dx[BT * C],
        dqkv[BT * 3 * C];
    if (!grads) grads = malloc_and_point(dw);
    memset(grads, 0, num_params() * sizeof(float));
    const float dloss = 1.0f / BT;
    for (int i = 0; i < BT * V; i++) dlogits[i] = (probs[i] - (float)(i % V == targets[i / V])) * dloss;
    memset(dlnf, 0, sizeof(dlnf)), memset(dx, 0, sizeof(dx));
    matmul_backward(dlnf, dw[WTE], NULL, dlogits, lnf, w[WTE], C, V);
    layernorm_backward(dx, dw[LNFW], dw[LNFB], dlnf, out, w[LNFW]);
    for (int l = L - 1; l >= 0; l--) {
        struct layer *a = &acts[l];
        memset(dwide, 0, sizeof(dwide)), memset(dln, 0, sizeof(dln)), memset(dmix, 0, sizeof(dmix));
        memset(dqkv, 0, sizeof(dqkv)), memcpy(dmid, dx, sizeof(dmid));
        matmul_backward(dwide, dw[FCPROJW] + l * C * 4 * C, dw[FCPROJB] + l * C, dx, a->gelu,
                        w[FCPROJW] + l * C * 4 * C, 4 * C, C);
        for (int i = 0; i < BT * 4 * C; i++) {
            float slope;
            gelu_of(a->fc[i], &slope);
            dwide[i] *= slope;
        }
        matmul_backward(dln, dw[FCW] + l * 4 * C * C, dw[FCB] + l * 4 * C, dwide, a->ln2, w[FCW] + l * 4 * C * C, C,
                        4 * C);
        layernorm_backward(dmid, dw[LN2W] + l * C, dw[LN2B] + l * C, dln, a->mid, w[LN2W] + l * C);
        matmul_backward(dmix, dw[PROJW] + l * C * C, dw[PROJB] + l * C, dmid, a->mix, w[PROJW] + l * C * C, C, C);
        mix_backward(dqkv, dmix, a->qkv);
        memset(dln, 0, sizeof(dln)), memcpy(dx, dmid, sizeof(dx));
        matmul_backward(dln, dw[QKVW] + l * 3 * C * C, dw[QKVB] + l * 3 * C, dqkv, a->ln1, w[QKVW] + l * 3 * C * C, C,
                        3 * C);
        layernorm_backward(dx, dw[LN1W] + l * C, dw[LN1B] + l * C, dln, a->in, w[LN1W] + l * C);
    }
    for (int i = 0; i < BT * C; i++) {
        dw[WTE][tokens[i / C] * C + i % C] += dx[i];
        dw[WPE][i / C % T * C + i % C] += dx[i];
    }
}

static void update(float lr, float beta1, float beta2, float eps, float weight_decay, int t) {
    if (!m) m = calloc(num_params(), sizeof(float)), v = calloc(num_params(), sizeof(float));
    for (size_t i = 0; i < num_params(); i++) {
        m[i] = beta1 * m[i] + (1 - beta1) * grads[i];
        v[i] = beta2 * v[i] + (1 - beta2) * grads[i] * grads[i];
        const float mean = m[i] / (1 - powf(beta1, (float)t)), square = v[i] / (1 - powf(beta2, (float)t));
        params[i] -= lr * (mean / (sqrtf(square) + eps) + weight_decay * params[i]);
    }
}

int main(int argc, char **argv) {
    const int steps = argc > 1 ? atoi(argv[1]) : 200;
    params = malloc_and_point(w);
    init();
    for (int t = 1; t <= steps; t++) {
        next_batch(0, 1);
        const float loss = forward();
        backward();
        update(3e-3f, 0.9f, 0.999f, 1e-8f, 0.01f, t);
        if (t % 20 == 0 || t == 1) printf("step %d  loss %.9g\n", t, loss);
    }
    return 0;
}
