/* Loss scalers from inside. Their rules are in kernels/step.h, since a device runs them; here are their objects: state
 * in device memory, the cells that scaled losses leave their scale in, reports as they come. */
#ifndef CAIRN__AMP_SCALER_H
#define CAIRN__AMP_SCALER_H

#include <stdbool.h>

#include "cairn/scaler.h"
#include "device/env.h"
#include "kernels/step.h"

/* Scales that are kept at a time; before a cell is used again, gradients at its old scale are accumulated. */
enum { CAIRN__AMP_CELLS = 64 };

struct amp_scaler {
    cairn_env *env;
    bool is_own; /* amp_scaler_create made it; else a context */

    /* In device memory. */
    struct cairn__scaler_state *state;
    struct cairn__loss_scale *cells; /* [CAIRN__AMP_CELLS] */
    uint64_t next_cell;
    const struct cairn__loss_scale *shown_cell; /* of the scale that was shown to the user last; NULL = none yet */
    double shown_scale;                         /* as a number; NaN: it was shown on the device, and is not known */
    bool shown_on_device;                       /* a scale that may change, and since then the host queued no update */
    uint64_t shown_replays;                     /* the environment's, then */
    float *no_loss; /* [2] in device memory: 0, and its product with a scale that is shown there */

    struct cairn__scaler_report *reports; /* what the device writes and the host reads; [CAIRN__REPORTS] */
    uint64_t last_read;                   /* of the last report that was read */
    struct cairn__scaler_state
        known; /* the state after the last report that was read; of AMP_SCALER_USER the state itself */
    struct cairn__report_reader reader;

    bool is_explicit;  /* updated by amp_scaler_update, as torch's GradScaler, and not by the step after its losses */
    bool logs_updates; /* the last update was amp_scaler_update's: scaler.c logs the new scale, and not a guard */
    bool is_disabled;  /* of a context with enabled = OFF: amp_scaler_step only steps, the other calls do nothing */
    bool ignores_overflow; /* of a context with skip_nonfinite = OFF: no overflow is reported to it */
    int pending;           /* losses scaled since the last update; part of env->unstepped */

    void (*update)(void *ctx, struct amp_scaler_state *state, int found);              /* AMP_SCALER_USER: this, */
    void (*update_by_statistics)(void *ctx, struct amp_scaler_state *state, int found, /* or this one */
                                 const struct amp_scaler_statistics *statistics);
    void *ctx;
    double saturation_log; /* that update_by_statistics counts by */

    /* Of gradients, where the rule looks at them: since the last update; and of updates by their number, whose reports
     * have not all been read. */
    struct amp_scaler_statistics next, seen[CAIRN__REPORTS];
    uint64_t queued; /* the number of the last update that was queued */

    struct amp_scaler_update_record *records;
    size_t record_nbytes; /* of one, as the user's struct has it */
    size_t capacity, recorded;

    struct cairn__users
        *users; /* of explicit scaling (explicit.c): optimizers, how far they are since the last update */
};

/* ---- values (scaler_values.c) ---- */

/* Of a scale: it and its inverse are normal f32 numbers. */
#define CAIRN__MIN_SCALE 0x1p-126
#define CAIRN__MAX_SCALE 0x1p126

/* Options with every default filled in, as a fresh state; id: loss_id. Errors: CAIRN_EINVAL for every value out of
 * range. */
cairn_status cairn__scaler_resolve(const struct amp_scaler_options *options, int id, struct cairn__scaler_state *out);

/* The default filled in. */
double cairn__saturation_log(const struct amp_scaler_options *options);

/* "apex"; NULL where kind is none. */
const char *cairn__scaler_kind_name(amp_scaler_kind kind);

enum cairn__scaler_field_type { CAIRN__FIELD_DOUBLE, CAIRN__FIELD_INT64, CAIRN__FIELD_INT };

/* What a state consists of besides its kind; what messages and texts call it. */
struct cairn__scaler_field {
    const char *name;
    enum cairn__scaler_field_type type;
    size_t offset; /* in struct amp_scaler_state */
    double least, most;
    const char *must;     /* "it must be " */
    amp_scaler_kind only; /* of this kind alone; 0 = of all */
};
enum { CAIRN__SCALER_FIELDS = 28 };
extern const struct cairn__scaler_field cairn__scaler_fields[CAIRN__SCALER_FIELDS];

/* where: the beginning of the message, "amp_scaler_set_state: ". Errors: CAIRN_EINVAL */
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

/* An object from a resolved state; update and ctx, of options, which may be NULL, are kept. Errors: CAIRN_ENOMEM. */
cairn_status cairn__scaler_create(cairn_env *env, const struct cairn__scaler_state *fresh,
                                  const struct amp_scaler_options *options, amp_scaler **out);

/* Ends any scaler, a context's too, with the guards that explicit scaling has made. Gradients at its cells are
 * accumulated first. (explicit.c) */
void cairn__scaler_end(amp_scaler **scaler);

/* Its two halves, with the guards' end between them. */
void cairn__scaler_read_last_reports(amp_scaler *scaler);
void cairn__scaler_free(amp_scaler **scaler);

/* loss * scale as a node of the graph, through the next cell. Where the scale is a static 1, an f32 loss itself.
 * *found (device memory; may be NULL) is raised where the loss is infinite or NaN, unscaled. NULL on error. */
cairn_tensor *cairn__scaler_scale(amp_scaler *scaler, cairn_tensor *loss, uint32_t *found);

/* loss * scale, in f32 whatever the loss's type, as a further node of the graph (scaled_loss.c); the scale is scaler's
 * when the device comes to it, and stays in *cell. The gradient of the loss starts from it, and tensors computed from
 * the result carry the cell, at whose factor backward points every parameter set that it reaches. scaler and cell are
 * device memory; cell belongs to this loss until its gradients have been used. *found, device memory too, is raised
 * where the loss, in f32, is infinite or NaN; found may be NULL. NULL with CAIRN_EINVAL more than one element,
 * CAIRN_ESTATE scaled already. */
cairn_tensor *cairn__scale_loss(cairn_tensor *loss, const struct cairn__scaler_state *scaler,
                                struct cairn__loss_scale *cell, uint32_t *found);

/* The scale as a number, for a loss that the user multiplies: the same until the step that follows the losses that are
 * pending, and what the device was shown since the last step, for which it waits. *cell: where the device finds it;
 * NULL where it is a static 1. Errors: CAIRN_ENOMEM; CAIRN_EDEVICE; CAIRN_ESTATE a graph is being recorded and the
 * scale may change. */
cairn_status cairn__scaler_show_scale(amp_scaler *scaler, double *scale, const struct cairn__loss_scale **cell);

/* The same on the device: *shown, in device memory, is the scale as it is when the device comes there. *cell as above.
 * Waits for nothing and can be recorded. Errors: CAIRN_ENOMEM. */
cairn_status cairn__scaler_show_on_device(amp_scaler *scaler, const float **shown,
                                          const struct cairn__loss_scale **cell);

/* The next cell, with the scale as it is when the device comes there: for a backward whose loss was multiplied by it
 * elsewhere. *cell: NULL where it is a static 1. Errors: CAIRN_ENOMEM. */
cairn_status cairn__scaler_use_scale(amp_scaler *scaler, const struct cairn__loss_scale **cell);

/* *shown = 1, in device memory. Errors: CAIRN_ENOMEM. */
cairn_status cairn__scaler_show_1(amp_scaler *scaler, const float **shown);

/* Whether its rule looks at gradients. */
static inline bool cairn__scaler_looks(const amp_scaler *scaler) {
    return scaler->known.rule == CAIRN__SCALER_LOGMAX || scaler->known.rule == CAIRN__SCALER_HISTOGRAM ||
           (scaler->known.rule == CAIRN__SCALER_USER && scaler->update_by_statistics);
}

/* Adds what more gradients were. (statistics.c) */
void cairn__statistics_add(struct amp_scaler_statistics *to, const struct amp_scaler_statistics *more);

/* Queues an update with what was found, and no loss is pending any more. */
void cairn__scaler_queue_update(amp_scaler *scaler);

/* The same, where a step's end updates what stands on the device (struct cairn__step_end). */
void cairn__scaler_leave_update(amp_scaler *scaler);

/* Sets the scale, clamped to floor and ceiling and in the kind's precision, in the order of the queue. */
void cairn__scaler_put_scale(amp_scaler *scaler, double scale);

/* Forgets overflows found since the last update; no loss is pending any more. */
void cairn__scaler_drop_found(amp_scaler *scaler);

/* One more loss is pending; its overflow is noted in scaler->state->found. */
void cairn__scaler_add_pending(amp_scaler *scaler);

/* Reads the reports that have come: scale, unskipped, records, the user's update. Never waits; does nothing while a
 * graph is recorded. Graphs' replays and cairn_env_synchronize do it by themselves. Errors: CAIRN_EINVAL the user's
 * update function set a scale that is not usable: the old one stays; CAIRN_ENUMERIC an update would lower a scale that
 * is at its floor. */
cairn_status cairn__scaler_read_reports(amp_scaler *scaler);

/* Waits for the device and reads the remaining reports. Errors: CAIRN_ESTATE losses are pending, or a graph is being
 * recorded; CAIRN_EDEVICE. After it cairn__scaler_put cannot fail. */
cairn_status cairn__scaler_synchronize(amp_scaler *scaler, const char *where);
/* Errors: CAIRN_EINVAL it can be no scaler of that kind. */
cairn_status cairn__scaler_check_kind(const amp_scaler *scaler, amp_scaler_kind kind, const char *where);
void cairn__scaler_put(amp_scaler *scaler, const struct cairn__scaler_state *state);

/* ---- several as text (state.c): amp_state_dict and amp_load_state_dict of a context's scalers ---- */

int cairn__state_write(amp_scaler *const *scalers, size_t count, char *text, size_t nbytes);
cairn_status cairn__state_read(amp_scaler *const *scalers, size_t count, const char *text);

#endif
