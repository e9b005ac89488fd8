/* Automatic mixed precision: the opt levels O0 to O3, dynamic loss scaling, fp32 masters, skipped steps.
 *
 * Follows apex.amp (NVIDIA/apex 25.04, apex/amp) in levels, properties, override rules and the default scaler; where it
 * differs, this says so. Differences: works on the CPU; f16 or bf16 at every
 * level; an object, not global state; the scale has a floor of 1; a static scale skips non-finite steps too; the scaler
 * counts optimizer steps, not backwards; the message about a skipped step comes once, from rank 0 (to stderr; a callback hears every rank), with names.
 * Threads: one thread per context at a time. */
#ifndef CAIRN_AMP_H
#define CAIRN_AMP_H

#include <math.h>

#include "core.h"
#include "env.h"
#include "nn.h"
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct amp_context amp_context;

typedef enum amp_opt_level {
    AMP_O0 = 1, /* everything in f32: the baseline */
    AMP_O1 = 2, /* f32 weights, the type of each operation chosen by a table */
    AMP_O2 = 3, /* half weights and inputs, f32 normalisation and fp32 masters */
    AMP_O3 = 4, /* half everything, no masters: a speed ceiling, not a recipe */
} amp_opt_level;

/* A loss_scale that grows and shrinks by itself. */
#define AMP_DYNAMIC HUGE_VAL

/* Choices; 0 takes the level's default. What contradicts the level is refused with a sentence that says what to do. */
struct amp_options {
    size_t struct_size;
    amp_opt_level opt_level; /* O1 */
    cairn_dtype half_type;   /* f16; or bf16 */

    cairn_dtype cast_model_type;      /* O0: f32, O2 and O3: the half type, O1: weights are left alone */
    cairn_switch patch_ops;           /* on at O1 only: casts around operations (apex: patch_torch_functions) */
    cairn_switch keep_batchnorm_fp32; /* O2: on, O3: off; normalisation parameters stay f32. Not with O1 */
    cairn_switch master_weights;      /* O2: on; O0, O3: off. Not with O1 */
    double loss_scale;                /* a number > 0, or AMP_DYNAMIC. O1, O2 in f16: dynamic; everything else: 1 */
    double min_loss_scale;            /* dynamic only: the floor, 1 */
    double max_loss_scale;            /* dynamic only: the ceiling, 2^24 */
    cairn_dtype cast_model_outputs;   /* f32 where cast_model_type is set; else outputs are left alone */
    cairn_switch skip_nonfinite;      /* leave a step out when a gradient is infinite or NaN. On, but for O0 and O3 with
                                          a static scale of 1 */
    cairn_switch enabled;             /* OFF: every call passes through, nothing is cast, scaled or checked */
    int verbosity;                    /* 0 = 1: settings are logged once, by rank 0, as notices; -1: quietly */
};
#define amp_options(...) (&(struct amp_options){.struct_size = sizeof(struct amp_options), __VA_ARGS__})

/* From a command line: "O1"; "dynamic" or a number > 0, finite. *out is written on success only.
 * Errors: CAIRN_EINVAL with the words that are allowed. */
CAIRN_API cairn_status amp_opt_level_parse(const char *text, amp_opt_level *out);
CAIRN_API cairn_status amp_loss_scale_parse(const char *text, double *out);
/* "f16" (also "fp16", "float16", "half") or "bf16" (also "bfloat16"). */
CAIRN_API cairn_status amp_half_type_parse(const char *text, cairn_dtype *out);

/* Prepares model and optimizer for a level: casts the weights, makes masters from their original f32 bits, installs the
 * casts of operations, inputs and outputs, and a scaler. Before ddp_create.
 *
 *   env        the one model was made in
 *   model      f32 parameters
 *   optimizer  over cairn_module_params(model)
 *   options    NULL = all defaults, O1 in f16
 *   out        ends before optimizer and model
 *
 * At O2 and O3 results of the step are gone, as after cairn_zero_grad: the weights that they were made of are.
 *
 * O1's casts hold for every operation of the environment, inside the model and outside (the loss), as apex's do; so an
 * environment has one O1 context at a time.
 *
 * Errors   Nothing was changed. CAIRN_EINVAL an option or a pair of options; CAIRN_ESTATE already initialised, another O1
 *          context in this environment, or ddp_create came first; CAIRN_ENOMEM.
 * Source   apex/amp/frontend.py, _initialize.py and _process_optimizer.py at 25.04. */
CAIRN_API cairn_status amp_initialize(cairn_env *env, cairn_module *model, cairn_optimizer *optimizer,
                                      const struct amp_options *options, amp_context **out);

/* Waits for the device, so that nothing it has to say of skipped steps is lost; takes hooks away and frees the context.
 * Weights stay in the type they have, so that a half model can neither be initialised again nor take f32 inputs; gradients
 * that wait for a step keep their worth; results of the step are gone, as after cairn_zero_grad. */
CAIRN_API void amp_destroy(amp_context **amp);

/* Short form of one scaled backward: amp_scale_loss, cairn_backward, amp_scale_loss_end. loss may be NULL: its cause is
 * returned. optimizer: the one whose step follows. Errors: theirs. */
CAIRN_API cairn_status amp_backward(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer);

/* Long form, and several backwards before a step: divide each loss by their number, and for each call amp_scale_loss, which
 * returns loss * scale as f32; call cairn_backward on that, then amp_scale_loss_end, which looks
 * for non-finite gradients (where no reduction has) and raises the flag of scaler and optimizer. A begin without an end
 * is reported at the next begin.
 * Errors: CAIRN_EINVAL; CAIRN_ESTATE a begin without an end, or the other way round, or a loss that is scaled already;
 * CAIRN_ENOMEM; NULL loss: its cause. */
CAIRN_API cairn_status amp_scale_loss(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer,
                                      cairn_tensor **scaled);
CAIRN_API cairn_status amp_scale_loss_end(amp_context *amp);

/* The scale that the next loss is multiplied by, as far as is known: on a GPU steps are told late (cairn_step). */
CAIRN_API double amp_loss_scale(const amp_context *amp);

/* Steps without overflow since the scale last changed: the dynamic scaler's growth counter, known as late as the scale. */
CAIRN_API int64_t amp_unskipped_steps(const amp_context *amp);

#ifdef __cplusplus
}
#endif

#endif
