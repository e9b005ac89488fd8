/* Writers requested by environment variables. They belong to a rank of the process: its live environments share them.
 * Writers that remain at the process's exit are ended then. */
#include "observe/begin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/status.h"
#include "core/vars.h"
#include "observe/csv.h"
#include "observe/lab.h"
#include "observe/recorder.h"
#include "observe/tensorboard.h"
#include "observe/timeline.h"
#include "observe/writer.h"

static const struct {
    const char *variable;
    cairn_status (*open)(int rank, int size, const char *path, cairn_writer **out);
    bool is_of_all; /* all ranks write; false = only rank 0, unless the name has %r */
} openers[] = {{"CAIRN_TIMELINE", cairn__timeline_open, true},
               {"CAIRN_CSV", cairn__csv_open, false},
               {"CAIRN_TENSORBOARD", cairn__tensorboard_open, false},
               {"CAIRN_LAB", cairn__lab_open, true}};

enum { OPENERS = sizeof(openers) / sizeof(openers[0]), OF_LAB = OPENERS - 1 };

struct cairn__observed {
    struct cairn__observed *next;
    cairn_writer *writers[OPENERS];
    int rank, size, uses;
    unsigned forks;
};

static struct cairn__observed *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void end_writers(struct cairn__observed *o) {
    for (int i = 0; i < OPENERS; i++) cairn_writer_destroy(&o->writers[i]);
}

static void end_all(void) {
    pthread_mutex_lock(&lock);
    for (struct cairn__observed *o = all; o; o = o->next) end_writers(o);
    pthread_mutex_unlock(&lock);
}

static void end_at_exit(void) {
    (void)atexit(end_all);
}

static bool is_asked_for(void) {
    bool any = false;
    for (int i = 0; i < OPENERS; i++) any |= cairn__var(openers[i].variable) != NULL;
    return any;
}

static void open_writers(struct cairn__observed *o) {
    for (int i = 0; i < OPENERS; i++) {
        const char *path = cairn__var(openers[i].variable);
        if (path && o->rank != 0 && !openers[i].is_of_all && !strstr(path, "%r")) continue;
        if (path && openers[i].open(o->rank, o->size, path, &o->writers[i]) != CAIRN_OK)
            cairn__log(CAIRN_LOG_ERROR, "%s is left out: %s", openers[i].variable, cairn_last_error());
    }
}

static struct cairn__observed *find(const struct cairn_env *env) {
    struct cairn__observed *o = all;
    while (o && (o->rank != env->rank || o->size != env->size || o->forks != cairn__forks())) o = o->next;
    return o;
}

void cairn__observe_begin(struct cairn_env *env) {
    if (cairn__trace_is_of_a_replica() || !is_asked_for()) return;
    pthread_once(&once, end_at_exit);
    pthread_mutex_lock(&lock);
    struct cairn__observed *o = find(env);
    if (!o && cairn__calloc(1, sizeof(*o), (void **)&o) == CAIRN_OK) {
        *o = (struct cairn__observed){.next = all, .rank = env->rank, .size = env->size, .forks = cairn__forks()};
        open_writers(o);
        all = o;
    }
    if (o) o->uses++;
    env->places[CAIRN__PLACE_OF_OBSERVE].at = o;
    const bool records = o && o->writers[OF_LAB];
    pthread_mutex_unlock(&lock);
    cairn__trace_fact("env", "device", env->device->ops->name);
    if (records) cairn__recorder_begin(env, cairn__lab_every(false));
}

void cairn__observe_end(struct cairn_env *env) {
    struct cairn__observed *o = env->places[CAIRN__PLACE_OF_OBSERVE].at, **at = &all;
    cairn__recorder_end(env);
    if (!o) return;
    pthread_mutex_lock(&lock);
    if (--o->uses == 0) {
        while (*at && *at != o) at = &(*at)->next;
        if (*at) *at = o->next;
        end_writers(o);
        cairn__free(o);
    }
    env->places[CAIRN__PLACE_OF_OBSERVE].at = NULL;
    pthread_mutex_unlock(&lock);
}
