/* Reads launch facts: rank and size come from the first complete set of variables. Sets that agree with it may add the
 * local rank and size; others are named in the notes. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "core/vars.h"
#include "rendezvous/launch/parts.h"

void cairn__launch_note(struct cairn__launch *launch, const char *format, ...) {
    char line[400];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    const size_t used = strlen(launch->notes);
    if (used + strlen(line) + 2 > sizeof(launch->notes)) return;
    snprintf(launch->notes + used, sizeof(launch->notes) - used, "%s\n", line);
}

static cairn_status read_int(const char *name, long least, long most, int *value) {
    bool present = false;
    long parsed = 0;
    const cairn_status st = cairn__var_int(name, least, most, &present, &parsed);
    *value = present ? (int)parsed : CAIRN__NOT_TOLD;
    return st;
}

/* ---- rank and size ---- */

static cairn_status read_set(const struct cairn__launcher *by, struct cairn__launch *l) {
    const char *rank = cairn__first_set(by->rank), *size = cairn__first_set(by->size);
    cairn_status st = CAIRN_OK;
    TRY(read_int(rank, 0, CAIRN__MAX_RANK, &l->rank));
    TRY(read_int(size, 1, CAIRN__MAX_RANK + 1, &l->size));
    REQUIRE(l->rank < l->size, CAIRN_EINVAL, "%s is %d but %s is %d; set %s to a number in [0, %d]", rank, l->rank,
            size, l->size, rank, l->size - 1);
    l->launcher = by->name;
    l->is_mpi = by->is_mpi;
    snprintf(l->variables, sizeof(l->variables), "%s, %s", rank, size);
out:
    return st;
}

static cairn_status read_options(const struct cairn__launch_told *told, struct cairn__launch *l) {
    REQUIRE(told->world_size, CAIRN_EINVAL,
            "cairn_env_options.rank is %d but world_size is 0; set both, or neither to use the launcher's", told->rank);
    REQUIRE(told->world_size > 0 && told->world_size <= CAIRN__MAX_RANK + 1, CAIRN_EINVAL,
            "cairn_env_options.world_size is %d; give the number of ranks, in [1, %d], or 0 to use the launcher's",
            told->world_size, CAIRN__MAX_RANK + 1);
    REQUIRE(told->rank >= 0 && told->rank < told->world_size, CAIRN_EINVAL,
            "cairn_env_options.rank is %d but world_size is %d; give each process its rank in [0, %d]", told->rank,
            told->world_size, told->world_size - 1);
    l->launcher = "options";
    l->rank = told->rank;
    l->size = told->world_size;
    snprintf(l->variables, sizeof(l->variables), "cairn_env_options.rank, world_size");
    return CAIRN_OK;
}

/* A launcher of which only one variable, rank or size, is set. */
struct partial {
    const char *there, *missing;
};

static bool is_partial(const struct cairn__launcher *by, struct partial *p) {
    const char *rank = cairn__first_set(by->rank), *size = cairn__first_set(by->size);
    *p = rank ? (struct partial){rank, by->size[0]} : (struct partial){size, by->rank[0]};
    return (rank != NULL) != (size != NULL);
}

/* To be called if no set is complete. Half a set is an error of the user or the launcher: each of several processes
 * would run alone as rank 0. */
static cairn_status be_alone(struct cairn__launch *l) {
    struct partial p;
    for (const struct cairn__launcher *by = cairn__launchers; by->name; by++) {
        if (by->counts || !is_partial(by, &p)) continue;
        if (strcmp(p.there, "PMIX_RANK") == 0 && cairn__mpi_is_singleton()) continue;
        return cairn__fail(CAIRN_EINVAL,
                           "%s is '%.40s' but %s is not set; set RANK and WORLD_SIZE for every process, or unset %s to "
                           "run alone",
                           p.there, cairn__var(p.there), p.missing, p.there);
    }
    l->launcher = "alone";
    l->rank = 0;
    l->size = 1;
    const char *task = cairn__var("SLURM_PROCID");
    const char *tasks = cairn__first_set((cairn__names){"SLURM_NTASKS", "SLURM_NPROCS"});
    if (task && tasks && strcmp(cairn__var(tasks), "1") != 0) {
        cairn__launch_note(l,
                           "SLURM_PROCID is %.20s and %s %.20s, but this process is in no step of srun (a batch "
                           "script, or a shell of salloc); start the program with srun to run its ranks",
                           task, tasks, cairn__var(tasks));
    }
    return CAIRN_OK;
}

static cairn_status find_who(const struct cairn__launch_told *told, struct cairn__launch *l) {
    if (told && (told->world_size || told->rank)) return read_options(told, l);
    for (const struct cairn__launcher *by = cairn__launchers; by->name; by++) {
        if (by->counts && !by->counts()) continue;
        if (cairn__first_set(by->rank) && cairn__first_set(by->size)) return read_set(by, l);
    }
    const bool has_place = told && (told->has_store || (told->init_method && strcmp(told->init_method, "env://") != 0));
    REQUIRE(!has_place, CAIRN_EINVAL,
            "cairn_env_options says where the ranks meet, but neither it nor a launcher gives this process's rank; set "
            "world_size and rank too (1 and 0 to run alone), or start the program with a launcher");
    return be_alone(l);
}

/* Notes the variables of other launchers that differ. */
static void note_others(struct cairn__launch *l) {
    struct partial p;
    if (strcmp(l->launcher, "alone") == 0) return;
    for (const struct cairn__launcher *by = cairn__launchers; by->name; by++) {
        if (by->counts && !by->counts()) continue;
        const char *rank = cairn__first_set(by->rank), *size = cairn__first_set(by->size);
        if (by == cairn__launchers && is_partial(by, &p)) {
            cairn__launch_note(l, "%s is '%.20s' but %s is not set, so it is ignored", p.there, cairn__var(p.there),
                               p.missing);
        } else if (rank && size && !cairn__launcher_agrees(by, l->rank, l->size)) {
            cairn__launch_note(l, "%s is '%.20s' and %s '%.20s' (%s): they are another process's, and are ignored",
                               rank, cairn__var(rank), size, cairn__var(size), by->name);
        }
    }
}

/* ---- on this machine ---- */

/* The variables or arguments that the numbers come from, for errors. */
struct local_names {
    const char *rank, *size;
};

/* torch's LOCAL_RANK counts beside any launcher, because scripts set it by hand. */
static bool tells_local(const struct cairn__launcher *by, const struct cairn__launch *l) {
    return by == cairn__launchers || cairn__launcher_agrees(by, l->rank, l->size);
}

static cairn_status read_local_size(struct cairn__launch *l, const char **name) {
    cairn_status st = CAIRN_OK;
    l->local_size = 0;
    for (const struct cairn__launcher *by = cairn__launchers; by->name && l->local_size == 0; by++) {
        if (!cairn__launcher_agrees(by, l->rank, l->size)) continue;
        *name = cairn__first_set(by->local_size);
        if (*name) {
            TRY(read_int(*name, 1, CAIRN__MAX_RANK + 1, &l->local_size));
        } else if (by->local_size_of) {
            const int told = by->local_size_of();
            l->local_size =
                told <= l->size && told > l->local_rank ? told : 0; /* it may be of the job, not of the step */
        }
    }
    REQUIRE(l->local_size <= l->size, CAIRN_EINVAL,
            "%s is %d, but the job's size is %d; set it to the number of ranks on this machine", *name, l->local_size,
            l->size);
out:
    return st;
}

/* ---- keys ---- */

/* The same on every rank: from the run's name, or from what the ports are derived from. */
static cairn_status read_prefix(struct cairn__launch *l, const struct cairn__job *job) {
    const char *run = cairn__var("TORCHELASTIC_RUN_ID");
    if (!run) run = job && l->meeting.proof[0] ? job->name : "none";
    int restart = 0;
    cairn_status st = CAIRN_OK;
    TRY(read_int("TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX, &restart));
    l->restart_count = restart == CAIRN__NOT_TOLD ? 0 : restart;
    const int length = snprintf(l->key_prefix, sizeof(l->key_prefix), "cairn/%s/%d", run, l->restart_count);
    REQUIRE(length > 0 && (size_t)length < sizeof(l->key_prefix), CAIRN_EINVAL,
            "TORCHELASTIC_RUN_ID has %zu characters; choose a run id (--rdzv_id) of at most 100", strlen(run));
out:
    return st;
}

cairn_status cairn__launch_read(const struct cairn__launch_told *told, int *argc, char ***argv,
                                struct cairn__launch *out) {
    const bool arguments = argc && argv && *argv;
    int argument = CAIRN__NOT_TOLD;
    struct cairn__launch l = {0};
    struct cairn__job job;
    cairn_status st = CAIRN_OK;
    if (arguments) TRY(cairn__argument_find(*argc, *argv, &argument));
    TRY(find_who(told, &l));
    struct local_names names = {NULL, NULL};
    TRY(read_int("LOCAL_RANK", 0, CAIRN__MAX_RANK, &l.local_rank));
    REQUIRE(l.local_rank == CAIRN__NOT_TOLD || argument == CAIRN__NOT_TOLD || l.local_rank == argument, CAIRN_EINVAL,
            "LOCAL_RANK is %d in the environment but the argument says --local_rank=%d; drop one of them", l.local_rank,
            argument);
    l.local_rank = argument;
    names.rank = "--local_rank";
    for (const struct cairn__launcher *by = cairn__launchers; by->name && l.local_rank == CAIRN__NOT_TOLD; by++) {
        names.rank = tells_local(by, &l) ? cairn__first_set(by->local_rank) : NULL;
        if (names.rank) TRY(read_int(names.rank, 0, CAIRN__MAX_RANK, &l.local_rank));
    }
    TRY(read_local_size(&l, &names.size));
    if (l.local_rank == CAIRN__NOT_TOLD) l.local_rank = l.local_size ? l.rank % l.local_size : l.rank;
    REQUIRE(l.local_size == 0 || l.local_rank < l.local_size, CAIRN_EINVAL,
            "%s is %d but %s is %d; set %s to a number in [0, %d]", names.rank, l.local_rank, names.size, l.local_size,
            names.rank, l.local_size - 1);
    const bool is_known = cairn__job_find(&l, &job);
    TRY(cairn__meeting_find(told, is_known ? &job : NULL, &l));
    TRY(read_prefix(&l, is_known ? &job : NULL));
    note_others(&l);
    if (arguments) cairn__argument_remove(argc, *argv);
    *out = l;
out:
    return st;
}
