/* Saving a checkpoint, in three parts.
 *
 *   collect   all ranks: list the state, agree on what is saved; a background save copies it. Rank 0 makes the folder
 *   write     each rank its files, and last rank-N.done, which names them
 *   publish   rank 0: when every rank's .done is there, checkpoint.json, and the folder gets its name
 *
 * The last two run in a thread, for which a foreground save waits at once, because a disk may be slower than a group's
 * timeout (comm/task.h). The thread cannot call the group. Rank 0 therefore learns the others' results from their .done
 * and .failed files, and of ranks that died from join_together, where all ranks agree on the outcome. */
#include <errno.h>
#include <inttypes.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "comm/task.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "state/file.h"
#include "state/safetensors.h"
#include "state/state_internal.h"

enum { MAX_FILES = 2 /* files of a rank */, BOUNCE = 4 << 20, MAX_DONE = 1 << 16 };

struct cairn__save {
    struct cairn_state_save_options how;
    int rank, ranks;
    double timeout;
    int64_t step;
    char *dir;
    char partial[CAIRN__MAX_PATH], path[CAIRN__MAX_PATH];

    struct cairn_device *device; /* NULL = data are in host memory */
    const char *description;     /* the environment's */
    struct cairn__state_list list;
    const void **data; /* [list.count] */

    struct cairn__manifest_file files[MAX_FILES]; /* written by this rank */
    size_t num_files;

    struct cairn__task task;
    atomic_bool peer_failed; /* read by the task: the file it waits for will not be written */
    char warning[512];       /* of pruning, to be logged; "" = none */
};

/* ---- collect ---- */

static uint64_t hash_shared(const struct cairn__state_list *list) {
    uint64_t h = CAIRN__HASH_START;
    for (size_t i = 0; i < list->count; i++) {
        const struct cairn__entry *e = list->at[i].entry;
        if (e->owner != CAIRN__ENTRY_SHARED) continue;
        h = cairn__hash_word(cairn__hash_text(h, list->at[i].name), (uint64_t)e->dtype);
        for (int d = 0; d < e->ndim; d++) h = cairn__hash_word(h, (uint64_t)e->shape[d]);
    }
    return h;
}

struct plan {
    uint64_t attempt; /* rank 0's is used; keeps files of earlier attempts apart */
    uint64_t shared;
    int64_t step, background, keep_last, keep_every;
};

static cairn_status compare_plans(const struct plan *first, const struct plan *other, int rank) {
    REQUIRE(other->step == first->step, CAIRN_EPEER,
            "cairn_state_save: rank %d saves step %" PRId64 " and rank 0 step %" PRId64, rank, other->step,
            first->step);
    REQUIRE(other->shared == first->shared, CAIRN_EPEER,
            "cairn_state_save: what ranks share is not the same on ranks 0 and %d; add the same objects under the same "
            "names on all ranks",
            rank);
    REQUIRE(other->background == first->background && other->keep_last == first->keep_last &&
                other->keep_every == first->keep_every,
            CAIRN_EPEER, "cairn_state_save: ranks 0 and %d were given different options", rank);
    return CAIRN_OK;
}

/* Collective, equal status on all ranks. Makes the name of the hidden folder. */
static cairn_status agree_on_plan(struct cairn__save *save, cairn_group *group) {
    struct plan *all = NULL;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const struct plan mine = {.attempt = cairn__hash_word(cairn__hash_word((uint64_t)t.tv_sec, (uint64_t)t.tv_nsec),
                                                          (uint64_t)getpid()),
                              .shared = hash_shared(&save->list),
                              .step = save->step,
                              .background = save->how.background == CAIRN_ON,
                              .keep_last = save->how.keep_last,
                              .keep_every = save->how.keep_every};
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_make_room(group, "cairn_state_save", sizeof(mine), (void **)&all));
    TRY(cairn__group_exchange(group, all, &mine, sizeof(mine)));
    for (int r = 1; st == CAIRN_OK && r < save->ranks; r++) st = compare_plans(&all[0], &all[r], r);
    if (st == CAIRN_OK) st = cairn__checkpoint_partial_path(save->dir, save->step, all[0].attempt, save->partial);
    st = cairn__group_agree_on_status(group, "cairn_state_save", st);
out:
    cairn__free(all);
    return st;
}

/* Copies past the caches, as memcpy does only for arrays far larger than them: otherwise the destination's cache lines
 * would be read before they are written. */
static void copy_far(char *to, const char *from, size_t nbytes) {
#ifdef __SSE2__
    for (; nbytes >= 64; nbytes -= 64, to += 64, from += 64) {
        _mm_prefetch(from + 1024, _MM_HINT_NTA);
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    }
    _mm_sfence();
#endif
    memcpy(to, from, nbytes);
}

static cairn_status copy_state(cairn_state *state, struct cairn__save *save) {
    size_t nbytes = 0;
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < save->list.count; i++)
        nbytes += (save->list.at[i].entry->nbytes + CAIRN__ALIGN - 1) / CAIRN__ALIGN * CAIRN__ALIGN;
    if (nbytes > state->copy_nbytes) {
        cairn__free(state->copy);
        state->copy = NULL;
        state->copy_nbytes = 0;
        TRY(cairn__alloc(nbytes, &state->copy));
        state->copy_nbytes = nbytes;
    }
    char *to = state->copy;
    for (size_t i = 0; i < save->list.count; i++) {
        const struct cairn__entry *e = save->list.at[i].entry;
        if (e->memory && !e->is_on_host) TRY(cairn__device_download(state->env->device, to, save->data[i], e->nbytes));
        else copy_far(to, save->data[i], e->nbytes);
        save->data[i] = to;
        to += (e->nbytes + CAIRN__ALIGN - 1) / CAIRN__ALIGN * CAIRN__ALIGN;
    }
    save->device = NULL;
out:
    return st;
}

static cairn_status collect(cairn_state *state, struct cairn__save *save) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__state_list(state, NULL, NULL, false, &save->list));
    TRY(cairn__calloc(save->list.count + 1, sizeof(save->data[0]), (void **)&save->data));
    for (size_t i = 0; i < save->list.count; i++) {
        struct cairn__entry *e = save->list.at[i].entry;
        save->data[i] = e->memory ? e->memory : cairn__entry_number(e);
    }
    if (save->how.background == CAIRN_ON) TRY(copy_state(state, save));
out:
    return st;
}

/* ---- write ---- */

/* The entries of one file, in the order of the list, as arguments for safetensors. */
struct contents {
    struct cairn__safetensors_tensor *tensors;
    struct cairn__safetensors_text *owners; /* for entries that are not shared */
    char (*values)[64];                     /* memory of owners' texts */
    size_t *items;                          /* indices in the list */
    size_t count;
};

static void put_owner(const struct cairn__entry *e, char value[64]) {
    if (e->owner == CAIRN__ENTRY_SLICE)
        snprintf(value, 64, "%s %" PRId64 " of %" PRId64, e->is_flat ? "elements" : "rows", e->first, e->whole_rows);
    else if (cairn__entry_is_part(e)) snprintf(value, 64, "part");
    else snprintf(value, 64, e->owner == CAIRN__ENTRY_RANK ? "rank" : "rank or first");
}

static void end_contents(struct contents *c) {
    cairn__free(c->tensors);
    cairn__free(c->owners);
    cairn__free(c->values);
    cairn__free(c->items);
}

static cairn_status make_contents(const struct cairn__save *save, bool shared, struct contents *c) {
    const size_t most = save->list.count + 1;
    cairn_status st = CAIRN_OK;
    *c = (struct contents){0};
    TRY(cairn__calloc(most, sizeof(c->tensors[0]), (void **)&c->tensors));
    TRY(cairn__calloc(most, sizeof(c->owners[0]), (void **)&c->owners));
    TRY(cairn__calloc(most, sizeof(c->values[0]), (void **)&c->values));
    TRY(cairn__calloc(most, sizeof(c->items[0]), (void **)&c->items));
    for (size_t i = 0; i < save->list.count; i++) {
        const struct cairn__entry *e = save->list.at[i].entry;
        const size_t k = c->count;
        if ((e->owner == CAIRN__ENTRY_SHARED) != shared || save->list.at[i].is_others) continue;
        c->tensors[k] = (struct cairn__safetensors_tensor){.name = save->list.at[i].name,
                                                           .type = cairn__safetensors_type(e->dtype),
                                                           .ndim = e->ndim,
                                                           .shape = e->shape};
        c->owners[k] = (struct cairn__safetensors_text){save->list.at[i].name, c->values[k]};
        put_owner(e, c->values[k]);
        c->items[c->count++] = i;
    }
    return CAIRN_OK;
out:
    end_contents(c);
    return st;
}

static cairn_status write_data(const struct cairn__save *save, size_t i, void *bounce,
                               struct cairn__safetensors_writer *w) {
    const struct cairn__entry *e = save->list.at[i].entry;
    const char *from = save->data[i];
    cairn_status st = CAIRN_OK;
    if (!save->device || !e->memory || e->is_on_host) return cairn__safetensors_write(w, from, e->nbytes);
    for (size_t at = 0; at < e->nbytes; at += BOUNCE) {
        const size_t n = e->nbytes - at < BOUNCE ? e->nbytes - at : BOUNCE;
        TRY(cairn__device_download(save->device, bounce, from + at, n));
        TRY(cairn__safetensors_write(w, bounce, n));
    }
out:
    return st;
}

static cairn_status write_file(struct cairn__save *save, bool shared) {
    struct cairn__manifest_file *file = &save->files[save->num_files];
    struct contents c = {0};
    struct cairn__safetensors_writer *w = NULL;
    struct cairn__file_facts facts;
    char path[CAIRN__MAX_PATH + CAIRN__MAX_FILE_NAME];
    void *bounce = NULL;
    cairn_status st = CAIRN_OK;
    cairn__manifest_file_name(shared ? -1 : save->rank, file->name);
    snprintf(path, sizeof(path), "%s/%s", save->partial, file->name);
    TRY(make_contents(save, shared, &c));
    if (save->device) TRY(cairn__alloc(BOUNCE, &bounce));
    TRY(cairn__safetensors_create(path, CAIRN__WRITER_IN_PLACE, c.tensors, c.count, shared ? NULL : c.owners,
                                  shared ? 0 : c.count, &w));
    for (size_t k = 0; k < c.count; k++) TRY(write_data(save, c.items[cairn__safetensors_nth(w, k)], bounce, w));
    TRY(cairn__safetensors_commit(&w, &facts));
    file->nbytes = facts.nbytes;
    file->xxh3 = facts.hash;
    save->num_files++;
out:
    cairn__safetensors_discard(&w);
    cairn__free(bounce);
    end_contents(&c);
    return st;
}

static cairn_status write_text(const char *path, const char *text) {
    struct cairn__writer *w = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__writer_create(path, 0, &w));
    TRY(cairn__writer_write(w, text, strlen(text)));
    TRY(cairn__writer_commit(&w, NULL));
out:
    cairn__writer_discard(&w);
    return st;
}

static cairn_status write_manifest(const struct cairn__save *save, const char *path, struct cairn__manifest_file *files,
                                   size_t num_files) {
    const struct cairn__manifest m = {save->step, save->ranks, files, num_files};
    char *text = cairn__manifest_write(&m, save->description);
    if (!text) return cairn__fail(CAIRN_ENOMEM, "%s: no memory for its text", path);
    const cairn_status st = write_text(path, text);
    free(text);
    return st;
}

static void sign_path(const struct cairn__save *save, int rank, const char *kind, char path[CAIRN__MAX_PATH + 64]) {
    snprintf(path, CAIRN__MAX_PATH + 64, "%s/rank-%05d.%s", save->partial, rank, kind);
}

/* Tells rank 0 why this rank's files will not be written. Keeps the last error. */
static cairn_status sign_failed(const struct cairn__save *save, cairn_status st) {
    char path[CAIRN__MAX_PATH + 64], cause[1024];
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    sign_path(save, save->rank, "failed", path);
    (void)write_text(path, cause);
    return cairn__fail(st, "%s", cause);
}

/* Writes this rank's files, then its .done for rank 0. */
static cairn_status write_own(struct cairn__save *save) {
    char path[CAIRN__MAX_PATH + 64];
    cairn_status st = CAIRN_OK;
    if (save->rank == 0) TRY(write_file(save, true));
    TRY(write_file(save, false));
    if (save->rank == 0) return CAIRN_OK;
    sign_path(save, save->rank, "done", path);
    TRY(write_manifest(save, path, save->files, save->num_files));
    return CAIRN_OK;
out:
    if (save->rank == 0) return st;
    REQUIRE(access(save->partial, F_OK) == 0, CAIRN_EPEER,
            "cairn_state_save: rank 0 gave %s up before rank %d had written its part", save->path, save->rank);
    return sign_failed(save, st);
}

/* ---- publish ---- */

/* Bytes of the rank's file so far; the rank is alive if they grow. Opens the file, since a network file system may
 * cache an older size of a file that is not open. */
static int64_t written_by(const struct cairn__save *save, int rank) {
    char name[CAIRN__MAX_FILE_NAME], path[CAIRN__MAX_PATH + CAIRN__MAX_FILE_NAME];
    struct stat s;
    cairn__manifest_file_name(rank, name);
    snprintf(path, sizeof(path), "%s/%s", save->partial, name);
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const bool is_known = fd >= 0 && fstat(fd, &s) == 0;
    if (fd >= 0) close(fd);
    return is_known ? (int64_t)s.st_size : -1;
}

/* Waits for the rank's .done and reads it. */
static cairn_status wait_for_rank(const struct cairn__save *save, int rank, struct cairn__manifest *out) {
    char done[CAIRN__MAX_PATH + 64], failed[CAIRN__MAX_PATH + 64];
    char *text = NULL;
    struct timespec pause = {0, 1000000};
    int64_t written = -2;
    double since = cairn__clock_seconds();
    sign_path(save, rank, "done", done);
    sign_path(save, rank, "failed", failed);
    while (access(done, F_OK) != 0) {
        if (access(failed, F_OK) == 0) {
            const cairn_status st = cairn__file_read(failed, CAIRN__READER_NO_LINK, MAX_DONE, &text, NULL);
            const cairn_status peer = cairn__fail(CAIRN_EPEER, "cairn_state_save: it failed on rank %d: %.800s", rank,
                                                  st == CAIRN_OK ? text : "it does not say why");
            cairn__free(text);
            return peer;
        }
        const int64_t is = written_by(save, rank);
        if (is != written) since = cairn__clock_seconds();
        written = is;
        REQUIRE(!atomic_load(&save->peer_failed), CAIRN_EPEER, "cairn_state_save: a rank failed before %s was whole",
                save->path);
        REQUIRE(cairn__clock_seconds() - since < save->timeout, CAIRN_ETIMEOUT,
                "cairn_state_save: rank %d has not written its part of %s for %.0f s: does it see this folder?", rank,
                save->path, save->timeout);
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 50000000) pause.tv_nsec *= 2;
    }
    struct cairn__file_facts facts;
    cairn_status st = CAIRN_OK;
    TRY(cairn__file_read(done, CAIRN__READER_NO_LINK, MAX_DONE, &text, &facts));
    TRY(cairn__manifest_read(text, facts.nbytes, done, out));
    char own[CAIRN__MAX_FILE_NAME];
    cairn__manifest_file_name(rank, own);
    if (out->step != save->step || out->ranks != save->ranks || out->num_files != 1 ||
        strcmp(out->files[0].name, own) != 0 || (int64_t)out->files[0].nbytes != written_by(save, rank)) {
        cairn__manifest_clear(out);
        TRY(cairn__fail(CAIRN_EPEER, "%s: not what rank %d writes; does another program save into %s?", done, rank,
                        save->dir));
    }
    unlink(done);
out:
    cairn__free(text);
    return st;
}

static cairn_status add_files(struct cairn__manifest_file **files, size_t *count, size_t *capacity,
                              const struct cairn__manifest_file *more, size_t num_more) {
    const cairn_status st = cairn__grow((void **)files, capacity, *count + num_more, sizeof(**files));
    if (st != CAIRN_OK) return st;
    memcpy(*files + *count, more, num_more * sizeof(*more));
    *count += num_more;
    return CAIRN_OK;
}

/* Rank 0 only. A failure to remove old checkpoints is not an error, since the new one is complete. */
static cairn_status publish(struct cairn__save *save) {
    struct cairn__manifest_file *files = NULL;
    size_t count = 0, capacity = 0;
    char path[CAIRN__MAX_PATH + 64];
    cairn_status st = CAIRN_OK;
    TRY(add_files(&files, &count, &capacity, save->files, save->num_files));
    for (int r = 1; r < save->ranks; r++) {
        struct cairn__manifest m = {0};
        TRY(wait_for_rank(save, r, &m));
        st = add_files(&files, &count, &capacity, m.files, m.num_files);
        cairn__manifest_clear(&m);
        if (st != CAIRN_OK) goto out;
    }
    snprintf(path, sizeof(path), "%s/checkpoint.json", save->partial);
    TRY(write_manifest(save, path, files, count));
    TRY(cairn__checkpoint_publish(save->dir, save->partial, save->path));
    if (cairn__checkpoint_prune(save->dir, save->step, save->how.keep_last, save->how.keep_every) != CAIRN_OK)
        snprintf(save->warning, sizeof(save->warning), "%s", cairn_last_error());
out:
    cairn__free(files);
    return st;
}

/* ---- the calls ---- */

static void end_save(cairn_state *state, struct cairn__save **save) {
    if (!*save) return;
    cairn__state_unlist(state, &(*save)->list);
    cairn__free((*save)->data);
    cairn__free((*save)->dir);
    cairn__free(*save);
    *save = NULL;
}

static cairn_status write_all(void *ctx) {
    struct cairn__save *save = ctx;
    const cairn_status st = write_own(save);
    return st == CAIRN_OK && save->rank == 0 ? publish(save) : st;
}

/* st: the status of this rank's part. */
static cairn_status end_written(cairn_state *state, struct cairn__save **save, cairn_status st) {
    if ((*save)->warning[0])
        cairn__log(CAIRN_LOG_WARNING, "cairn_state_save: an old checkpoint was not removed: %s", (*save)->warning);
    if (st != CAIRN_OK && (*save)->rank == 0) cairn__checkpoint_abandon((*save)->partial);
    end_save(state, save);
    return st;
}

/* Waits for the save, and returns what this rank knows of its outcome. */
static cairn_status join(cairn_state *state) {
    return end_written(state, &state->save, cairn__task_join(&state->save->task));
}

/* Collective: waits for the save in progress, if any. */
static cairn_status join_together(cairn_state *state, const char *call) {
    cairn_group *group = cairn_env_group(state->env);
    char cause[1024];
    if (!state->save) return CAIRN_OK; /* equal on all ranks */
    const cairn_status st = cairn__group_await(group, call, &state->save->task);
    if (st == CAIRN_OK) return cairn__group_agree_on_status(group, call, join(state));
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    atomic_store(&state->save->peer_failed, true);
    (void)join(state);
    return cairn__fail(st, "%s", cause);
}

void cairn__state_end_save(cairn_state *state) {
    if (state->save && cairn__group_progress(cairn_env_group(state->env)) != CAIRN_OK)
        atomic_store(&state->save->peer_failed, true); /* so that rank 0's thread does not wait for dead ranks */
    if (state->save && join(state) != CAIRN_OK)
        cairn__log(CAIRN_LOG_ERROR, "cairn_state_destroy: the last background save failed: %s", cairn_last_error());
    cairn__free(state->copy);
    state->copy = NULL;
}

cairn_status cairn_state_wait(cairn_state *state) {
    REQUIRE(state, CAIRN_EINVAL, "cairn_state_wait: state is NULL");
    return join_together(state, "cairn_state_wait");
}

static cairn_status new_save(cairn_state *state, const char *dir, int64_t step,
                             const struct cairn_state_save_options *options, struct cairn__save **out) {
    struct cairn__save *save = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(dir && dir[0], CAIRN_EINVAL, "cairn_state_save: dir is empty");
    REQUIRE(step >= 0 && step < CAIRN__MAX_STEPS, CAIRN_EINVAL,
            "cairn_state_save: step %" PRId64 " is negative, or has more than 18 digits", step);
    TRY(cairn__calloc(1, sizeof(*save), (void **)&save));
    *out = save;
    save->how.struct_size = sizeof(save->how);
    TRY(cairn__options_read(&save->how, sizeof(save->how), options, "cairn_state_save_options"));
    if (save->how.keep_last < 0 || save->how.keep_every < 0)
        TRY(cairn__fail(CAIRN_EINVAL,
                        "cairn_state_save: keep_last %" PRId64 " and keep_every %" PRId64 " must not be negative",
                        save->how.keep_last, save->how.keep_every));
    save->rank = state->env->rank;
    save->ranks = state->env->size;
    save->timeout = cairn__group_timeout(cairn_env_group(state->env));
    save->step = step;
    save->description = cairn_env_describe(state->env);
    save->device = cairn__is_on_host(state->env->device) ? NULL : state->env->device;
    TRY(cairn__strdup(dir, &save->dir));
    TRY(cairn__checkpoint_path(dir, step, save->path));
    TRY(collect(state, save));
out:
    return st;
}

/* At the end of each part all ranks agree on its status. */
cairn_status cairn_state_save(cairn_state *state, const char *dir, int64_t step,
                              const struct cairn_state_save_options *options) {
    static const char call[] = "cairn_state_save";
    REQUIRE(state, CAIRN_EINVAL, "cairn_state_save: state is NULL");
    cairn_group *group = cairn_env_group(state->env);
    struct cairn__save *save = NULL;
    bool has_folder = false;
    cairn_status st = join_together(state, call);
    if (st == CAIRN_OK) st = new_save(state, dir, step, options, &save);
    TRY(cairn__group_agree_on_status(group, call, st));
    TRY(agree_on_plan(save, group));
    TRY(cairn__parts_share(group, &save->list, save->device ? NULL : save->data));
    if (save->rank == 0) st = cairn__checkpoint_begin(save->dir, save->partial);
    has_folder = st == CAIRN_OK;
    TRY(cairn__group_agree_on_status(group, call, st));
    if (access(save->partial, W_OK | X_OK) != 0)
        st = cairn__fail_errno(errno,
                               "%s: this rank does not see what rank 0 has made; all ranks must save into one folder",
                               save->partial);
    TRY(cairn__group_agree_on_status(group, call, st));
    if (save->ranks == 1 && save->how.background != CAIRN_ON) return end_written(state, &save, write_all(save));
    state->save = save;
    /* If the thread cannot be created, the rank tells rank 0, and the program at the next call. */
    const cairn_status begun = cairn__task_begin(&save->task, "cairn-save", write_all, save);
    if (begun != CAIRN_OK && save->rank > 0) (void)sign_failed(save, begun);
    return save->how.background == CAIRN_ON ? CAIRN_OK : join_together(state, call);
out:
    if (has_folder && save->rank == 0) cairn__checkpoint_abandon(save->partial);
    end_save(state, &save);
    return st;
}
