/* Works: a pool, posting, waiting.
 *
 * The pool grows by chunks when more works are in use than ever before, so a training step that posts as many as the
 * last one allocates nothing. */
#include "comm/front.h"
#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"

enum { WORKS_PER_CHUNK = 64 };

struct cairn__work_chunk {
    struct cairn__work_chunk *next;
    struct cairn_work works[WORKS_PER_CHUNK];
};

cairn_status cairn__group_add_works(cairn_group *group) {
    struct cairn__work_chunk *chunk = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*chunk), (void **)&chunk));
    chunk->next = group->chunks;
    group->chunks = chunk;
    for (int i = 0; i < WORKS_PER_CHUNK; i++) {
        chunk->works[i].group = group;
        chunk->works[i].next_free = group->free_works;
        group->free_works = &chunk->works[i];
    }
out:
    return st;
}

void cairn__group_free_works(cairn_group *group) {
    while (group->chunks) {
        struct cairn__work_chunk *next = group->chunks->next;
        cairn__free(group->chunks);
        group->chunks = next;
    }
    group->free_works = NULL;
}

static void return_work(cairn_work *work) {
    work->next_free = work->group->free_works;
    work->group->free_works = work;
}

static void count(cairn_group *group, int change) {
    group->outstanding += change;
    group->family->outstanding += change;
}

void cairn__work_complete(cairn_work *work, uint32_t found) {
    const struct cairn__call *c = &work->request.call;
    work->found = found;
    work->done = true;
    work->done_ns = cairn__now_ns();
    if (work->group->outstanding > 0) count(work->group, -1); /* 0: a backend's own, while it creates the group */
    if (work->begin_ns) {
        int64_t nbytes = (int64_t)(c->n * cairn_dtype_nbytes((cairn_dtype)c->dtype));
        cairn__trace("comm", cairn__call_name((enum cairn__call_kind)c->kind), (int64_t)c->number, nbytes,
                     work->begin_ns);
    }
}

/* ---- posting ---- */

/* The counter that numbers calls of this kind. */
static cairn_status counter_of(cairn_group *group, const struct cairn__call *call, uint64_t **out) {
    const bool sends = call->kind == CAIRN__SEND;
    if (!sends && call->kind != CAIRN__RECV) {
        *out = &group->next_number;
        return CAIRN_OK;
    }
    uint64_t **numbers = sends ? &group->next_sent : &group->next_received;
    cairn_status st = *numbers ? CAIRN_OK : cairn__calloc((size_t)group->size, sizeof(**numbers), (void **)numbers);
    if (st == CAIRN_OK) *out = *numbers + call->peer;
    return st;
}

static cairn_status post(cairn_group *group, const struct cairn__request *request, cairn_work **out) {
    cairn_work *work = NULL;
    uint64_t *number = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_check_alive(group));
    if (group->device) TRY(cairn__device_note_recorded(group->device, &group->recorded));
    TRY(counter_of(group, &request->call, &number));
    if (!group->free_works) TRY(cairn__group_add_works(group));
    work = group->free_works;
    group->free_works = work->next_free;
    work->request = *request;
    work->begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    work->done_ns = 0;
    work->done = false;
    work->found = 0;
    work->state = NULL;
    work->request.call.number = ++*number;
    group->last = work->request.call;
    count(group, 1);
    st = cairn__group_kill_if_deadly(group, &group->last, group->backend->post(group, work));
    if (st == CAIRN_OK) {
        *out = work;
    } else {
        --*number;                                                    /* nothing was posted */
        if (!work->done && group->dead == CAIRN_OK) count(group, -1); /* a dead group has no outstanding works */
        return_work(work);
    }
out:
    return st;
}

cairn_status cairn__group_post(cairn_group *group, const struct cairn__request *request, cairn_work **out) {
    cairn_work *work = NULL;
    cairn_status st = CAIRN_OK;
    TRY(post(group, request, &work));
    if (!out) return cairn_work_wait(&work);
    *out = work;
out:
    return st;
}

cairn_status cairn__group_run(cairn_group *group, const struct cairn__request *request, uint32_t *found) {
    cairn_work *work = NULL;
    cairn_status st = CAIRN_OK;
    TRY(post(group, request, &work));
    TRY(cairn__work_finish(&work, found));
out:
    return st;
}

/* ---- progress ---- */

void cairn__family_progress_others(cairn_group *group) {
    if (group->family->outstanding == group->outstanding) return;
    for (cairn_group *g = group->family->groups; g; g = g->next) {
        if (g == group || g->outstanding == 0 || cairn__group_check_alive(g) != CAIRN_OK) continue;
        (void)cairn__group_kill_if_failed(g, &g->last, g->backend->progress(g));
    }
}

cairn_status cairn__group_progress(cairn_group *group) {
    cairn_status st = CAIRN_OK;
    cairn__family_progress_others(group);
    TRY(cairn__group_check_alive(group));
    TRY(cairn__group_kill_if_failed(group, &group->last, group->backend->progress(group)));
out:
    return st;
}

cairn_status cairn_work_test(cairn_work *work, int *done) {
    REQUIRE(work && done, CAIRN_EINVAL, "cairn_work_test: work or done is NULL");
    cairn_status st = work->done ? CAIRN_OK : cairn__group_progress(work->group);
    *done = work->done;
    return work->done ? CAIRN_OK : st;
}

cairn_status cairn_work_wait(cairn_work **work) {
    return cairn__work_finish(work, NULL);
}

cairn_status cairn__work_finish(cairn_work **work, uint32_t *found) {
    uint64_t completed_ns = 0;
    return cairn__work_finish_timed(work, found, &completed_ns);
}

cairn_status cairn__work_finish_timed(cairn_work **work, uint32_t *found, uint64_t *completed_ns) {
    REQUIRE(work, CAIRN_EINVAL, "cairn_work_wait: work is NULL");
    cairn_work *w = *work;
    if (!w) return CAIRN_OK;
    cairn_group *group = w->group;
    cairn_status st = CAIRN_OK;
    if (!w->done) {
        TRY(cairn__group_check_alive(group));
        TRY(cairn__group_kill_if_failed(group, &w->request.call, group->backend->wait(group, w)));
    }
    if (found) *found |= w->found != 0;
out:
    *completed_ns = w->done_ns;
    return_work(w);
    *work = NULL;
    return st;
}
