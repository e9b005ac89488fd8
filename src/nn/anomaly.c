/* Anomaly mode: checks every value for inf and NaN as it is computed. A device with memory of its own counts the bad
 * values; values are copied to the host only if there are bad ones or if the device cannot count their type.
 *
 * The error names the first bad operation, since everything before it has been checked. Values from outside (leaves,
 * parameters, the gradient that a backward begins with) are checked only to explain a bad result: a mask of -inf is no
 * anomaly, nor is an infinity that an operation gets from its inputs. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/half.h"
#include "core/options.h"
#include "core/status.h"
#include "nn/backward.h"

struct findings {
    size_t n, infs, nans, first;
};

static double value_at(cairn_dtype dtype, const void *x, size_t i) {
    switch (dtype) {
    case CAIRN_F32:
        return (double)((const float *)x)[i];
    case CAIRN_F64:
        return ((const double *)x)[i];
    case CAIRN_F16:
        return (double)cairn__f16_to_f32(((const uint16_t *)x)[i]);
    case CAIRN_BF16:
        return (double)cairn__bf16_to_f32(((const uint16_t *)x)[i]);
    default:
        return 0;
    }
}

/* Counts bad values among the n elements of v, which is in host memory, in row-major order. */
static void look_here(const struct cairn__view *v, size_t n, struct findings *f) {
    int64_t at[CAIRN_MAX_DIMS] = {0};
    size_t offset = 0;
    while (f->n < n) {
        const double value = value_at(v->dtype, v->data, offset);
        if (!isfinite(value)) {
            if (f->infs + f->nans == 0) f->first = f->n;
            if (isnan(value)) {
                f->nans++;
            } else {
                f->infs++;
            }
        }
        f->n++;
        for (int d = v->ndim - 1; d >= 0; d--) {
            offset += (size_t)v->stride[d];
            if (++at[d] < v->size[d]) break;
            offset -= (size_t)(v->size[d] * v->stride[d]);
            at[d] = 0;
        }
    }
}

/* ---- on devices whose memory is not the host's ---- */

static cairn_status is_finite_there(struct cairn_device *d, const struct cairn__view *v, size_t n, bool *finite) {
    const struct cairn__item item = {.n = n, .x = v->data};
    struct cairn__census *there = NULL, counted;
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_SCRATCH, sizeof(*there), (void **)&there));
    d->passes->census(d, &item, 1, v->dtype, 0, there);
    TRY(cairn__device_download(d, &counted, there, sizeof(counted)));
    *finite = counted.infs + counted.nans == 0;
out:
    cairn__device_free(d, there);
    return st;
}

static cairn_status look_at_copy(struct cairn_device *d, const struct cairn__view *v, size_t n, struct findings *f) {
    struct cairn__view here = *v;
    int64_t last = 0;
    cairn_status st = CAIRN_OK;
    for (int k = 0; k < v->ndim; k++) last += (v->size[k] - 1) * v->stride[k];
    const size_t nbytes = (size_t)(last + 1) * cairn_dtype_nbytes(v->dtype);
    here.data = NULL;
    TRY(cairn__alloc(nbytes, &here.data));
    TRY(cairn__device_download(d, here.data, v->data, nbytes));
    look_here(&here, n, f);
out:
    cairn__free(here.data);
    return st;
}

/* ---- what is looked at ---- */

static cairn_status look_at_view(const struct cairn__tape *tape, const struct cairn__view *v, size_t n,
                                 struct findings *f) {
    struct cairn_device *d = tape->env->device;
    cairn_status st = CAIRN_OK;
    bool finite = false;
    *f = (struct findings){0};
    if (cairn__is_on_host(d)) {
        look_here(v, n, f);
        return CAIRN_OK;
    }
    f->n = n;
    if (n == 0 || !cairn__is_float(v->dtype)) return CAIRN_OK;
    if (v->dtype != CAIRN_F64 && cairn__view_is_dense(v)) TRY(is_finite_there(d, v, n, &finite));
    if (finite) return CAIRN_OK;
    f->n = 0;
    TRY(look_at_copy(d, v, n, f));
out:
    return st;
}

static cairn_status look_at_tensor(const struct cairn__tape *tape, const cairn_tensor *t, struct findings *f) {
    const struct cairn__view v = cairn__tensor_view(t);
    return look_at_view(tape, &v, t->n, f);
}

static cairn_status look_at_grad(const struct cairn__tape *tape, const cairn_tensor *t, const void *dx,
                                 struct findings *f) {
    const struct cairn__view v = cairn__tensor_grad_view(t, (void *)(uintptr_t)dx);
    return look_at_view(tape, &v, t->n, f);
}

static bool is_bad(struct findings f) {
    return f.infs + f.nans > 0;
}

static cairn_status look_for_infinite_inputs(const struct cairn__tape *tape, const struct cairn__node *node,
                                             bool *any) {
    cairn_status st = CAIRN_OK;
    struct findings f = {0};
    for (int i = 0; i < node->count && f.infs == 0; i++) {
        if (node->inputs[i]) TRY(look_at_tensor(tape, node->inputs[i], &f));
    }
    *any = f.infs > 0;
out:
    return st;
}

/* ---- sentences ---- */

enum { FOUND = 160, TEXT = 1024 };

static void append(char text[TEXT], const char *more) {
    const size_t used = strlen(text);
    snprintf(text + used, TEXT - used, "%s", more);
}

/* "linear([64, 1024], [16, 1024], [16])", "cast([64, 1024], f32 to f16)" */
static const char *call_text(const struct cairn__node *node, char text[TEXT]) {
    char shape[CAIRN__SHAPE_TEXT];
    text[0] = '\0';
    append(text, cairn__node_name(node));
    for (int i = 0; i < node->count; i++) {
        append(text, i == 0 ? "(" : ", ");
        append(text, node->inputs[i] ? cairn__shape_text(node->inputs[i], shape) : "NULL");
    }
    if (node->op == CAIRN__OP_CAST && node->inputs[0] && node->result) {
        append(text, ", ");
        append(text, cairn_dtype_name(node->inputs[0]->dtype));
        append(text, " to ");
        append(text, cairn_dtype_name(node->result->dtype));
    }
    append(text, ")");
    return text;
}

/* "2 inf and 1 NaN among 1024 values, the first at index 17" */
static const char *findings_text(struct findings f, char text[FOUND]) {
    snprintf(text, FOUND, "%zu inf and %zu NaN among %zu values, the first at index %zu", f.infs, f.nans, f.n, f.first);
    return text;
}

/* "; its input 0 had ...", for the first input with an infinite or NaN value; "" if there is none. */
static cairn_status cause_text(const struct cairn__tape *tape, const struct cairn__node *node, char text[TEXT]) {
    char values[FOUND];
    cairn_status st = CAIRN_OK;
    text[0] = '\0';
    for (int i = 0; i < node->count && !text[0]; i++) {
        struct findings f = {0};
        if (node->inputs[i]) TRY(look_at_tensor(tape, node->inputs[i], &f));
        if (is_bad(f)) snprintf(text, TEXT, "; its input %d had %s", i, findings_text(f, values));
    }
out:
    return st;
}

/* ---- the checks ---- */

bool cairn__looks_for_anomalies(const struct cairn__tape *tape) {
    return tape->main->finds_anomalies || tape->main->anomaly_users > 0;
}

/* Noting keeps the first anomaly, so nothing is checked after it. While a graph is being recorded there are no values
 * yet: noting skips the check, and cairn_detect_anomaly makes the recording fail. */
static cairn_status begins_to_look(const struct cairn__tape *tape, bool *looks) {
    const struct cairn__tape *main = tape->main;
    struct cairn_device *d = tape->env->device;
    *looks = main->finds_anomalies || (main->anomaly && !main->anomaly[0]);
    if (!*looks || !d->capturing) return CAIRN_OK;
    *looks = false;
    if (!main->finds_anomalies) return CAIRN_OK;
    return cairn__device_refuse_recording(d, "anomaly mode looks at every value; turn it off (cairn_detect_anomaly)");
}

static cairn_status __attribute__((format(printf, 2, 3)))
found(const struct cairn__tape *tape, const char *format, ...) {
    char text[CAIRN__ANOMALY_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (tape->main->finds_anomalies) return cairn__fail(CAIRN_ENUMERIC, "anomaly: %s", text);
    memcpy(tape->main->anomaly, text, sizeof(text));
    return CAIRN_OK;
}

cairn_status cairn__check_result(const struct cairn__tape *tape, const struct cairn__node *node) {
    char call[TEXT], values[FOUND], cause[TEXT];
    struct findings f;
    bool looks, given = false;
    cairn_status st = CAIRN_OK;
    TRY(begins_to_look(tape, &looks));
    if (!looks || node->row->view) return CAIRN_OK;
    TRY(look_at_tensor(tape, node->result, &f));
    if (is_bad(f) && f.nans == 0) TRY(look_for_infinite_inputs(tape, node, &given));
    if (!is_bad(f) || given) return CAIRN_OK;
    TRY(cause_text(tape, node, cause));
    return found(tape, "the result of %s has %s%s", call_text(node, call), findings_text(f, values), cause);
out:
    return st;
}

/* *any: whether an operand of node's backward holds an infinity. Without a node the contribution is the gradient that
 * backward begins with, and *any is true. */
static cairn_status look_for_given_infinity(const struct cairn__tape *tape, const struct cairn__node *node, bool *any) {
    struct findings f = {0};
    cairn_status st = CAIRN_OK;
    *any = true;
    if (!node) return CAIRN_OK;
    TRY(look_for_infinite_inputs(tape, node, any));
    if (*any) return CAIRN_OK;
    if (node->result->sum) TRY(look_at_grad(tape, node->result, node->result->sum, &f));
    *any = f.infs > 0;
out:
    return st;
}

static const char *scale_text(const struct cairn__tape *tape) {
    return tape->root->scale ? "; note that the loss is scaled" : "";
}

cairn_status cairn__check_contribution(const struct cairn__tape *tape, const cairn_tensor *t, const void *dx) {
    char call[TEXT], values[FOUND];
    const struct cairn__node *node = tape->root->walked;
    struct findings f;
    bool looks, given = false;
    cairn_status st = CAIRN_OK;
    TRY(begins_to_look(tape, &looks));
    if (!looks) return CAIRN_OK;
    TRY(look_at_grad(tape, t, dx, &f));
    if (is_bad(f) && f.nans == 0) TRY(look_for_given_infinity(tape, node, &given));
    if (given) tape->root->lets_infinities = true;
    if (!is_bad(f) || given || !node) return CAIRN_OK; /* without a node cairn__check_sum reports it */
    int i = 0;                                         /* index of t among the inputs */
    while (i < node->count && (!node->inputs[i] || cairn__tensor_grad_target(node->inputs[i]) != t)) i++;
    return found(tape, "backward of %s gave its input %d a gradient with %s%s", call_text(node, call), i,
                 findings_text(f, values), scale_text(tape));
out:
    return st;
}

cairn_status cairn__check_sum(const struct cairn__tape *tape, const struct cairn__node *node) {
    char call[TEXT], values[FOUND];
    struct findings f;
    bool looks;
    cairn_status st = CAIRN_OK;
    TRY(begins_to_look(tape, &looks));
    if (!looks) return CAIRN_OK;
    TRY(look_at_grad(tape, node->result, node->result->sum, &f));
    if (!is_bad(f) || (f.nans == 0 && tape->root->lets_infinities)) return CAIRN_OK;
    return found(tape, "the gradient of the result of %s, when backward reaches it, has %s%s", call_text(node, call),
                 findings_text(f, values), scale_text(tape));
out:
    return st;
}

cairn_status cairn__check_total(const struct cairn__tape *tape, const cairn_tensor *t, cairn_dtype dtype,
                                const void *sum) {
    char shape[CAIRN__SHAPE_TEXT], call[TEXT], values[FOUND];
    const struct cairn__node *node = tape->root->walked;
    const struct cairn__view v = cairn__view_dense((void *)(uintptr_t)sum, dtype, t->ndim, t->shape);
    struct findings f;
    bool looks;
    cairn_status st = CAIRN_OK;
    TRY(begins_to_look(tape, &looks));
    if (!looks || !node) return CAIRN_OK;
    TRY(look_at_view(tape, &v, t->n, &f));
    if (!is_bad(f) || (f.nans == 0 && tape->root->lets_infinities)) return CAIRN_OK;
    return found(tape, "the gradients of a %s %s, with that from %s, add up to %s%s", cairn__shape_text(t, shape),
                 t->param ? "parameter" : "leaf", call_text(node, call), findings_text(f, values), scale_text(tape));
out:
    return st;
}

void cairn_detect_anomaly(cairn_env *env, int on) {
    if (env) cairn__tape_of(env)->main->finds_anomalies = cairn__is_on(on);
}

/* ---- for amp ---- */

cairn_status cairn__note_anomalies(cairn_env *env, bool on) {
    struct cairn__tape *main = cairn__tape_of(env)->main;
    cairn_status st = CAIRN_OK;
    if (!on) {
        if (--main->anomaly_users > 0) return CAIRN_OK;
        cairn__free(main->anomaly);
        main->anomaly = NULL;
        return CAIRN_OK;
    }
    if (!main->anomaly) TRY(cairn__calloc(1, CAIRN__ANOMALY_TEXT, (void **)&main->anomaly));
    main->anomaly_users++;
out:
    return st;
}

const char *cairn__noted_anomaly(const cairn_env *env) {
    const char *noted = cairn__tape_of(env)->main->anomaly;
    return noted ? noted : "";
}

void cairn__forget_anomaly(cairn_env *env) {
    if (cairn__tape_of(env)->main->anomaly) cairn__tape_of(env)->main->anomaly[0] = '\0';
}
