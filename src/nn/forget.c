/* Frees the values of results that are not read again.
 *
 * PyTorch frees a result with the last reference to it. C counts no references, so the rule goes by who made a result:
 *   - A result that the program made, or that a module returned to it, lives until the step ends.
 *   - A result that a module made inside and did not return ends as soon as a backward has consumed the node that made
 *     it. If no graph holds it, it ends when the module's forward returns.
 * Using a result that has ended is an error. Later results reuse its memory as soon as neither a view nor a backward
 * reads it. */
#include "core/alloc.h"
#include "core/status.h"
#include "nn/ops.h"

bool cairn__reads_nothing(const struct cairn__node *node, int i) {
    (void)node, (void)i;
    return false;
}

bool cairn__reads_inputs(const struct cairn__node *node, int i) {
    return i < node->count;
}

bool cairn__reads_result(const struct cairn__node *node, int i) {
    return i == node->count;
}

static cairn_tensor *base_of(cairn_tensor *t) {
    return t->base ? t->base : t;
}

static void add_reader(cairn_tensor *t) {
    if (t && t->kind == CAIRN__RESULT) base_of(t)->readers++;
}

static bool reads(const struct cairn__node *node, int i) {
    return node->row->reads ? node->row->reads(node, i) : !node->row->view;
}

static void give_unread(cairn_tensor *base) {
    if (!base->forgotten || base->readers > 0 || !base->owns_data) return;
    cairn__tape_give(base->tape, base->data, base->n * cairn_dtype_nbytes(base->dtype));
    base->owns_data = false;
}

static void drop_reader(cairn_tensor *t) {
    if (!t || t->kind != CAIRN__RESULT) return;
    base_of(t)->readers--;
    give_unread(base_of(t));
}

static void give_saved(struct cairn__node *node) {
    cairn__tape_give(node->result->tape, node->saved, node->saved_nbytes);
    node->saved_nbytes = 0;
}

/* A parameter's cast is never internal: later operations share it. If the list cannot grow, y lives until the step
 * ends. */
static void note_inside(struct cairn__tape *tape, const struct cairn__node *node) {
    cairn_tensor *y = node->result;
    if (tape->inside == 0 || (node->op == CAIRN__OP_CAST && node->inputs[0]->kind == CAIRN__PARAM)) return;
    y->is_inside = y->node != NULL;
    if (y->is_inside || cairn__grow((void **)&tape->passing, &tape->passing_capacity, tape->num_passing + 1,
                                    sizeof(tape->passing[0])) != CAIRN_OK)
        return;
    tape->passing[tape->num_passing++] = y;
}

void cairn__note_readers(struct cairn__node *node, cairn_tensor *const *given) {
    cairn_tensor *y = node->result;
    if (node->row->view && node->inputs[0]->kind == CAIRN__RESULT) {
        y->base = base_of(node->inputs[0]);
        add_reader(y);
    }
    for (int i = 0; y->wants_grad && i <= node->count; i++) {
        if (reads(node, i)) add_reader(i < node->count ? node->inputs[i] : y);
    }
    if (!y->wants_grad) give_saved(node);
    for (int i = 0; i < node->count; i++) {
        cairn_tensor *x = node->inputs[i];
        if (x && x != given[i] && given[i]->kind != CAIRN__PARAM) cairn__forget(x); /* a parameter's cast is kept */
    }
    note_inside(y->tape, node);
}

/* Drops every reader once: only casts and views may be walked again, and they read nothing. */
void cairn__note_walked(struct cairn__node *node) {
    for (int i = 0; i <= node->count; i++) {
        if (reads(node, i)) drop_reader(i < node->count ? node->inputs[i] : node->result);
    }
    give_saved(node);
    if (node->result->is_inside) cairn__forget(node->result);
}

void cairn__forget(cairn_tensor *t) {
    if (!t || t->kind != CAIRN__RESULT || t->stands_for || t->forgotten || !cairn__tape_lives(t->tape, t->generation))
        return;
    t->forgotten = true;
    if (base_of(t) != t) base_of(t)->readers--;
    give_unread(base_of(t));
}

void cairn__tensor_spare(cairn_tensor *t) {
    if (t->kind != CAIRN__RESULT || !t->is_inside || t->base || t->readers > 0 || !t->owns_data || t->forgotten) return;
    cairn__tape_give(t->tape, t->data, t->n * cairn_dtype_nbytes(t->dtype));
    t->owns_data = false;
}

/* ---- modules ---- */

size_t cairn__inside_begin(const cairn_env *env) {
    if (!env) return 0;
    cairn__tape_of(env)->inside++;
    return cairn__tape_of(env)->num_passing;
}

void cairn__inside_pass(const cairn_env *env, size_t mark, const cairn_tensor *y) {
    struct cairn__tape *tape = cairn__tape_of(env);
    size_t stay = mark;
    for (size_t i = mark; i < tape->num_passing; i++) {
        cairn_tensor *t = tape->passing[i];
        if (t == y) {
            tape->passing[stay++] = t;
        } else {
            cairn__forget(t);
        }
    }
    if (stay < tape->num_passing) tape->num_passing = stay;
}

cairn_tensor *cairn__inside_end(const cairn_env *env, size_t mark, cairn_tensor *y) {
    if (!env) return y;
    struct cairn__tape *tape = cairn__tape_of(env);
    cairn__inside_pass(env, mark, y);
    if (--tape->inside > 0) return y;
    tape->num_passing = 0;
    if (y && y->kind == CAIRN__RESULT && cairn__tape_lives(y->tape, y->generation)) y->is_inside = false;
    return y;
}
