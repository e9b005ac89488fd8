/* Casting under O1: the type that each operation computes in, and the scopes in which operations are cast.
 *
 * An environment has one cast policy: the class of every operation (the table in docs/operations.md, amp/ops.c, with
 * the changes made here) and a stack of scopes. An O1 context is the bottom of the stack: it casts all operations of
 * the environment, inside modules and outside. Without one, operations compute in their inputs' types. A scope is on
 * top of the stack while it is open; amp_destroy closes the scopes that were begun under its context.
 *
 * A weight that is cast for an operation is cast once; the result is kept until the weight changes by a step, a load, a
 * broadcast, an in-place operation or cairn_param_changed.
 *
 * f64 is never narrowed: an operation with an f64 input computes as without casts (as with torch.autocast; apex casts
 * it). In-place operations keep their tensor's type and cast other inputs to it; if that type is half, an operation of
 * class AMP_CAST_F32 is an error.
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
    AMP_CAST_BANNED = 5, /* an error, with advice, if an input is half; otherwise f32 */
    AMP_CAST_FP8 = 6,    /* both operands, and the result's gradient, are rounded to fp8: only linear, matmul and bmm,
                            under an O1 context with amp_options.fp8 (since 0.9.0; docs/fp8.md) */
} amp_cast;

/* Sets the class of an operation ("gelu") or of the user's own (cairn_custom_op.name, spelled the same) in this
 * environment; before or after amp_initialize. 0 = back to the table's class (for the user's own operation that of
 * "custom", which is AMP_CAST_FOLLOW). A name that is not one of Cairn's operations is taken for one of the user's own,
 * unless it nearly matches one of Cairn's or is torch's name for one.
 * Errors: CAIRN_EINVAL no such class; a class for an operation that computes nothing (reshape, cast); AMP_CAST_FP8 for
 * an operation other than those three; such a near-match or torch's name; CAIRN_ENOMEM.
 * apex: amp.register_half_function, register_float_function, register_promote_function; allow_banned */
CAIRN_API cairn_status amp_op_set_cast(cairn_env *env, const char *op, amp_cast cast);

/* Its name before 0.8.0. */
CAIRN_API CAIRN_DEPRECATED("amp_op_set_cast") cairn_status
    amp_set_op_cast(cairn_env *env, const char *op, amp_cast cast);

/* The current class of an operation; *reason (reason may be NULL) says why, in a sentence. 0 for an unknown
 * operation. */
CAIRN_API amp_cast amp_op_cast(const cairn_env *env, const char *op, const char **reason);

struct amp_autocast_options {
    size_t struct_size;
    cairn_switch enabled;  /* ON. OFF: operations inside compute in their inputs' types */
    cairn_dtype half_type; /* 0 = the enclosing scope's, or f16 */
};
#define amp_autocast_options(...) \
    (&(struct amp_autocast_options){.struct_size = sizeof(struct amp_autocast_options), __VA_ARGS__})

/* Operations are cast as under O1 from here to amp_autocast_end. Scopes nest. *scope (scope may be NULL) is the scope's
 * number, above 0. options may be NULL. Works at any level and without amp_initialize. Backward needs no scope:
 * gradients go back through the same casts, and what cairn_checkpoint computes again uses the casts of its first run
 * (if amp_op_set_cast was called in between, its backward returns CAIRN_ESTATE). A recorded graph keeps its types.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM. torch.autocast; with enabled OFF apex: amp.disable_casts */
CAIRN_API cairn_status amp_autocast_begin(cairn_env *env, const struct amp_autocast_options *options, int *scope);

/* Ends a scope and all scopes inside it that are still open, so a function that returns early leaves none behind once
 * an outer scope ends. 0 = the innermost scope. Errors: CAIRN_EINVAL env is NULL; CAIRN_ESTATE no such scope is
 * open. */
CAIRN_API cairn_status amp_autocast_end(cairn_env *env, int scope);

/* The half type that operations are cast to here; 0 = they are not cast. torch.is_autocast_enabled */
CAIRN_API cairn_dtype amp_autocast_type(const cairn_env *env);

#ifdef __cplusplus
}
#endif

#endif
