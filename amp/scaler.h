/* Loss scalers: state machines over "a gradient was non-finite". */
#ifndef CAIRN__AMP_SCALER_H
#define CAIRN__AMP_SCALER_H

#include <stdbool.h>
#include <stdint.h>

struct amp__scaler;

struct amp__scaler_kind {
    const char *name;
    /* One optimizer step's verdict. Returns what became of the scale. */
    enum amp__verdict {
        AMP__KEPT,
        AMP__GREW,
        AMP__SHRANK,
        AMP__REACHED_FLOOR, /* shrank, and can shrink no more */
        AMP__AT_FLOOR,      /* wanted to shrink and could not */
    } (*update)(struct amp__scaler *s, bool found);
};

struct amp__scaler {
    const struct amp__scaler_kind *kind;
    double scale, min, max;
    int64_t unskipped; /* steps without overflow since the scale last changed */
    int64_t window;    /* dynamic: grow after that many */
};

/* The scale never changes. */
extern const struct amp__scaler_kind amp__scaler_static;

/* apex's: halves on overflow, down to min; doubles after `window` clean steps, up to max.
 * Source: apex/amp/scaler.py at 25.04, LossScaler.update_scale; the floor of 1 by default is ours. */
extern const struct amp__scaler_kind amp__scaler_apex;

#endif
