/* Loss scalers, internal interface. The update rules are in kernels/step.h, since the device runs them. This header has
 * the objects: the state in device memory, the cells in which scaled losses store their scale, and the reports of
 * updates. */
#ifndef CAIRN__AMP_SCALER_H
#define CAIRN__AMP_SCALER_H

#include <stdbool.h>

#include "cairn/scaler.h"
#include "device/env.h"
#include "kernels/step.h"

/* Cells of one scaler, used in turn. Before a cell is reused, gradients at its old scale are accumulated. */
enum { CAIRN__AMP_CELLS = 64 };

struct amp_scaler {
    cairn_env *env;
    bool is_own; /* made by amp_scaler_create, not by a context */

    /* In device memory. */
    struct cairn__scaler_state *state;
    struct cairn__loss_scale *cells; /* [CAIRN__AMP_CELLS] */
    uint64_t next_cell;
    const struct cairn__loss_scale *shown_cell; /* holds the scale that the user was given last; NULL = none yet */
    double shown_scale;     /* the same as a number; NaN: given on the device, unknown to the host */
    bool shown_on_device;   /* given on the device, dynamic, and the host has queued no update since */
    uint64_t shown_replays; /* env->replays at that time */
    float *no_loss; /* [2] in device memory: a loss of 0, and 0 times the scale, when a cell is filled without a loss */

    struct cairn__scaler_report *reports; /* [CAIRN__REPORTS], written by the device, read by the host */
    uint64_t last_read;                   /* number of the last report read */
    struct cairn__scaler_state known; /* the state as of the last report read; for AMP_SCALER_USER the current state */
    struct cairn__report_reader reader;

    bool is_explicit;      /* updated by amp_scaler_update, as torch's GradScaler is, not by the next step */
    bool logs_updates;     /* amp_scaler_update made the last update: scaler.c logs the new scale, guards do not */
    bool is_disabled;      /* its context has enabled = OFF: amp_scaler_step only steps, other calls do nothing */
    bool ignores_overflow; /* its context has skip_nonfinite = OFF: no overflow is reported to it */
    int pending;           /* losses scaled since the last update; counted in env->unstepped too */

    void (*update)(void *ctx, struct amp_scaler_state *state, int found); /* AMP_SCALER_USER has this one */
    void (*update_by_statistics)(void *ctx, struct amp_scaler_state *state, int found, /* or this one */
                                 const struct amp_scaler_statistics *statistics);
    void *ctx;
    double saturation_log; /* log2 of the threshold for the saturating counts of update_by_statistics */

    /* Statistics of gradients, if the rule uses them. next: since the last update. seen: by number modulo
     * CAIRN__REPORTS, of updates whose reports may not have been read. */
    struct amp_scaler_statistics next, seen[CAIRN__REPORTS];
    uint64_t queued; /* number of the last update queued */

    struct amp_scaler_update_record *records;
    size_t record_nbytes; /* size of one record in the user's build */
    size_t capacity, recorded;

    struct cairn__users
        *users; /* optimizers used with explicit scaling, and their stage since the last update (explicit.c) */
};

/* ---- values (scaler_values.c) ---- */

/* Range of a scale in which both it and its inverse are normal f32 numbers. */
#define CAIRN__MIN_SCALE 0x1p-126
#define CAIRN__MAX_SCALE 0x1p126

/* Makes a fresh state from options, with every default filled in. id is the loss_id. Errors: CAIRN_EINVAL for every
 * value out of range. */
cairn_status cairn__scaler_resolve(const struct amp_scaler_options *options, int id, struct cairn__scaler_state *out);

/* options->saturation_log, or its default. */
double cairn__saturation_log(const struct amp_scaler_options *options);

/* "apex"; NULL if kind is invalid. */
const char *cairn__scaler_kind_name(amp_scaler_kind kind);

enum cairn__scaler_field_type { CAIRN__FIELD_DOUBLE, CAIRN__FIELD_INT64, CAIRN__FIELD_INT };

/* The fields of a state besides its kind, under the names that messages and text formats use. */
struct cairn__scaler_field {
    const char *name;
    enum cairn__scaler_field_type type;
    size_t offset; /* in struct amp_scaler_state */
    double least, most;
    const char *must;     /* "it must be " */
    amp_scaler_kind only; /* the only kind that has it; 0 = all have it */
};
enum { CAIRN__SCALER_FIELDS = 28 };
extern const struct cairn__scaler_field cairn__scaler_fields[CAIRN__SCALER_FIELDS];

/* where begins the message: "amp_scaler_set_state: ". Errors: CAIRN_EINVAL. */
cairn_status cairn__scaler_check_field(const struct cairn__scaler_field *field, const struct amp_scaler_state *state,
                                       const char *where);

/* Whether scalers of this kind have the field. */
bool cairn__scaler_has_field(amp_scaler_kind kind, const struct cairn__scaler_field *field);

/* Convert between the public state and the device's. The second checks it (CAIRN_EINVAL), clamps the scale to floor and
 * ceiling, as it does init_scale, and hysteresis_left to [0, hysteresis], except for AMP_SCALER_USER; out's id and
 * internal fields are 0. */
void cairn__scaler_state_show(const struct cairn__scaler_state *state, struct amp_scaler_state *out);
cairn_status cairn__scaler_state_take(const struct amp_scaler_state *state, const char *where,
                                      struct cairn__scaler_state *out);

/* ---- objects ---- */

/* Creates a scaler with a resolved state. It keeps update, update_by_statistics and ctx of options, which may be NULL.
 * Errors: CAIRN_ENOMEM. */
cairn_status cairn__scaler_create(cairn_env *env, const struct cairn__scaler_state *fresh,
                                  const struct amp_scaler_options *options, amp_scaler **out);

/* Destroys any scaler, a context's too, and the guards that explicit scaling has made. Gradients at the scales of its
 * cells are accumulated first. (explicit.c) */
void cairn__scaler_end(amp_scaler **scaler);

/* The two halves of cairn__scaler_end; the guards are destroyed between them. */
void cairn__scaler_read_last_reports(amp_scaler *scaler);
void cairn__scaler_free(amp_scaler **scaler);

/* Returns loss * scale as a node of the graph, with the scale in the next cell. If the scale is a static 1, returns an
 * f32 loss unchanged. *found (device memory; may be NULL) is raised if the unscaled loss is infinite or NaN. NULL on
 * error. */
cairn_tensor *cairn__scaler_scale(amp_scaler *scaler, cairn_tensor *loss, uint32_t *found);

/* Returns loss * scale in f32, whatever the loss's type, as a further node of the graph (scaled_loss.c). The device
 * reads the scale from scaler when it executes the node, and stores it in *cell. The gradient of the loss starts from
 * that scale. Tensors computed from the result carry the cell, and backward makes every parameter set that it reaches
 * use the cell's factor. scaler, cell and found are device memory; cell belongs to this loss until its gradients have
 * been used. *found is raised if the loss, in f32, is infinite or NaN; found may be NULL. Returns NULL with
 * CAIRN_EINVAL if loss has more than one element, with CAIRN_ESTATE if it is scaled already. */
cairn_tensor *cairn__scale_loss(cairn_tensor *loss, const struct cairn__scaler_state *scaler,
                                struct cairn__loss_scale *cell, uint32_t *found);

/* Returns the scale as a number, for a loss that the user multiplies. It stays the same until the step that follows the
 * pending losses. If the scale was given on the device since the last step, returns that scale, and waits for the
 * device. *cell is where the device finds the scale; NULL if it is a static 1. Errors: CAIRN_ENOMEM; CAIRN_EDEVICE;
 * CAIRN_ESTATE a graph is being recorded and the scale may change. */
cairn_status cairn__scaler_show_scale(amp_scaler *scaler, double *scale, const struct cairn__loss_scale **cell);

/* The same on the device: *shown, in device memory, gets the scale when the device executes the call. *cell as above.
 * Does not wait and can be recorded. Errors: CAIRN_ENOMEM. */
cairn_status cairn__scaler_show_on_device(amp_scaler *scaler, const float **shown,
                                          const struct cairn__loss_scale **cell);

/* Takes the next cell, which gets the scale when the device executes the call, for a backward whose loss was multiplied
 * by the scale elsewhere. *cell is NULL if the scale is a static 1. Errors: CAIRN_ENOMEM. */
cairn_status cairn__scaler_use_scale(amp_scaler *scaler, const struct cairn__loss_scale **cell);

/* *shown = 1, in device memory. Errors: CAIRN_ENOMEM. */
cairn_status cairn__scaler_show_1(amp_scaler *scaler, const float **shown);

/* Whether the scaler's rule uses statistics of gradients. */
static inline bool cairn__scaler_looks(const amp_scaler *scaler) {
    return scaler->known.rule == CAIRN__SCALER_LOGMAX || scaler->known.rule == CAIRN__SCALER_HISTOGRAM ||
           (scaler->known.rule == CAIRN__SCALER_USER && scaler->update_by_statistics);
}

/* Adds the statistics of more gradients. (statistics.c) */
void cairn__statistics_add(struct amp_scaler_statistics *to, const struct amp_scaler_statistics *more);

/* Queues an update by what was found. No loss is pending afterwards. */
void cairn__scaler_queue_update(amp_scaler *scaler);

/* The host's part of an update that the end of a step makes on the device (struct cairn__step_end). */
void cairn__scaler_leave_update(amp_scaler *scaler);

/* Queues a change of the scale, which is clamped to floor and ceiling and rounded to the kind's precision. */
void cairn__scaler_put_scale(amp_scaler *scaler, double scale);

/* Forgets overflows found since the last update. No loss is pending afterwards. */
void cairn__scaler_drop_found(amp_scaler *scaler);

/* Counts one more pending loss. Its overflow is recorded in scaler->state->found. */
void cairn__scaler_add_pending(amp_scaler *scaler);

/* Reads the reports that have arrived: takes over scale and unskipped, writes records, calls the user's update
 * function. Never waits; does nothing while a graph is recorded. Replays of graphs and cairn_env_synchronize call it.
 * Errors: CAIRN_EINVAL the user's update function set an unusable scale (the old one stays); CAIRN_ENUMERIC an update
 * would lower a scale that is at its floor. */
cairn_status cairn__scaler_read_reports(amp_scaler *scaler);

/* Waits for the device and reads the remaining reports, after which cairn__scaler_put cannot fail. Errors: CAIRN_ESTATE
 * losses are pending, or a graph is being recorded; CAIRN_EDEVICE. */
cairn_status cairn__scaler_synchronize(amp_scaler *scaler, const char *where);
/* Errors: CAIRN_EINVAL the scaler cannot become one of that kind. */
cairn_status cairn__scaler_check_kind(const amp_scaler *scaler, amp_scaler_kind kind, const char *where);
void cairn__scaler_put(amp_scaler *scaler, const struct cairn__scaler_state *state);

/* ---- several as text (state.c): amp_state_dict and amp_load_state_dict of a context's scalers ---- */

int cairn__state_write(amp_scaler *const *scalers, size_t count, char *text, size_t nbytes);
cairn_status cairn__state_read(amp_scaler *const *scalers, size_t count, const char *text);

#endif
