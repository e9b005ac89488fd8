/* The scale of one tensor that is cast to fp8: its history, and the rule by which an update makes the next one. */
#ifndef CAIRN__AMP_FP8_SCALE_H
#define CAIRN__AMP_FP8_SCALE_H

#include <stdbool.h>

#include "cairn/fp8.h"
#include "param/stateful.h"

/* A recipe without defaults; formats are those of core/fp8.h. */
struct cairn__fp8_recipe {
    cairn_fp8_scaling scaling;
    int forward, backward; /* formats */
    int history_len, margin;
    bool most_recent, reduces, power_of_two, saturates, stochastic_inputs, stochastic_gradients;
};

/* Errors: CAIRN_EINVAL with the field; what: of the sentence, "amp_initialize: fp8". */
cairn_status cairn__fp8_recipe_read(const struct cairn_fp8_recipe *given, const char *what,
                                    struct cairn__fp8_recipe *out);

struct cairn__fp8_scale {
    int format;
    float scale;
    float amax; /* the greatest since the last update; 0 = nothing was noted */
    float
        *history; /* [history_len] of earlier updates, a ring, 0 where there was none; NULL where it is not looked at */
    int64_t next; /* the place in history that is written next */
};

/* Scale 1. Errors: CAIRN_ENOMEM. */
cairn_status cairn__fp8_scale_begin(struct cairn__fp8_scale *s, int format, const struct cairn__fp8_recipe *recipe);
void cairn__fp8_scale_end(struct cairn__fp8_scale *s);

/* As after begin. */
void cairn__fp8_scale_reset(struct cairn__fp8_scale *s, const struct cairn__fp8_recipe *recipe);

/* NaN counts as nothing. */
void cairn__fp8_scale_note(struct cairn__fp8_scale *s, float amax);

/* The next scale, from amax, which is then 0 again. */
void cairn__fp8_scale_update(struct cairn__fp8_scale *s, const struct cairn__fp8_recipe *recipe);

/* That of current scaling. */
float cairn__fp8_current_scale(int format, const struct cairn__fp8_recipe *recipe, float amax);

/* Every amax [count] becomes the greatest over the ranks of env: collective. Errors: of the group; CAIRN_ENOMEM. */
cairn_status cairn__fp8_reduce(struct cairn_env *env, float *amax, size_t count);

/* What is saved of s, under names that begin with prefix. An amax that no update has used yet is not. */
cairn_status cairn__fp8_scale_list(struct cairn__fp8_scale *s, const struct cairn__fp8_recipe *recipe,
                                   enum cairn__entry_owner owner, const char *prefix, struct cairn__entries *entries);
cairn_status cairn__fp8_scale_check(const struct cairn__fp8_recipe *recipe, const char *prefix,
                                    const struct cairn__entries *entries);
void cairn__fp8_scale_take(struct cairn__fp8_scale *s, const char *prefix, const struct cairn__entries *entries);

#endif
