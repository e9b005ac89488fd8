/* Checks a pass's arguments before anything is queued: a wrong pointer would otherwise surface only as the failure of
 * some later call. Each function returns NULL, or a message that says what is wrong. */
#ifndef CAIRN__DEVICE_CUDA_CHECK_H
#define CAIRN__DEVICE_CUDA_CHECK_H

#include "device/passes.h"

/* Which members of an item a pass reads or writes. */
enum cairn__item_use {
    CAIRN__USES_DST = 1,
    CAIRN__USES_X = 2,
    CAIRN__USES_Y = 4, /* f32 */
};

/* dst is of type to, x of type from. Both must be floats, or, if copies is true, equal types of any kind. */
const char *cairn__check_items(const struct cairn__item *items, size_t count, unsigned uses, cairn_dtype to,
                               cairn_dtype from, bool copies);
/* num_states: of the arrays state[], 1 for SGD with momentum, 2 for Adam. */
const char *cairn__check_optim(const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                               enum cairn__weight_mode mode, int num_states);
/* Like check_optim, with what the rule needs before and in its update. */
const char *cairn__check_measure(const struct cairn__optim_rule *rule, const struct cairn__optim_item *items,
                                 size_t count, cairn_dtype grad, enum cairn__weight_mode mode);
const char *cairn__check_by_rule(const struct cairn__optim_rule *rule, const struct cairn__optim_item *items,
                                 size_t count, cairn_dtype grad, enum cairn__weight_mode mode);
/* The arguments besides the items. */
const char *cairn__check_update(const void *rule, const struct cairn__rates *rates,
                                const struct cairn__optim_state *state);
const char *cairn__check_clamp(const struct cairn__item *items, size_t count, float limit);
const char *cairn__check_census(const struct cairn__item *items, size_t count, cairn_dtype dtype,
                                const struct cairn__census *out);
const char *cairn__check_count_exponents(const struct cairn__item *items, size_t count, cairn_dtype dtype,
                                         const struct cairn__exponent_counts *out);
const char *cairn__check_take_flags(const struct cairn__taken *items, size_t count, uint32_t *const *raises,
                                    size_t num_raises);
const char *cairn__check_share_flag(const uint32_t *any, uint32_t *const *into, size_t count);
const char *cairn__check_clip(const double *norms, size_t count, double max_norm,
                              const struct cairn__optim_state *state, const double *total);
/* The optional arguments of a list: factor, the list's flag, and where l2norm's norms go. */
const char *cairn__check_list(const float *factor, const uint32_t *found, const double *norm, const double *each);
const char *cairn__check_step_end(const struct cairn__step_end *end);
const char *cairn__check_rate_table(const struct cairn__rate_table *table);
const char *cairn__check_clear_flags(const uint32_t *flags, size_t n);
const char *cairn__check_store(const void *dst, const void *value, size_t nbytes);
/* n elements of the float type t behind each pointer. */
const char *cairn__check_tensors(cairn_dtype t, size_t n, const void *const *tensors, size_t count);
/* Structs and scalars: not NULL, and aligned to alignment bytes. */
const char *cairn__check_objects(const void *const *objects, size_t count, size_t alignment);
/* A matrix of the float type t; its size in bytes must fit a size_t. */
const char *cairn__check_matrix(cairn_dtype t, const void *x, size_t rows, size_t cols);

#endif
