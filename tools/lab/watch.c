#include "watch.h"

#include <math.h>
#include <string.h>

#include "core/half.h"
#include "core/status.h"

static cairn_status copy(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)count;
    memcpy(y->data, x[0].data, y->n * cairn_dtype_nbytes(y->dtype));
    return CAIRN_OK;
}

/* There is one input, so this is called only if its dx is needed. */
static cairn_status copy_and_look(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                  const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)y, (void)x;
    const struct lab_place *place = ctx;
    const struct lab_watch *w = place->watch;
    copy(NULL, dx, dy, count);
    if (w->look) w->look(w->ctx, place->name, false, dx->dtype, dx->data, dx->n);
    return CAIRN_OK;
}

static const struct cairn_custom_op watched = {.struct_size = sizeof(watched),
                                               .name = "watched",
                                               .forward = copy,
                                               .backward = copy_and_look};

static cairn_status find_place(struct lab_watch *watch, const char *name, struct lab_place **out) {
    size_t i = 0;
    while (i < watch->count && strcmp(watch->places[i].name, name) != 0) i++;
    REQUIRE(i < LAB_MOST_PLACES, CAIRN_EINVAL, "%s: a watch has %d places at most", name, LAB_MOST_PLACES);
    if (i == watch->count) watch->places[watch->count++] = (struct lab_place){watch, name};
    *out = &watch->places[i];
    return CAIRN_OK;
}

cairn_tensor *lab_watched(struct lab_watch *watch, const char *name, cairn_tensor *x) {
    struct lab_place *place = NULL;
    int64_t shape[CAIRN_MAX_DIMS];
    if (!watch || !x) return x;
    if (find_place(watch, name, &place) != CAIRN_OK) return NULL;
    const int ndim = cairn_tensor_ndim(x);
    for (int d = 0; d < ndim; d++) shape[d] = cairn_tensor_size(x, d);
    return cairn_custom(&watched, place, cairn_tensor_dtype(x), ndim, shape, &x, 1);
}

cairn_status lab_watch_params(struct lab_watch *watch, cairn_param_set *set) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; watch->look && i < cairn_param_set_count(set); i++) {
        cairn_param p;
        size_t n = 1;
        TRY(cairn_param_set_get(set, i, &p));
        for (int d = 0; d < p.ndim; d++) n *= (size_t)p.shape[d];
        if (p.grad) watch->look(watch->ctx, p.name, true, p.dtype, p.grad, n);
    }
out:
    return st;
}

void lab_look_for_greatest(void *greatest, const char *place, bool is_param, cairn_dtype dtype, void *dx, size_t n) {
    (void)place, (void)is_param;
    struct lab_greatest *g = greatest;
    const uint16_t *x = dx;
    uint16_t most = 0;
    if (dtype != CAIRN_F16) return;
    for (size_t i = 0; i < n; i++) { /* f16 magnitudes order like their bits, NaN above infinity */
        const uint16_t magnitude = x[i] & 0x7fffu;
        if (magnitude > most) most = magnitude;
    }
    g->f16 = fmax(g->f16, most < 0x7c00u ? (double)cairn__f16_to_f32(most) : HUGE_VAL);
}
