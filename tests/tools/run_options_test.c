/* cairn-run's options: arguments and variables, the resulting fields, and the error message for each mistake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/run/options.h"
#include "tools/run/text.h"
#include "tools/run/values.h"

enum { MAX_WORDS = 12, MAX_FIELDS = 40 };

static char said[8192]; /* what the last parse wrote to stderr */

/* ---- variables ---- */

extern char **environ;

static const char *const other_variables[] = {"OMP_NUM_THREADS", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
                                              "CUDA_VISIBLE_DEVICES", "PYTHON_EXEC",
                                              "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"};

static void clear_variables(void) {
    char name[256];
    for (char **e = environ; *e;) {
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
        e = strncmp(name, "PET_", 4) == 0 && unsetenv(name) == 0 ? environ : e + 1;
    }
    for (size_t i = 0; i < sizeof(other_variables) / sizeof(other_variables[0]); i++) unsetenv(other_variables[i]);
}

/* "NAME=value;NAME=value" or NULL. */
static void set_variables(const char *assignments) {
    char *copy = strdup(assignments ? assignments : ""), *rest = copy;
    for (char *value; (value = strsep(&rest, ";"));) {
        const char *name = strsep(&value, "=");
        if (value) setenv(name, value, 1);
    }
    free(copy);
}

/* ---- parsing ---- */

static void read_back(int fd, int kept) {
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    ssize_t n = pread(fd, said, sizeof(said) - 1, 0);
    said[n > 0 ? n : 0] = '\0';
    close(fd);
}

/* words are those after the launcher's name, which is "cairn-run" unless the first is "cairn-launch". */
static bool parse(struct options *o, const char *const words[], const char *variables) {
    static char *all[2][MAX_WORDS + 2]; /* o->program is in one of them */
    static int turn;
    char **argv = memset(all[turn++ % 2], 0, sizeof(all[0]));
    bool launch = words[0] && strcmp(words[0], "cairn-launch") == 0;
    argv[0] = launch ? "./cairn-launch" : "/usr/bin/cairn-run";
    for (int i = launch, n = 1; words[i]; i++) argv[n++] = (char *)(uintptr_t)words[i];
    clear_variables();
    set_variables(variables);
    int file = memfd_create("stderr", 0), kept = dup(STDERR_FILENO);
    dup2(file, STDERR_FILENO);
    bool fine = options_parse(o, argv);
    read_back(file, kept);
    return fine;
}

/* ---- fields as texts ---- */

struct fields {
    char *texts[MAX_FIELDS];
    int n;
};

__attribute__((format(printf, 2, 3))) static void add(struct fields *f, const char *format, ...) {
    va_list args;
    va_start(args, format);
    assert_true(f->n < MAX_FIELDS && vasprintf(&f->texts[f->n++], format, args) >= 0);
    va_end(args);
}

static void add_streams(struct fields *f, const char *name, const unsigned char *streams, int ranks) {
    char *text = strdup("");
    for (int r = 0; r < ranks; r++) {
        char *longer = format_text("%s%d", text, streams[r]);
        free(text);
        text = longer;
    }
    size_t n = strlen(text); /* a run of zeros is one: independent of how many ranks there are */
    add(f, "%s=%s", name, strspn(text, "0") == n ? "0" : text);
    free(text);
}

static void add_shown(struct fields *f, const struct options *o) {
    char text[64] = "";
    bool all = true;
    for (int r = 0; r < o->ranks; r++) {
        all &= o->shown[r];
        if (o->shown[r]) snprintf(text + strlen(text), sizeof(text) - strlen(text), ",%d", r);
        if (strlen(text) > 50) break;
    }
    add(f, "shown=%s", all ? "all" : text + 1);
}

static void add_signals(struct fields *f, const struct options *o) {
    char text[256] = "";
    for (int s = 1; s < NSIG; s++) {
        if (sigismember(&o->signals, s) != 1) continue;
        snprintf(text + strlen(text), sizeof(text) - strlen(text), ",%s", sigabbrev_np(s));
    }
    add(f, "signals=%s", text + 1);
}

static struct fields describe(const struct options *o) {
    static const char *const kinds[] = {"?", "exec", "python", "module", "run_path"};
    struct fields f = {.n = 0};
    add(&f, "launch=%d", o->as_launch);
    add(&f, "nodes=%d:%d", o->min_nodes, o->max_nodes);
    add(&f, "ranks=%d", o->ranks);
    add(&f, "%s", o->backend == RENDEZVOUS_STATIC ? "static" : o->backend == RENDEZVOUS_C10D ? "c10d" : "?");
    add(&f, "at=%s:%d", o->endpoint_host, o->endpoint_port);
    add(&f, "standalone=%d", o->standalone);
    add(&f, "id=%s", o->standalone ? "random" : o->run_id);
    add(&f, "join=%g", o->join_timeout);
    add(&f, "last_call=%g", o->last_call_timeout);
    add(&f, "close=%g", o->close_timeout);
    add(&f, "read=%g", o->read_timeout);
    add(&f, "alive=%gx%g", o->keep_alive_interval, o->keep_alive_attempts);
    add(&f, "is_host=%d", o->is_host);
    add(&f, "node=%d", o->node_rank);
    add(&f, "master=%s:%d", o->master_addr, o->master_port);
    add(&f, "local_addr=%s", o->local_addr ? o->local_addr : "");
    add(&f, "restarts=%d", o->max_restarts);
    add(&f, "monitor=%g", o->monitor_interval);
    add(&f, "shutdown=%g", o->shutdown_timeout);
    add_signals(&f, o);
    add(&f, "role=%s", o->role);
    add(&f, "log_dir=%s", o->log_dir ? o->log_dir : "");
    add_streams(&f, "redirects", o->redirects, o->ranks);
    add_streams(&f, "tee", o->tee, o->ranks);
    add_shown(&f, o);
    add(&f, "omp=%d", o->omp_threads);
    add(&f, "kind=%s", kinds[o->kind]);
    add(&f, "local_rank=%d", o->pass_local_rank);
    add(&f, "virtual=%d", o->virtual_local_rank);
    add(&f, "prefix=%s", o->line_prefix);
    return f;
}

static void forget(struct fields *f) {
    for (int i = 0; i < f->n; i++) free(f->texts[i]);
}

/* The fields that are not as `cairn-run prog` has them, between spaces; then the program's words in brackets. */
static void differences(const struct options *o, char *text, size_t nbytes) {
    struct options plain;
    assert_true(parse(&plain, (const char *const[]){"prog", NULL}, NULL));
    assert_string_equal(said, "");
    struct fields usual = describe(&plain), got = describe(o);
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < got.n; i++) {
        if (strcmp(got.texts[i], usual.texts[i]) == 0) continue;
        used += (size_t)snprintf(text + used, nbytes - used, "%s%s", used ? " " : "", got.texts[i]);
    }
    for (char **word = o->program; *word; word++) {
        bool usual_word = word == o->program && !word[1] && strcmp(*word, "prog") == 0;
        if (!usual_word) used += (size_t)snprintf(text + used, nbytes - used, "%s[%s]", used ? " " : "", *word);
    }
    forget(&usual);
    forget(&got);
    options_free(&plain);
}

static const struct {
    const char *words[MAX_WORDS];
    const char *variables;
    const char *fields; /* what is not the default */
    const char *notice; /* part of it; NULL = nothing is said */
} right[] = {
    {{"prog"}, NULL, "", NULL},
    /* spellings */
    {{"--max_restarts", "3", "prog"}, NULL, "restarts=3", NULL},
    {{"--max-restarts", "3", "prog"}, NULL, "restarts=3", NULL},
    {{"--max_restarts=3", "prog"}, NULL, "restarts=3", NULL},
    {{"--max-restarts=3", "prog"}, NULL, "restarts=3", NULL},
    {{"--max-r=3", "prog"}, NULL, "restarts=3", NULL},
    {{"--max_r", "3", "prog"}, NULL, "restarts=3", NULL},
    {{"--max-restarts=1", "--max-restarts=2", "prog"}, NULL, "restarts=2", NULL},
    {{"-m", "prog"}, NULL, "kind=module", NULL},
    {{"-r", "3", "prog"}, NULL, "redirects=3", NULL},
    {{"-r3", "prog"}, NULL, "redirects=3", NULL},
    {{"-r=3", "prog"}, NULL, "redirects=3", NULL},
    {{"-mt3", "prog"}, NULL, "tee=3 kind=module", NULL},
    {{"--log-dir=-x", "prog"}, NULL, "log_dir=-x", NULL},
    {{"--role=", "prog"}, NULL, "role=", NULL},
    /* the program takes the rest */
    {{"prog", "--nnodes", "2", "-h", "--"}, NULL, "[prog] [--nnodes] [2] [-h] [--]", NULL},
    {{"--", "-prog", "--", "x"}, NULL, "[-prog] [--] [x]", NULL},
    {{"-", "x"}, NULL, "[-] [x]", NULL},
    {{"prog", ""}, NULL, "[prog] []", NULL},
    /* variables: command line > PET > default */
    {{"prog"}, "PET_MAX_RESTARTS=4", "restarts=4", NULL},
    {{"--max-restarts=5", "prog"}, "PET_MAX_RESTARTS=4", "restarts=5", NULL},
    {{"prog"}, "PET_MAX_RESTARTS=", "", NULL},
    {{"prog"}, "PET_MODULE=1", "kind=module", NULL},
    {{"prog"}, "PET_MODULE=0", "", NULL},
    {{"--module", "prog"}, "PET_MODULE=0", "kind=module", NULL},
    {{"prog"}, "PET_ROLE=x y;PET_LOG_DIR=/l;PET_TEE=1", "role=x y log_dir=/l tee=1", NULL},
    {{"--log-dir=", "prog"}, "PET_LOG_DIR=/l", "", NULL},
    {{"prog"}, "PET_VERSION=x;PET_HELP=x;PET_BOGUS=x", "", NULL},
    /* ranks and nodes */
    {{"--nproc_per=2", "prog"}, "OMP_NUM_THREADS=4", "ranks=2", NULL},
    {{"--nproc=2", "prog"}, NULL, "ranks=2", "each rank gets OMP_NUM_THREADS=1; choose with --omp-num-threads"},
    {{"--nproc-per-node=2", "--omp-num-threads=3", "prog"}, NULL, "ranks=2 omp=3", NULL},
    {{"--nproc-per-node=2", "--omp-num-threads=auto", "prog"}, NULL, "ranks=2 omp=-1", NULL},
    {{"--nproc-per-node=4096", "--omp=1", "prog"}, NULL, "ranks=4096 omp=1", NULL},
    {{"--nnodes=1:1", "prog"}, NULL, "", NULL},
    {{"--nnodes=2", "--node-rank=1", "--master-addr=a", "prog"},
     NULL,
     "nodes=2:2 at=a:29500 node=1 master=a:29500",
     NULL},
    {{"--nnodes=2", "--master-addr=a", "--master-port=7", "prog"}, NULL, "nodes=2:2 at=a:7 master=a:7", NULL},
    {{"--nnodes=2", "prog"},
     NULL,
     "nodes=2:2 at=127.0.0.1:29500 master=127.0.0.1:29500",
     "2 nodes meet at 127.0.0.1, which is a different machine for each of them"},
    {{"--nnodes=1:3", "--master-addr=a", "prog"},
     NULL,
     "nodes=3:3 at=a:29500 master=a:29500",
     "a static rendezvous waits for all 3"},
    {{"--master-port=7", "prog"}, NULL, "at=127.0.0.1:7 master=127.0.0.1:7", NULL},
    {{"--master-port=0", "prog"}, NULL, "", NULL},
    {{"--master-addr=::1", "prog"}, NULL, "at=::1:0 master=::1:0", NULL},
    {{"--master-addr=[::1]", "prog"}, NULL, "at=::1:0 master=::1:0", NULL},
    {{"--rdzv-endpoint=h:9", "--master-addr=a", "--master-port=7", "prog"}, NULL, "at=h:9 master=h:9", NULL},
    {{"--rdzv-endpoint=h", "--master-port=7", "prog"}, NULL, "at=h:7 master=h:7", NULL},
    {{"--rdzv-endpoint=[fe80::1%eth0]:9", "prog"}, NULL, "at=fe80::1%eth0:9 master=fe80::1%eth0:9", NULL},
    {{"--local-addr=10.0.0.7", "prog"}, NULL, "local_addr=10.0.0.7", NULL},
    {{"--local-addr=[fd00::7]", "prog"}, NULL, "local_addr=fd00::7", NULL},
    /* c10d and standalone */
    {{"--rdzv-backend=c10d", "prog"}, NULL, "c10d at=localhost:0 join=600 master=localhost:0", NULL},
    {{"--rdzv-backend=c10d", "--rdzv-endpoint=h", "--nnodes=2:4", "prog"},
     NULL,
     "nodes=2:4 c10d at=h:29400 join=600 master=h:0",
     NULL},
    {{"--rdzv-backend=c10d", "--rdzv-endpoint=[::1]", "--rdzv-id=j", "prog"},
     NULL,
     "c10d at=::1:29400 id=j join=600 master=::1:0",
     NULL},
    {{"--rdzv-backend=c10d", "--nnodes=2", "prog"},
     NULL,
     "nodes=2:2 c10d at=localhost:29400 join=600 master=localhost:0",
     "2 nodes meet at localhost, which is a different machine for each of them; unless all are on this machine, name "
     "one with --rdzv-endpoint"},
    {{"--rdzv-backend=c10d", "--node-rank=1", "prog"},
     NULL,
     "c10d at=localhost:0 join=600 node=1 master=localhost:0",
     "--node-rank is not used: c10d numbers nodes itself"},
    {{"--rdzv-backend=c10d", "--master-port=1", "prog"},
     NULL,
     "c10d at=localhost:0 join=600 master=localhost:0",
     "--master-port is not used: nodes meet at --rdzv-endpoint"},
    {{"--standalone", "--nnodes=1", "prog"},
     NULL,
     "c10d at=localhost:0 standalone=1 id=random join=600 master=localhost:0",
     NULL},
    {{"--standalone", "--rdzv-endpoint=h:1", "prog"},
     NULL,
     "c10d at=localhost:0 standalone=1 id=random join=600 master=localhost:0",
     "--rdzv-endpoint is not used"},
    {{"prog"},
     "PET_STANDALONE=1;PET_RDZV_ID=x",
     "c10d at=localhost:0 standalone=1 id=random join=600 master=localhost:0",
     "--rdzv-id is not used"},
    {{"--rdzv-conf= join_timeout = 1.5 ,last_call_timeout=2,close_timeout=3,read_timeout=4,is_host=True", "prog"},
     NULL,
     "join=1.5 last_call=2 close=3 read=4 is_host=1",
     NULL},
    {{"--rdzv-conf=is_host=0,timeout=70,store_type=tcp,heartbeat=3,use_libuv=0", "prog"},
     NULL,
     "join=70 is_host=0",
     NULL},
    {{"--rdzv-conf=keep_alive_interval=.5,keep_alive_max_attempt=4", "prog"}, NULL, "alive=0.5x4", NULL},
    {{"--rdzv-conf=", "prog"}, NULL, "", NULL},
    /* faults */
    {{"--monitor-interval=.5", "--shutdown-timeout=1e1", "prog"}, NULL, "monitor=0.5 shutdown=10", NULL},
    {{"prog"}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7", "shutdown=7", NULL},
    {{"prog"}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7;PET_SHUTDOWN_TIMEOUT=8", "shutdown=8", NULL},
    {{"--signals-to-handle=SIGTERM, usr1,SIGUSR2", "prog"}, NULL, "signals=USR1,USR2,TERM", NULL},
    /* output */
    {{"--nproc=3", "--omp=1", "--redirects=0:3,2:1", "prog"}, NULL, "ranks=3 redirects=301 omp=1", NULL},
    {{"--nproc=13", "--omp=1", "-t", "12:2", "prog"}, NULL, "ranks=13 tee=0000000000002 omp=1", NULL},
    {{"-r", "0:1,1:2", "prog"}, NULL, "redirects=1", "--redirects names local rank 1, but there are 1, from 0 to 0"},
    {{"--nproc=3", "--omp=1", "--local-ranks-filter=0,2", "prog"}, NULL, "ranks=3 shown=0,2 omp=1", NULL},
    {{"--local_ranks_filter=", "prog"}, NULL, "", NULL},
    {{"--event-log-handler=null", "--logs-specs=default", "--start-method=forkserver", "prog"}, NULL, "", NULL},
    {{"prog"}, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=$rank", "prefix=$rank", NULL},
    {{"--log-line-prefix-template=x", "prog"}, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=$rank", "prefix=x", NULL},
    {{"--duplicate-stdout-filters=", "prog"}, NULL, "", NULL},
    {{"--virtual-local-rank", "prog"}, NULL, "virtual=1", NULL},
    {{"--virtual-local-rank", "prog"}, "CUDA_VISIBLE_DEVICES=3", "virtual=1", NULL},
    /* the program's kind, and cairn-launch */
    {{"train.py"}, NULL, "kind=python [train.py]", NULL},
    {{"--no-python", "train.py"}, NULL, "[train.py]", NULL},
    {{"--run_path", "--no_python", "--module", "train.py"}, NULL, "kind=run_path [train.py]", NULL},
    {{".py"}, NULL, "[.py]", NULL},
    {{"--use-env", "prog"}, NULL, "", NULL},
    {{"cairn-launch", "prog"}, NULL, "launch=1 local_rank=1", NULL},
    {{"cairn-launch", "--use_env", "--no_python", "prog"}, NULL, "launch=1", NULL},
    {{"cairn-launch", "--use-env", "a.py"}, NULL, "launch=1 kind=python [a.py]", NULL},
    {{"cairn-launch", "prog"}, "PET_USE_ENV=1", "launch=1", NULL},
};

static void every_right_command_line_gives_its_fields(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        struct options o;
        char got[2048], notice[8192];
        bool fine = parse(&o, right[i].words, right[i].variables);
        strcpy(notice, said);
        if (!fine) fail_msg("line %zu: %s", i, said);
        differences(&o, got, sizeof(got));
        if (strcmp(got, right[i].fields) != 0) fail_msg("line %zu: '%s', not '%s'", i, got, right[i].fields);
        bool expected = right[i].notice ? strstr(notice, right[i].notice) != NULL : !*notice;
        if (!expected) fail_msg("line %zu said '%s'", i, notice);
        options_free(&o);
    }
}

static const struct {
    const char *words[MAX_WORDS];
    const char *variables;
    const char *sentence;
} wrong[] = {
    {{NULL}, NULL, "there is no program to run; see cairn-run --help"},
    {{"--", NULL}, NULL, "there is no program to run"},
    {{"--standalone"}, NULL, "there is no program to run"},
    {{"--bogus", "p"}, NULL, "there is no option --bogus; see cairn-run --help"},
    {{"--bogus=1", "p"}, NULL, "there is no option --bogus;"},
    {{"--=1", "p"}, NULL, "there is no option --; see"},
    {{"-x", "p"}, NULL, "there is no option -x; see cairn-run --help"},
    {{"-nproc_per_node=2", "p"}, NULL, "there is no option -nproc_per_node=2; --nproc-per-node has two dashes"},
    {{"--log=1", "p"}, NULL, "--log can be any of --log-dir, --log-line-prefix-template, --logs-specs"},
    {{"--no", "p"}, NULL, "--no can be any of --node-rank, --no-python"},
    {{"--nproc-per-nodes=1", "p"}, NULL, "there is no option --nproc-per-nodes"},
    {{"--standalone=yes", "p"}, NULL, "--standalone takes no value"},
    {{"--role"}, NULL, "--role needs a value"},
    {{"--role", "--tee", "p"}, NULL, "--role needs a value (--name=value for one that begins with a dash)"},
    {{"-t"}, NULL, "--tee needs a value"},
    {{"p"}, "PET_MODULE=yes", "PET_MODULE takes 1 or 0, not 'yes'"},
    {{"p"}, "PET_NNODES=x", "PET_NNODES takes a number of nodes, or MIN:MAX"},
    {{"--nnodes=0", "p"}, NULL, "--nnodes takes a number of nodes"},
    {{"--nnodes=2:1", "p"}, NULL, "not '2:1'"},
    {{"--nnodes=1:2:3", "p"}, NULL, "not '1:2:3'"},
    {{"--nnodes=1:", "p"}, NULL, "not '1:'"},
    {{"--nnodes=", "p"}, NULL, "not ''"},
    {{"--nproc-per-node=0", "p"},
     NULL,
     "--nproc-per-node takes a number from 1 to 4096, `gpu`, `cpu` or `auto`, not '0'"},
    {{"--nproc-per-node", "-1", "p"}, NULL, "not '-1'"},
    {{"--nproc-per-node=2x", "p"}, NULL, "not '2x'"},
    {{"--nproc-per-node= 2", "p"}, NULL, "not ' 2'"},
    {{"--nproc-per-node=4097", "p"}, NULL, "not '4097'"},
    {{"--nproc-per-node=99999999999999999999", "p"}, NULL, "not '99999999999999999999'"},
    {{"--nproc-per-node=gpu", "p"},
     "CUDA_VISIBLE_DEVICES=",
     "--nproc-per-node gpu: there is no usable NVIDIA GPU (CUDA_VISIBLE_DEVICES is set)"},
    {{"--node-rank=1", "p"}, NULL, "--node-rank 1: with 1 node it is a number from 0 to 0; --nnodes sets how many"},
    {{"--node-rank=-1", "p"}, NULL, "--node-rank takes a number from 0"},
    {{"--master-port=65536", "p"}, NULL, "--master-port takes a number from 0 to 65535, not '65536'"},
    {{"--master-addr=a:1", "p"}, NULL, "--master-addr takes a host's name or address without a port"},
    {{"--master-addr=", "p"}, NULL, "--master-addr takes a host's name"},
    {{"--local-addr=a b", "p"}, NULL, "--local-addr takes a host's name or address without a port, not 'a b'"},
    {{"--master-addr=a b", "p"}, NULL, "--master-addr takes a host's name"},
    {{"--nnodes=2", "--master-addr=a", "--master-port=0", "p"},
     NULL,
     "2 nodes cannot meet at a port that node 0 chooses; name one with --master-port"},
    {{"--rdzv-backend=etcd-v2", "p"}, NULL, "--rdzv-backend etcd-v2: cairn-run has no etcd; use c10d"},
    {{"--rdzv-backend=mpi", "p"}, NULL, "--rdzv-backend takes static or c10d, not 'mpi'"},
    {{"--rdzv-endpoint=::1:3", "p"}, NULL, "--rdzv-endpoint takes HOST:PORT, an IPv6 address as [ADDRESS]:PORT"},
    {{"--rdzv-endpoint=h:x", "p"}, NULL, "not 'h:x'"},
    {{"--rdzv-endpoint=h:", "p"}, NULL, "not 'h:'"},
    {{"--rdzv-endpoint=[::1", "p"}, NULL, "not '[::1'"},
    {{"--rdzv-endpoint=[::1]x", "p"}, NULL, "not '[::1]x'"},
    {{"--rdzv-endpoint=:7", "p"}, NULL, "not ':7'"},
    {{"--rdzv-backend=c10d", "--rdzv-endpoint=h:0", "--nnodes=2", "p"},
     NULL,
     "cannot meet at a port that node 0 chooses; name one with --rdzv-endpoint HOST:PORT"},
    {{"--standalone", "--nnodes=2", "p"}, NULL, "--standalone is for one node, but --nnodes says 2"},
    {{"--rdzv-id=", "p"}, NULL, "--rdzv-id takes a name of the job"},
    {{"--rdzv-conf=join_timeout", "p"}, NULL, "--rdzv-conf takes key=value,key=value"},
    {{"--rdzv-conf==3", "p"}, NULL, "--rdzv-conf takes key=value"},
    {{"--rdzv-conf=a=1,,b=2", "p"}, NULL, "--rdzv-conf has no a; it takes join_timeout"},
    {{"--rdzv-conf=join_timeout=soon", "p"},
     NULL,
     "--rdzv-conf join_timeout takes a number that is at least 0, not 'soon'"},
    {{"--rdzv-conf=timeout=", "p"}, NULL, "--rdzv-conf takes key=value"},
    {{"--rdzv-conf=timeout=x", "p"}, NULL, "--rdzv-conf timeout takes a number of seconds, not 'x'"},
    {{"--rdzv-conf=keep_alive_interval=0", "p"},
     NULL,
     "keep_alive_interval takes a number that is at least 0.01, not '0'"},
    {{"--rdzv-conf=is_host=maybe", "p"}, NULL, "--rdzv-conf is_host takes true or false, not 'maybe'"},
    {{"--rdzv-conf=store_type=file", "p"}, NULL, "meet in a TCP store"},
    {{"--max-restarts=-1", "p"}, NULL, "--max-restarts takes a number of restarts, not '-1'"},
    {{"--monitor-interval=nan", "p"}, NULL, "--monitor-interval takes a number of seconds, not 'nan'"},
    {{"--shutdown-timeout=0x10", "p"}, NULL, "--shutdown-timeout takes a number of seconds, not '0x10'"},
    {{"--shutdown-timeout=1,5", "p"}, NULL, "number of seconds, not '1,5'"},
    {{"--shutdown-timeout=-1", "p"}, NULL, "number of seconds, not '-1'"},
    {{"p"}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT takes a number of seconds, not 'x'"},
    {{"--signals-to-handle=SIGKILL", "p"}, NULL, "--signals-to-handle takes names of signals"},
    {{"--signals-to-handle=", "p"}, NULL, "names of signals"},
    {{"--signals-to-handle=SIGTERM,NONE", "p"}, NULL, "names of signals"},
    {{"--omp-num-threads=0", "p"}, NULL, "--omp-num-threads takes a number from 1 to 4096, or `auto`"},
    {{"--start-method=thread", "p"}, NULL, "--start-method takes spawn, fork or forkserver"},
    {{"--numa-binding=node", "p"}, NULL, "numactl --cpunodebind=N"},
    {{"-r", "4", "p"}, NULL, "--redirects takes 0 (nothing), 1 (stdout), 2 (stderr), 3 (both), or RANK:0..3"},
    {{"-t", "0:1,", "p"}, NULL, "--tee takes"},
    {{"-t", "0:1,x:1", "p"}, NULL, "--tee takes"},
    {{"-t", "0:1:1", "p"}, NULL, "--tee takes"},
    {{"--local-ranks-filter=0,x", "p"}, NULL, "--local-ranks-filter takes local ranks such as 0,2"},
    {{"--event-log-handler=console", "p"}, NULL, "--event-log-handler console: handlers are Python code"},
    {{"--logs-specs=mine", "p"}, NULL, "--logs-specs mine: these are Python code"},
    {{"--duplicate-stderr-filters=a", "p"}, NULL, "--duplicate-stderr-filters a: cairn-run does not filter lines"},
    {{"--virtual-local-rank", "--nproc=3", "p"},
     "CUDA_VISIBLE_DEVICES=3,4",
     "--virtual-local-rank gives each of 3 ranks a GPU, but CUDA_VISIBLE_DEVICES is '3,4'"},
    {{"--no-python", "-m", "p"}, NULL, "--no-python and --module contradict each other"},
    {{"cairn-launch", "--no_python", "p"}, NULL, "cairn-launch --no-python needs --use-env too"},
};

static void every_wrong_command_line_is_refused_with_a_message(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct options o;
        if (parse(&o, wrong[i].words, wrong[i].variables)) fail_msg("line %zu was taken", i);
        bool one_line = strncmp(said, "cairn-run: ", 11) == 0 && strchr(said, '\n') == said + strlen(said) - 1;
        if (!one_line || !strstr(said, wrong[i].sentence)) fail_msg("line %zu said '%s'", i, said);
        options_free(&o);
    }
}

static void standalone_jobs_have_different_ids(void **state) {
    (void)state;
    struct options a, b;
    assert_true(parse(&a, (const char *const[]){"--standalone", "p", NULL}, NULL));
    assert_true(parse(&b, (const char *const[]){"--standalone", "p", NULL}, NULL));
    assert_string_not_equal(a.run_id, b.run_id);
    options_free(&a);
    options_free(&b);
}

static void cpu_and_auto_count_processors_and_gpus(void **state) {
    (void)state;
    struct options o;
    assert_true(parse(&o, (const char *const[]){"--nproc-per-node=cpu", "--omp=1", "p", NULL}, NULL));
    assert_int_equal(o.ranks, count_processors());
    options_free(&o);
    assert_true(
        parse(&o, (const char *const[]){"--nproc-per-node=auto", "--omp=1", "p", NULL}, "CUDA_VISIBLE_DEVICES="));
    assert_int_equal(o.ranks, count_processors());
    options_free(&o);
}

/* ---- GPUs, on machines made of files ---- */

static void make_file(const char *root, const char *path) {
    char *full = format_text("%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    int fd = open(full, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    free(full);
}

static void remove_root(const char *root) {
    char *command = format_text("rm -r '%s'", root);
    assert_int_equal(system(command), 0);
    free(command);
}

static void gpus_are_counted_as_cuda_would_see_them(void **state) {
    (void)state;
    char machine[] = "/tmp/cairn_gpus_XXXXXX", host[] = "/tmp/cairn_gpus_XXXXXX", none[] = "/tmp/cairn_gpus_XXXXXX";
    assert_true(mkdtemp(machine) && mkdtemp(host) && mkdtemp(none));
    static const char *const files[] = {"/dev/nvidia0",   "/dev/nvidia1",    "/dev/nvidia2",
                                        "/dev/nvidiactl", "/dev/nvidia-uvm", "/proc/driver/nvidia/gpus/0000:01:00.0"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) make_file(machine, files[i]);
    make_file(host, "/proc/driver/nvidia/gpus/0000:01:00.0");
    make_file(host, "/proc/driver/nvidia/gpus/0000:02:00.0");
    const struct {
        const char *root, *visible;
        int gpus;
    } cases[] = {{machine, NULL, 3},
                 {machine, "", 0},
                 {machine, "1", 1},
                 {machine, "2,0", 2},
                 {machine, "0, 1", 2},
                 {machine, "0,3,1", 1},
                 {machine, "-1", 0},
                 {machine, "0,-1,1", 1},
                 {machine, "NoDevFiles", 0},
                 {machine, "GPU-8932f937,MIG-1/2/3", 2},
                 {host, NULL, 2},
                 {host, "0", 1},
                 {none, NULL, 0},
                 {none, "0,1", 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(count_gpus(cases[i].root, cases[i].visible), cases[i].gpus);
    }
    remove_root(machine);
    remove_root(host);
    remove_root(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_right_command_line_gives_its_fields),
        cmocka_unit_test(every_wrong_command_line_is_refused_with_a_message),
        cmocka_unit_test(standalone_jobs_have_different_ids),
        cmocka_unit_test(cpu_and_auto_count_processors_and_gpus),
        cmocka_unit_test(gpus_are_counted_as_cuda_would_see_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
