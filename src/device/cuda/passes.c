/* The passes of a GPU: check the arguments, divide the work, queue the kernels, keep the first failure. */
#include <stdio.h>

#include "device/cuda/check.h"
#include "device/cuda/cuda.h"

enum {
    /* Least number of a list's elements for a block: small enough that short lists use the whole GPU. In long lists
     * blocks take so many elements that searching for their tensor costs nothing. */
    LEAST_CHUNK = 2048,
    MAX_CHUNK = 32768,
    /* The same for an optimizer's list, whose blocks first compute their tensor's scalars: a block takes more elements
     * as soon as every multiprocessor has some blocks. */
    LEAST_OPTIM_CHUNK = 1024,
    LEAST_SHARED_OPTIM_CHUNK = 4096,
    MAX_OPTIM_CHUNK = 16384,
    FEW_BLOCKS = 512,                /* about four for each multiprocessor of an H100 */
    LEAST_NORM_CHUNK_NBYTES = 16384, /* what a block of l2norm reads at once */
    LIST_BLOCKS = 4096,              /* some rounds of what an H100 runs at a time: 500 to 1000, as registers allow */
    NORM_BLOCKS = 16384, /* of a launch: the fewer elements each has, the less is waited for when most are done; the
                          * last block adds up what all leave */
};

/* ---- lists of tensors ---- */

typedef int (*list_launcher)(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype to,
                             cairn_dtype from);

static struct cairn__plan plan_items(const struct cairn__item *items, size_t count) {
    struct cairn__plan plan = {.items = items,
                               .stride = sizeof(*items),
                               .count = count,
                               .max_blocks = CAIRN__CUDA_MAX_BLOCKS};
    plan.chunk = cairn__plan_chunk(&plan, LEAST_CHUNK, MAX_CHUNK, LIST_BLOCKS);
    return plan;
}

static void take_items(struct cairn__multi *list, const struct cairn__part *part, const struct cairn__item *items) {
    list->span = part->span;
    for (uint32_t t = 0; t < part->span.count; t++) list->items[t] = items[part->index[t]];
}

/* list: everything but span and items. */
static void run_list(struct cairn_device *d, const char *pass, list_launcher launch, struct cairn__multi *list,
                     const struct cairn__item *items, size_t count, cairn_dtype to, cairn_dtype from) {
    struct cairn__plan plan = plan_items(items, count);
    struct cairn__part part;
    int error = 0;
    while (!error && cairn__plan_next(&plan, &part)) {
        take_items(list, &part, items);
        error = launch(cairn__cuda_enter(d)->stream, list, to, from);
    }
    cairn__cuda_queued(d, pass, error);
}

static int launch_copy(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype to, cairn_dtype from) {
    (void)from;
    return cairn__launch_copy(stream, list, cairn_dtype_nbytes(to));
}

static int launch_check(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype to, cairn_dtype from) {
    (void)from;
    return cairn__launch_check(stream, list, to);
}

static void cast(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype to,
                 cairn_dtype from) {
    const unsigned uses = CAIRN__USES_DST | CAIRN__USES_X;
    if (cairn__cuda_refused(d, "cast", cairn__check_items(items, count, uses, to, from, true))) return;
    struct cairn__multi list = {.b = 0};
    run_list(d, "cast", to == from ? launch_copy : cairn__launch_cast, &list, items, count, to, from);
}

static void scale(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype to,
                  cairn_dtype from, const float *factor, uint32_t *found) {
    const unsigned uses = CAIRN__USES_DST | CAIRN__USES_X;
    if (cairn__cuda_refused(d, "scale", cairn__check_items(items, count, uses, to, from, false)) ||
        cairn__cuda_refused(d, "scale", cairn__check_list(factor, found, NULL, NULL)))
        return;
    struct cairn__multi list = {.factor = factor, .found = found};
    run_list(d, "scale", cairn__launch_scale, &list, items, count, to, from);
}

static void axpby(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype to,
                  cairn_dtype from, const float *factor, float b, uint32_t *found) {
    const unsigned uses = CAIRN__USES_DST | CAIRN__USES_X | CAIRN__USES_Y;
    if (cairn__cuda_refused(d, "axpby", cairn__check_items(items, count, uses, to, from, false)) ||
        cairn__cuda_refused(d, "axpby", cairn__check_list(factor, found, NULL, NULL)))
        return;
    struct cairn__multi list = {.factor = factor, .b = b, .found = found};
    run_list(d, "axpby", cairn__launch_axpby, &list, items, count, to, from);
}

static void check(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                  uint32_t *found) {
    if (cairn__cuda_refused(d, "check", cairn__check_items(items, count, CAIRN__USES_X, dtype, dtype, false)) ||
        cairn__cuda_refused(d, "check", cairn__check_list(NULL, found, NULL, NULL)))
        return;
    struct cairn__multi list = {.found = found};
    run_list(d, "check", launch_check, &list, items, count, dtype, dtype);
}

static int launch_clamp(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype to, cairn_dtype from) {
    (void)to, (void)from;
    return cairn__launch_clamp(stream, list);
}

static void clamp(struct cairn_device *d, const struct cairn__item *items, size_t count, float limit) {
    if (cairn__cuda_refused(d, "clamp", cairn__check_clamp(items, count, limit))) return;
    struct cairn__multi list = {.b = limit};
    run_list(d, "clamp", launch_clamp, &list, items, count, CAIRN_F32, CAIRN_F32);
}

static void census(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                   float least_normal, struct cairn__census *out) {
    if (cairn__cuda_refused(d, "census", cairn__check_census(items, count, dtype, out)) || count == 0) return;
    struct CUstream_st *stream = cairn__cuda_enter(d)->stream;
    struct cairn__plan plan = plan_items(items, count);
    struct cairn__multi list = {.b = least_normal};
    struct cairn__part part;
    int error = cairn__launch_census_begin(stream, out, count);
    while (!error && cairn__plan_next(&plan, &part)) {
        take_items(&list, &part, items);
        for (uint32_t t = 0; t < part.span.count; t++) list.items[t].dst = &out[part.index[t]];
        error = cairn__launch_census(stream, &list, dtype);
    }
    cairn__cuda_queued(d, "census", error ? error : cairn__launch_census_end(stream, out, count));
}

static void count_exponents(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                            struct cairn__exponent_counts *out) {
    const char *complaint = cairn__check_count_exponents(items, count, dtype, out);
    if (cairn__cuda_refused(d, "count_exponents", complaint) || count == 0) return;
    struct CUstream_st *stream = cairn__cuda_enter(d)->stream;
    struct cairn__plan plan = plan_items(items, count);
    struct cairn__multi list = {0};
    struct cairn__part part;
    int error = cairn__launch_clear_exponents(stream, out, count);
    while (!error && cairn__plan_next(&plan, &part)) {
        take_items(&list, &part, items);
        for (uint32_t t = 0; t < part.span.count; t++) list.items[t].dst = &out[part.index[t]];
        error = cairn__launch_count_exponents(stream, &list, dtype);
    }
    cairn__cuda_queued(d, "count_exponents", error);
}

/* Tensors are whole in a launch, so that its last block knows their sums; sizes and type alone decide about chunks. */
static struct cairn__plan plan_norm(const struct cairn__item *items, size_t count, cairn_dtype dtype) {
    const size_t least = LEAST_NORM_CHUNK_NBYTES / cairn_dtype_nbytes(dtype);
    const size_t launches = count / CAIRN__CUDA_LIST + 1;
    struct cairn__plan plan = {.items = items,
                               .stride = sizeof(*items),
                               .count = count,
                               .max_blocks = CAIRN__CUDA_NORM_BLOCKS,
                               .whole = true,
                               .keep_empty = true};
    plan.chunk = cairn__plan_chunk(&plan, least, SIZE_MAX / 4, NORM_BLOCKS * launches);
    for (size_t i = 0; i < count; i++) {
        while (items[i].n / plan.chunk >= CAIRN__CUDA_NORM_BLOCKS) plan.chunk *= 2;
    }
    return plan;
}

/* list: everything but span and items; part: norm, and squares: an item's own goes where its dst is. */
static int launch_norm(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                       struct cairn__multi *list, struct cairn__norm_part *part, double *each) {
    struct cairn__cuda *c = cairn__cuda_enter(d);
    struct cairn__plan plan = plan_norm(items, count, dtype);
    struct cairn__part next;
    int error = 0;
    part->partials = c->partials;
    part->first = true;
    while (!error && !part->last) {
        if (!cairn__plan_next(&plan, &next)) next.span.count = 0; /* an empty list has a norm */
        take_items(list, &next, items);
        for (uint32_t t = 0; !part->squares && t < next.span.count; t++)
            list->items[t].dst = each ? &each[next.index[t]] : NULL;
        part->last = plan.next == count;
        error = cairn__launch_l2norm(c->stream, list, dtype, part);
        part->first = false;
    }
    return error;
}

static void l2norm(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                   const float *factor, double *norm, double *each, uint32_t *found) {
    if (cairn__cuda_refused(d, "l2norm", cairn__check_items(items, count, CAIRN__USES_X, dtype, dtype, false)) ||
        cairn__cuda_refused(d, "l2norm", cairn__check_list(factor, found, norm, each)))
        return;
    struct cairn__norm_part part = {.norm = norm};
    struct cairn__multi list = {.factor = factor, .found = found};
    cairn__cuda_queued(d, "l2norm", launch_norm(d, items, count, dtype, &list, &part, each));
}

/* ---- a training step ---- */

enum { FLAT = 1 << 22 }; /* elements of a piece */

/* For a piece: the gradient, and weights if they are half without a master, as f32; and the scalars that the kernels
 * read. */
struct flat_scratch {
    float *grad, *wide;
    struct cairn__flat_scalars *scalars;
};

static bool take_scratch(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, bool widens,
                         struct flat_scratch *s) {
    size_t most = 0;
    for (size_t i = 0; i < count; i++) most = items[i].n > most ? items[i].n : most;
    const size_t nbytes = (most < FLAT ? most : FLAT) * sizeof(float);
    s->grad = cairn__cuda_room(d, CAIRN__ROOM_A, nbytes);
    s->wide = widens ? cairn__cuda_room(d, CAIRN__ROOM_B, nbytes) : NULL;
    s->scalars = cairn__cuda_room(d, CAIRN__ROOM_C, sizeof(*s->scalars));
    return s->grad && s->scalars && (s->wide || !widens);
}

/* If the step is skipped, half weights get the values that they had: the rounding of their master, or their own. */
static int write_flat(struct cairn_device *d, const struct cairn__optim_item *t, enum cairn__weight_mode mode,
                      size_t first, size_t n, float *w, const struct cairn__optim_state *state) {
    const cairn_dtype type = cairn__weights_type(mode), half = cairn__copy_type(mode);
    if (half) {
        cairn__pass_cast(&cairn__cuda_passes, d, (uint16_t *)t->half + first, half, w, CAIRN_F32, n);
    } else if (mode == CAIRN__W_BF16_STOCHASTIC) {
        return cairn__launch_round_stochastic(cairn__cuda_enter(d)->stream, t, first, n, w, state);
    } else if (type != CAIRN_F32) {
        cairn__pass_cast(&cairn__cuda_passes, d, (uint16_t *)t->weights + first, type, w, CAIRN_F32, n);
    }
    return 0;
}

/* One item after the other, because they share the scratch. */
static void update_flat(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                        enum cairn__weight_mode mode, const struct cairn__optim_rule *rule,
                        const struct cairn__rates *rates, const struct cairn__optim_state *state) {
    const cairn_dtype type = cairn__weights_type(mode);
    struct flat_scratch s;
    int error = 0;
    if (!take_scratch(d, items, count, type != CAIRN_F32, &s)) return;
    for (size_t i = 0; i < count && !error; i++) {
        const struct cairn__optim_item *t = &items[i];
        error = cairn__launch_flat_scalars(cairn__cuda_enter(d)->stream, s.scalars, rates, state, t);
        for (size_t first = 0; first < t->n && !error; first += FLAT) {
            const size_t n = t->n - first < FLAT ? t->n - first : FLAT;
            const void *scaled = (const char *)t->grad + first * cairn_dtype_nbytes(grad);
            const struct cairn__item unscaled = {n, s.grad, scaled, NULL, NULL};
            float *const w = s.wide ? s.wide : (float *)t->weights + first;
            struct cairn__flat piece = {t->missed, first,  n,         w,
                                        s.grad,    {NULL}, s.scalars, cairn__cuda_enter(d)->stream};
            for (int k = 0; k < CAIRN__MAX_STATES; k++) piece.state[k] = t->state[k] ? t->state[k] + first : NULL;
            cairn__cuda_passes.scale(d, &unscaled, 1, CAIRN_F32, grad, &s.scalars->factor, NULL);
            if (s.wide)
                cairn__pass_cast(&cairn__cuda_passes, d, s.wide, CAIRN_F32, (uint16_t *)t->weights + first, type, n);
            rule->custom.flat(rule, &piece);
            error = write_flat(d, t, mode, first, n, w, state);
        }
    }
    cairn__cuda_queued(d, "update", error);
}

typedef int (*optim_launcher)(struct CUstream_st *stream, const struct cairn__optim_list *list, cairn_dtype grad,
                              enum cairn__weight_mode mode);

/* list: everything but span and items. */
static int launch_optim(struct cairn_device *d, optim_launcher launch, struct cairn__optim_list *list,
                        const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                        enum cairn__weight_mode mode) {
    struct cairn__plan plan = {.items = items,
                               .stride = sizeof(*items),
                               .count = count,
                               .max_blocks = CAIRN__CUDA_MAX_BLOCKS};
    struct cairn__part part;
    int error = 0;
    const size_t least = cairn__plan_chunk(&plan, LEAST_OPTIM_CHUNK, LEAST_SHARED_OPTIM_CHUNK, FEW_BLOCKS);
    plan.chunk = cairn__plan_chunk(&plan, least, MAX_OPTIM_CHUNK, LIST_BLOCKS);
    while (!error && cairn__plan_next(&plan, &part)) {
        list->span = part.span;
        for (uint32_t t = 0; t < part.span.count; t++) list->items[t] = items[part.index[t]];
        error = launch(cairn__cuda_enter(d)->stream, list, grad, mode);
    }
    return error;
}

enum measured { WEIGHTS, DIRECTIONS, GRADS };

static struct cairn__item measured_item(const struct cairn__optim_item *item, enum measured what) {
    return (struct cairn__item){.n = item->n,
                                .dst = what == WEIGHTS ? &item->squares->weights : &item->squares->grad,
                                .x = what == WEIGHTS      ? item->weights
                                     : what == DIRECTIONS ? item->state[2]
                                                          : item->grad};
}

/* As many tensors at a time as a launch takes. */
static int launch_squares(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype type,
                          enum measured what) {
    int error = 0;
    for (size_t i = 0; i < count && !error; i += CAIRN__CUDA_LIST) {
        const size_t some = count - i < CAIRN__CUDA_LIST ? count - i : CAIRN__CUDA_LIST;
        struct cairn__norm_part part = {.squares = true};
        struct cairn__multi list = {.factor = NULL};
        struct cairn__item measured[CAIRN__CUDA_LIST];
        for (size_t t = 0; t < some; t++) measured[t] = measured_item(&items[i + t], what);
        error = launch_norm(d, measured, some, type, &list, &part, NULL);
    }
    return error;
}

/* Measures greatest elements by a census. */
static int launch_greatest(struct cairn_device *d, const struct cairn__optim_item *items, size_t count,
                           cairn_dtype grad) {
    struct cairn__census *out = cairn__cuda_room(d, CAIRN__ROOM_A, CAIRN__CUDA_LIST * sizeof(*out));
    int error = 0;
    for (size_t i = 0; out && i < count && !error; i += CAIRN__CUDA_LIST) {
        const size_t some = count - i < CAIRN__CUDA_LIST ? count - i : CAIRN__CUDA_LIST;
        struct cairn__multi list = {.span = {.count = (uint32_t)some}};
        struct cairn__item measured[CAIRN__CUDA_LIST];
        for (size_t t = 0; t < some; t++) measured[t] = measured_item(&items[i + t], GRADS);
        census(d, measured, some, grad, 0, out);
        for (size_t t = 0; t < some; t++) list.items[t] = (struct cairn__item){.dst = measured[t].dst, .x = &out[t]};
        error = cairn__launch_greatest(cairn__cuda_enter(d)->stream, &list);
    }
    return error;
}

static void measure(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                    enum cairn__weight_mode mode, const struct cairn__optim_rule *rule,
                    const struct cairn__rates *rates, const struct cairn__optim_state *state) {
    if (cairn__cuda_refused(d, "measure", cairn__check_update(rule, rates, state)) ||
        cairn__cuda_refused(d, "measure", cairn__check_measure(rule, items, count, grad, mode)))
        return;
    struct cairn__optim_list list = {.rule = *rule, .rates = rates, .state = state};
    const bool is_lamb = rule->kind == CAIRN__OPTIM_LAMB, is_novograd = rule->kind == CAIRN__OPTIM_NOVOGRAD;
    int error = is_lamb ? launch_optim(d, cairn__launch_direction, &list, items, count, grad, mode) : 0;
    if (!error && !is_novograd) error = launch_squares(d, items, count, cairn__weights_type(mode), WEIGHTS);
    if (error) {
        cairn__cuda_queued(d, "measure", error);
    } else if (is_novograd && rule->novograd.by_greatest) {
        cairn__cuda_queued(d, "measure", launch_greatest(d, items, count, grad));
    } else {
        error = launch_squares(d, items, count, is_lamb ? CAIRN_F32 : grad, is_lamb ? DIRECTIONS : GRADS);
        cairn__cuda_queued(d, "measure", error);
    }
}

/* Includes empty pieces, whose parameter has elements on other ranks. */
static int launch_seconds(struct cairn_device *d, struct cairn__optim_list *list, const struct cairn__optim_item *items,
                          size_t count) {
    int error = 0;
    for (size_t i = 0; i < count && !error; i += list->span.count) {
        list->span =
            (struct cairn__span){.count = (uint32_t)(count - i < CAIRN__CUDA_LIST ? count - i : CAIRN__CUDA_LIST)};
        for (uint32_t t = 0; t < list->span.count; t++) list->items[t] = items[i + t];
        error = cairn__launch_seconds(cairn__cuda_enter(d)->stream, list);
    }
    return error;
}

static void update(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                   enum cairn__weight_mode mode, const struct cairn__optim_rule *rule, const struct cairn__rates *rates,
                   const struct cairn__optim_state *state) {
    if (cairn__cuda_refused(d, "update", cairn__check_update(rule, rates, state)) ||
        cairn__cuda_refused(d, "update", cairn__check_by_rule(rule, items, count, grad, mode)))
        return;
    if (rule->kind == CAIRN__OPTIM_CUSTOM) {
        update_flat(d, items, count, grad, mode, rule, rates, state);
        return;
    }
    struct cairn__optim_list list = {.rule = *rule, .rates = rates, .state = state};
    int error = rule->kind == CAIRN__OPTIM_NOVOGRAD ? launch_seconds(d, &list, items, count) : 0;
    if (!error) error = launch_optim(d, cairn__launch_update, &list, items, count, grad, mode);
    cairn__cuda_queued(d, "update", error);
}

static void count_up(struct cairn_device *d, int64_t *counter, const struct cairn__optim_state *state) {
    const void *const objects[] = {counter, state};
    if (cairn__cuda_refused(d, "count_up", cairn__check_objects(objects, state ? 2 : 1, sizeof(*counter)))) return;
    cairn__cuda_queued(d, "count_up", cairn__launch_count_up(cairn__cuda_enter(d)->stream, counter, state));
}

static void step_end(struct cairn_device *d, const struct cairn__step_end *end) {
    if (cairn__cuda_refused(d, "step_end", cairn__check_step_end(end))) return;
    cairn__cuda_queued(d, "step_end", cairn__launch_step_end(cairn__cuda_enter(d)->stream, end));
}

static void average_begin(struct cairn_device *d, struct cairn__average *average,
                          const struct cairn__optim_state *state) {
    const void *const objects[] = {average, state};
    const char *complaint = cairn__check_objects(objects, state ? 2 : 1, _Alignof(struct cairn__average));
    if (cairn__cuda_refused(d, "average_begin", complaint)) return;
    cairn__cuda_queued(d, "average_begin", cairn__launch_average_begin(cairn__cuda_enter(d)->stream, average, state));
}

static void average(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype from,
                    const struct cairn__average *average) {
    const unsigned uses = CAIRN__USES_DST | CAIRN__USES_X;
    if (cairn__cuda_refused(d, "average", cairn__check_items(items, count, uses, CAIRN_F32, from, false))) return;
    struct cairn__plan plan = plan_items(items, count);
    struct cairn__multi list = {.b = 0};
    struct cairn__part part;
    int error = 0;
    while (!error && cairn__plan_next(&plan, &part)) {
        take_items(&list, &part, items);
        error = cairn__launch_average(cairn__cuda_enter(d)->stream, &list, from, average);
    }
    cairn__cuda_queued(d, "average", error);
}

static void renew_rates(struct cairn_device *d, const struct cairn__rate_table *table,
                        const struct cairn__optim_state *state) {
    if (cairn__cuda_refused(d, "renew_rates", cairn__check_rate_table(table)) ||
        cairn__cuda_refused(d, "renew_rates",
                            cairn__check_objects((const void *[]){state}, 1, _Alignof(struct cairn__optim_state))))
        return;
    cairn__cuda_queued(d, "renew_rates", cairn__launch_renew_rates(cairn__cuda_enter(d)->stream, table, state));
}

static void take_flags(struct cairn_device *d, const struct cairn__taken *items, size_t count, uint32_t micro_batch,
                       uint32_t *const *raises, size_t num_raises) {
    if (cairn__cuda_refused(d, "take_flags", cairn__check_take_flags(items, count, raises, num_raises))) return;
    struct cairn__taken_list list = {.micro_batch = micro_batch, .num_raises = (uint32_t)num_raises};
    int error = 0;
    for (size_t i = 0; i < num_raises; i++) list.raises[i] = raises[i];
    for (size_t i = 0; i < count && !error; i += list.count) {
        list.count = (uint32_t)(count - i < CAIRN__CUDA_TAKEN ? count - i : CAIRN__CUDA_TAKEN);
        for (uint32_t t = 0; t < list.count; t++) list.items[t] = items[i + t];
        error = cairn__launch_take_flags(cairn__cuda_enter(d)->stream, &list);
    }
    cairn__cuda_queued(d, "take_flags", error);
}

static void share_flag(struct cairn_device *d, uint32_t *any, uint32_t *const *into, size_t count) {
    if (cairn__cuda_refused(d, "share_flag", cairn__check_share_flag(any, into, count))) return;
    cairn__cuda_queued(d, "share_flag", cairn__launch_share_flag(cairn__cuda_enter(d)->stream, any, into, count));
}

static void scaler_update(struct cairn_device *d, struct cairn__scaler_state *scaler,
                          struct cairn__scaler_report *reports) {
    const char *complaint = cairn__check_objects((const void *[]){scaler, reports}, 2, sizeof(uint64_t));
    if (cairn__cuda_refused(d, "scaler_update", complaint)) return;
    cairn__cuda_queued(d, "scaler_update", cairn__launch_scaler_update(cairn__cuda_enter(d)->stream, scaler, reports));
}

static void clip(struct cairn_device *d, const double *norms, size_t count, double max_norm,
                 struct cairn__optim_state *state, double *total) {
    if (cairn__cuda_refused(d, "clip", cairn__check_clip(norms, count, max_norm, state, total))) return;
    cairn__cuda_queued(d, "clip",
                       cairn__launch_clip(cairn__cuda_enter(d)->stream, norms, count, max_norm, state, total));
}

static void scale_loss(struct cairn_device *d, float *dst, const float *x, const struct cairn__scaler_state *scaler,
                       struct cairn__loss_scale *cell, uint32_t *found) {
    const void *const objects[] = {dst, x, scaler, cell, found};
    if (cairn__cuda_refused(d, "scale_loss", cairn__check_objects(objects, found ? 5 : 4, sizeof(float)))) return;
    cairn__cuda_queued(d, "scale_loss",
                       cairn__launch_scale_loss(cairn__cuda_enter(d)->stream, dst, x, scaler, cell, found));
}

static void clear_flags(struct cairn_device *d, uint32_t *flags, size_t n) {
    if (cairn__cuda_refused(d, "clear_flags", cairn__check_clear_flags(flags, n)) || n == 0) return;
    cairn__cuda_queued(d, "clear_flags", cairn__launch_clear_flags(cairn__cuda_enter(d)->stream, flags, n));
}

static void store(struct cairn_device *d, void *dst, const void *value, size_t nbytes) {
    if (cairn__cuda_refused(d, "store", cairn__check_store(dst, value, nbytes)) || nbytes == 0) return;
    cairn__cuda_queued(d, "store", cairn__launch_store(cairn__cuda_enter(d)->stream, dst, value, nbytes));
}

/* ---- for nn ---- */

static bool refused_tensors(struct cairn_device *d, const char *pass, cairn_dtype t, size_t n, const void *a,
                            const void *b, const void *c) {
    return cairn__cuda_refused(d, pass, cairn__check_tensors(t, n, (const void *[]){a, b, c}, 3));
}

static bool refused_scalar(struct cairn_device *d, const char *pass, cairn_dtype t, const void *scalar) {
    return cairn__cuda_refused(d, pass, cairn__check_tensors(t, 1, &scalar, 1));
}

static void fill(struct cairn_device *d, cairn_dtype t, void *dst, size_t n, float value) {
    if (refused_tensors(d, "fill", t, n, dst, dst, dst) || n == 0) return;
    cairn__cuda_queued(d, "fill", cairn__launch_fill(cairn__cuda_enter(d)->stream, t, dst, n, value));
}

static void add(struct cairn_device *d, cairn_dtype t, void *dst, const void *a, const void *b, size_t n) {
    if (refused_tensors(d, "add", t, n, dst, a, b) || n == 0) return;
    cairn__cuda_queued(d, "add", cairn__launch_add(cairn__cuda_enter(d)->stream, t, dst, a, b, n));
}

static void mul_scalar(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, float s) {
    if (refused_tensors(d, "mul_scalar", t, n, dst, x, x) || n == 0) return;
    cairn__cuda_queued(d, "mul_scalar", cairn__launch_mul_scalar(cairn__cuda_enter(d)->stream, t, dst, x, n, s));
}

static void relu(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n) {
    if (refused_tensors(d, "relu", t, n, dst, x, x) || n == 0) return;
    cairn__cuda_queued(d, "relu", cairn__launch_relu(cairn__cuda_enter(d)->stream, t, dst, x, n));
}

static void relu_backward(struct cairn_device *d, cairn_dtype t, void *dx, const void *dy, const void *x, size_t n) {
    if (refused_tensors(d, "relu_backward", t, n, dx, dy, x) || n == 0) return;
    cairn__cuda_queued(d, "relu_backward", cairn__launch_relu_backward(cairn__cuda_enter(d)->stream, t, dx, dy, x, n));
}

static void sum(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, float divisor) {
    if (refused_tensors(d, "sum", t, n, x, x, x) || refused_scalar(d, "sum", t, dst)) return;
    struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn__cuda_queued(d, "sum", cairn__launch_sum(c->stream, c->partials, t, dst, x, n, divisor));
}

static void spread(struct cairn_device *d, cairn_dtype t, void *dx, size_t n, const void *dy, float divisor) {
    if (refused_tensors(d, "spread", t, n, dx, dx, dx) || refused_scalar(d, "spread", t, dy) || n == 0) return;
    cairn__cuda_queued(d, "spread", cairn__launch_spread(cairn__cuda_enter(d)->stream, t, dx, n, dy, divisor));
}

static void mse(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, const void *y, size_t n) {
    if (refused_tensors(d, "mse", t, n, x, y, y) || refused_scalar(d, "mse", t, dst)) return;
    struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn__cuda_queued(d, "mse", cairn__launch_mse(c->stream, c->partials, t, dst, x, y, n));
}

static void mse_backward(struct cairn_device *d, cairn_dtype t, cairn_dtype to, void *dx, const void *x, const void *y,
                         size_t n, float s, const void *dy) {
    const char *complaint = to == t || (t == CAIRN_F32 && cairn__is_half(to))
                                ? NULL
                                : "the gradient is of the type of the values, or of a half type where they are f32";
    if (cairn__cuda_refused(d, "mse_backward", complaint) || refused_tensors(d, "mse_backward", t, n, x, y, y) ||
        refused_tensors(d, "mse_backward", to, n, dx, dx, dx) || refused_scalar(d, "mse_backward", t, dy) || n == 0)
        return;
    struct CUstream_st *stream = cairn__cuda_enter(d)->stream;
    cairn__cuda_queued(d, "mse_backward", cairn__launch_mse_backward(stream, t, to, dx, x, y, n, s, dy));
}

static void col_sum(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t rows, size_t cols) {
    if (cairn__cuda_refused(d, "col_sum", cairn__check_matrix(t, x, rows, cols))) return;
    if (refused_tensors(d, "col_sum", t, cols, dst, dst, dst) || cols == 0) return;
    struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn__cuda_queued(d, "col_sum", cairn__launch_col_sum(c->stream, c->partials, t, dst, x, rows, cols));
}

static void round_to(struct cairn_device *d, cairn_dtype half, float *dst, const float *x, size_t n) {
    const char *complaint = half == CAIRN_F16 || half == CAIRN_BF16 ? NULL : "values are rounded to f16 or bf16";
    if (cairn__cuda_refused(d, "round", complaint) || refused_tensors(d, "round", CAIRN_F32, n, dst, x, x) || n == 0)
        return;
    cairn__cuda_queued(d, "round", cairn__launch_round(cairn__cuda_enter(d)->stream, half, dst, x, n));
}

static void normal(struct cairn_device *d, cairn_dtype t, void *dst, size_t n, uint64_t seed, uint64_t stream) {
    if (refused_tensors(d, "normal", t, n, dst, dst, dst) || n == 0) return;
    cairn__cuda_queued(d, "normal", cairn__launch_normal(cairn__cuda_enter(d)->stream, t, dst, n, seed, stream));
}

static void uniform(struct cairn_device *d, cairn_dtype t, void *dst, size_t n, float bound, uint64_t seed,
                    uint64_t stream) {
    if (refused_tensors(d, "uniform", t, n, dst, dst, dst) || n == 0) return;
    cairn__cuda_queued(d, "uniform",
                       cairn__launch_uniform(cairn__cuda_enter(d)->stream, t, dst, n, bound, seed, stream));
}

const struct cairn__passes cairn__cuda_passes = {
    .cast = cast,
    .scale = scale,
    .axpby = axpby,
    .check = check,
    .l2norm = l2norm,
    .clamp = clamp,
    .census = census,
    .count_exponents = count_exponents,
    .measure = measure,
    .update = update,
    .count_up = count_up,
    .step_end = step_end,
    .average_begin = average_begin,
    .average = average,
    .renew_rates = renew_rates,
    .take_flags = take_flags,
    .share_flag = share_flag,
    .scaler_update = scaler_update,
    .clip = clip,
    .scale_loss = scale_loss,
    .clear_flags = clear_flags,
    .store = store,
    .fill = fill,
    .add = add,
    .mul_scalar = mul_scalar,
    .relu = relu,
    .relu_backward = relu_backward,
    .sum = sum,
    .spread = spread,
    .mse = mse,
    .mse_backward = mse_backward,
    .col_sum = col_sum,
    .round = round_to,
    .normal = normal,
    .uniform = uniform,
};
