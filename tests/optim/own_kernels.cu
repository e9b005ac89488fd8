/* The kernels of own_kernels.h, written as in a user's program. */
#include "own_kernels.h"

#include <math.h>

static const int THREADS = 128;

static unsigned blocks_for(size_t n) {
    return (unsigned)((n + THREADS - 1) / THREADS);
}

__global__ void sgd(struct cairn_custom_update u, double dampening, double decay, bool nesterov) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= u.n || u.scalars->skipped) return;
    const float lr = (float)u.scalars->lr, momentum = (float)u.scalars->momentum;
    float g = u.grad[i];
    if (decay != 0) g = g + (float)decay * u.weights[i];
    const float b = u.scalars->update == 1 ? g : momentum * u.states[0][i] + (float)(1.0 - dampening) * g;
    u.states[0][i] = b;
    g = nesterov ? g + momentum * b : b;
    u.weights[i] = u.weights[i] - lr * g;
}

void queue_sgd(void *ctx, const struct cairn_custom_update *u) {
    const unsigned blocks = blocks_for(u->n);
    cudaStream_t stream = (cudaStream_t)u->stream;
    (void)ctx;
    sgd<<<blocks, THREADS, 0, stream>>>(*u, u->values[0], u->values[1], u->values[3] != 0);
}

__device__ static double power(double base, int64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result = result * base;
        base = base * base;
    }
    return result;
}

__global__ void adamw(struct cairn_custom_update u, double beta2, double eps, double weight_decay) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= u.n || u.scalars->skipped) return;
    const double lr = u.scalars->lr, beta1 = u.scalars->momentum;
    const double c1 = 1.0 - power(beta1, u.scalars->update), c2 = 1.0 - power(beta2, u.scalars->update);
    const float g = u.grad[i];
    const float m = (float)beta1 * u.states[0][i] + (float)(1.0 - beta1) * g;
    const float v = (float)beta2 * u.states[1][i] + (float)(1.0 - beta2) * (g * g);
    u.states[0][i] = m;
    u.states[1][i] = v;
    const float step = (float)(lr / c1) * (m / (sqrtf(v) * (float)(1.0 / sqrt(c2)) + (float)eps));
    u.weights[i] = u.weights[i] - (step + (float)(lr * weight_decay) * u.weights[i]);
}

void queue_adamw(void *ctx, const struct cairn_custom_update *u) {
    const unsigned blocks = blocks_for(u->n);
    cudaStream_t stream = (cudaStream_t)u->stream;
    (void)ctx;
    adamw<<<blocks, THREADS, 0, stream>>>(*u, u->values[0], u->values[1], u->values[2]);
}
