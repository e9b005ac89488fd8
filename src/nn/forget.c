/* Forgetting values that nobody reads any more.
 *
 * PyTorch frees a result with the last reference to it; here results live until the step ends, since a program may look
 * at any of them. What it cannot see (casts that operations make, results between the layers of a module) is forgotten:
 * memory that neither a view nor a backward reads goes to the results that come. */
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

/* A parameter's cast is kept for others. */
static bool is_temporary(const cairn_tensor *prepared, const cairn_tensor *given) {
    return prepared && prepared != given && given->kind != CAIRN__PARAM;
}

void cairn__note_readers(const struct cairn__node *node, cairn_tensor *const *given) {
    cairn_tensor *y = node->result;
    if (node->row->view && node->inputs[0]->kind == CAIRN__RESULT) {
        y->base = base_of(node->inputs[0]);
        add_reader(y);
    }
    for (int i = 0; y->wants_grad && i <= node->count; i++) {
        if (reads(node, i)) add_reader(i < node->count ? node->inputs[i] : y);
    }
    for (int i = 0; i < node->count; i++) {
        if (is_temporary(node->inputs[i], given[i])) cairn__forget(node->inputs[i]);
    }
}

void cairn__forget(cairn_tensor *t) {
    if (!t || t->kind != CAIRN__RESULT || t->stands_for || t->forgotten || !cairn__tape_lives(t->tape, t->generation))
        return;
    t->forgotten = true;
    cairn_tensor *base = base_of(t);
    if (base != t) base->readers--;
    if (!base->forgotten || base->readers > 0 || !base->owns_data) return;
    cairn__tape_give(base->tape, base->data, base->n * cairn_dtype_nbytes(base->dtype));
    base->owns_data = false;
}
