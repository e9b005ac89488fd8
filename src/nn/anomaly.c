/* Anomaly mode: checks every value for inf and NaN as it is computed, on the host.
 *
 * The error names the first operation in order, since everything before it has been checked. Values from outside
 * (leaves, parameters, the gradient a backward begins with) are checked only to explain a bad result: masks of -inf are
 * no anomaly, nor is an infinity that an operation has from its inputs. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/half.h"
#include "core/log.h"
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

static void look_at(struct findings *f, double value) {
    if (!isfinite(value)) {
        if (f->infs + f->nans == 0) f->first = f->n;
        if (isnan(value)) {
            f->nans++;
        } else {
            f->infs++;
        }
    }
    f->n++;
}

/* n elements of v in row-major order. */
static struct findings look_at_view(const struct cairn__view *v, size_t n) {
    struct findings f = {0};
    int64_t at[CAIRN_MAX_DIMS] = {0};
    size_t offset = 0;
    while (f.n < n) {
        look_at(&f, value_at(v->dtype, v->data, offset));
        for (int d = v->ndim - 1; d >= 0; d--) {
            offset += (size_t)v->stride[d];
            if (++at[d] < v->size[d]) break;
            offset -= (size_t)(v->size[d] * v->stride[d]);
            at[d] = 0;
        }
    }
    return f;
}

static struct findings look_at_tensor(const cairn_tensor *t) {
    const struct cairn__view v = cairn__tensor_view(t);
    return look_at_view(&v, t->n);
}

static struct findings look_at_grad(const cairn_tensor *t, const void *dx) {
    const struct cairn__view v = cairn__tensor_grad_view(t, (void *)(uintptr_t)dx);
    return look_at_view(&v, t->n);
}

static bool is_bad(struct findings f) {
    return f.infs + f.nans > 0;
}

static bool any_input_is_infinite(const struct cairn__node *node) {
    for (int i = 0; i < node->count; i++) {
        if (node->inputs[i] && look_at_tensor(node->inputs[i]).infs > 0) return true;
    }
    return false;
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

/* "; its input 0 had ...", of the first input that is infinite or NaN; "" = none is. */
static const char *cause_text(const struct cairn__node *node, char text[TEXT]) {
    char found[FOUND];
    text[0] = '\0';
    for (int i = 0; i < node->count && !text[0]; i++) {
        const cairn_tensor *x = node->inputs[i];
        const struct findings f = x ? look_at_tensor(x) : (struct findings){0};
        if (is_bad(f)) snprintf(text, TEXT, "; its input %d had %s", i, findings_text(f, found));
    }
    return text;
}

/* ---- the checks ---- */

/* Noting keeps the first anomaly, so that nothing is checked after it. */
static bool looks(const struct cairn__tape *tape) {
    const struct cairn__tape *main = tape->main;
    return main->finds_anomalies || (main->anomaly && !main->anomaly[0]);
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
    if (!looks(tape) || node->row->view) return CAIRN_OK;
    const struct findings f = look_at_tensor(node->result);
    if (!is_bad(f) || (f.nans == 0 && any_input_is_infinite(node))) return CAIRN_OK;
    return found(tape, "the result of %s has %s%s", call_text(node, call), findings_text(f, values),
                 cause_text(node, cause));
}

/* Whether what node's backward computes with holds an infinity; without a node, the gradient that backward begins with
 * counts as one. */
static bool is_given_infinity(const struct cairn__node *node) {
    if (!node || any_input_is_infinite(node)) return true;
    return node->result->sum && look_at_grad(node->result, node->result->sum).infs > 0;
}

static const char *scale_text(const struct cairn__tape *tape) {
    return tape->root->is_scaled ? "; note that the loss is scaled" : "";
}

cairn_status cairn__check_contribution(const struct cairn__tape *tape, const cairn_tensor *t, const void *dx) {
    char call[TEXT], values[FOUND];
    const struct cairn__node *node = tape->root->walked;
    if (!looks(tape)) return CAIRN_OK;
    const struct findings f = look_at_grad(t, dx);
    if (!is_bad(f)) return CAIRN_OK;
    if (f.nans == 0 && is_given_infinity(node)) {
        tape->root->lets_infinities = true;
        return CAIRN_OK;
    }
    if (!node) return CAIRN_OK; /* cairn__check_sum reports it */
    int i = 0;                  /* of the input that t is */
    while (i < node->count && (!node->inputs[i] || cairn__tensor_grad_target(node->inputs[i]) != t)) i++;
    return found(tape, "backward of %s gave its input %d a gradient with %s%s", call_text(node, call), i,
                 findings_text(f, values), scale_text(tape));
}

cairn_status cairn__check_sum(const struct cairn__tape *tape, const struct cairn__node *node) {
    char call[TEXT], values[FOUND];
    if (!looks(tape)) return CAIRN_OK;
    const struct findings f = look_at_grad(node->result, node->result->sum);
    if (!is_bad(f) || (f.nans == 0 && tape->root->lets_infinities)) return CAIRN_OK;
    return found(tape, "the gradient of the result of %s, when backward reaches it, has %s%s", call_text(node, call),
                 findings_text(f, values), scale_text(tape));
}

cairn_status cairn__check_total(const struct cairn__tape *tape, const cairn_tensor *t, cairn_dtype dtype,
                                const void *sum) {
    char shape[CAIRN__SHAPE_TEXT], call[TEXT], values[FOUND];
    const struct cairn__node *node = tape->root->walked;
    if (!looks(tape) || !node) return CAIRN_OK;
    const struct cairn__view v = cairn__view_dense((void *)(uintptr_t)sum, dtype, t->ndim, t->shape);
    const struct findings f = look_at_view(&v, t->n);
    if (!is_bad(f) || (f.nans == 0 && tape->root->lets_infinities)) return CAIRN_OK;
    return found(tape, "the gradients of a %s %s, with that from %s, add up to %s%s", cairn__shape_text(t, shape),
                 t->param ? "parameter" : "leaf", call_text(node, call), findings_text(f, values), scale_text(tape));
}

/* Values are looked at in place. */
static bool can_look(const cairn_env *env) {
    return cairn__is_on_host(env->device);
}

void cairn_detect_anomaly(cairn_env *env, int on) {
    if (!env) return;
    if (cairn__is_on(on) && !can_look(env)) {
        cairn__log(CAIRN_LOG_WARNING, "detect_anomaly: '%s' does not support it yet; use device \"cpu\"",
                   cairn_device_name(env->device));
        return;
    }
    cairn__tape_of(env)->main->finds_anomalies = cairn__is_on(on);
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
    REQUIRE(can_look(env), CAIRN_ENOTSUP, "'%s' does not look for anomalies yet; use device \"cpu\"",
            cairn_device_name(env->device));
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
