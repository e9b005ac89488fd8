#include "slow_link.h"

#include <time.h>

#include "core/status.h"
#include "core/trace.h"

static struct slow_link *link_of(const cairn_group *group) {
    return (struct slow_link *)(uintptr_t)group->backend; /* its first member */
}

static bool is_on_its_way(const struct slow_link *link, const cairn_work *work) {
    for (size_t i = link->first; i < link->next; i++) {
        if (link->queue[i % SLOW_LINK_WORKS].work == work) return true;
    }
    return false;
}

static cairn_status hand_over(struct slow_link *link, cairn_group *group) {
    cairn_status st = CAIRN_OK;
    while (st == CAIRN_OK && link->first < link->next) {
        const size_t i = link->first % SLOW_LINK_WORKS;
        if (link->queue[i].due_ns > cairn__now_ns()) break;
        link->first++;
        st = link->real->post(group, link->queue[i].work);
    }
    return st;
}

static cairn_status post(cairn_group *group, cairn_work *work) {
    struct slow_link *link = link_of(group);
    const struct cairn__call *call = &work->request.call;
    const bool is_carried = call->kind == CAIRN__ALLREDUCE;
    const uint64_t nbytes = is_carried ? call->n * cairn_dtype_nbytes((cairn_dtype)call->dtype) : 0;
    const uint64_t now = cairn__now_ns();
    REQUIRE(link->next - link->first < SLOW_LINK_WORKS, CAIRN_EINTERNAL, "slow_link: too many works at a time");
    if (link->free_ns < now) link->free_ns = now;
    link->free_ns += (uint64_t)((double)nbytes / link->bytes_per_ns);
    link->nbytes += nbytes;
    link->queue[link->next % SLOW_LINK_WORKS].work = work;
    link->queue[link->next++ % SLOW_LINK_WORKS].due_ns = link->free_ns;
    return hand_over(link, group);
}

static cairn_status progress(cairn_group *group) {
    cairn_status st = hand_over(link_of(group), group);
    return st == CAIRN_OK ? link_of(group)->real->progress(group) : st;
}

static void sleep_a_little(uint64_t until_ns) {
    const uint64_t now = cairn__now_ns(), most = 200000;
    const uint64_t ns = until_ns > now ? until_ns - now : 0;
    nanosleep(&(struct timespec){.tv_nsec = (long)(ns < most ? ns : most)}, NULL);
}

static cairn_status wait_for(cairn_group *group, cairn_work *work) {
    struct slow_link *link = link_of(group);
    cairn_status st = progress(group);
    while (st == CAIRN_OK && is_on_its_way(link, work)) {
        sleep_a_little(link->queue[link->first % SLOW_LINK_WORKS].due_ns);
        st = progress(group);
    }
    return st == CAIRN_OK && !work->done ? link->real->wait(group, work) : st;
}

void slow_link_begin(struct slow_link *link, cairn_group *group, double bytes_per_second) {
    *link =
        (struct slow_link){.table = *group->backend, .real = group->backend, .bytes_per_ns = bytes_per_second * 1e-9};
    link->table.post = post;
    link->table.progress = progress;
    link->table.wait = wait_for;
    group->backend = &link->table;
}

void slow_link_end(struct slow_link *link, cairn_group *group) {
    group->backend = link->real;
}
