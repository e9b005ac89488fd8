/* The costs of a pipeline's stages: a stages file, which is JSON, or the options --stages, --forward and --backward.
 *
 *     {
 *       "format": "cairn-stages", "version": 1,
 *       "model": "ResNet-50 cut after block 8, 64x64", "rows": 120,
 *       "stages": [
 *         {"forward": [{"rows": 1, "ns": 6210000}, {"rows": 8, "ns": 31800000}],
 *          "backward": [{"rows": 1, "ns": 20300000}, {"rows": 8, "ns": 71800000}],
 *          "output_bytes": 131072, "held_bytes": 5242880},
 *         ...
 *       ]
 *     }
 *
 * Times are those of a micro-batch of `rows` rows on the stage by itself, for at least two sizes; backward accumulates.
 * A line is fitted to the points,
 *
 *     cost(rows) = fixed + row * rows,      fixed >= 0, row >= 0,
 *
 * with the least sum of squared relative errors. fixed is the cost of a micro-batch independent of its rows: starting
 * operations, and writing and accumulating the gradients of all weights. output_bytes: bytes per row sent to the next
 * stage; held_bytes: bytes per row that backward needs from forward. Missing ones are 0. */
#ifndef PLAN_STAGES_H
#define PLAN_STAGES_H

#include <stdbool.h>
#include <stddef.h>

enum { MAX_STAGES = 256, MAX_ROWS = 1 << 20 };

struct cost {
    double fixed, row; /* ns */
};

struct stage {
    struct cost forward, backward;
    double output_nbytes, held_nbytes; /* of a row */
};

struct stages {
    char *model;
    struct stage *list; /* [count] */
    size_t count;
    double rows;  /* of the batch; 0 = the file does not say */
    double worst; /* largest relative error of a measured point against the line */
};

/* False after a message. */
bool stages_read(const char *file, struct stages *out);
void stages_free(struct stages *s);

/* Fits the line to n points, as above; raises *worst to the largest relative error. */
struct cost cost_through(const double *rows, const double *ns, size_t n, double *worst);

static inline double cost_ns(struct cost c, double rows) {
    return c.fixed + c.row * rows;
}

#endif
