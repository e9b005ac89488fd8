/* The device's passes over lists, for programs. Arguments are checked here, since passes trust them. */
#include "cairn/multi_tensor.h"

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "device/env.h"

/* sizeof(cairn_array) of 0.8.0. */
#define ARRAY_0_8 CAIRN__SIZE_THROUGH(cairn_array, y)

static bool is_float(cairn_dtype t) {
    return t == CAIRN_F32 || t == CAIRN_F16 || t == CAIRN_BF16;
}

static cairn_status check_memory(cairn_env *env, const char *what, size_t i, const void *p, size_t alignment) {
    REQUIRE(p, CAIRN_EINVAL, "array %zu: %s is NULL", i, what);
    REQUIRE((uintptr_t)p % alignment == 0, CAIRN_EINVAL, "array %zu: %s at %p is not aligned to %zu bytes", i, what, p,
            alignment);
    REQUIRE(cairn__device_reaches(env->device, p), CAIRN_EINVAL,
            "array %zu: %s is host memory, but the environment computes on %s; pass memory of that device", i, what,
            env->device->ops->name);
    return CAIRN_OK;
}

/* to is 0 if there is no dst. */
static cairn_status check_array(cairn_env *env, const cairn_array *a, size_t i, cairn_dtype to, cairn_dtype from,
                                bool has_y) {
    cairn_status st = CAIRN_OK;
    if (a->n == 0) return CAIRN_OK;
    REQUIRE(a->n <= SIZE_MAX / sizeof(float), CAIRN_EINVAL, "array %zu has %zu elements, more than memory can hold", i,
            a->n);
    TRY(check_memory(env, "x", i, a->x, cairn_dtype_nbytes(from)));
    if (to) TRY(check_memory(env, "dst", i, a->dst, cairn_dtype_nbytes(to)));
    if (has_y) TRY(check_memory(env, "y", i, a->y, sizeof(float)));
out:
    return st;
}

/* Converts the arrays to the items that passes take. */
static cairn_status read_arrays(cairn_env *env, size_t nbytes, const cairn_array *given, size_t count, cairn_dtype to,
                                cairn_dtype from, bool has_y, struct cairn__item **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__item *items = NULL;
    REQUIRE(env && (given || count == 0), CAIRN_EINVAL, "cairn_multi_tensor: env and arrays must be set");
    REQUIRE(is_float(from) && (!to || is_float(to)), CAIRN_EINVAL,
            "cairn_multi_tensor: dtype is %d (%s); it must be f32, f16 or bf16", (int)(is_float(from) ? to : from),
            cairn_dtype_name(is_float(from) ? to : from));
    TRY(cairn__element_check(nbytes, "cairn_array"));
    TRY(cairn__calloc(count, sizeof(items[0]), (void **)&items));
    for (size_t i = 0; i < count; i++) {
        cairn_array a = {0};
        TRY(cairn__element_read(&a, sizeof(a), given, nbytes, i, "cairn_array"));
        TRY(check_array(env, &a, i, to, from, has_y));
        items[i] = (struct cairn__item){.n = a.n, .dst = to ? a.dst : NULL, .x = a.x, .y = has_y ? a.y : NULL};
    }
    *out = items;
    return CAIRN_OK;
out:
    cairn__free(items);
    return st;
}

/* Checks the scalar arguments: each is NULL or in the environment's memory. */
static cairn_status check_scalars(cairn_env *env, const float *factor, const uint32_t *found, const double *norm,
                                  const double *norms) {
    const struct {
        const char *name;
        const void *p;
        size_t nbytes;
    } scalars[] = {{"factor", factor, sizeof(*factor)},
                   {"found", found, sizeof(*found)},
                   {"norm", norm, sizeof(*norm)},
                   {"norms", norms, sizeof(*norms)}};
    for (size_t i = 0; i < sizeof(scalars) / sizeof(scalars[0]); i++) {
        if (!scalars[i].p) continue;
        REQUIRE((uintptr_t)scalars[i].p % scalars[i].nbytes == 0, CAIRN_EINVAL,
                "cairn_multi_tensor: %s is not aligned to %zu bytes", scalars[i].name, scalars[i].nbytes);
        REQUIRE(cairn__device_reaches(env->device, scalars[i].p), CAIRN_EINVAL,
                "cairn_multi_tensor: %s is host memory, but the environment computes on %s; pass memory of that device",
                scalars[i].name, env->device->ops->name);
    }
    return CAIRN_OK;
}

cairn_status cairn_multi_tensor_scale_sized(size_t array_nbytes, cairn_env *env, const cairn_array *arrays,
                                            size_t count, cairn_dtype to, cairn_dtype from, const float *factor,
                                            uint32_t *found) {
    cairn_status st = CAIRN_OK;
    struct cairn__item *items = NULL;
    REQUIRE(to, CAIRN_EINVAL, "cairn_multi_tensor_scale: to is 0; set the type of dst");
    TRY(read_arrays(env, array_nbytes, arrays, count, to, from, false, &items));
    TRY(check_scalars(env, factor, found, NULL, NULL));
    env->device->passes->scale(env->device, items, count, to, from, factor, found);
    TRY(cairn__device_check(env->device));
out:
    cairn__free(items);
    return st;
}

cairn_status cairn_multi_tensor_axpby_sized(size_t array_nbytes, cairn_env *env, const cairn_array *arrays,
                                            size_t count, cairn_dtype to, cairn_dtype from, const float *factor,
                                            float b, uint32_t *found) {
    cairn_status st = CAIRN_OK;
    struct cairn__item *items = NULL;
    REQUIRE(to, CAIRN_EINVAL, "cairn_multi_tensor_axpby: to is 0; set the type of dst");
    TRY(read_arrays(env, array_nbytes, arrays, count, to, from, true, &items));
    TRY(check_scalars(env, factor, found, NULL, NULL));
    env->device->passes->axpby(env->device, items, count, to, from, factor, b, found);
    TRY(cairn__device_check(env->device));
out:
    cairn__free(items);
    return st;
}

cairn_status cairn_multi_tensor_l2norm_sized(size_t array_nbytes, cairn_env *env, const cairn_array *arrays,
                                             size_t count, cairn_dtype dtype, const float *factor, double *norm,
                                             double *norms, uint32_t *found) {
    cairn_status st = CAIRN_OK;
    struct cairn__item *items = NULL;
    REQUIRE(norm, CAIRN_EINVAL, "cairn_multi_tensor_l2norm: norm is NULL");
    TRY(read_arrays(env, array_nbytes, arrays, count, (cairn_dtype)0, dtype, false, &items));
    TRY(check_scalars(env, factor, found, norm, norms));
    env->device->passes->l2norm(env->device, items, count, dtype, factor, norm, norms, found);
    TRY(cairn__device_check(env->device));
out:
    cairn__free(items);
    return st;
}

cairn_status(cairn_multi_tensor_scale)(cairn_env *env, const cairn_array *arrays, size_t count, cairn_dtype to,
                                       cairn_dtype from, const float *factor, uint32_t *found) {
    return cairn_multi_tensor_scale_sized(ARRAY_0_8, env, arrays, count, to, from, factor, found);
}

cairn_status(cairn_multi_tensor_axpby)(cairn_env *env, const cairn_array *arrays, size_t count, cairn_dtype to,
                                       cairn_dtype from, const float *factor, float b, uint32_t *found) {
    return cairn_multi_tensor_axpby_sized(ARRAY_0_8, env, arrays, count, to, from, factor, b, found);
}

cairn_status(cairn_multi_tensor_l2norm)(cairn_env *env, const cairn_array *arrays, size_t count, cairn_dtype dtype,
                                        const float *factor, double *norm, double *norms, uint32_t *found) {
    return cairn_multi_tensor_l2norm_sized(ARRAY_0_8, env, arrays, count, dtype, factor, norm, norms, found);
}
