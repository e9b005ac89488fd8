/* O1's choice of types: what every operation computes in, and where the choice holds.
 *
 * An environment has one cast policy: the class of every operation (the table of docs/operations.md, amp/ops.c) with
 * what was changed of it here, and a stack of scopes. An O1 context is the bottom of the stack: inside it all
 * operations of the environment are cast, in modules and outside; where there is none, operations compute in their
 * inputs' types. A scope lies on top for as long as it is open; amp_destroy ends those that were begun under its
 * context.
 *
 * A weight that an operation wants in another type is cast once and kept until the weight changes: by a step, a load, a
 * broadcast, an operation in place, cairn_param_changed.
 *
 * f64 is cast to nothing narrower: with an f64 input an operation is computed as it would be without casts (apex casts
 * it, torch.autocast does not). Operations in place keep their tensor's type: other inputs are cast to it, and where it
 * is half an operation of AMP_CAST_F32 is an error.
 * Threads: as tensors. Source: apex/amp/amp.py (register_half_function and its like, disable_casts) at 25.04;
 * torch.autocast. */
#ifndef CAIRN_AUTOCAST_H
#define CAIRN_AUTOCAST_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum amp_cast {
    AMP_CAST_HALF = 1, /* inputs are cast to the half type */
    AMP_CAST_F32 = 2,  /* inputs are cast to f32 */
    AMP_CAST_WIDEST =
        3, /* inputs are cast to the widest type among them: f32 where a half meets f32 or the other half */
    AMP_CAST_FOLLOW = 4, /* runs in its inputs' type */
    AMP_CAST_BANNED = 5, /* an error where an input is half, with advice; f32 where none is */
    AMP_CAST_FP8 = 6,    /* both operands go through fp8, and the gradient of the result: linear, matmul and bmm alone,
                            under an O1 context with amp_options.fp8 (since 0.9.0; docs/fp8.md) */
} amp_cast;

/* The class of an operation ("gelu"), or of your own (cairn_custom_op.name, spelled as there), from now on, in this
 * environment; before amp_initialize or after. 0 = the table's own again (of one's own operation: that of "custom",
 * which is AMP_CAST_FOLLOW).
 * Errors: CAIRN_EINVAL no such class; a class for what computes nothing (reshape, cast); AMP_CAST_FP8 for another
 * operation than its three; a name that is no operation's
 * of Cairn becomes one of the user's own, unless it is nearly one of Cairn's, or torch's word for one; CAIRN_ENOMEM.
 * apex: amp.register_half_function, register_float_function, register_promote_function; allow_banned */
CAIRN_API cairn_status amp_op_set_cast(cairn_env *env, const char *op, amp_cast cast);

/* Its name before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("amp_op_set_cast") cairn_status
    amp_set_op_cast(cairn_env *env, const char *op, amp_cast cast);

/* The class that holds for an operation, and why, in a sentence (may be NULL); 0 for an operation that is not known. */
CAIRN_API amp_cast amp_op_cast(const cairn_env *env, const char *op, const char **reason);

struct amp_autocast_options {
    size_t struct_size;
    cairn_switch enabled;  /* ON; OFF: operations inside compute in their inputs' types */
    cairn_dtype half_type; /* 0 = that of the scope around it, or f16 */
};
#define amp_autocast_options(...) \
    (&(struct amp_autocast_options){.struct_size = sizeof(struct amp_autocast_options), __VA_ARGS__})

/* From here to amp_autocast_end operations are cast as O1 casts them. Scopes nest. *scope (may be NULL) is this scope's
 * number, above 0. options may be NULL. Works with any level and without amp_initialize. Backward needs no scope:
 * gradients go back through the casts that were made, and what cairn_checkpoint runs again runs under the casts it ran
 * under first (amp_op_set_cast in between: its backward is CAIRN_ESTATE). What a graph has recorded keeps its types.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM. torch.autocast; with enabled OFF apex: amp.disable_casts */
CAIRN_API cairn_status amp_autocast_begin(cairn_env *env, const struct amp_autocast_options *options, int *scope);

/* Ends a scope, and every one that was begun inside it and not ended: who returns early leaves nothing behind once an
 * outer scope ends. 0 = the innermost. Errors: CAIRN_EINVAL env is NULL; CAIRN_ESTATE no such scope is open. */
CAIRN_API cairn_status amp_autocast_end(cairn_env *env, int scope);

/* Whether operations are cast here, and to which half type (0 = they are not). torch.is_autocast_enabled */
CAIRN_API cairn_dtype amp_autocast_type(const cairn_env *env);

#ifdef __cplusplus
}
#endif

#endif
