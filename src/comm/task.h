/* Tasks: work that each rank does by itself and that may take longer than a group's timeout, such as writing to a slow
 * disk. A task runs in a thread of its own, while the ranks show each other that they are alive. A rank that died or
 * was stopped is detected as in any collective; a rank whose task takes long is waited for. */
#ifndef CAIRN__COMM_TASK_H
#define CAIRN__COMM_TASK_H

#include <pthread.h>
#include <stdbool.h>

#include "comm/group.h"

struct cairn__task {
    cairn_status (*run)(void *ctx);
    void *ctx;
    const char *name; /* of the thread */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t end;
    bool ended;          /* under lock */
    cairn_status status; /* run's, and the last error of its thread */
    char error[1024];
};

/* Starts run(ctx) in a thread, which blocks all signals. Errors: CAIRN_ESYSTEM the thread could not be created; the
 * task has ended with this error. */
cairn_status cairn__task_begin(struct cairn__task *task, const char *name, cairn_status (*run)(void *ctx), void *ctx);

/* Waits for the task's end, and returns run's status with its last error. Call it once for each task. */
cairn_status cairn__task_join(struct cairn__task *task);

/* Collective: waits until the tasks of all ranks have ended. If it fails the task continues; it must be joined in any
 * case. Errors: those of a collective, when a rank has died. */
cairn_status cairn__group_await(cairn_group *group, const char *call, struct cairn__task *task);

/* Collective: run(ctx) on every rank, then as cairn__group_agree_on_status. One rank runs it without a thread. */
cairn_status cairn__group_run_task(cairn_group *group, const char *call, cairn_status (*run)(void *ctx), void *ctx);

#endif
