#include "comm/task.h"

#include <signal.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/status.h"

#define ROUND 0.05 /* seconds */

static void *run_task(void *arg) {
    struct cairn__task *task = arg;
    pthread_setname_np(pthread_self(), task->name);
    const cairn_status st = task->run(task->ctx);
    pthread_mutex_lock(&task->lock);
    task->status = st;
    if (st != CAIRN_OK) snprintf(task->error, sizeof(task->error), "%s", cairn_last_error());
    task->ended = true;
    pthread_cond_broadcast(&task->end);
    pthread_mutex_unlock(&task->lock);
    return NULL;
}

cairn_status cairn__task_begin(struct cairn__task *task, const char *name, cairn_status (*run)(void *ctx), void *ctx) {
    sigset_t all, before;
    pthread_condattr_t monotonic;
    *task = (struct cairn__task){.run = run, .ctx = ctx, .name = name};
    pthread_mutex_init(&task->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&task->end, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all); /* the program's handlers run in its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&task->thread, NULL, run_task, task);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) return CAIRN_OK;
    task->name = NULL;
    task->ended = true;
    task->status = cairn__fail_errno(error, "starting the thread %s", name);
    snprintf(task->error, sizeof(task->error), "%s", cairn_last_error());
    return task->status;
}

cairn_status cairn__task_join(struct cairn__task *task) {
    if (task->name) pthread_join(task->thread, NULL);
    pthread_cond_destroy(&task->end);
    pthread_mutex_destroy(&task->lock);
    return task->status == CAIRN_OK ? CAIRN_OK : cairn__fail(task->status, "%s", task->error);
}

static bool has_ended(struct cairn__task *task, double seconds) {
    const struct timespec until = cairn__clock_in(seconds);
    pthread_mutex_lock(&task->lock);
    while (!task->ended && pthread_cond_timedwait(&task->end, &task->lock, &until) == 0) {}
    const bool ended = task->ended;
    pthread_mutex_unlock(&task->lock);
    return ended;
}

/* Waits in short rounds, so that a dead rank is noticed soon. A rank whose task has ended waits in the exchange for the
 * ranks that are in a round. */
cairn_status cairn__group_await(cairn_group *group, const char *call, struct cairn__task *task) {
    const double timeout = cairn__group_timeout(group), round = timeout < 4 * ROUND ? timeout / 4 : ROUND;
    const int size = cairn_group_size(group);
    int32_t all[CAIRN__MAX_RANKS], mine;
    double said = cairn__clock_seconds();
    cairn_status st = CAIRN_OK;
    for (int working = 0; working < size;) {
        all[0] = mine = has_ended(task, round);
        if (size > 1) TRY(cairn__group_exchange(group, all, &mine, sizeof(mine)));
        for (working = 0; working < size && all[working]; working++) continue;
        if (working == size || cairn__clock_seconds() - said < timeout) continue;
        said = cairn__clock_seconds();
        if (cairn_group_rank(group) == 0)
            cairn__log(CAIRN_LOG_WARNING, "%s: rank %d still reads or writes after %.0f s more", call, working,
                       timeout);
    }
out:
    return st;
}

cairn_status cairn__group_run_task(cairn_group *group, const char *call, cairn_status (*run)(void *ctx), void *ctx) {
    struct cairn__task task;
    char cause[1024];
    if (cairn_group_size(group) == 1) return run(ctx);
    (void)cairn__task_begin(&task, "cairn-files", run, ctx); /* join returns its error, too */
    const cairn_status awaited = cairn__group_await(group, call, &task);
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    const cairn_status own = cairn__task_join(&task);
    if (awaited != CAIRN_OK) return cairn__fail(awaited, "%s", cause);
    return cairn__group_agree_on_status(group, call, own);
}
