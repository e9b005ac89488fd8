/* What the device had to say stays with the step that it came from: a target that is no class is told by every backward
 * of the step, whoever asked first, since gradients of such a step are not to be applied. What a no_grad computes is
 * its own affair: an evaluation that failed fails no step. */
#include <stdio.h>

#include "core/log.h"
#include "core/status.h"
#include "nn/tensor.h"

static struct cairn__failure *running(struct cairn__tape *root) {
    return root->no_grad.depth > 0 ? &root->no_grad.failure : &root->failure;
}

/* Whether the device had anything to say since it was last asked. The first failure is the one that is kept. */
static bool listen(struct cairn__tape *root) {
    struct cairn__failure *f = running(root);
    const cairn_status st = cairn__device_check(root->env->device);
    if (st == CAIRN_OK) return false;
    if (f->status == CAIRN_OK) {
        f->status = st;
        f->is_told = false;
        snprintf(f->words, sizeof(f->words), "%s", cairn_last_error());
    }
    return true;
}

static cairn_status tell(struct cairn__failure *f) {
    if (f->status == CAIRN_OK) return CAIRN_OK;
    f->is_told = true;
    return cairn__fail(f->status, "%s", f->words);
}

cairn_status cairn__tensor_ask(const cairn_tensor *t) {
    struct cairn__tape *root = t->kind == CAIRN__RESULT ? t->tape->root : cairn__tape_of(t->env)->root;
    if (listen(root)) return tell(running(root));
    if (t->kind != CAIRN__RESULT) return CAIRN_OK;
    return tell(t->generation == root->no_grad.generation ? &root->no_grad.failure : &root->failure);
}

void cairn__listen(struct cairn__tape *tape) {
    (void)listen(tape->root);
}

void cairn__forget_failure(struct cairn__failure *f) {
    if (f->status != CAIRN_OK && !f->is_told)
        cairn__log(CAIRN_LOG_ERROR, "a step that nobody read and no backward walked has failed: %s", f->words);
    f->status = CAIRN_OK;
}
