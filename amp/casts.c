/* The cast policy: a table of classes and a stack of scopes, consulted once for every operation.
 *
 * The policy belongs to the environment and outlives every context, so a class that the user sets before amp_initialize
 * remains in force after it. A scope left open by an early return ends with the enclosing scope, or with the O1 context
 * in which it was begun. */
#include "casts.h"

#include <limits.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "fp8_casts.h"
#include "nn/hooks.h"
#include "ops.h"

/* A custom operation of the user's. */
struct own_op {
    char *name;
    amp_cast cast;
};

struct scope {
    int number;
    bool enabled;
    cairn_dtype half_type; /* set even if the scope is off: a scope inside it may be on */
};

struct casts {
    amp_cast classes[CAIRN__AMP_NUM_OPS];
    bool is_set[CAIRN__AMP_NUM_OPS]; /* by amp_op_set_cast */
    struct own_op *own;
    size_t num_own, own_capacity;
    uint64_t changes; /* of classes */

    struct scope o1;              /* the bottom of the stack; off = no O1 context */
    size_t below_o1;              /* scopes that were open when the O1 context began */
    bool verbose;                 /* the O1 context logs every cast */
    struct cairn__fp8_casts *fp8; /* the O1 context's; NULL = none */
    bool in_fp8;                  /* the operation is part of an fp8 product */
    struct scope *scopes;
    size_t depth, capacity;
    int last_number;
};

/* ---- the choice of a type ---- */

static const struct scope *in_force(const struct casts *c) {
    return c->depth > 0 ? &c->scopes[c->depth - 1] : &c->o1;
}

static const struct own_op *find_own(const struct casts *c, const char *name) {
    for (size_t i = 0; i < c->num_own; i++) {
        if (strcmp(c->own[i].name, name) == 0) return &c->own[i];
    }
    return NULL;
}

/* The type of the first half input; 0 = none is half. */
static cairn_dtype half_among(const struct cairn__op_question *q) {
    for (int i = 0; i < q->count; i++) {
        if (cairn__is_half(q->inputs[i])) return q->inputs[i];
    }
    return (cairn_dtype)0;
}

static cairn_status check(const struct cairn__op_question *q, amp_cast cast) {
    const cairn_dtype half = cast == AMP_CAST_BANNED ? half_among(q) : (cairn_dtype)0;
    REQUIRE(!half || q->op != CAIRN__OP_BCE, CAIRN_EINVAL,
            "bce: an input is %s under O1 or autocast, where probabilities near 0 and 1 are too coarse for their "
            "logarithms. Replace sigmoid and bce by cairn_bce_with_logits of the scores, or compute bce in f32 where "
            "its inputs are safe: amp_op_set_cast(env, \"bce\", AMP_CAST_F32)",
            cairn_dtype_name(half));
    REQUIRE(!half, CAIRN_EINVAL,
            "%s: an input is %s, and the operation is banned under O1 and autocast; cast its inputs to f32, or set its "
            "class: amp_op_set_cast(env, \"%s\", AMP_CAST_F32)",
            q->name, cairn_dtype_name(half), q->name);
    REQUIRE(!q->in_place || cast != AMP_CAST_F32 || !cairn__is_half(q->inputs[0]), CAIRN_EINVAL,
            "cannot call in-place %s_ on %s %s tensor under O1 or autocast, which compute %s in f32; use y = "
            "cairn_%s(x, ...), whose result is f32",
            q->name, q->inputs[0] == CAIRN_F16 ? "an" : "a", cairn_dtype_name(q->inputs[0]), q->name, q->name);
    return CAIRN_OK;
}

/* As in torch.autocast, f64 is never narrowed: an operation with an f64 input runs without casts. In place, the other
 * inputs are cast to the type of the first, as in apex. */
static cairn_dtype choose(const struct cairn__op_question *q, amp_cast cast, cairn_dtype half_type) {
    cairn_dtype wide = q->inputs[0];
    for (int i = 1; i < q->count; i++) { /* f16 and bf16 hold each other's values only in f32 */
        if (q->inputs[i] == wide) continue;
        wide = q->inputs[i] == CAIRN_F64 || wide == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
    }
    if (cast == AMP_CAST_FOLLOW) return (cairn_dtype)0;
    if (q->in_place) return q->inputs[0];
    if (cast == AMP_CAST_WIDEST) return wide;
    if (wide == CAIRN_F64) return (cairn_dtype)0;
    return cast == AMP_CAST_HALF ? half_type : CAIRN_F32;
}

/* Computes a product of the fp8 list. f64 is never narrowed, so an f64 product is computed as usual. */
static cairn_status replace(void *ctx, enum cairn__op op, int count, cairn_tensor *const *inputs, cairn_tensor **out) {
    struct casts *c = ctx;
    const struct scope *s = in_force(c);
    cairn_status st = CAIRN_OK;
    (void)count;
    if (!s->enabled || c->classes[op] != AMP_CAST_FP8 || c->in_fp8) return CAIRN_OK;
    REQUIRE(c->fp8, CAIRN_ESTATE,
            "%s: its class is AMP_CAST_FP8, but no O1 context with a recipe is alive; give amp_options.fp8 to "
            "amp_initialize, or set another class",
            cairn__amp_op_name(op));
    c->in_fp8 = true;
    TRY(cairn__fp8_product(c->fp8, op, inputs, s->half_type, out));
    if (c->verbose && *out)
        cairn__log(CAIRN_LOG_NOTICE, "%s -> fp8 (%s)", cairn_dtype_name(cairn_tensor_dtype(inputs[0])),
                   cairn__amp_op_name(op));
out:
    c->in_fp8 = false;
    return st;
}

/* Logs one line for each type that is cast. */
static void log_casts(const struct cairn__op_question *q, cairn_dtype to) {
    bool logged[CAIRN__DTYPE_END] = {false};
    for (int i = 0; i < q->count; i++) {
        const cairn_dtype from = q->inputs[i];
        if (from == to || logged[from]) continue;
        cairn__log(CAIRN_LOG_NOTICE, "%s -> %s (%s)", cairn_dtype_name(from), cairn_dtype_name(to), q->name);
        logged[from] = true;
    }
}

static cairn_status compute_type(void *ctx, const struct cairn__op_question *q, cairn_dtype *out) {
    const struct casts *c = ctx;
    const struct scope *s = in_force(c);
    if (!s->enabled) return CAIRN_OK;
    const struct own_op *own = q->op == CAIRN__OP_CUSTOM ? find_own(c, q->name) : NULL;
    const amp_cast cast = own ? own->cast : c->classes[q->op];
    cairn_status st = CAIRN_OK;
    TRY(check(q, cast));
    *out = choose(q, cast, s->half_type);
    if (c->verbose && *out) log_casts(q, *out);
out:
    return st;
}

/* ---- scopes ---- */

static cairn_status push(struct casts *c, bool enabled, cairn_dtype half_type, int *number) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&c->scopes, &c->capacity, c->depth + 1, sizeof(c->scopes[0])));
    c->last_number = c->last_number == INT_MAX ? 1 : c->last_number + 1;
    c->scopes[c->depth++] = (struct scope){c->last_number, enabled, half_type};
    *number = c->last_number;
out:
    return st;
}

static void pop_to(struct casts *c, size_t depth) {
    c->depth = depth;
    if (c->below_o1 > depth) c->below_o1 = depth;
}

/* Ends the scope and all scopes inside it. 0 = the innermost. */
static cairn_status pop(struct casts *c, int number) {
    size_t depth = c->depth;
    if (number == 0 && depth > 0) number = c->scopes[depth - 1].number;
    while (depth > 0 && c->scopes[depth - 1].number != number) depth--;
    REQUIRE(depth > 0, CAIRN_ESTATE, "amp_autocast_end: scope %d is not open%s", number,
            number == 0 ? ", and no other is" : "; it has been ended, by itself or with an enclosing scope");
    pop_to(c, depth - 1);
    return CAIRN_OK;
}

enum { TYPE_BITS = 8, SCOPE_BITS = TYPE_BITS + 1 };

/* The policy as a number: whether the scope in force casts, its half type (even if it is off, for scopes inside), and
 * how often classes have changed. */
static uint64_t policy(void *ctx) {
    const struct casts *c = ctx;
    const struct scope *s = in_force(c);
    return c->changes << SCOPE_BITS | (uint64_t)s->enabled << TYPE_BITS | (uint64_t)s->half_type;
}

/* of 0 means that there was no policy yet, so nothing was cast. */
static cairn_status resume(void *ctx, uint64_t of, int *number) {
    struct casts *c = ctx;
    if (of == 0) return push(c, false, CAIRN_F16, number);
    REQUIRE(of >> SCOPE_BITS == c->changes, CAIRN_ESTATE,
            "checkpoint: amp_op_set_cast has changed a class since forward, so backward would cast otherwise than "
            "forward; set classes before forward or after cairn_backward");
    return push(c, of >> TYPE_BITS & 1, (cairn_dtype)(of & ((1 << TYPE_BITS) - 1)), number);
}

static void leave(void *ctx, int number) {
    (void)pop(ctx, number);
}

/* ---- the policy of an environment ---- */

static void end(void *ctx) {
    struct casts *c = ctx;
    for (size_t i = 0; i < c->num_own; i++) cairn__free(c->own[i].name);
    cairn__free(c->own);
    cairn__free(c->scopes);
    cairn__free(c);
}

/* Made on first use. */
static cairn_status casts_of(cairn_env *env, struct casts **out) {
    *out = cairn__op_hook_ctx(env);
    if (*out) return CAIRN_OK;
    struct casts *c = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*c), (void **)&c));
    c->o1.half_type = CAIRN_F16;
    for (int op = 0; op < CAIRN__AMP_NUM_OPS; op++) c->classes[op] = cairn__amp_op_row(op)->cast;
    const struct cairn__op_hook hook = {.ctx = c,
                                        .compute_type = compute_type,
                                        .replace = replace,
                                        .policy = policy,
                                        .resume = resume,
                                        .leave = leave,
                                        .end = end};
    cairn__set_op_hook(env, &hook);
    *out = c;
out:
    return st;
}

/* The class of an operation whose class the user has not set. */
static amp_cast own_class(const struct casts *c, int op) {
    return c->fp8 && cairn__fp8_takes_by_default(op) ? AMP_CAST_FP8 : cairn__amp_op_row(op)->cast;
}

static void use_fp8(struct casts *c, struct cairn__fp8_casts *fp8) {
    c->fp8 = fp8;
    for (int op = 0; op < CAIRN__AMP_NUM_OPS; op++) {
        if (c->is_set[op] || c->classes[op] == own_class(c, op)) continue;
        c->classes[op] = own_class(c, op);
        c->changes++;
    }
}

cairn_status cairn__casts_begin_o1(cairn_env *env, cairn_dtype half_type, bool verbose) {
    struct casts *c = NULL;
    cairn_status st = CAIRN_OK;
    TRY(casts_of(env, &c));
    REQUIRE(!c->o1.enabled, CAIRN_ESTATE,
            "amp_initialize: this environment has an O1 context already, which casts all of its operations; "
            "amp_destroy that context first, give all models to one amp_initialize_all, or use another environment");
    c->o1 = (struct scope){.enabled = true, .half_type = half_type};
    c->below_o1 = c->depth;
    c->verbose = verbose;
out:
    return st;
}

void cairn__casts_use_fp8(cairn_env *env, struct cairn__fp8_casts *fp8) {
    use_fp8(cairn__op_hook_ctx(env), fp8);
}

void cairn__casts_end_o1(cairn_env *env) {
    struct casts *c = cairn__op_hook_ctx(env);
    if (!c || !c->o1.enabled) return;
    pop_to(c, c->below_o1);
    c->o1 = (struct scope){.half_type = CAIRN_F16};
    c->verbose = false;
    use_fp8(c, NULL);
}

/* ---- classes ---- */

static cairn_status set_class(struct casts *c, int op, amp_cast cast) {
    const struct cairn__amp_op_row *row = cairn__amp_op_row(op);
    REQUIRE(
        !row->is_fixed || cast == 0 || cast == AMP_CAST_FOLLOW, CAIRN_EINVAL,
        "amp_op_set_cast: '%s' moves values without computing, so its class is fixed; cast its input with cairn_cast",
        cairn__amp_op_name(op));
    REQUIRE(cast != AMP_CAST_FP8 || cairn__fp8_takes(op), CAIRN_EINVAL,
            "amp_op_set_cast: AMP_CAST_FP8 is for linear, matmul and bmm, not for '%s'", cairn__amp_op_name(op));
    const amp_cast next = cast ? cast : own_class(c, op);
    c->changes += c->classes[op] != next;
    c->classes[op] = next;
    c->is_set[op] = cast != 0;
    return CAIRN_OK;
}

static cairn_status set_own(struct casts *c, const char *name, amp_cast cast) {
    cairn_status st = CAIRN_OK;
    const struct own_op *known = find_own(c, name);
    struct own_op own = {.cast = cast};
    if (known) {
        c->changes += known->cast != cast;
        c->own[known - c->own].cast = cast;
        return CAIRN_OK;
    }
    TRY(cairn__amp_check_own_name(name));
    REQUIRE(cast != AMP_CAST_FP8, CAIRN_EINVAL,
            "amp_op_set_cast: AMP_CAST_FP8 is for linear, matmul and bmm, not for '%s'", name);
    TRY(cairn__grow((void **)&c->own, &c->own_capacity, c->num_own + 1, sizeof(own)));
    TRY(cairn__strdup(name, &own.name));
    c->own[c->num_own++] = own;
    c->changes++;
out:
    return st;
}

cairn_status amp_op_set_cast(cairn_env *env, const char *op, amp_cast cast) {
    REQUIRE(env && op && op[0], CAIRN_EINVAL, "amp_op_set_cast: env and the operation's name must be set");
    REQUIRE(
        (int)cast >= 0 && cast <= AMP_CAST_FP8, CAIRN_EINVAL,
        "amp_op_set_cast: cast is %d; it must be AMP_CAST_HALF, _F32, _WIDEST, _FOLLOW, _BANNED, _FP8, or 0 for the "
        "default",
        (int)cast);
    struct casts *c = NULL;
    int id;
    cairn_status st = CAIRN_OK;
    TRY(casts_of(env, &c));
    if (cairn__amp_op_named(op, &id)) return set_class(c, id, cast);
    if (cast) return set_own(c, op, cast);
    const struct own_op *own = find_own(c, op);
    if (own) { /* without a class it follows its inputs, as every custom operation */
        c->changes++;
        cairn__free(own->name);
        c->own[own - c->own] = c->own[--c->num_own];
    }
out:
    return st;
}

static const char SET_BY_USER[] = "set by amp_op_set_cast", BY_RECIPE[] = "a product, by the recipe of amp_options.fp8";

amp_cast amp_op_cast(const cairn_env *env, const char *op, const char **reason) {
    const struct casts *c = env ? cairn__op_hook_ctx(env) : NULL;
    const char *nothing = NULL;
    int id;
    if (!reason) reason = &nothing;
    *reason = "";
    if (!env || !op) return (amp_cast)0;
    if (!cairn__amp_op_named(op, &id)) {
        const struct own_op *own = c ? find_own(c, op) : NULL;
        if (own) *reason = SET_BY_USER;
        return own ? own->cast : (amp_cast)0;
    }
    const struct cairn__amp_op_row *row = cairn__amp_op_row(id);
    *reason = !c ? row->reason : c->is_set[id] ? SET_BY_USER : own_class(c, id) != row->cast ? BY_RECIPE : row->reason;
    return c ? c->classes[id] : row->cast;
}

/* ---- autocast ---- */

cairn_status amp_autocast_begin(cairn_env *env, const struct amp_autocast_options *options, int *scope) {
    REQUIRE(env, CAIRN_EINVAL, "amp_autocast_begin: env is NULL");
    struct amp_autocast_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    struct casts *c = NULL;
    int number = 0;
    TRY(cairn__options_read(&o, sizeof(o), options, "amp_autocast_options"));
    REQUIRE(o.enabled == CAIRN_DEFAULT || o.enabled == CAIRN_ON || o.enabled == CAIRN_OFF, CAIRN_EINVAL,
            "amp_autocast_begin: enabled is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", (int)o.enabled);
    REQUIRE((int)o.half_type == 0 || cairn__is_half(o.half_type), CAIRN_EINVAL,
            "amp_autocast_begin: half_type is %s; it must be f16 or bf16", cairn_dtype_name(o.half_type));
    TRY(casts_of(env, &c));
    TRY(push(c, o.enabled != CAIRN_OFF, o.half_type ? o.half_type : in_force(c)->half_type, &number));
    if (scope) *scope = number;
out:
    return st;
}

cairn_status amp_autocast_end(cairn_env *env, int scope) {
    REQUIRE(env, CAIRN_EINVAL, "amp_autocast_end: env is NULL");
    struct casts *c = cairn__op_hook_ctx(env);
    REQUIRE(c && scope >= 0, CAIRN_ESTATE, "amp_autocast_end: scope %d is not open", scope);
    return pop(c, scope);
}

cairn_dtype amp_autocast_type(const cairn_env *env) {
    const struct casts *c = env ? cairn__op_hook_ctx(env) : NULL;
    const struct scope *s = c ? in_force(c) : NULL;
    return s && s->enabled ? s->half_type : (cairn_dtype)0;
}
