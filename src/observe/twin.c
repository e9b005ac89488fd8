/* What a half gradient lost, compared with an f32 gradient of the same batch. */
#include "observe/exponents.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/half.h"
#include "core/status.h"
#include "core/trace.h"
#include "param/param.h"

enum { PART = 1 << 14 }; /* elements at once */

/* Compares bits, since float comparisons treat subnormals as zeros if the program flushes them. */
static void compare_part(const void *half, cairn_dtype dtype, const float *twin, size_t n,
                         struct cairn_twin_loss *out) {
    float (*const to_f32)(const void *x) = cairn__dtype(dtype)->to_f32;
    const size_t width = cairn_dtype_nbytes(dtype);
    const uint32_t infinity = 0x7f800000u;
    for (size_t i = 0; i < n; i++) {
        const uint32_t of_twin = cairn__f32_bits(twin[i]) & 0x7fffffffu;
        if (of_twin == 0 || of_twin >= infinity) continue;
        const uint32_t x = cairn__f32_bits(to_f32((const char *)half + i * width)) & 0x7fffffffu;
        out->nonzero++;
        out->to_zero += x == 0;
        out->to_inf += x == infinity;
        out->to_nan += x > infinity;
    }
}

/* If the device's memory is the host's, nothing is copied. */
static cairn_status compare(struct cairn_device *d, const void *half, cairn_dtype dtype, const float *twin, size_t n,
                            struct cairn_twin_loss *out) {
    struct cairn_twin_loss loss = *out;
    const size_t width = cairn_dtype_nbytes(dtype);
    char *halves = NULL;
    float *twins = NULL;
    cairn_status st = CAIRN_OK;
    if (cairn__is_on_host(d)) {
        compare_part(half, dtype, twin, n, out);
        return CAIRN_OK;
    }
    TRY(cairn__alloc(PART * width, (void **)&halves));
    TRY(cairn__alloc(PART * sizeof(*twins), (void **)&twins));
    for (size_t i = 0; i < n; i += PART) {
        const size_t m = n - i < PART ? n - i : PART;
        TRY(cairn__device_download(d, halves, (const char *)half + i * width, m * width));
        TRY(cairn__device_download(d, twins, twin + i, m * sizeof(*twins)));
        compare_part(halves, dtype, twins, m, &loss);
    }
    *out = loss;
out:
    cairn__free(halves);
    cairn__free(twins);
    return st;
}

cairn_status cairn_exponents_compare(cairn_env *env, const void *half, cairn_dtype dtype, const float *twin, size_t n,
                                     struct cairn_twin_loss *out) {
    cairn_status st = CAIRN_OK;
    REQUIRE(env && out, CAIRN_EINVAL, "cairn_exponents_compare: env and out must be set");
    REQUIRE(dtype == CAIRN_F32 || cairn__is_half(dtype), CAIRN_EINVAL,
            "cairn_exponents_compare: dtype is %d (%s); it must be f16, bf16 or f32", (int)dtype,
            cairn_dtype_name(dtype));
    TRY(cairn__exponents_check_memory("cairn_exponents_compare: half", env, half, n, dtype));
    TRY(cairn__exponents_check_memory("cairn_exponents_compare: twin", env, twin, n, CAIRN_F32));
    TRY(cairn__device_refuse_recording(env->device, "cairn_exponents_compare reads gradients; call it between "
                                                    "replays"));
    TRY(compare(env->device, half, dtype, twin, n, out));
out:
    return st;
}

/* ---- parameter sets ---- */

static cairn_status check_sets(const cairn_param_set *half, const cairn_param_set *twin) {
    cairn_status st = CAIRN_OK;
    REQUIRE(half && twin, CAIRN_EINVAL, "cairn_exponents_compare_params: both sets must be set");
    REQUIRE(half->count == twin->count, CAIRN_EINVAL,
            "cairn_exponents_compare_params: one set has %zu parameters, the other %zu", half->count, twin->count);
    for (size_t i = 0; i < half->count; i++) {
        const struct cairn__param *p = half->params[i], *q = twin->params[i];
        REQUIRE(strcmp(p->name, q->name) == 0 && p->n == q->n, CAIRN_EINVAL,
                "cairn_exponents_compare_params: parameter %zu is '%s' with %zu elements in one set and '%s' with %zu "
                "in the other",
                i, p->name, p->n, q->name, q->n);
    }
    TRY(cairn__params_check_settled("cairn_exponents_compare_params", half->params, half->count));
    TRY(cairn__params_check_settled("cairn_exponents_compare_params", twin->params, twin->count));
out:
    return st;
}

static void send_share(const char *what, const char *name, int64_t step, uint64_t count, uint64_t of) {
    char text[640];
    snprintf(text, sizeof(text), "%s/%s", what, name);
    cairn__trace_scalar("observe", text, step, (double)count / (double)of);
}

cairn_status cairn_exponents_compare_params(cairn_param_set *half, cairn_param_set *twin, int64_t step,
                                            struct cairn_twin_loss *total) {
    struct cairn_twin_loss all = {0, 0, 0, 0};
    cairn_status st = CAIRN_OK;
    TRY(check_sets(half, twin));
    TRY(cairn__env_resolve(half->env));
    TRY(cairn__env_resolve(twin->env));
    for (size_t i = 0; i < half->count; i++) {
        const struct cairn__grad_view h = cairn__grad_peek(half->params[i]->gradient);
        const struct cairn__grad_view t = cairn__grad_peek(twin->params[i]->gradient);
        struct cairn_twin_loss loss = {0, 0, 0, 0};
        if (!h.x || !t.x) continue;
        REQUIRE(h.n == t.n, CAIRN_ENOTSUP,
                "cairn_exponents_compare_params: ranks share the updates of one of the sets "
                "(ddp_options.shard_optimizer), and have their parts of its gradients alone");
        REQUIRE(t.dtype == CAIRN_F32, CAIRN_EINVAL,
                "cairn_exponents_compare_params: the twin's gradient of '%s' is %s; it must be f32",
                twin->params[i]->name, cairn_dtype_name(t.dtype));
        TRY(cairn_exponents_compare(half->env, h.x, h.dtype, t.x, h.n, &loss));
        if (cairn__trace_on() && loss.nonzero > 0) {
            send_share("lost_to_zero", half->params[i]->name, step, loss.to_zero, loss.nonzero);
            send_share("lost_to_inf", half->params[i]->name, step, loss.to_inf + loss.to_nan, loss.nonzero);
        }
        all.nonzero += loss.nonzero, all.to_zero += loss.to_zero;
        all.to_inf += loss.to_inf, all.to_nan += loss.to_nan;
    }
    if (total) *total = all;
out:
    return st;
}
