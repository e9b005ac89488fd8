/* Keeps failures of passes, and scratch. */
#include "device/cpu/state.h"

#include <stdio.h>

#include "core/alloc.h"
#include "core/status.h"
#include "kernels/kernels.h"

bool cairn__cpu_is_ok(struct cairn__cpu *cpu, cairn_status st) {
    if (st != CAIRN_OK && cpu->failed == CAIRN_OK) {
        cpu->failed = st;
        snprintf(cpu->failure, sizeof(cpu->failure), "%s", cairn_last_error());
    }
    return st == CAIRN_OK;
}

cairn_status cairn__scratch_room(struct cairn__scratch *s, size_t n, float **out) {
    cairn_status st = CAIRN_OK;
    if (!s->data || n > s->room) {
        void *p = NULL;
        TRY(cairn__alloc(n * sizeof(float), &p));
        cairn__free(s->data);
        s->data = p;
        s->room = n;
    }
    *out = s->data;
out:
    return st;
}

cairn_status cairn__cpu_widen(const struct cairn_device *d, struct cairn__scratch *s, cairn_dtype type, const void *x,
                              size_t n, const float **out) {
    cairn_status st = CAIRN_OK;
    float *wide = NULL;
    *out = x;
    if (type == CAIRN_F32) return CAIRN_OK;
    TRY(cairn__scratch_room(s, n, &wide));
    cairn__cpu_of(d)->kernels->cast[type][CAIRN_F32](wide, x, n);
    *out = wide;
out:
    return st;
}
