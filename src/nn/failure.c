/* Errors that the device finds while it computes, such as a target that is not a class. The step keeps the first one:
 * every read and every backward of that step returns it, because its gradients must not be applied. A no_grad scope
 * keeps its own, so that a failed evaluation does not fail the step around it. */
#include <stdio.h>

#include "core/log.h"
#include "core/status.h"
#include "nn/tensor.h"

static struct cairn__failure *running(struct cairn__tape *root) {
    return root->no_grad.depth > 0 ? &root->no_grad.failure : &root->failure;
}

/* Whether the device has reported a failure since the last call. The step keeps the first. */
static bool listen(struct cairn__tape *root) {
    struct cairn__failure *f = running(root);
    const cairn_status st = cairn__device_check(root->env->device);
    if (st == CAIRN_OK) return false;
    if (f->status == CAIRN_OK) {
        f->status = st;
        f->is_returned = false;
        snprintf(f->message, sizeof(f->message), "%s", cairn_last_error());
    }
    return true;
}

static cairn_status tell(struct cairn__failure *f) {
    if (f->status == CAIRN_OK) return CAIRN_OK;
    f->is_returned = true;
    return cairn__fail(f->status, "%s", f->message);
}

cairn_status cairn__tensor_failure(const cairn_tensor *t) {
    struct cairn__tape *root = t->kind == CAIRN__RESULT ? t->tape->root : cairn__tape_of(t->env)->root;
    if (listen(root)) return tell(running(root));
    if (t->kind != CAIRN__RESULT) return CAIRN_OK;
    return tell(t->generation == root->no_grad.generation ? &root->no_grad.failure : &root->failure);
}

void cairn__listen(struct cairn__tape *tape) {
    (void)listen(tape->root);
}

void cairn__forget_failure(struct cairn__failure *f) {
    if (f->status != CAIRN_OK && !f->is_returned)
        cairn__log(CAIRN_LOG_ERROR, "a step failed whose results were neither read nor used by a backward: %s",
                   f->message);
    f->status = CAIRN_OK;
}
