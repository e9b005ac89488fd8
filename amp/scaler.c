/* Loss scalers. */
#include "scaler.h"

static enum cairn__amp_verdict static_update(struct cairn__amp_scaler *s, bool found) {
    s->unskipped = found ? 0 : s->unskipped + 1;
    return CAIRN__AMP_KEPT;
}

const struct cairn__amp_scaler_kind cairn__amp_scaler_static = {"static", static_update};

static enum cairn__amp_verdict apex_update(struct cairn__amp_scaler *s, bool found) {
    if (found) {
        bool at_floor = s->scale <= s->min;
        s->unskipped = 0;
        if (at_floor) return CAIRN__AMP_AT_FLOOR;
        s->scale = s->scale / 2 < s->min ? s->min : s->scale / 2;
        return s->scale == s->min ? CAIRN__AMP_REACHED_FLOOR : CAIRN__AMP_SHRANK;
    }
    if (++s->unskipped < s->window) return CAIRN__AMP_KEPT;
    s->unskipped = 0;
    double grown = s->scale * 2 > s->max ? s->max : s->scale * 2;
    bool grew = grown > s->scale;
    s->scale = grown;
    return grew ? CAIRN__AMP_GREW : CAIRN__AMP_KEPT;
}

const struct cairn__amp_scaler_kind cairn__amp_scaler_apex = {"apex", apex_update};
