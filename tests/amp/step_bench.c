/* The cost of loss scaling in a step of 100 M parameters (200 tensors, f16 weights and gradients, fp32 masters, AdamW):
 * the whole step against the optimizer's bare pass over the same memory, once with the overflow check done by a
 * reduction and once by the step, which then reads the gradients itself; and clipping by norm, which reads the
 * gradients once, against the fastest loop that reads as much. Measurements alternate in one run; at the end the
 * weights of both are compared bit for bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../bench.h"
#include "../kernels/kcheck.h"
#include "cairn/cairn.h"
#include "core/alloc.h"
#include "core/cpu.h"
#include "core/half.h"
#include "core/trace.h"
#include "param/param.h"

enum { TENSORS = 200, N = 500000, TOTAL = TENSORS * N };

struct bare {
    uint16_t *w;
    float *master[TENSORS], *m[TENSORS], *v[TENSORS]; /* each by itself, as the optimizer's own are */
    struct cairn__optim_item items[TENSORS];
    int64_t missed[TENSORS];
    struct cairn__optim_state state;
    struct cairn__step_report reports[CAIRN__REPORTS];
    struct cairn__overflow overflows[TENSORS], names[CAIRN__REPORTS * TENSORS];
};

static struct bench {
    cairn_env *env;
    uint16_t *grad, *w;
    cairn_param params[TENSORS];
    char names[TENSORS][16];
    cairn_param_set *set;
    cairn_optimizer *adamw;
    amp_context *amp;
    struct bare bare;
    float factor;
} b;

static void *memory(size_t nbytes) {
    void *p = NULL;
    done(cairn__alloc(nbytes, &p));
    memset(p, 0, nbytes);
    return p;
}

/* Between 2^-7 and 2^-1 in size, both signs. */
static uint16_t value(size_t i) {
    const uint32_t bits = (uint32_t)(i * 2654435761u) >> 16;
    return (uint16_t)((bits & 0x83ff) | (8 + bits % 6) << 10);
}

static void begin(void) {
    done(cairn_env_create(NULL, NULL, NULL, &b.env));
    b.grad = memory(TOTAL * sizeof(uint16_t));
    b.w = memory(TOTAL * sizeof(uint16_t));
    b.bare.w = memory(TOTAL * sizeof(uint16_t));
    for (size_t i = 0; i < TOTAL; i++) {
        b.grad[i] = value(i);
        b.w[i] = b.bare.w[i] = value(i + 7);
    }
    for (int t = 0; t < TENSORS; t++) {
        b.bare.m[t] = memory(N * sizeof(float));
        b.bare.v[t] = memory(N * sizeof(float));
    }
    for (int t = 0; t < TENSORS; t++) {
        b.bare.master[t] = memory(N * sizeof(float));
        for (size_t i = 0; i < N; i++) b.bare.master[t][i] = cairn__f16_to_f32(b.w[(size_t)t * N + i]);
        snprintf(b.names[t], sizeof(b.names[t]), "tensor%d", t);
        b.params[t] = (cairn_param){.name = b.names[t],
                                    .data = b.w + (size_t)t * N,
                                    .grad = b.grad + (size_t)t * N,
                                    .dtype = CAIRN_F16,
                                    .ndim = 1,
                                    .shape = {N}};
    }
    done(cairn_param_set_create(b.env, b.params, TENSORS, &b.set));
    done(cairn_adamw_create(b.set, NULL, &b.adamw));
    done(amp_initialize_params(b.env, b.set, b.adamw,
                               amp_options(.opt_level = AMP_O2, .loss_scale = 1024, .verbosity = -1), &b.amp));
}

/* One optimizer step's pass, and nothing of amp: what a training loop without loss scaling cannot do without. */
static void bare_step(void) {
    struct cairn_device *d = b.env->device;
    const struct cairn_adam_options h = CAIRN_ADAMW_OPTIONS_INIT;
    const struct cairn__optim_rule rule = {
        .kind = CAIRN__OPTIM_ADAM,
        .adam = {.beta2 = h.beta2, .eps = h.eps, .weight_decay = h.weight_decay, .decoupled = true}};
    const struct cairn__rates rates = {h.lr, h.beta1};
    b.factor = 1.0f / 1024;
    for (int t = 0; t < TENSORS; t++) {
        const size_t at = (size_t)t * N;
        b.bare.items[t] = (struct cairn__optim_item){.n = N,
                                                     .weights = b.bare.master[t],
                                                     .half = b.bare.w + at,
                                                     .state = {b.bare.m[t], b.bare.v[t]},
                                                     .grad = b.grad + at,
                                                     .factor = &b.factor,
                                                     .missed = &b.bare.missed[t]};
    }
    b.bare.state.clip = 1;
    d->passes->update(d, b.bare.items, TENSORS, CAIRN_F16, CAIRN__W_F32_F16, &rule, &rates, &b.bare.state);
    const struct cairn__step_end end = {.optim = &b.bare.state,
                                        .overflows = b.bare.overflows,
                                        .count = TENSORS,
                                        .reports = b.bare.reports,
                                        .names = b.bare.names};
    d->passes->step_end(d, &end);
}

/* What follows a backward of the user's. */
static void declare(bool looked) {
    cairn_zero_grad(b.adamw);
    (void)amp_next_scale(b.amp);
    done(cairn_grads_ready(b.set, 0, TENSORS));
    if (looked) done(cairn__param_set_on_reduced(b.set, 0)); /* as ddp does where the group looks at what it adds up */
}

static double since(uint64_t begin_ns) {
    return (double)(cairn__now_ns() - begin_ns) * 1e-9;
}

static double time_bare(void) {
    const uint64_t begin_ns = cairn__now_ns();
    bare_step();
    return since(begin_ns);
}

static double time_step(bool looked) {
    const uint64_t begin_ns = cairn__now_ns();
    declare(looked);
    done(cairn_step(b.adamw));
    return since(begin_ns);
}

static double time_norm(void) {
    double norm = 0;
    declare(false);
    const uint64_t begin_ns = cairn__now_ns();
    done(cairn_clip_grad_norm(b.adamw, 1e30, &norm));
    const double seconds = since(begin_ns);
    require(norm > 0 && norm < 1e30, "the norm makes no sense");
    return seconds;
}

/* The loops of kcheck that only read, by so many elements at a time. */
static double time_read(size_t elements) {
    const struct limit_stream stream = {READ, sizeof(uint16_t), (unsigned char *)b.grad};
    limit_fn limit = limit_generic;
#if defined(__x86_64__)
    if (cairn__cpu_detect() & CAIRN__CPU_AVX2) limit = limit_avx2;
    if (cairn__cpu_detect() & CAIRN__CPU_AVX512) limit = limit_avx512;
#endif
    const uint64_t begin_ns = cairn__now_ns();
    limit(&stream, 1, TOTAL, 0, elements);
    return since(begin_ns);
}

static bool weights_are_equal(void) {
    bool equal = memcmp(b.w, b.bare.w, TOTAL * sizeof(b.w[0])) == 0;
    for (int t = 0; t < TENSORS; t++)
        equal &= memcmp(cairn_param_master(b.set, (size_t)t), b.bare.master[t], N * sizeof(float)) == 0;
    return equal;
}

enum what { BARE, LOOKED, BARE_AGAIN, READS, NORM, READ_64, READ_512, WHATS };

static double measure(enum what what) {
    switch (what) {
    case LOOKED:
        return time_step(true);
    case READS:
        return time_step(false);
    case NORM:
        return time_norm();
    case READ_64:
        return time_read(64);
    case READ_512:
        return time_read(512);
    default:
        return time_bare();
    }
}

static double least(double x, double y) {
    return x < y ? x : y;
}

int main(void) {
    static double seconds[WHATS][ROUNDS];
    double m[WHATS];
    begin();
    for (int r = -1; r < ROUNDS; r++) { /* as many bare steps as others, so that the weights stay equal */
        for (int what = 0; what < WHATS; what++) {
            const double s = measure((enum what)what);
            if (r >= 0) seconds[what][r] = s;
        }
        cairn_zero_grad(b.adamw);
    }
    require(weights_are_equal(), "the step's weights are not those of the bare pass");
    for (int what = 0; what < WHATS; what++) m[what] = median(seconds[what]);
    const double pass = least(m[BARE], m[BARE_AGAIN]), limit = least(m[READ_64], m[READ_512]);
    printf("a step of %d parameters in %d tensors, f16, masters, AdamW; medians of %d\n", TOTAL, TENSORS, ROUNDS);
    printf("the optimizer's pass alone       %7.1f ms\n", pass * 1e3);
    printf("step, a reduction has looked     %7.1f ms  %5.3f of it (goal 1.02)\n", m[LOOKED] * 1e3, m[LOOKED] / pass);
    printf("step, reads the gradients        %7.1f ms  %5.3f of it (goal 1.10)\n", m[READS] * 1e3, m[READS] / pass);
    printf("check, norm and clipping         %7.1f ms  %5.3f of the reading limit, %.1f ms (goal 0.85)\n",
           m[NORM] * 1e3, limit / m[NORM], limit * 1e3);
    amp_destroy(&b.amp);
    cairn_optimizer_destroy(&b.adamw);
    cairn_param_set_destroy(&b.set);
    return 0;
}
