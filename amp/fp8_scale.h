/* The scale of one tensor that is cast to fp8: its amax history, and the rule that computes the next scale. */
#ifndef CAIRN__AMP_FP8_SCALE_H
#define CAIRN__AMP_FP8_SCALE_H

#include <stdbool.h>

#include "cairn/fp8.h"
#include "param/stateful.h"

/* A recipe with defaults filled in; formats are those of core/fp8.h. */
struct cairn__fp8_recipe {
    cairn_fp8_scaling scaling;
    int forward, backward; /* formats */
    int history_len, margin;
    bool most_recent, reduces, power_of_two, saturates, stochastic_inputs, stochastic_gradients;
};

/* what begins the message: "amp_initialize: fp8". Errors: CAIRN_EINVAL, with the field's name. */
cairn_status cairn__fp8_recipe_read(const struct cairn_fp8_recipe *given, const char *what,
                                    struct cairn__fp8_recipe *out);

struct cairn__fp8_scale {
    int format;
    float scale;
    float amax;     /* the greatest since the last update; 0 = none was noted */
    float *history; /* [history_len] amax of earlier updates, a ring, 0 = none yet; NULL = the recipe needs none */
    int64_t next;   /* index in history that is written next */
};

/* Scale 1. Errors: CAIRN_ENOMEM. */
cairn_status cairn__fp8_scale_begin(struct cairn__fp8_scale *s, int format, const struct cairn__fp8_recipe *recipe);
void cairn__fp8_scale_end(struct cairn__fp8_scale *s);

/* Back to the state after begin. */
void cairn__fp8_scale_reset(struct cairn__fp8_scale *s, const struct cairn__fp8_recipe *recipe);

/* Notes an amax. NaN is ignored. */
void cairn__fp8_scale_note(struct cairn__fp8_scale *s, float amax);

/* Computes the next scale from amax, and resets amax to 0. */
void cairn__fp8_scale_update(struct cairn__fp8_scale *s, const struct cairn__fp8_recipe *recipe);

/* The scale that current scaling uses. */
float cairn__fp8_current_scale(int format, const struct cairn__fp8_recipe *recipe, float amax);

/* Every amax [count] becomes the greatest over the ranks of env. Collective. Errors: of the group; CAIRN_ENOMEM. */
cairn_status cairn__fp8_reduce(struct cairn_env *env, float *amax, size_t count);

/* Saving and loading of s, under names that begin with prefix. An amax that no update has used yet is not saved. */
cairn_status cairn__fp8_scale_list(struct cairn__fp8_scale *s, const struct cairn__fp8_recipe *recipe,
                                   enum cairn__entry_owner owner, const char *prefix, struct cairn__entries *entries);
cairn_status cairn__fp8_scale_check(const struct cairn__fp8_recipe *recipe, const char *prefix,
                                    const struct cairn__entries *entries);
void cairn__fp8_scale_take(struct cairn__fp8_scale *s, const char *prefix, const struct cairn__entries *entries);

#endif
