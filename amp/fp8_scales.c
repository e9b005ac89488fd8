/* Scales for tensors that the program casts itself. */
#include <math.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/fp8.h"
#include "core/status.h"
#include "fp8_scale.h"

struct cairn_fp8_scales {
    cairn_env *env;
    struct cairn__fp8_recipe recipe;
    struct cairn__fp8_scale *at; /* [count] */
    float *amax;                 /* [count] scratch, exchanged between ranks */
    size_t count;
};

static cairn_status begin_all(cairn_fp8_scales *s, const cairn_fp8_format *formats) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < s->count; i++) {
        const cairn_fp8_format format = formats ? formats[i] : CAIRN_FP8_E4M3;
        REQUIRE(!isnan(cairn_fp8_max(format)), CAIRN_EINVAL,
                "cairn_fp8_scales_create: formats[%zu] is %d; it must be CAIRN_FP8_E4M3 or CAIRN_FP8_E5M2", i,
                (int)format);
        TRY(cairn__fp8_scale_begin(&s->at[i], (int)format, &s->recipe));
    }
out:
    return st;
}

cairn_status cairn_fp8_scales_create(cairn_env *env, size_t count, const cairn_fp8_format *formats,
                                     const struct cairn_fp8_recipe *recipe, cairn_fp8_scales **out) {
    cairn_fp8_scales *s = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(env && out, CAIRN_EINVAL, "cairn_fp8_scales_create: env and out must be set");
    TRY(cairn__calloc(1, sizeof(*s), (void **)&s));
    s->env = env;
    TRY(cairn__fp8_recipe_read(recipe, "cairn_fp8_scales_create", &s->recipe));
    TRY(cairn__calloc(count + 1, sizeof(s->at[0]), (void **)&s->at));
    TRY(cairn__calloc(count + 1, sizeof(s->amax[0]), (void **)&s->amax));
    s->count = count;
    TRY(begin_all(s, formats));
    *out = s;
    return CAIRN_OK;
out:
    cairn_fp8_scales_destroy(&s);
    return st;
}

void cairn_fp8_scales_destroy(cairn_fp8_scales **scales) {
    if (!scales || !*scales) return;
    cairn_fp8_scales *s = *scales;
    for (size_t i = 0; i < s->count; i++) cairn__fp8_scale_end(&s->at[i]);
    cairn__free(s->at);
    cairn__free(s->amax);
    cairn__free(s);
    *scales = NULL;
}

float cairn_fp8_scales_get(const cairn_fp8_scales *s, size_t i) {
    return s && i < s->count ? s->at[i].scale : NAN;
}

float cairn_fp8_scales_amax(const cairn_fp8_scales *s, size_t i) {
    return s && i < s->count ? s->at[i].amax : NAN;
}

cairn_status cairn_fp8_scales_note(cairn_fp8_scales *s, size_t i, float amax) {
    REQUIRE(s, CAIRN_EINVAL, "cairn_fp8_scales_note: scales is NULL");
    REQUIRE(i < s->count, CAIRN_EINVAL, "cairn_fp8_scales_note: tensor %zu of %zu", i, s->count);
    REQUIRE(!(amax < 0), CAIRN_EINVAL, "cairn_fp8_scales_note: amax is %g; it is a magnitude, as of cairn_fp8_amax",
            (double)amax);
    cairn__fp8_scale_note(&s->at[i], amax);
    return CAIRN_OK;
}

cairn_status cairn_fp8_scales_update(cairn_fp8_scales *s) {
    cairn_status st = CAIRN_OK;
    REQUIRE(s, CAIRN_EINVAL, "cairn_fp8_scales_update: scales is NULL");
    for (size_t i = 0; i < s->count; i++) s->amax[i] = s->at[i].amax;
    if (s->recipe.reduces) TRY(cairn__fp8_reduce(s->env, s->amax, s->count));
    for (size_t i = 0; i < s->count; i++) {
        s->at[i].amax = s->amax[i];
        cairn__fp8_scale_update(&s->at[i], &s->recipe);
    }
out:
    return st;
}

/* ---- what is saved ---- */

static struct cairn_env *env_of(const void *object) {
    return ((const cairn_fp8_scales *)object)->env;
}

static void prefix_of(size_t i, char text[32]) {
    snprintf(text, 32, "%zu.", i);
}

static cairn_status list(void *object, struct cairn__entries *entries) {
    cairn_fp8_scales *s = object;
    const enum cairn__entry_owner owner =
        s->recipe.reduces || s->env->size == 1 ? CAIRN__ENTRY_SHARED : CAIRN__ENTRY_RANK;
    char prefix[32];
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < s->count && !cairn__entries_is_load(entries); i++) {
        REQUIRE(s->at[i].amax == 0, CAIRN_ESTATE,
                "an amax of tensor %zu was noted and not used: call cairn_fp8_scales_update first", i);
    }
    TRY(cairn__entries_add_i64(entries, owner, (int64_t)s->count, "count"));
    for (size_t i = 0; i < s->count; i++) {
        prefix_of(i, prefix);
        TRY(cairn__fp8_scale_list(&s->at[i], &s->recipe, owner, prefix, entries));
    }
out:
    return st;
}

static cairn_status check(const void *object, const struct cairn__entries *entries) {
    const cairn_fp8_scales *s = object;
    const int64_t count = cairn__entries_i64(entries, "count");
    char prefix[32];
    cairn_status st = CAIRN_OK;
    REQUIRE(count == (int64_t)s->count, CAIRN_EINVAL, "fp8: scales of %lld tensors were saved, and these are %zu",
            (long long)count, s->count);
    for (size_t i = 0; i < s->count; i++) {
        prefix_of(i, prefix);
        TRY(cairn__fp8_scale_check(&s->recipe, prefix, entries));
    }
out:
    return st;
}

static cairn_status loaded(void *object, const struct cairn__entries *entries) {
    cairn_fp8_scales *s = object;
    char prefix[32];
    for (size_t i = 0; i < s->count; i++) {
        prefix_of(i, prefix);
        cairn__fp8_scale_take(&s->at[i], prefix, entries);
    }
    return CAIRN_OK;
}

static const struct cairn__stateful_ops ops = {
    .kind = "fp8 scales", .env = env_of, .list = list, .check = check, .loaded = loaded};

cairn_stateful cairn_fp8_scales_stateful(cairn_fp8_scales *scales) {
    return (cairn_stateful){&ops, scales};
}
