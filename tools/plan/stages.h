/* What a pipeline's stages cost: a stages file, which is JSON, or the options --stages, --forward and --backward.
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
 * Times are those of a micro-batch of so many rows on the stage alone, two sizes at least; backward adds to gradients
 * that are there. Through the points goes a line,
 *
 *     cost(rows) = fixed + row * rows,      fixed >= 0, row >= 0,
 *
 * with the least sum of squared relative errors. fixed is what a micro-batch costs however few rows it has: starting
 * its operations, and writing and adding the gradients of all weights. output_bytes: of a row, what goes to the next
 * stage; held_bytes: of a row, what backward needs of the forward. Both 0 where they are missing. */
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
    double worst; /* relative error of a measured point's line, at most */
};

/* False after a message. */
bool stages_read(const char *file, struct stages *out);
void stages_free(struct stages *s);

/* The line through n points, as above; what it misses goes to *worst where that is less. */
struct cost cost_through(const double *rows, const double *ns, size_t n, double *worst);

static inline double cost_ns(struct cost c, double rows) {
    return c.fixed + c.row * rows;
}

#endif
