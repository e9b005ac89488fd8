/* Source: pytorch torch/distributed/run.py and elastic/agent/server/local_elastic_agent.py (1.13 to 2.x). */
#include "worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"
#include "values.h"

extern char **environ;

/* Texts, NULL at the end. */
struct texts {
    char **items;
    size_t n, room;
};

static void keep(struct texts *t, char *text) {
    if (t->n + 1 >= t->room) {
        t->room = t->room ? 2 * t->room : 64;
        t->items = must(realloc(t->items, t->room * sizeof(*t->items)));
    }
    t->items[t->n++] = text;
    t->items[t->n] = NULL;
}

static void keep_copy(struct texts *t, const char *text) {
    keep(t, must(strdup(text)));
}

/* ---- arguments ---- */

/* Runs a script as torchrun does in an interpreter that it starts. */
static const char run_path[] = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')";

/* The words before the program's name. */
static void keep_interpreter(struct texts *t, enum program_kind kind) {
    const char *python = getenv("PYTHON_EXEC");
    if (kind == PROGRAM_EXEC) return;
    keep_copy(t, python && python[0] ? python : "python3");
    keep_copy(t, "-u");
    if (kind == PROGRAM_MODULE) keep_copy(t, "-m");
    if (kind == PROGRAM_RUN_PATH) {
        keep_copy(t, "-c");
        keep_copy(t, run_path);
    }
}

/* torch substitutes in all but the executable's name. */
char **worker_arguments(const struct options *o, int local_rank) {
    struct texts t = {0};
    char number[16];
    snprintf(number, sizeof(number), "%d", local_rank);
    const struct substitution names[] = {{"local_rank", number}, {0}};
    keep_interpreter(&t, o->kind);
    for (char **word = o->program; *word; word++) {
        keep(&t, t.n > 0 ? substitute(*word, names) : must(strdup(*word)));
        if (word == o->program && o->pass_local_rank) keep(&t, format_text("--local_rank=%d", local_rank));
    }
    return t.items;
}

/* ---- environment ---- */

__attribute__((format(printf, 3, 4))) static void set(struct texts *t, const char *name, const char *format, ...) {
    char *value = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&value, format, args) < 0) value = NULL;
    va_end(args);
    keep(t, format_text("%s=%s", name, (char *)must(value)));
    free(value);
}

/* The rank's item of CUDA_VISIBLE_DEVICES, without blanks; its number if there is no list. */
static void set_own_gpu(struct texts *t, int local_rank) {
    const char *item = getenv("CUDA_VISIBLE_DEVICES");
    if (!item) {
        set(t, "CUDA_VISIBLE_DEVICES", "%d", local_rank);
        return;
    }
    for (int i = 0; i < local_rank; i++) item += strcspn(item, ",") + (item[strcspn(item, ",")] == ',');
    item += strspn(item, " ");
    set(t, "CUDA_VISIBLE_DEVICES", "%.*s", (int)strcspn(item, ", "), item);
}

static void set_place(struct texts *t, const struct options *o, const struct place *p) {
    if (o->virtual_local_rank) set_own_gpu(t, p->local_rank);
    set(t, "LOCAL_RANK", "%d", o->virtual_local_rank ? 0 : p->local_rank);
    set(t, "RANK", "%d", p->rank);
    set(t, "GROUP_RANK", "%d", p->group_rank);
    set(t, "ROLE_RANK", "%d", p->role_rank);
    set(t, "ROLE_NAME", "%s", o->role);
    set(t, "LOCAL_WORLD_SIZE", "%d", p->local_size);
    set(t, "WORLD_SIZE", "%d", p->size);
    set(t, "GROUP_WORLD_SIZE", "%d", p->group_size);
    set(t, "ROLE_WORLD_SIZE", "%d", p->role_size);
    set(t, "MASTER_ADDR", "%s", p->master_addr);
    set(t, "MASTER_PORT", "%d", p->master_port);
}

static void set_job(struct texts *t, const struct options *o, const struct place *p) {
    set(t, "TORCHELASTIC_RESTART_COUNT", "%d", p->restart);
    set(t, "TORCHELASTIC_MAX_RESTARTS", "%d", o->max_restarts);
    set(t, "TORCHELASTIC_RUN_ID", "%s", p->run_id);
    set(t, "TORCHELASTIC_USE_AGENT_STORE", "True");
    set(t, "TORCHELASTIC_ERROR_FILE", "%s", p->error_file);
    set(t, "TORCHELASTIC_SIGNALS_TO_HANDLE", "%s", o->signal_names);
}

/* Passes on the secret with which a rank authenticates itself to the agents' store. */
static void set_secret(struct texts *t, const struct options *o) {
    if (!o->secret) return;
    set(t, "CAIRN_STORE_HAS_SECRET", "1");
    if (o->secret_file) set(t, "CAIRN_JOB_SECRET_FILE", "%s", o->secret_file);
    if (o->secret_fd >= 0) set(t, "CAIRN_JOB_SECRET_FD", "%d", o->secret_fd);
}

/* Sets defaults, unless the user has set these variables. */
static void set_defaults(struct texts *t) {
    static const char *const names[] = {"NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!getenv(names[i])) set(t, names[i], "1");
    }
}

static void set_omp_threads(struct texts *t, const struct options *o) {
    int threads = o->omp_threads;
    if (threads == OMP_DEFAULT && (o->ranks < 2 || getenv("OMP_NUM_THREADS"))) return;
    if (threads == OMP_DEFAULT) threads = 1;
    if (threads == OMP_CORES_PER_RANK) threads = count_processors() / o->ranks;
    set(t, "OMP_NUM_THREADS", "%d", threads > 0 ? threads : 1);
}

static bool assigns(const struct texts *t, const char *assignment) {
    size_t name = strcspn(assignment, "=") + 1;
    for (size_t i = 0; i < t->n; i++) {
        if (strncmp(t->items[i], assignment, name) == 0) return true;
    }
    return false;
}

/* Whether an outer cairn-run, of which this one is a rank, set this variable for its own store. */
static bool is_of_outer_run(const struct options *o, const char *assignment) {
    return strncmp(assignment, "CAIRN_STORE_HAS_SECRET=", strlen("CAIRN_STORE_HAS_SECRET=")) == 0 ||
           (o->secret_file && strncmp(assignment, "CAIRN_JOB_SECRET_FD=", strlen("CAIRN_JOB_SECRET_FD=")) == 0);
}

char **worker_environment(const struct options *o, const struct place *place) {
    struct texts told = {0}, all = {0};
    set_place(&told, o, place);
    set_job(&told, o, place);
    set_secret(&told, o);
    set_defaults(&told);
    set_omp_threads(&told, o);
    for (char **e = environ; e && *e; e++) {
        if (!assigns(&told, *e) && !is_of_outer_run(o, *e)) keep_copy(&all, *e);
    }
    for (size_t i = 0; i < told.n; i++) keep(&all, told.items[i]);
    free(told.items);
    return all.items;
}
