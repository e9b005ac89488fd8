/* Progress of a training or an evaluation: on a terminal one line that is updated in place, elsewhere plain lines at
 * intervals; written by rank 0 only.
 *
 *     CAIRN_CHECK(cairn_progress_create(env, steps, cairn_progress_options(.title = "train"), &progress));
 *     for (int64_t step = 0; step < steps; step++) {
 *         ...
 *         if (cairn_progress_step(progress))
 *             cairn_progress_show(progress, cairn_progress_values(.loss = cairn_tensor_item(loss), .lr = rate));
 *     }
 *     cairn_progress_destroy(&progress);
 *
 *     train  42% 4200/10000, 812 steps/s, 0:07 left, loss 0.4213, lr 0.0005, scale 32768, 3 skipped
 *
 * cairn_progress_step returns 1 when a line is due, so values are read from a device only then. It always returns 0 on
 * other ranks. The time left is extrapolated from the steps since the start, or since cairn_progress_start.
 * Threads: one at a time. */
#ifndef CAIRN_PROGRESS_H
#define CAIRN_PROGRESS_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_progress cairn_progress;

struct cairn_progress_options {
    size_t struct_size;
    const char *title;     /* at the start of the line; NULL = none. Copied */
    int64_t done;          /* steps made before, in a run that is resumed; 0 */
    double interval;       /* seconds between lines: 0 = 0.1 on a terminal, 10 elsewhere */
    int fd;                /* where lines are written; 0 = 2, standard error */
    cairn_switch terminal; /* whether fd is a terminal; CAIRN_DEFAULT asks the system, and does not count one
                              without a size, as of `script > file` */
};
#define cairn_progress_options(...) \
    (&(struct cairn_progress_options){.struct_size = sizeof(struct cairn_progress_options), __VA_ARGS__})

/* What a line shows besides steps and time. A field that is 0 is omitted; set has_loss to show a loss of 0. */
struct cairn_progress_values {
    size_t struct_size;
    double loss;
    int has_loss;     /* not 0: always show loss */
    double lr;        /* learning rate */
    double scale;     /* loss scale */
    int64_t skipped;  /* steps skipped so far */
    const char *more; /* the program's own, as "accuracy 0.93"; NULL = nothing */
};
#define cairn_progress_values(...) \
    (&(struct cairn_progress_values){.struct_size = sizeof(struct cairn_progress_values), __VA_ARGS__})

/* Makes a progress over `total` steps; 0 = the number is not known, and lines show no percentage.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM. Local: every rank has one, and rank 0 writes. */
CAIRN_API cairn_status cairn_progress_create(cairn_env *env, int64_t total,
                                             const struct cairn_progress_options *options, cairn_progress **out);

/* Destroys it: on a terminal the line stays, and the cursor moves to the next line. */
CAIRN_API void cairn_progress_destroy(cairn_progress **progress);

/* Restarts the clock: call it after a first step that built or loaded things. */
CAIRN_API void cairn_progress_start(cairn_progress *progress);

/* Counts one more step. Returns 1 if a line is due: on rank 0, `interval` after the previous line, and at the last
 * step; otherwise, and for NULL, 0. Cost: reading a clock. */
CAIRN_API int cairn_progress_step(cairn_progress *progress);

/* Writes a line now, on rank 0; does nothing on other ranks. values may be NULL. Write errors are ignored: progress
 * never fails a training. */
CAIRN_API void cairn_progress_show(cairn_progress *progress, const struct cairn_progress_values *values);

#ifdef __cplusplus
}
#endif

#endif
