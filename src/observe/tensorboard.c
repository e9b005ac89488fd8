/* Event files of TensorBoard: scalars and histograms of a rank. */
#include "observe/tensorboard.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "device/env.h"
#include "observe/names.h"
#include "observe/out.h"
#include "observe/tf_event.h"
#include "observe/writer.h"

struct tensorboard {
    struct cairn_writer base;
    struct cairn__out out;
    unsigned char record[CAIRN__TF_RECORD];
};

static double wall_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void put(struct tensorboard *t, const struct cairn__tf_event *event, uint64_t now) {
    cairn__out_put(&t->out, t->record, cairn__tf_record(event, t->record), now);
}

static void hear(struct cairn_writer *writer, const struct cairn__event *e) {
    struct tensorboard *t = (struct tensorboard *)writer;
    if (e->kind != CAIRN__SCALAR && e->kind != CAIRN__HISTOGRAM) return;
    put(t,
        &(struct cairn__tf_event){.wall_time = wall_time(),
                                  .step = e->index,
                                  .tag = e->what,
                                  .value = (float)e->value,
                                  .histogram = e->histogram},
        e->end_ns);
}

static cairn_status flush(struct cairn_writer *writer) {
    return cairn__out_flush_loudly(&((struct tensorboard *)writer)->out);
}

static void end(struct cairn_writer *writer, bool is_own) {
    cairn__out_close(&((struct tensorboard *)writer)->out, is_own);
    cairn__free(writer);
}

/* Named as by TensorFlow: TensorBoard looks for "tfevents", and sorts by the seconds. */
static cairn_status name_file(char *path) {
    static atomic_uint number;
    char host[128] = "";
    (void)gethostname(host, sizeof(host) - 1);
    for (char *c = host; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '-' && *c != '.') *c = '_';
    const size_t used = strlen(path);
    const int n = snprintf(path + used, CAIRN__OBSERVE_PATH - used, "/events.out.tfevents.%010lld.%s.%d.%u",
                           (long long)time(NULL), host, (int)getpid(), atomic_fetch_add(&number, 1));
    REQUIRE(n >= 0 && (size_t)n < CAIRN__OBSERVE_PATH - used, CAIRN_EINVAL, "the folder's name '%.100s...' is too long",
            path);
    return CAIRN_OK;
}

cairn_status cairn__tensorboard_open(int rank, int size, const char *folder, cairn_writer **out) {
    static const struct cairn__writer_kind kind = {.hear = hear, .flush = flush, .end = end};
    struct tensorboard *t = NULL;
    char path[CAIRN__OBSERVE_PATH];
    cairn_status st = CAIRN_OK;
    (void)size;
    TRY(cairn__path_of_rank(folder, rank, path));
    TRY(cairn__out_make_folder(path));
    TRY(name_file(path));
    TRY(cairn__calloc(1, sizeof(*t), (void **)&t));
    t->base = (struct cairn_writer){.kind = &kind, .rank = rank};
    t->out.fd = -1;
    TRY(cairn__out_open(&t->out, "TensorBoard file", path, ""));
    put(t, &(struct cairn__tf_event){.wall_time = wall_time(), .version = "brain.Event:2"}, 0);
    TRY(cairn__out_flush_loudly(&t->out));
    TRY(cairn__writer_begin(&t->base));
    *out = &t->base;
    return CAIRN_OK;
out:
    if (t) cairn__out_close(&t->out, false);
    cairn__free(t);
    return st;
}

cairn_status cairn_tensorboard_create(cairn_env *env, const char *folder, cairn_writer **out) {
    REQUIRE(env && folder && folder[0] && out, CAIRN_EINVAL,
            "cairn_tensorboard_create: env, folder and out must be set");
    return cairn__tensorboard_open(env->rank, env->size, folder, out);
}
