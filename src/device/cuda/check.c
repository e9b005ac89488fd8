#include "device/cuda/check.h"

#include "core/dtype.h"

#define TRY_CHECK(expr)                  \
    do {                                 \
        const char *complaint = (expr);  \
        if (complaint) return complaint; \
    } while (0)

static bool is_float(cairn_dtype t) {
    return t == CAIRN_F32 || cairn__is_half(t);
}

static const char *check_array(const void *p, size_t n, size_t nbytes) {
    if (n == 0) return NULL;
    if (!p) return "there are elements, but their address is NULL";
    if ((uintptr_t)p % nbytes != 0) return "an address is not a multiple of the element's size";
    if (n > SIZE_MAX / nbytes) return "the elements' size in bytes overflows";
    return NULL;
}

/* p may be NULL. */
static const char *check_optional(const void *p, size_t alignment) {
    return check_array(p, p != NULL, alignment);
}

const char *cairn__check_items(const struct cairn__item *items, size_t count, unsigned uses, cairn_dtype to,
                               cairn_dtype from, bool copies) {
    if (!cairn_dtype_nbytes(to) || !cairn_dtype_nbytes(from)) return "there is no such element type";
    if (!(copies && to == from) && !(is_float(to) && is_float(from))) return "integers are not converted";
    if (count && !items) return "there are items, but their address is NULL";
    for (size_t i = 0; i < count; i++) {
        const struct cairn__item *item = &items[i];
        if (uses & CAIRN__USES_DST) TRY_CHECK(check_array(item->dst, item->n, cairn_dtype_nbytes(to)));
        if (uses & CAIRN__USES_X) TRY_CHECK(check_array(item->x, item->n, cairn_dtype_nbytes(from)));
        if (uses & CAIRN__USES_Y) TRY_CHECK(check_array(item->y, item->n, sizeof(float)));
        TRY_CHECK(check_optional(item->found, sizeof(*item->found)));
    }
    return NULL;
}

const char *cairn__check_list(const float *factor, const uint32_t *found, const double *norm, const double *each) {
    TRY_CHECK(check_optional(factor, sizeof(*factor)));
    TRY_CHECK(check_optional(found, sizeof(*found)));
    TRY_CHECK(check_optional(norm, sizeof(*norm)));
    return check_optional(each, sizeof(*each));
}

const char *cairn__check_clamp(const struct cairn__item *items, size_t count, float limit) {
    if (!(limit >= 0)) return "the limit is negative or NaN";
    return cairn__check_items(items, count, CAIRN__USES_DST | CAIRN__USES_X, CAIRN_F32, CAIRN_F32, false);
}

const char *cairn__check_census(const struct cairn__item *items, size_t count, cairn_dtype dtype,
                                const struct cairn__census *out) {
    TRY_CHECK(check_array(out, count, _Alignof(struct cairn__census)));
    return cairn__check_items(items, count, CAIRN__USES_X, dtype, dtype, false);
}

const char *cairn__check_count_exponents(const struct cairn__item *items, size_t count, cairn_dtype dtype,
                                         const struct cairn__exponent_counts *out) {
    TRY_CHECK(check_array(out, count, _Alignof(struct cairn__exponent_counts)));
    return cairn__check_items(items, count, CAIRN__USES_X, dtype, dtype, dtype == CAIRN_F64);
}

static const char *check_optim_item(const struct cairn__optim_item *item, cairn_dtype grad,
                                    enum cairn__weight_mode mode, int num_states) {
    const bool at_random = mode == CAIRN__W_BF16_STOCHASTIC;
    const bool half_weights = mode == CAIRN__W_F16 || mode == CAIRN__W_BF16 || at_random;
    const bool has_copy = mode == CAIRN__W_F32_F16 || mode == CAIRN__W_F32_BF16;
    TRY_CHECK(check_array(item->weights, item->n, half_weights ? 2 : 4));
    if (has_copy) TRY_CHECK(check_array(item->half, item->n, 2));
    if (at_random && item->parameter >> 24) return "a parameter's number in stochastic rounding has more than 24 bits";
    for (int s = 0; s < num_states; s++) TRY_CHECK(check_array(item->state[s], item->n, sizeof(float)));
    TRY_CHECK(check_array(item->grad, item->n, cairn_dtype_nbytes(grad)));
    TRY_CHECK(check_optional(item->factor, sizeof(*item->factor)));
    return check_array(item->missed, item->n != 0, sizeof(*item->missed));
}

const char *cairn__check_optim(const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                               enum cairn__weight_mode mode, int num_states) {
    if (!is_float(grad)) return "gradients are f32, f16 or bf16";
    if ((unsigned)mode >= CAIRN__NUM_STORAGE_MODES) return "there is no such mode of storing weights";
    if (count && !items) return "there are items, but their address is NULL";
    for (size_t i = 0; i < count; i++) TRY_CHECK(check_optim_item(&items[i], grad, mode, num_states));
    return NULL;
}

static const char *check_squares(const struct cairn__optim_item *items, size_t count) {
    for (size_t i = 0; i < count; i++) TRY_CHECK(check_array(items[i].squares, 1, _Alignof(struct cairn__squares)));
    return NULL;
}

const char *cairn__check_measure(const struct cairn__optim_rule *rule, const struct cairn__optim_item *items,
                                 size_t count, cairn_dtype grad, enum cairn__weight_mode mode) {
    const int arrays = rule->kind == CAIRN__OPTIM_LAMB ? cairn__rule_arrays(rule) : 0;
    TRY_CHECK(cairn__check_optim(items, count, grad, mode, arrays));
    return check_squares(items, count);
}

const char *cairn__check_by_rule(const struct cairn__optim_rule *rule, const struct cairn__optim_item *items,
                                 size_t count, cairn_dtype grad, enum cairn__weight_mode mode) {
    TRY_CHECK(cairn__check_optim(items, count, grad, mode, cairn__update_arrays(rule)));
    for (size_t i = 0; rule->kind == CAIRN__OPTIM_NOVOGRAD && i < count; i++) {
        TRY_CHECK(check_array(items[i].state[1], 1, sizeof(float)));
        TRY_CHECK(check_array(items[i].missed, 1, sizeof(*items[i].missed)));
    }
    return cairn__rule_measures(rule) ? check_squares(items, count) : NULL;
}

const char *cairn__check_update(const void *rule, const struct cairn__rates *rates,
                                const struct cairn__optim_state *state) {
    if (!rule || !rates || !state) return "the rule, the rates or the state is NULL";
    TRY_CHECK(check_optional(rates, _Alignof(struct cairn__rates)));
    return check_optional(state, _Alignof(struct cairn__optim_state));
}

const char *cairn__check_rate_table(const struct cairn__rate_table *table) {
    if (!table) return "the table of rates is NULL";
    TRY_CHECK(check_array(table->rates, table->groups, _Alignof(struct cairn__rates)));
    TRY_CHECK(check_array(table->schedules, table->groups, _Alignof(struct cairn__group_schedule)));
    return check_array(table->used, table->groups, _Alignof(struct cairn__rates));
}

const char *cairn__check_step_end(const struct cairn__step_end *end) {
    if (!end) return "the step's end is NULL";
    if (!end->optim || !end->reports) return "the optimizer's state or the reports are NULL";
    if (end->num_scalers < 0 || end->num_scalers > CAIRN__STEP_SCALERS)
        return "there are more scalers than a step takes";
    for (int i = 0; i < end->num_scalers; i++) {
        TRY_CHECK(check_array(end->scalers[i], 1, _Alignof(struct cairn__scaler_state)));
        TRY_CHECK(check_optional(end->scaler_reports[i], _Alignof(struct cairn__scaler_report)));
    }
    TRY_CHECK(check_optional(end->optim, _Alignof(struct cairn__optim_state)));
    TRY_CHECK(check_optional(end->reports, _Alignof(struct cairn__step_report)));
    TRY_CHECK(cairn__check_rate_table(&end->table));
    TRY_CHECK(check_array(end->overflows, end->count, _Alignof(struct cairn__overflow)));
    return check_array(end->names, end->count, _Alignof(struct cairn__overflow));
}

static const char *check_flags(uint32_t *const *flags, size_t count) {
    if (count > CAIRN__SHARE_MAX) return "there are more flags than one launch can name";
    if (count && !flags) return "there are flags, but the address of their addresses is NULL";
    for (size_t i = 0; i < count; i++) TRY_CHECK(check_array(flags[i], 1, sizeof(*flags[i])));
    return NULL;
}

const char *cairn__check_take_flags(const struct cairn__taken *items, size_t count, uint32_t *const *raises,
                                    size_t num_raises) {
    TRY_CHECK(check_flags(raises, num_raises));
    if (count && !items) return "there are items, but their address is NULL";
    for (size_t i = 0; i < count; i++) {
        const struct cairn__taken *item = &items[i];
        if (!is_float(item->dtype)) return "gradients are f32, f16 or bf16";
        TRY_CHECK(check_optional(item->x, cairn_dtype_nbytes(item->dtype)));
        TRY_CHECK(check_array(item->flag, 1, sizeof(*item->flag)));
        TRY_CHECK(check_array(item->to, 1, _Alignof(struct cairn__overflow)));
    }
    return NULL;
}

const char *cairn__check_share_flag(const uint32_t *any, uint32_t *const *into, size_t count) {
    TRY_CHECK(check_array(any, 1, sizeof(*any)));
    return check_flags(into, count);
}

const char *cairn__check_clip(const double *norms, size_t count, double max_norm,
                              const struct cairn__optim_state *state, const double *total) {
    if (!(max_norm >= 0)) return "the greatest norm is negative or NaN";
    TRY_CHECK(check_array(norms, count, sizeof(*norms)));
    TRY_CHECK(check_array(total, 1, sizeof(*total)));
    return check_array(state, 1, _Alignof(struct cairn__optim_state));
}

const char *cairn__check_clear_flags(const uint32_t *flags, size_t n) {
    return check_array(flags, n, sizeof(*flags));
}

const char *cairn__check_store(const void *dst, const void *value, size_t nbytes) {
    if (nbytes > CAIRN__STORE_MAX) return "the value is larger than 256 bytes";
    TRY_CHECK(check_array(dst, nbytes, 1));
    return check_array(value, nbytes, 1);
}

const char *cairn__check_tensors(cairn_dtype t, size_t n, const void *const *tensors, size_t count) {
    if (!is_float(t)) return "elements are f32, f16 or bf16";
    for (size_t i = 0; i < count; i++) TRY_CHECK(check_array(tensors[i], n, cairn_dtype_nbytes(t)));
    return NULL;
}

const char *cairn__check_objects(const void *const *objects, size_t count, size_t alignment) {
    for (size_t i = 0; i < count; i++) TRY_CHECK(check_array(objects[i], 1, alignment));
    return NULL;
}

const char *cairn__check_matrix(cairn_dtype t, const void *x, size_t rows, size_t cols) {
    if (cols && rows > SIZE_MAX / cols) return "the elements' size in bytes overflows";
    return cairn__check_tensors(t, rows * cols, &x, 1);
}
