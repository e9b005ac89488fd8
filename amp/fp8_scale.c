/* Scales by Transformer Engine's rules, which include/cairn/fp8.h states with their source. The history is a ring
 * instead of an array that shifts by one place at every update; its greatest element is the same. */
#include "fp8_scale.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fp8.h"
#include "core/options.h"
#include "core/status.h"

enum { HISTORY = 1024, MOST_HISTORY = 65536, MOST_MARGIN = 8 };

/* ---- recipes ---- */

static cairn_status check_numbers(const struct cairn_fp8_recipe *r, const char *what) {
    REQUIRE((int)r->formats >= 0 && r->formats <= CAIRN_FP8_ALL_E4M3, CAIRN_EINVAL,
            "%s: formats is %d; it must be CAIRN_FP8_HYBRID or CAIRN_FP8_ALL_E4M3", what, (int)r->formats);
    REQUIRE((int)r->scaling >= 0 && r->scaling <= CAIRN_FP8_UNSCALED, CAIRN_EINVAL,
            "%s: scaling is %d; it must be CAIRN_FP8_DELAYED, CAIRN_FP8_CURRENT or CAIRN_FP8_UNSCALED", what,
            (int)r->scaling);
    REQUIRE((int)r->amax_compute_algo >= 0 && r->amax_compute_algo <= CAIRN_FP8_AMAX_MOST_RECENT, CAIRN_EINVAL,
            "%s: amax_compute_algo is %d; it must be CAIRN_FP8_AMAX_MAX or CAIRN_FP8_AMAX_MOST_RECENT", what,
            (int)r->amax_compute_algo);
    REQUIRE(r->amax_history_len >= 0 && r->amax_history_len <= MOST_HISTORY, CAIRN_EINVAL,
            "%s: amax_history_len is %d; it must be from 1 to %d", what, r->amax_history_len, MOST_HISTORY);
    REQUIRE(r->margin >= -MOST_MARGIN && r->margin <= MOST_MARGIN, CAIRN_EINVAL,
            "%s: margin is %d; it must be from -%d to %d", what, r->margin, MOST_MARGIN, MOST_MARGIN);
    /* An option that would have no effect is an error. */
    const bool is_delayed = !r->scaling || r->scaling == CAIRN_FP8_DELAYED;
    REQUIRE(is_delayed || (!r->amax_history_len && !r->amax_compute_algo && !r->margin), CAIRN_EINVAL,
            "%s: amax_history_len, amax_compute_algo and margin belong to CAIRN_FP8_DELAYED; leave them out", what);
    return CAIRN_OK;
}

static cairn_status check_switches(const struct cairn_fp8_recipe *r, const char *what) {
    const struct {
        const char *name;
        cairn_switch value;
    } all[] = {
        {"reduce_amax", r->reduce_amax},
        {"power_of_two_scales", r->power_of_two_scales},
        {"saturate", r->saturate},
        {"stochastic_inputs", r->stochastic_inputs},
        {"stochastic_gradients", r->stochastic_gradients},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        REQUIRE(all[i].value == CAIRN_DEFAULT || all[i].value == CAIRN_ON || all[i].value == CAIRN_OFF, CAIRN_EINVAL,
                "%s: %s is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", what, all[i].name, (int)all[i].value);
    }
    return CAIRN_OK;
}

cairn_status cairn__fp8_recipe_read(const struct cairn_fp8_recipe *given, const char *what,
                                    struct cairn__fp8_recipe *out) {
    struct cairn_fp8_recipe r = {.struct_size = sizeof(r)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&r, sizeof(r), given, "cairn_fp8_recipe"));
    TRY(check_numbers(&r, what));
    TRY(check_switches(&r, what));
    *out = (struct cairn__fp8_recipe){
        .scaling = r.scaling ? r.scaling : CAIRN_FP8_DELAYED,
        .forward = CAIRN__E4M3,
        .backward = r.formats == CAIRN_FP8_ALL_E4M3 ? CAIRN__E4M3 : CAIRN__E5M2,
        .history_len = r.amax_history_len ? r.amax_history_len : HISTORY,
        .margin = r.margin,
        .most_recent = r.amax_compute_algo == CAIRN_FP8_AMAX_MOST_RECENT,
        .reduces = r.reduce_amax != CAIRN_OFF && (!r.scaling || r.scaling == CAIRN_FP8_DELAYED),
        .power_of_two = r.power_of_two_scales == CAIRN_ON,
        .saturates = r.saturate != CAIRN_OFF,
        .stochastic_inputs = r.stochastic_inputs == CAIRN_ON,
        .stochastic_gradients = r.stochastic_gradients == CAIRN_ON,
    };
out:
    return st;
}

/* ---- one scale ---- */

static bool has_history(const struct cairn__fp8_recipe *recipe) {
    return recipe->scaling == CAIRN_FP8_DELAYED;
}

cairn_status cairn__fp8_scale_begin(struct cairn__fp8_scale *s, int format, const struct cairn__fp8_recipe *recipe) {
    cairn_status st = CAIRN_OK;
    *s = (struct cairn__fp8_scale){.format = format, .scale = 1};
    if (has_history(recipe))
        TRY(cairn__calloc((size_t)recipe->history_len, sizeof(s->history[0]), (void **)&s->history));
out:
    return st;
}

void cairn__fp8_scale_end(struct cairn__fp8_scale *s) {
    cairn__free(s->history);
    s->history = NULL;
}

void cairn__fp8_scale_reset(struct cairn__fp8_scale *s, const struct cairn__fp8_recipe *recipe) {
    s->scale = 1;
    s->amax = 0;
    s->next = 0;
    if (s->history) memset(s->history, 0, (size_t)recipe->history_len * sizeof(s->history[0]));
}

void cairn__fp8_scale_note(struct cairn__fp8_scale *s, float amax) {
    s->amax = fmaxf(s->amax, amax); /* fmaxf ignores NaN */
}

/* For a finite amax above 0. If the exact scale overflows, FLT_MAX maps amax as near to the format's maximum as
 * possible. Below FLT_MIN, the power of two would have an infinite inverse. */
static float scale_for(const struct cairn__fp8_recipe *recipe, float max, float amax) {
    const float exact = max / amax, scale = isinf(exact) ? FLT_MAX : exact;
    if (!recipe->power_of_two) return scale;
    return scale < FLT_MIN ? FLT_MIN : cairn__f32_from_bits(cairn__f32_bits(scale) & 0x7f800000u);
}

float cairn__fp8_current_scale(int format, const struct cairn__fp8_recipe *recipe, float amax) {
    if (recipe->scaling == CAIRN_FP8_UNSCALED || !isfinite(amax) || amax == 0) return 1;
    return scale_for(recipe, cairn__fp8_max(format), amax);
}

static void update_delayed(struct cairn__fp8_scale *s, const struct cairn__fp8_recipe *recipe) {
    if (s->amax == 0) return;
    s->history[s->next] = s->amax;
    s->next = (s->next + 1) % recipe->history_len;
    float amax = recipe->most_recent ? s->amax : 0;
    for (int64_t i = 0; !recipe->most_recent && i < recipe->history_len; i++) amax = fmaxf(amax, s->history[i]);
    if (!isfinite(amax)) return;
    s->scale = scale_for(recipe, ldexpf(cairn__fp8_max(s->format), -recipe->margin), amax);
}

void cairn__fp8_scale_update(struct cairn__fp8_scale *s, const struct cairn__fp8_recipe *recipe) {
    if (has_history(recipe)) update_delayed(s, recipe);
    else s->scale = cairn__fp8_current_scale(s->format, recipe, s->amax);
    s->amax = 0;
}

/* ---- ranks ---- */

/* The bits of non-negative floats compare as the floats do. */
cairn_status cairn__fp8_reduce(struct cairn_env *env, float *amax, size_t count) {
    const size_t ranks = (size_t)env->size;
    int32_t *all = NULL, *mine = NULL;
    cairn_status st = CAIRN_OK;
    if (ranks == 1 || count == 0) return CAIRN_OK;
    TRY(cairn__calloc(ranks * count, sizeof(all[0]), (void **)&all));
    TRY(cairn__calloc(count, sizeof(mine[0]), (void **)&mine));
    memcpy(mine, amax, count * sizeof(mine[0]));
    TRY(env->gather(env, all, mine, count));
    for (size_t i = 0; i < ranks * count; i++) {
        if (all[i] > mine[i % count]) mine[i % count] = all[i];
    }
    memcpy(amax, mine, count * sizeof(mine[0]));
out:
    cairn__free(all);
    cairn__free(mine);
    return st;
}

/* ---- what is saved ---- */

cairn_status cairn__fp8_scale_list(struct cairn__fp8_scale *s, const struct cairn__fp8_recipe *recipe,
                                   enum cairn__entry_owner owner, const char *prefix, struct cairn__entries *entries) {
    const int64_t length = recipe->history_len;
    cairn_status st = CAIRN_OK;
    TRY(cairn__entries_add_f64(entries, owner, (double)s->scale, "%sscale", prefix));
    if (!s->history) return CAIRN_OK;
    TRY(cairn__entries_add_i64(entries, owner, s->next, "%snext", prefix));
    TRY(cairn__entries_add_host_array(entries, owner, CAIRN_F32, 1, &length, s->history, "%shistory", prefix));
out:
    return st;
}

cairn_status cairn__fp8_scale_check(const struct cairn__fp8_recipe *recipe, const char *prefix,
                                    const struct cairn__entries *entries) {
    const double scale = cairn__entries_f64(entries, "%sscale", prefix);
    REQUIRE(scale > 0 && scale <= FLT_MAX, CAIRN_EINVAL, "fp8: %sscale is %g, which is no scale", prefix, scale);
    if (!has_history(recipe)) return CAIRN_OK;
    const int64_t next = cairn__entries_i64(entries, "%snext", prefix);
    REQUIRE(next >= 0 && next < recipe->history_len, CAIRN_EINVAL, "fp8: %snext is %lld, but the history has %d places",
            prefix, (long long)next, recipe->history_len);
    return CAIRN_OK;
}

void cairn__fp8_scale_take(struct cairn__fp8_scale *s, const char *prefix, const struct cairn__entries *entries) {
    s->scale = (float)cairn__entries_f64(entries, "%sscale", prefix);
    s->amax = 0;
    if (s->history) s->next = cairn__entries_i64(entries, "%snext", prefix);
}
