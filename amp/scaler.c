/* Loss scalers. */
#include "scaler.h"

static enum amp__verdict static_update(struct amp__scaler *s, bool found) {
    s->unskipped = found ? 0 : s->unskipped + 1;
    return AMP__KEPT;
}

const struct amp__scaler_kind amp__scaler_static = {"static", static_update};

static enum amp__verdict apex_update(struct amp__scaler *s, bool found) {
    if (found) {
        bool at_floor = s->scale <= s->min;
        s->unskipped = 0;
        if (at_floor) return AMP__AT_FLOOR;
        s->scale = s->scale / 2 < s->min ? s->min : s->scale / 2;
        return s->scale == s->min ? AMP__REACHED_FLOOR : AMP__SHRANK;
    }
    if (++s->unskipped < s->window) return AMP__KEPT;
    s->unskipped = 0;
    double grown = s->scale * 2 > s->max ? s->max : s->scale * 2;
    bool grew = grown > s->scale;
    s->scale = grown;
    return grew ? AMP__GREW : AMP__KEPT;
}

const struct amp__scaler_kind amp__scaler_apex = {"apex", apex_update};
