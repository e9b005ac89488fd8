/* Loss scalers: state machines over "a gradient was non-finite". */
#ifndef CAIRN__AMP_SCALER_H
#define CAIRN__AMP_SCALER_H

#include <stdbool.h>
#include <stdint.h>

struct cairn__amp_scaler;

struct cairn__amp_scaler_kind {
    const char *name;
    /* One optimizer step's verdict. Returns what became of the scale. */
    enum cairn__amp_verdict {
        CAIRN__AMP_KEPT,
        CAIRN__AMP_GREW,
        CAIRN__AMP_SHRANK,
        CAIRN__AMP_REACHED_FLOOR, /* shrank, and can shrink no more */
        CAIRN__AMP_AT_FLOOR,      /* wanted to shrink and could not */
    } (*update)(struct cairn__amp_scaler *s, bool found);
};

struct cairn__amp_scaler {
    const struct cairn__amp_scaler_kind *kind;
    double scale, min, max;
    int64_t unskipped; /* steps without overflow since the scale last changed */
    int64_t window;    /* dynamic: grow after that many */
};

/* The scale never changes. */
extern const struct cairn__amp_scaler_kind cairn__amp_scaler_static;

/* apex's: halves on overflow, down to min; doubles after `window` clean steps, up to max.
 * Source: apex/amp/scaler.py at 25.04, LossScaler.update_scale; the floor of 1 by default is ours. */
extern const struct cairn__amp_scaler_kind cairn__amp_scaler_apex;

#endif
