/* Assembles an environment: launch facts, then the device, the tape, and last the group, for which ranks wait for one
 * another (meet.c). */
#include "device/env.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "comm/group_backend.h"
#include "core/alloc.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "core/subnormals.h"
#include "core/trace.h"
#include "core/vars.h"
#include "env/env_internal.h"
#include "env/error_file.h"
#include "env/threads.h"
#include "nn/tape.h"
#include "observe/begin.h"

static const double DEFAULT_TIMEOUT = 300.0; /* seconds */

enum { DESCRIPTION_NBYTES = 4096 };

static cairn_status read_options(const struct cairn_env_options *given, struct cairn_env_options *o) {
    *o = (struct cairn_env_options){.struct_size = sizeof(*o)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(o, sizeof(*o), given, "cairn_env_options"));
    REQUIRE(isfinite(o->timeout) && o->timeout >= 0, CAIRN_EINVAL,
            "cairn_env_options.timeout is %g; it must be a number of seconds, 0 = CAIRN_TIMEOUT", o->timeout);
    REQUIRE(isfinite(o->meeting_timeout) && o->meeting_timeout >= 0, CAIRN_EINVAL,
            "cairn_env_options.meeting_timeout is %g; it must be a number of seconds, 0 = CAIRN_MEETING_TIMEOUT",
            o->meeting_timeout);
    REQUIRE(!o->store || !o->init_method, CAIRN_EINVAL,
            "cairn_env_options has both a store and init_method '%.200s'; ranks meet in one place, give one of them",
            o->init_method);
    REQUIRE(o->record_errors <= CAIRN_OFF, CAIRN_EINVAL,
            "cairn_env_options.record_errors is %d; it can be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF",
            (int)o->record_errors);
    if (!o->device) o->device = cairn__var("CAIRN_DEVICE");
    if (!o->device) o->device = "cpu";
    if (!o->backend) o->backend = cairn__var("CAIRN_BACKEND");
    if (o->timeout == 0) {
        o->timeout = DEFAULT_TIMEOUT;
        TRY(cairn__var_seconds("CAIRN_TIMEOUT", &o->timeout));
    }
    if (o->meeting_timeout == 0) {
        o->meeting_timeout = o->timeout;
        TRY(cairn__var_seconds("CAIRN_MEETING_TIMEOUT", &o->meeting_timeout));
    }
out:
    return st;
}

/* "auto" means the CPU if several ranks have GPUs but no backend of this build connects them. */
static cairn_status open_device(struct cairn_env *env, const struct cairn_env_options *o) {
    const bool needs_nccl = env->size > 1 && strcmp(o->device, "auto") == 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_open(o->device, env->local_rank, &env->device));
    if (needs_nccl && strcmp(cairn_device_name(env->device), "cpu") != 0 &&
        cairn__backend_probe(CAIRN__BACKEND_NCCL, NULL) != CAIRN_OK) {
        cairn__log(CAIRN_LOG_NOTICE, "computing on the CPU: %s", cairn_last_error());
        cairn__device_close(&env->device);
        TRY(cairn__device_open("cpu", 0, &env->device));
    }
    env->device->tf32 = o->tf32 == CAIRN_ON;
out:
    return st;
}

static cairn_status gather(struct cairn_env *env, int32_t *all, const int32_t *words, size_t n) {
    return cairn__group_exchange(cairn_env_group(env), all, words, n * sizeof(*words));
}

static cairn_status sum(struct cairn_env *env, double *values, size_t n) {
    int odd;
    return cairn__group_sum(cairn_env_group(env), values, n, 0, &odd);
}

/* ---- the description ---- */

static void put_line(char *text, size_t nbytes, const char *what, const char *line) {
    const size_t used = strlen(text);
    snprintf(text + used, nbytes - used, "%s: %s\n", what, line);
}

/* Writes the lines that are known before the ranks meet, so that they are in the log even if the meeting hangs. */
static cairn_status describe(struct cairn_env *env, const struct cairn__launch *launch,
                             const struct cairn_env_options *o) {
    cairn_status st = CAIRN_OK;
    char device[300];
    TRY(cairn__calloc(1, DESCRIPTION_NBYTES, (void **)&env->description));
    snprintf(device, sizeof(device), "%s, %s", cairn_device_name(env->device), cairn_device_describe(env->device));
    cairn__launch_describe(launch, env->description, DESCRIPTION_NBYTES);
    const char *place = o->store ? "in the program's store" : o->init_method;
    const bool is_known = launch->size == 1 || launch->meeting.num_hosts > 0;
    if (place && !is_known) put_line(env->description, DESCRIPTION_NBYTES, "meeting", place);
    put_line(env->description, DESCRIPTION_NBYTES, "device", device);
out:
    return st;
}

static void log_lines(cairn_log_level level, const char *text) {
    for (size_t length; *text; text += length + (text[length] == '\n')) {
        length = strcspn(text, "\n");
        cairn__log(level, "%.*s", (int)length, text);
    }
}

/* Replicas of a model belong to a rank that has already logged its facts. */
static bool says_facts(const struct cairn_env *env) {
    return env->rank == 0 && !cairn__trace_is_of_a_replica();
}

/* With one rank also logs the notes, for a process that trains alone by mistake (no srun in a batch script,
 * WORLD_SIZE=1 in a shell that calls mpirun). */
static void log_facts(const struct cairn_env *env, const struct cairn__launch *launch) {
    if (!says_facts(env)) return;
    log_lines(CAIRN_LOG_INFO, env->description);
    if (launch->size == 1) log_lines(CAIRN_LOG_NOTICE, launch->notes);
}

static void describe_group(struct cairn_env *env, int port) {
    char line[100], where[64] = "";
    const bool stays = cairn__group_keeps_store(cairn_env_group(env));
    if (port) snprintf(where, sizeof(where), ", met at port %d%s", port, stays ? ", where the store stays" : "");
    snprintf(line, sizeof(line), "%s%s", cairn_group_backend(cairn_env_group(env)), where);
    put_line(env->description, DESCRIPTION_NBYTES, "group", line);
    if (says_facts(env)) cairn__log(CAIRN_LOG_INFO, "group: %s", line);
}

/* ---- creation ---- */

/* Warns once per thread. */
static void keep_subnormals(void) {
    if (!cairn__keep_subnormals()) return;
    cairn__log(CAIRN_LOG_WARNING,
               "this thread treated subnormal numbers as zero (the program was linked with -ffast-math or -Ofast), so "
               "that sums and conversions would lose bits. Cairn has turned that off for this thread; threads that "
               "were started before keep it: link without the option, or with -mno-daz-ftz (gcc 13)");
}

cairn_status cairn__env_create_at(const struct cairn__launch *launch, const struct cairn_env_options *options,
                                  cairn_env **out) {
    cairn_status st = CAIRN_OK;
    struct cairn_env *env = NULL;
    struct cairn_env_options o;
    int port = 0;
    keep_subnormals();
    TRY(read_options(options, &o));
    TRY(cairn__calloc(1, sizeof(*env), (void **)&env));
    env->rank = env->stream_rank = launch->rank;
    env->size = launch->size;
    env->local_rank = launch->local_rank;
    env->local_size = launch->local_size;
    env->restart_count = launch->restart_count;
    env->seed = o.seed;
    env->gather = gather;
    env->sum = sum;
    TRY(open_device(env, &o));
    TRY(cairn__tape_create(env));
    TRY(describe(env, launch, &o));
    log_facts(env, launch);
    cairn__observe_begin(env); /* before the ranks meet: when one of them ends, all have begun to observe */
    TRY(cairn__env_meet(env, launch, &o, &port));
    describe_group(env, port);
    *out = env;
    return CAIRN_OK;
out:
    cairn_env_destroy(&env);
    return st;
}

/* Called before anything can fail, so that every failure is recorded. */
static void install_error_file(const struct cairn_env_options *options) {
    struct cairn_env_options o = {.struct_size = sizeof(o)};
    const bool is_read = cairn__options_read(&o, sizeof(o), options, "cairn_env_options") == CAIRN_OK;
    cairn__error_file_install(is_read && o.record_errors <= CAIRN_OFF ? o.record_errors : CAIRN_DEFAULT);
}

/* 1 + cairn__forks() of the process that has been the launcher's rank; 0 = none has. */
static atomic_uint joined;

/* Refuses a child of a rank's process, which inherits the variables that give its parent's rank. */
static cairn_status check_forks(const struct cairn__launch *launch) {
    const unsigned by = atomic_load(&joined);
    REQUIRE(by == 0 || by == 1 + cairn__forks(), CAIRN_ESTATE,
            "this process was forked from rank %d, and would take its place; give an environment of its own "
            ".world_size and .rank (cairn_env_options), or unset the launcher's variables",
            launch->rank);
    return CAIRN_OK;
}

void cairn__env_is_rank_of_its_own(void) {
    atomic_store(&joined, 0);
}

/* Takes the rank of a thread of cairn_spawn_threads, unless the program gives a rank itself. */
static cairn_status take_place(struct cairn_env_options *o, struct cairn__launch *launch, bool *is_taken) {
    const struct cairn__launch *place = NULL;
    cairn_store *store = NULL;
    if (o->world_size || o->rank || !cairn__thread_launch(&place, &store)) return CAIRN_OK;
    const bool is_usual = !o->init_method || strcmp(o->init_method, "env://") == 0;
    REQUIRE(
        is_usual || strncmp(o->init_method, "tcp://", 6) != 0, CAIRN_EINVAL,
        "cairn_env_options.init_method is '%.200s', and this rank is a thread, whose ranks meet by themselves; leave "
        "it out, or give world_size and rank too",
        o->init_method);
    if (store && is_usual && !o->store) {
        o->store = store;
        o->init_method = NULL;
    }
    *launch = *place;
    *is_taken = true;
    return CAIRN_OK;
}

static cairn_status create_in_place(const struct cairn__launch *launch, const struct cairn_env_options *o,
                                    cairn_env **out) {
    cairn_env *env = NULL;
    cairn_status st = CAIRN_OK;
    if (launch->size > 1) TRY(check_forks(launch));
    TRY(cairn__env_create_at(launch, o, &env));
    TRY(cairn__thread_adopt(env));
    if (launch->size > 1) atomic_store(&joined, 1 + cairn__forks());
    *out = env;
    return CAIRN_OK;
out:
    cairn_env_destroy(&env);
    return st;
}

cairn_status cairn_env_create(int *argc, char ***argv, const struct cairn_env_options *options, cairn_env **out) {
    install_error_file(options);
    REQUIRE(out, CAIRN_EINVAL, "cairn_env_create: out is NULL");
    cairn_status st = CAIRN_OK;
    struct cairn_env_options o;
    struct cairn__launch launch;
    const char *path = NULL;
    bool in_place = false;
    TRY(read_options(options, &o));
    TRY(take_place(&o, &launch, &in_place));
    if (in_place) {
        TRY(create_in_place(&launch, &o, out));
        goto out;
    }
    TRY(cairn__env_file_path(o.init_method, &path));
    const struct cairn__launch_told told = {.rank = o.rank,
                                            .world_size = o.world_size,
                                            .init_method = path ? NULL : o.init_method,
                                            .has_store = o.store || path};
    TRY(cairn__launch_read(&told, argc, argv, &launch));
    const bool is_launched = launch.size > 1 && o.world_size == 0;
    if (is_launched) TRY(check_forks(&launch));
    cairn__log_set_rank(launch.rank);
    TRY(cairn__env_create_at(&launch, options, out));
    if (is_launched) atomic_store(&joined, 1 + cairn__forks());
out:
    return st;
}

void cairn_env_destroy(cairn_env **env) {
    if (!env || !*env) return;
    struct cairn_env *e = *env;
    const int sets = e->places[CAIRN__PLACE_OF_PARAM].alive, scalers = e->places[CAIRN__PLACE_OF_AMP].alive;
    const int loaders = e->places[CAIRN__PLACE_OF_DATA].alive;
    if (sets > 0 || e->graphs > 0 || scalers > 0 || loaders > 0) {
        cairn__log(
            CAIRN_LOG_ERROR,
            "cairn_env_destroy: %d graphs and %d modules or parameter sets made in it are alive, %d scalers and %d "
            "loaders, so it is kept; destroy them first",
            e->graphs, sets, scalers, loaders);
        return;
    }
    cairn_group *group = cairn_env_group(e);
    if (!cairn__group_destroy_root(&group)) return;
    e->places[CAIRN__PLACE_OF_COMM].at = NULL;
    cairn__observe_end(e);
    cairn__thread_disown(e);
    cairn__env_part(e);
    cairn__tape_destroy(e);
    cairn__device_close(&e->device);
    cairn__free(e->description);
    cairn__free(e);
    *env = NULL;
}

void cairn_manual_seed(cairn_env *env, uint64_t seed) {
    if (!env) return;
    if (cairn__device_refuse_recording(env->device, "seed the random numbers between replays") != CAIRN_OK) return;
    env->seed = seed;
    env->next_stream = 0;
}

cairn_status cairn_env_synchronize(cairn_env *env) {
    REQUIRE(env, CAIRN_EINVAL, "cairn_env_synchronize: env is NULL");
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_synchronize(env->device));
    TRY(cairn__env_read_reports(env));
out:
    return st;
}

int cairn_env_rank(const cairn_env *env) {
    return env ? env->rank : 0;
}

int cairn_env_size(const cairn_env *env) {
    return env ? env->size : 1;
}

int cairn_env_local_rank(const cairn_env *env) {
    return env ? env->local_rank : 0;
}

int cairn_env_local_size(const cairn_env *env) {
    return env ? env->local_size : 0;
}

int cairn_env_restart_count(const cairn_env *env) {
    return env ? env->restart_count : 0;
}

const char *cairn_env_describe(const cairn_env *env) {
    return env ? env->description : "";
}

cairn_group *cairn_env_group(cairn_env *env) {
    return env ? env->places[CAIRN__PLACE_OF_COMM].at : NULL;
}

cairn_device *cairn_env_device(cairn_env *env) {
    return env ? env->device : NULL;
}
