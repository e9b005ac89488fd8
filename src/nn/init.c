/* Initial values by torch.nn.init's formulas. Uniforms and normals come from the environment's random streams
 * (device/env.h), one stream a call. Distributions that the device has no pass for are drawn on the host and uploaded,
 * with the same bits on every device. */
#include <math.h>

#include "core/alloc.h"
#include "core/philox.h"
#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"

void cairn__param_init_uniform(struct cairn__param *p, float bound) {
    cairn_env *env = p->set->env;
    env->device->passes->uniform(env->device, p->dtype, p->data, p->n, bound, env->seed, cairn__env_next_stream(env));
}

/* ---- what may be initialised ---- */

static cairn_status check(const char *call, const cairn_tensor *t) {
    REQUIRE(t, CAIRN_EINVAL, "%s: the tensor is NULL", call);
    REQUIRE(t->kind != CAIRN__RESULT, CAIRN_ESTATE,
            "%s: the tensor is a result; only parameters, buffers and leaves are initialised", call);
    REQUIRE(!t->param || (t->param->dtype == CAIRN_F32 && !t->param->set->frozen_by), CAIRN_ESTATE,
            "%s: parameter '%s' is %s%s; initialise before amp_initialize and ddp_create", call, t->param->name,
            cairn_dtype_name(t->param->dtype), t->param->set->frozen_by ? " and shared with other ranks" : "");
    REQUIRE(!t->is_buffer || t->dtype == t->added_as, CAIRN_ESTATE,
            "%s: amp has made the buffer %s; initialise before amp_initialize, or use cairn_tensor_write", call,
            cairn_dtype_name(t->dtype));
    REQUIRE(cairn__tensor_dtype(t) == CAIRN_F32 && t->is_dense, CAIRN_EINVAL,
            "%s: the tensor is %s%s; it must be f32 and dense", call, cairn_dtype_name(cairn__tensor_dtype(t)),
            t->is_dense ? "" : " with gaps");
    return cairn__device_refuse_recording(t->env->device,
                                          "a tensor cannot be initialised in a graph; initialise it before capture");
}

static void changed(cairn_tensor *t) {
    if (t->param) t->param->version++;
}

/* ---- drawing ---- */

/* Draws four values from one block; p: the distribution's parameters. */
typedef void (*draw_fn)(struct cairn__philox_block block, const double *p, float values[4]);

static cairn_status draw(cairn_tensor *t, draw_fn f, const double *p) {
    float *values = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc((t->n + 3) / 4 * 4 * sizeof(values[0]), (void **)&values));
    const uint64_t seed = t->env->seed, stream = cairn__env_next_stream(t->env);
    for (size_t i = 0; i < t->n; i += 4) f(cairn__philox(seed, i / 4, stream), p, &values[i]);
    st = cairn__device_upload(t->env->device, cairn__tensor_data(t), values, t->n * sizeof(values[0]));
    cairn__free(values);
    changed(t);
out:
    return st;
}

enum { LOW, HIGH }; /* p of a uniform */
static void draw_uniform(struct cairn__philox_block block, const double *p, float values[4]) {
    for (int i = 0; i < 4; i++)
        values[i] = (float)(p[LOW] + (p[HIGH] - p[LOW]) * (double)cairn__uniform(block.word[i]));
}

enum { MEAN, STD, LEAST, MOST, LEAST_X, MAX_X }; /* p of a normal, of a truncated one */
static void draw_normal(struct cairn__philox_block block, const double *p, float values[4]) {
    cairn__normal4(block, values);
    for (int i = 0; i < 4; i++) values[i] = values[i] * (float)p[STD] + (float)p[MEAN];
}

/* The x with erf(x) = y, |y| < 1, within 4e-7 relatively. Source: Giles, "Approximating the erfinv function", GPU
 * Computing Gems 2 (2011), table 5: single precision. */
static float erf_inverse(float y) {
    static const float central[] = {2.81022636e-08f, 3.43273939e-07f, -3.5233877e-06f, -4.39150654e-06f, 0.00021858087f,
                                    -0.00125372503f, -0.00417768164f, 0.246640727f,    1.50140941f};
    static const float tail[] = {-0.000200214257f, 0.000100950558f, 0.00134934322f, -0.00367342844f, 0.00573950773f,
                                 -0.0076224613f,   0.00943887047f,  1.00167406f,    2.83297682f};
    const float w = -cairn__log_unit((1.0f - y) * (1.0f + y));
    const float *c = w < 5.0f ? central : tail;
    const float at = w < 5.0f ? w - 2.5f : sqrtf(w) - 3.0f;
    float p = c[0];
    for (int i = 1; i < 9; i++) p = p * at + c[i];
    return p * y;
}

/* torch.nn.init.trunc_normal_: uniform in [2 cdf(low) - 1, 2 cdf(high) - 1], then the inverse of the distribution. */
static void draw_trunc_normal(struct cairn__philox_block block, const double *p, float values[4]) {
    for (int i = 0; i < 4; i++) {
        const double u = (double)cairn__uniform(block.word[i]) + 0x1p-25; /* neither 0 nor 1 */
        const double x = p[LEAST_X] + (p[MAX_X] - p[LEAST_X]) * u;
        const double most = 1.0 - 0x1p-24;
        const double y = p[MEAN] + p[STD] * 1.4142135623730951 * (double)erf_inverse((float)fmin(fmax(x, -most), most));
        values[i] = (float)fmin(fmax(y, p[LEAST]), p[MOST]);
    }
}

/* ---- the calls ---- */

cairn_status cairn_init_constant(cairn_tensor *t, double value) {
    cairn_status st = CAIRN_OK;
    TRY(check("init_constant", t));
    struct cairn_device *d = t->env->device;
    d->passes->fill(d, CAIRN_F32, cairn__tensor_data(t), t->n, (float)value);
    changed(t);
out:
    return st;
}

static cairn_status init_uniform(const char *call, cairn_tensor *t, double low, double high) {
    cairn_status st = CAIRN_OK;
    TRY(check(call, t));
    REQUIRE(low <= high && isfinite(high - low), CAIRN_EINVAL,
            "%s: low is %g and high %g; both must be finite, and low at most high", call, low, high);
    if (low != -high) return draw(t, draw_uniform, (const double[]){[LOW] = low, [HIGH] = high});
    struct cairn_device *d = t->env->device;
    d->passes->uniform(d, CAIRN_F32, cairn__tensor_data(t), t->n, (float)high, t->env->seed,
                       cairn__env_next_stream(t->env));
    changed(t);
out:
    return st;
}

static cairn_status init_normal(const char *call, cairn_tensor *t, double mean, double std) {
    cairn_status st = CAIRN_OK;
    TRY(check(call, t));
    REQUIRE(std >= 0 && isfinite(std) && isfinite(mean), CAIRN_EINVAL,
            "%s: mean is %g and std %g; both must be finite, and std at least 0", call, mean, std);
    TRY(draw(t, draw_normal, (const double[]){[MEAN] = mean, [STD] = std}));
out:
    return st;
}

cairn_status cairn_init_uniform(cairn_tensor *t, double low, double high) {
    return init_uniform("init_uniform", t, low, high);
}

cairn_status cairn_init_normal(cairn_tensor *t, double mean, double std) {
    return init_normal("init_normal", t, mean, std);
}

static double twice_cdf_minus_one(double x) {
    return erf(x / sqrt(2.0));
}

cairn_status cairn_init_trunc_normal(cairn_tensor *t, double mean, double std, double low, double high) {
    cairn_status st = CAIRN_OK;
    TRY(check("init_trunc_normal", t));
    REQUIRE(std > 0 && low <= high && isfinite(mean) && isfinite(std), CAIRN_EINVAL,
            "init_trunc_normal: mean is %g, std %g, low %g and high %g; mean and std must be finite, std above 0, and "
            "low at most high",
            mean, std, low, high);
    const double p[] = {[MEAN] = mean,
                        [STD] = std,
                        [LEAST] = low,
                        [MOST] = high,
                        [LEAST_X] = twice_cdf_minus_one((low - mean) / std),
                        [MAX_X] = twice_cdf_minus_one((high - mean) / std)};
    REQUIRE(p[LEAST_X] < 1 - 0x1p-24 && p[MAX_X] > 0x1p-24 - 1, CAIRN_EINVAL,
            "init_trunc_normal: no values lie between low, %g, and high, %g, for mean %g and std %g", low, high, mean,
            std);
    TRY(draw(t, draw_trunc_normal, p));
out:
    return st;
}

/* ---- by fan ---- */

static cairn_status fans(const char *call, const cairn_tensor *t, double *in, double *out) {
    char shape[CAIRN__SHAPE_TEXT];
    REQUIRE(t, CAIRN_EINVAL, "%s: the tensor is NULL", call);
    REQUIRE(t->ndim >= 2, CAIRN_EINVAL, "%s: %s has no fan; the shape must be [out, in, ...]", call,
            cairn__shape_text(t, shape));
    double behind = 1;
    for (int d = 2; d < t->ndim; d++) behind *= (double)t->shape[d];
    *in = (double)t->shape[1] * behind;
    *out = (double)t->shape[0] * behind;
    return CAIRN_OK;
}

/* sqrt(squared / fan); an empty tensor has no fan and needs no values. */
static double spread(double squared, double fan) {
    return fan > 0 ? sqrt(squared / fan) : 0;
}

cairn_status cairn_init_xavier_uniform(cairn_tensor *t, double gain) {
    double in, out;
    cairn_status st = CAIRN_OK;
    TRY(fans("init_xavier_uniform", t, &in, &out));
    const double bound = fabs(gain) * spread(6, in + out);
    TRY(init_uniform("init_xavier_uniform", t, -bound, bound));
out:
    return st;
}

cairn_status cairn_init_xavier_normal(cairn_tensor *t, double gain) {
    double in, out;
    cairn_status st = CAIRN_OK;
    TRY(fans("init_xavier_normal", t, &in, &out));
    TRY(init_normal("init_xavier_normal", t, 0, fabs(gain) * spread(2, in + out)));
out:
    return st;
}

cairn_status cairn_init_kaiming_uniform(cairn_tensor *t, double gain, int fan_out) {
    double in, out;
    cairn_status st = CAIRN_OK;
    TRY(fans("init_kaiming_uniform", t, &in, &out));
    const double bound = fabs(gain) * spread(3, fan_out ? out : in);
    TRY(init_uniform("init_kaiming_uniform", t, -bound, bound));
out:
    return st;
}

cairn_status cairn_init_kaiming_normal(cairn_tensor *t, double gain, int fan_out) {
    double in, out;
    cairn_status st = CAIRN_OK;
    TRY(fans("init_kaiming_normal", t, &in, &out));
    TRY(init_normal("init_kaiming_normal", t, 0, fabs(gain) * spread(1, fan_out ? out : in)));
out:
    return st;
}
