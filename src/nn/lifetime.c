/* Deferred destruction of leaves and parameters' handles. A step that uses one may read it until the step is over: in
 * its backward, through views, or through a result that shows a cast. So each leaf and handle records the generations
 * that use it. If its owner ends it before they are over, it is unlinked from the owner and marked, and freed after the
 * last of them. */
#include <stddef.h>

#include "core/alloc.h"
#include "nn/tensor.h"

static bool is_alive(const struct cairn__use *u) {
    return u->tape && cairn__tape_lives(u->tape, u->generation);
}

static bool is_used(const cairn_tensor *t) {
    bool used = t->is_used_by_many;
    for (int i = 0; i < CAIRN__MAX_USES; i++) used |= is_alive(&t->used[i]);
    return used;
}

/* Notes the root's generation: a checkpoint's ends before the step that walks it. */
void cairn__note_use(cairn_tensor *t) {
    if (!t || t->kind == CAIRN__RESULT) return;
    const struct cairn__tape *root = cairn__tape_of(t->env)->root;
    const struct cairn__use now = {root, root->no_grad.depth > 0 ? root->no_grad.generation : root->generation};
    struct cairn__use *place = NULL;
    for (int i = 0; i < CAIRN__MAX_USES; i++) {
        struct cairn__use *u = &t->used[i];
        if (u->tape == now.tape && u->generation == now.generation) return;
        if (!is_alive(u)) place = u;
    }
    if (place) {
        *place = now;
    } else {
        t->is_used_by_many = true;
    }
}

void cairn__leaf_link(cairn_tensor **list, cairn_tensor *t) {
    t->next = *list;
    t->link = list;
    if (t->next) t->next->link = &t->next;
    *list = t;
}

void cairn__leaf_unlink(cairn_tensor *t) {
    if (!t->link) return;
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    t->link = NULL;
}

void cairn__leaf_free(cairn_tensor *t) {
    struct cairn_device *d = t->env->device;
    cairn__leaf_unlink(t);
    if (!t->is_over) cairn__device_free(d, t->data);
    cairn__device_free(d, t->grad);
    cairn__device_free(d, t->cast.data);
    cairn__free(t);
}

void cairn__leaf_end(cairn_tensor *t) {
    if (t->is_ended) return;
    if (!is_used(t)) {
        cairn__leaf_free(t);
        return;
    }
    cairn__leaf_unlink(t);
    t->is_ended = true;
    t->param = NULL; /* the parameter ends now, with its set */
    cairn__leaf_link(&cairn__tape_of(t->env)->main->ending, t);
}

/* Nothing may be freed while a graph is being recorded. */
void cairn__free_ended(struct cairn__tape *tape) {
    if (tape->env->device->capturing) return;
    for (cairn_tensor *t = tape->main->ending, *next; t; t = next) {
        next = t->next;
        if (!is_used(t)) cairn__leaf_free(t);
    }
}
