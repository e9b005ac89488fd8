/* Options are rows of one table. A row's text comes from the command line, else from PET_<NAME>, else from the row;
 * its `set` parses the text; settle() then checks options against each other. Source: pytorch
 * torch/distributed/run.py and argparse_util.py (1.13 to 2.15), Python's argparse. */
#include "options.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cairn/version.h"
#include "text.h"
#include "values.h"

enum {
    MAX_THREADS = 4096,
    MAX_NODES = 65536,
    STATIC_PORT = 29500, /* torch's */
    C10D_PORT = 29400,
    STATIC_JOIN_TIMEOUT = 900,
    C10D_JOIN_TIMEOUT = 600,
};

enum option_id {
    NNODES,
    NPROC_PER_NODE,
    NODE_RANK,
    MASTER_ADDR,
    MASTER_PORT,
    STANDALONE,
    RDZV_BACKEND,
    RDZV_ENDPOINT,
    RDZV_ID,
    RDZV_CONF,
    LOCAL_ADDR,
    SECRET_FILE,
    SECRET_FD,
    NEW_SECRET,
    INSECURE,
    TORCH_STORE,
    NO_PYTHON,
    MODULE,
    RUN_PATH,
    USE_ENV,
    ROLE,
    OMP_NUM_THREADS,
    START_METHOD,
    NUMA_BINDING,
    VIRTUAL_LOCAL_RANK,
    MAX_RESTARTS,
    MONITOR_INTERVAL,
    SHUTDOWN_TIMEOUT,
    SIGNALS_TO_HANDLE,
    LOG_DIR,
    REDIRECTS,
    TEE,
    LOCAL_RANKS_FILTER,
    LOG_LINE_PREFIX_TEMPLATE,
    DUPLICATE_STDOUT_FILTERS,
    DUPLICATE_STDERR_FILTERS,
    EVENT_LOG_HANDLER,
    LOGS_SPECS,
    VERSION,
    HELP,
    OPTIONS
};

/* The text given for one option. */
struct given {
    const char *text; /* NULL = none; "" = a flag that is on */
    bool by_variable;
};

/* State while texts are parsed into struct options. */
struct reading {
    struct options *o;
    struct given given[OPTIONS];
    char *host; /* from the endpoint or the master's address */
    int port;   /* -1 = none given */
    double timeout;
};

static const struct row {
    const char *name;  /* with dashes; underscores match too */
    const char *value; /* its name in --help; NULL = a flag */
    char letter;
    const char *fallback; /* NULL = not set */
    bool (*set)(struct reading *r, enum option_id id, const char *text);
    const char *head; /* heading in --help before this option */
    const char *help;
} rows[OPTIONS];

static bool is_given(const struct reading *r, enum option_id id) {
    return r->given[id].text != NULL;
}

/* "nproc-per-node" becomes "PET_NPROC_PER_NODE". */
static void variable_name(enum option_id id, char name[64]) {
    snprintf(name, 64, "PET_%s", rows[id].name);
    for (char *c = name; *c; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

/* Prints what an option takes, under the name by which it was given. */
static bool refuse(const struct reading *r, enum option_id id, const char *takes) {
    char variable[64];
    variable_name(id, variable);
    bool by_variable = r->given[id].by_variable;
    say("%s%s takes %s, not '%s'", by_variable ? "" : "--", by_variable ? variable : rows[id].name, takes,
        is_given(r, id) ? r->given[id].text : rows[id].fallback);
    return false;
}

/* ---- what each option sets ---- */

static bool set_nodes(struct reading *r, enum option_id id, const char *text) {
    if (read_range(text, MAX_NODES, &r->o->min_nodes, &r->o->max_nodes)) return true;
    return refuse(r, id, "a number of nodes, or MIN:MAX with 1 <= MIN <= MAX <= 65536");
}

static bool set_ranks(struct reading *r, enum option_id id, const char *text) {
    bool gpu = strcmp(text, "gpu") == 0, automatic = strcmp(text, "auto") == 0;
    int ranks = gpu || automatic ? count_gpus("", getenv("CUDA_VISIBLE_DEVICES")) : 0;
    if (gpu && ranks == 0) {
        say("--nproc-per-node gpu: there is no usable NVIDIA GPU%s",
            getenv("CUDA_VISIBLE_DEVICES") ? " (CUDA_VISIBLE_DEVICES is set)" : "");
        return false;
    }
    if (strcmp(text, "cpu") == 0 || (automatic && ranks == 0)) ranks = count_processors();
    if (ranks == 0 && !read_whole(text, 1, OPTIONS_MAX_RANKS, &ranks)) {
        return refuse(r, id, "a number from 1 to 4096, `gpu`, `cpu` or `auto`");
    }
    r->o->ranks = ranks < OPTIONS_MAX_RANKS ? ranks : OPTIONS_MAX_RANKS;
    return true;
}

static bool set_node_rank(struct reading *r, enum option_id id, const char *text) {
    return read_whole(text, 0, MAX_NODES - 1, &r->o->node_rank) || refuse(r, id, "a number from 0 to 65535");
}

static bool set_host(const struct reading *r, enum option_id id, const char *text, char **host) {
    int port = -1;
    bool bare = text[0] != '[' && strchr(text, ':') != strrchr(text, ':'); /* an IPv6 address */
    char *bracketed = bare ? format_text("[%s]", text) : must(strdup(text));
    bool fine = read_endpoint(bracketed, host, &port);
    free(bracketed);
    return (fine && port < 0) || refuse(r, id, "a host's name or address without a port");
}

/* Set before the endpoint, whose host and port override these. */
static bool set_master_addr(struct reading *r, enum option_id id, const char *text) {
    return set_host(r, id, text, &r->host);
}

static bool set_master_port(struct reading *r, enum option_id id, const char *text) {
    return read_whole(text, 0, 65535, &r->port) || refuse(r, id, "a number from 0 to 65535");
}

static bool set_backend(struct reading *r, enum option_id id, const char *text) {
    if (strncmp(text, "etcd", 4) == 0) {
        say("--rdzv-backend %s: cairn-run has no etcd; use c10d, which needs no server besides cairn-run", text);
        return false;
    }
    bool c10d = strcmp(text, "c10d") == 0;
    r->o->backend = c10d ? RENDEZVOUS_C10D : RENDEZVOUS_STATIC;
    return c10d || strcmp(text, "static") == 0 || refuse(r, id, "static or c10d");
}

static bool set_run_id(struct reading *r, enum option_id id, const char *text) {
    r->o->run_id = must(strdup(text));
    return *text || refuse(r, id, "a name of the job");
}

static bool set_local_addr(struct reading *r, enum option_id id, const char *text) {
    return !*text || set_host(r, id, text, &r->o->local_addr);
}

static bool set_secret_file(struct reading *r, enum option_id id, const char *text) {
    (void)id;
    r->o->secret_file = text;
    return true;
}

static bool set_secret_fd(struct reading *r, enum option_id id, const char *text) {
    return read_whole(text, 0, 1 << 20, &r->o->secret_fd) || refuse(r, id, "a descriptor's number");
}

static bool set_new_secret(struct reading *r, enum option_id id, const char *text) {
    (void)id;
    r->o->new_secret = text;
    return true;
}

static bool set_torch_store(struct reading *r, enum option_id id, const char *text) {
    r->o->has_guests = strcmp(text, "on") == 0;
    return r->o->has_guests || strcmp(text, "off") == 0 || refuse(r, id, "on or off");
}

static bool set_role(struct reading *r, enum option_id id, const char *text) {
    (void)id;
    r->o->role = text;
    return true;
}

static bool set_omp_threads(struct reading *r, enum option_id id, const char *text) {
    r->o->omp_threads = OMP_CORES_PER_RANK;
    if (strcmp(text, "auto") == 0) return true;
    return read_whole(text, 1, MAX_THREADS, &r->o->omp_threads) || refuse(r, id, "a number from 1 to 4096, or `auto`");
}

/* How torch starts Python functions; cairn-run starts none. */
static bool set_start_method(struct reading *r, enum option_id id, const char *text) {
    bool known = strcmp(text, "spawn") == 0 || strcmp(text, "fork") == 0 || strcmp(text, "forkserver") == 0;
    return known || refuse(r, id, "spawn, fork or forkserver");
}

static bool set_numa_binding(struct reading *r, enum option_id id, const char *text) {
    (void)r;
    (void)id;
    say("--numa-binding %s: cairn-run binds no rank; let it start `numactl --cpunodebind=N --membind=N program`", text);
    return false;
}

static bool set_max_restarts(struct reading *r, enum option_id id, const char *text) {
    return read_whole(text, 0, 1000000, &r->o->max_restarts) || refuse(r, id, "a number of restarts");
}

static bool set_monitor_interval(struct reading *r, enum option_id id, const char *text) {
    return read_seconds(text, &r->o->monitor_interval) || refuse(r, id, "a number of seconds");
}

static bool set_shutdown_timeout(struct reading *r, enum option_id id, const char *text) {
    return read_seconds(text, &r->o->shutdown_timeout) || refuse(r, id, "a number of seconds");
}

static bool set_signals(struct reading *r, enum option_id id, const char *text) {
    r->o->signal_names = text;
    return read_signals(text, &r->o->signals) ||
           refuse(r, id, "names of signals such as SIGTERM,SIGUSR1, without SIGKILL, SIGSTOP and SIGCHLD");
}

static bool set_log_dir(struct reading *r, enum option_id id, const char *text) {
    (void)id;
    r->o->log_dir = *text ? text : NULL;
    return true;
}

static bool notice_beyond(const struct reading *r, enum option_id id, int beyond) {
    if (beyond >= 0) {
        say("--%s names local rank %d, but there are %d, from 0 to %d; that part is ignored", rows[id].name, beyond,
            r->o->ranks, r->o->ranks - 1);
    }
    return true;
}

static bool set_streams(struct reading *r, enum option_id id, const char *text) {
    unsigned char *streams = must(calloc((size_t)r->o->ranks, 1));
    int beyond = -1;
    *(id == TEE ? &r->o->tee : &r->o->redirects) = streams;
    if (read_streams(text, streams, r->o->ranks, &beyond)) return notice_beyond(r, id, beyond);
    return refuse(r, id, "0 (nothing), 1 (stdout), 2 (stderr), 3 (both), or RANK:0..3,RANK:0..3,...");
}

static bool set_filter(struct reading *r, enum option_id id, const char *text) {
    bool *shown = must(calloc((size_t)r->o->ranks, sizeof(*shown)));
    int beyond = -1;
    r->o->shown = shown;
    if (!*text) memset(shown, true, (size_t)r->o->ranks * sizeof(*shown));
    if (read_rank_list(text, shown, r->o->ranks, &beyond)) return notice_beyond(r, id, beyond);
    return refuse(r, id, "local ranks such as 0,2");
}

static bool set_line_prefix(struct reading *r, enum option_id id, const char *text) {
    const char *variable = getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    (void)id;
    r->o->line_prefix = "[${role_name}${local_rank}]:";
    if (variable && *variable) r->o->line_prefix = variable;
    if (*text) r->o->line_prefix = text;
    return true;
}

static bool set_duplicate_filters(struct reading *r, enum option_id id, const char *text) {
    (void)r;
    if (!*text) return true;
    say("--%s %s: cairn-run does not filter lines; use grep on what -r and -t write", rows[id].name, text);
    return false;
}

static bool set_event_log_handler(struct reading *r, enum option_id id, const char *text) {
    (void)r;
    (void)id;
    if (!*text || strcmp(text, "null") == 0) return true;
    say("--event-log-handler %s: handlers are Python code, which cairn-run does not load; leave out the option", text);
    return false;
}

static bool set_logs_specs(struct reading *r, enum option_id id, const char *text) {
    (void)r;
    (void)id;
    if (!*text || strcmp(text, "default") == 0) return true;
    say("--logs-specs %s: these are Python code, which cairn-run does not load; use --log-dir, -r and -t", text);
    return false;
}

/* ---- --rdzv-conf ---- */

static bool set_conf_is_host(struct reading *r, const char *text) {
    static const char *const words[] = {"0", "1", "false", "true", "f", "t", "no", "yes", "n", "y"};
    for (int i = 0; i < (int)(sizeof(words) / sizeof(words[0])); i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        r->o->is_host = i % 2;
        return true;
    }
    say("--rdzv-conf is_host takes true or false, not '%s'", text);
    return false;
}

/* The name in 1.13's static rendezvous. */
static bool set_conf_timeout(struct reading *r, const char *text) {
    if (read_seconds(text, &r->timeout)) return true;
    say("--rdzv-conf timeout takes a number of seconds, not '%s'", text);
    return false;
}

static bool set_conf_store_type(struct reading *r, const char *text) {
    (void)r;
    if (strcmp(text, "tcp") == 0) return true;
    say("--rdzv-conf store_type=%s: cairn-run's nodes meet in a TCP store; leave store_type out", text);
    return false;
}

static bool set_nothing(struct reading *r, const char *text) {
    (void)r;
    (void)text;
    return true;
}

/* torch's keys: seconds for a field, or a function that parses the text. */
static const struct {
    const char *key;
    size_t field; /* of struct options, if there is no function */
    bool (*set)(struct reading *r, const char *text);
    double least;
} conf_keys[] = {
    {"join_timeout", offsetof(struct options, join_timeout), NULL, 0},
    {"last_call_timeout", offsetof(struct options, last_call_timeout), NULL, 0},
    {"close_timeout", offsetof(struct options, close_timeout), NULL, 0},
    {"read_timeout", offsetof(struct options, read_timeout), NULL, 0},
    {"keep_alive_interval", offsetof(struct options, keep_alive_interval), NULL, 0.01},
    {"keep_alive_max_attempt", offsetof(struct options, keep_alive_attempts), NULL, 1},
    {"is_host", 0, set_conf_is_host, 0},
    {"timeout", 0, set_conf_timeout, 0},
    {"store_type", 0, set_conf_store_type, 0},
    {"heartbeat", 0, set_nothing, 0},
    {"use_libuv", 0, set_nothing, 0},
    {"rank", 0, set_nothing, 0},
};

static bool set_conf(struct reading *r, const char *key, const char *text) {
    size_t i = 0, n = sizeof(conf_keys) / sizeof(conf_keys[0]);
    while (i < n && strcmp(conf_keys[i].key, key) != 0) i++;
    if (i == n) {
        say("--rdzv-conf has no %s; it takes join_timeout, timeout, last_call_timeout, close_timeout, read_timeout, "
            "keep_alive_interval, keep_alive_max_attempt, is_host",
            key);
        return false;
    }
    if (conf_keys[i].set) return conf_keys[i].set(r, text);
    double value;
    if (read_seconds(text, &value) && value >= conf_keys[i].least) {
        memcpy((char *)r->o + conf_keys[i].field, &value, sizeof(value));
        return true;
    }
    say("--rdzv-conf %s takes a number that is at least %g, not '%s'", key, conf_keys[i].least, text);
    return false;
}

static char *trim(char *text) {
    while (isspace((unsigned char)*text)) text++;
    for (size_t n = strlen(text); n > 0 && isspace((unsigned char)text[n - 1]); n--) text[n - 1] = '\0';
    return text;
}

static bool set_rdzv_conf(struct reading *r, enum option_id id, const char *text) {
    char *copy = must(strdup(text)), *rest = trim(copy);
    bool fine = true;
    while (fine && rest && *rest) {
        char *value = strsep(&rest, ","), *key = strsep(&value, "=");
        key = trim(key);
        value = value ? trim(value) : key + strlen(key);
        fine = *key && *value ? set_conf(r, key, value) : refuse(r, id, "key=value,key=value,...");
    }
    free(copy);
    return fine;
}

/* ---- the table ---- */

/* clang-format off */
static const struct row rows[OPTIONS] = {
    [NPROC_PER_NODE] = {"nproc-per-node", "N", 0, "1", set_ranks, NULL,
        "ranks to start here (1); cpu, gpu, auto: one for each processor, GPU, GPU else processor"},
    [NNODES] = {"nnodes", "N|MIN:MAX", 0, "1", set_nodes, "Ranks and nodes",
        "nodes (1), each with a cairn-run of its own"},
    [NODE_RANK] = {"node-rank", "N", 0, "0", set_node_rank, NULL, "number of this node (0), static only"},
    [MASTER_ADDR] = {"master-addr", "HOST", 0, "127.0.0.1", set_master_addr, NULL,
        "host of node 0 (127.0.0.1), static only"},
    [MASTER_PORT] = {"master-port", "PORT", 0, NULL, set_master_port, NULL,
        "port of the store on node 0 (29500; a free one where there is one node), static only"},
    [STANDALONE] = {"standalone", NULL, 0, NULL, NULL, NULL, "one node, a free port, a random job id"},
    [RDZV_BACKEND] = {"rdzv-backend", "NAME", 0, "static", set_backend, NULL,
        "static (default): node 0 hosts the store; c10d: the endpoint's host, nodes come and go"},
    [RDZV_ENDPOINT] = {"rdzv-endpoint", "HOST[:PORT]", 0, "", NULL, NULL,
        "where nodes meet (static: --master-addr:--master-port; c10d: localhost:29400)"},
    [RDZV_ID] = {"rdzv-id", "NAME", 0, "none", set_run_id, NULL, "name of the job (none)"},
    [RDZV_CONF] = {"rdzv-conf", "K=V,...", 0, "", set_rdzv_conf, NULL,
        "seconds of join_timeout, last_call_timeout, close_timeout, keep_alive_interval; is_host"},
    [LOCAL_ADDR] = {"local-addr", "HOST", 0, NULL, set_local_addr, NULL,
        "address of this node for the other nodes (detected)"},
    [SECRET_FILE] = {"secret-file", "FILE", 0, NULL, set_secret_file, "Who may join",
        "the job's secret, the same on all nodes, mode 0600 (CAIRN_JOB_SECRET_FILE)"},
    [SECRET_FD] = {"secret-fd", "N", 0, NULL, set_secret_fd, NULL,
        "read it from this descriptor instead, which cairn-run inherits"},
    [NEW_SECRET] = {"new-secret", "FILE", 0, NULL, set_new_secret, NULL, "make FILE with a random secret, and end"},
    [INSECURE] = {"insecure", NULL, 0, NULL, NULL, NULL,
        "without a secret: trust whoever reaches the store's port (CAIRN_INSECURE=1)"},
    [TORCH_STORE] = {"torch-store", "on|off", 0, NULL, set_torch_store, NULL,
        "whether torch's ranks on other nodes, who have no proof, use the store (on for Python)"},
    [NO_PYTHON] = {"no-python", NULL, 0, NULL, NULL, "The program", "run it directly, whatever its name"},
    [MODULE] = {"module", NULL, 'm', NULL, NULL, NULL, "the program is a Python module: python -u -m program"},
    [RUN_PATH] = {"run-path", NULL, 0, NULL, NULL, NULL, "the program is run by Python's runpy.run_path"},
    [USE_ENV] = {"use-env", NULL, 0, NULL, NULL, NULL,
        "cairn-launch: do not pass --local_rank=N; ranks have LOCAL_RANK"},
    [ROLE] = {"role", "NAME", 0, "default", set_role, NULL,
        "what ranks are called in logs and in ROLE_NAME (default)"},
    [OMP_NUM_THREADS] = {"omp-num-threads", "N|auto", 0, NULL, set_omp_threads, NULL,
        "OMP_NUM_THREADS of ranks (yours, else 1 where ranks > 1); auto: processors / ranks"},
    [START_METHOD] = {"start-method", "NAME", 0, "spawn", set_start_method, NULL,
        "accepted, without effect on programs"},
    [NUMA_BINDING] = {"numa-binding", "HOW", 0, NULL, set_numa_binding, NULL, "refused: use numactl"},
    [VIRTUAL_LOCAL_RANK] = {"virtual-local-rank", NULL, 0, NULL, NULL, NULL,
        "each rank sees its own GPU alone: LOCAL_RANK=0, CUDA_VISIBLE_DEVICES of one"},
    [MAX_RESTARTS] = {"max-restarts", "N", 0, "0", set_max_restarts, "When ranks fail",
        "times to start all ranks again (0)"},
    [MONITOR_INTERVAL] = {"monitor-interval", "S", 0, "0.1", set_monitor_interval, NULL,
        "seconds between looks at the other nodes (0.1)"},
    [SHUTDOWN_TIMEOUT] = {"shutdown-timeout", "S", 0, "30", set_shutdown_timeout, NULL,
        "seconds between a stop and SIGKILL (TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)"},
    [SIGNALS_TO_HANDLE] = {"signals-to-handle", "A,B", 0, "SIGTERM,SIGINT,SIGHUP,SIGQUIT", set_signals, NULL,
        "signals to forward before ending (SIGTERM,SIGINT,SIGHUP,SIGQUIT)"},
    [LOG_DIR] = {"log-dir", "DIR", 0, NULL, set_log_dir, "Output",
        "files go below DIR/ID_xxxxxx/attempt_N/LOCAL_RANK (below TMPDIR); /dev/null: none"},
    [REDIRECTS] = {"redirects", "MAP", 'r', "0", set_streams, NULL,
        "into files: 0 nothing, 1 stdout, 2 stderr, 3 both; for all ranks, or RANK:N,RANK:N,..."},
    [TEE] = {"tee", "MAP", 't', "0", set_streams, NULL, "into files, and here with each line's rank before it"},
    [LOCAL_RANKS_FILTER] = {"local-ranks-filter", "A,B", 0, "", set_filter, NULL,
        "show only these ranks' output here"},
    [LOG_LINE_PREFIX_TEMPLATE] = {"log-line-prefix-template", "T", 0, "", set_line_prefix, NULL,
        "what --tee puts before lines, with ${role_name}, ${rank}, ${local_rank}, ${hostname}"},
    [DUPLICATE_STDOUT_FILTERS] = {"duplicate-stdout-filters", "A,B", 0, "", set_duplicate_filters, NULL,
        "refused: use grep"},
    [DUPLICATE_STDERR_FILTERS] = {"duplicate-stderr-filters", "A,B", 0, "", set_duplicate_filters, NULL,
        "refused: use grep"},
    [EVENT_LOG_HANDLER] = {"event-log-handler", "NAME", 0, "null", set_event_log_handler, NULL, "null only"},
    [LOGS_SPECS] = {"logs-specs", "NAME", 0, "default", set_logs_specs, NULL, "default only"},
    [VERSION] = {"version", NULL, 0, NULL, NULL, "Else", "what this is"},
    [HELP] = {"help", NULL, 'h', NULL, NULL, NULL, "this"},
};
/* clang-format on */

/* ---- --help ---- */

static const char before_help[] =
    "usage: cairn-run [options] program [arguments]\n"
    "       cairn-launch [options] program [arguments]\n"
    "\n"
    "Starts program once per rank on this node, hosts or finds the store where the ranks meet, forwards signals, and\n"
    "ends all ranks when one fails. Takes the place of torchrun and, as cairn-launch, of torch.distributed.launch.\n"
    "A program whose name ends in .py is run with `$PYTHON_EXEC -u` (python3 -u); anything else is run directly, "
    "where\n"
    "torchrun would need --no-python.\n";

static const char after_help[] =
    "\n"
    "Options take dashes or underscores and may be cut short where that is unambiguous; values follow as\n"
    "--name=value or --name value. PET_<NAME> in the environment (PET_NPROC_PER_NODE=2, PET_STANDALONE=1) sets an\n"
    "option that is not on the command line.\n"
    "${local_rank} in an argument of program becomes the rank's number on its node, $$ becomes $.\n"
    "Local rank 0 reads cairn-run's standard input unless it is a terminal; the other ranks read /dev/null.\n"
    "Ctrl-C stops the ranks, a second one without waiting for them to end.\n"
    "Exit code: 0; the code of the rank that failed first, 128 + its signal if one killed it; 126 or 127 where the\n"
    "program could not be started; 2 for a wrong option; 128 + the signal that stopped cairn-run; 1 otherwise.\n";

static void print_row(const struct row *row) {
    char left[64], letter[8] = "";
    if (row->letter) snprintf(letter, sizeof(letter), "-%c, ", row->letter);
    snprintf(left, sizeof(left), "%s--%s %s", letter, row->name, row->value ? row->value : "");
    if (row->head) printf("\n%s\n", row->head);
    printf("  %-28s  %s\n", left, row->help);
}

static void print_help(void) {
    fputs(before_help, stdout);
    for (int id = 0; id < OPTIONS; id++) print_row(&rows[id]);
    fputs(after_help, stdout);
}

/* ---- the command line and the environment ---- */

static bool same_beginning(const char *name, const char *given, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (name[i] != given[i] && !(name[i] == '-' && given[i] == '_')) return false;
    }
    return true;
}

/* Lists the options that begin with the n bytes at given: "--log-dir, --logs-specs". */
static char *list_candidates(const char *given, size_t n) {
    char *list = must(strdup(""));
    for (int id = 0; id < OPTIONS; id++) {
        if (!same_beginning(rows[id].name, given, n)) continue;
        char *longer = format_text("%s%s--%s", list, *list ? ", " : "", rows[id].name);
        free(list);
        list = longer;
    }
    return list;
}

/* Finds the option that the n bytes at given name, or abbreviate uniquely; OPTIONS = none, after a message. */
static enum option_id find_long(const char *given, size_t n) {
    int found = 0;
    enum option_id match = OPTIONS;
    for (int id = 0; id < OPTIONS; id++) {
        if (!same_beginning(rows[id].name, given, n)) continue;
        if (!rows[id].name[n]) return (enum option_id)id;
        match = (enum option_id)id;
        found++;
    }
    if (n == 0) found = 0;
    if (found == 1) return match;
    char *candidates = list_candidates(given, n);
    if (found) say("--%.*s can be any of %s", (int)n, given, candidates);
    if (!found) say("there is no option --%.*s; see cairn-run --help", (int)n, given);
    free(candidates);
    return OPTIONS;
}

static enum option_id find_letter(char letter, const char *word) {
    for (int id = 0; id < OPTIONS; id++) {
        if (rows[id].letter == letter) return (enum option_id)id;
    }
    size_t n = strcspn(word + 1, "=");
    for (int id = 0; id < OPTIONS; id++) {
        if (n < 2 || !same_beginning(rows[id].name, word + 1, n)) continue;
        say("there is no option %s; --%s has two dashes", word, rows[id].name);
        return OPTIONS;
    }
    say("there is no option %s; see cairn-run --help", word);
    return OPTIONS;
}

/* As argparse: a word that begins with a dash is a value if it is a number or only a dash. */
static bool is_value(const char *word) {
    return word && (word[0] != '-' || !word[1] || isdigit((unsigned char)word[1]) || word[1] == '.');
}

static void set_flag(struct reading *r, enum option_id id) {
    r->given[id] = (struct given){"", false};
    if (id == HELP) print_help();
    if (id == VERSION) printf("cairn-run %d.%d.%d\n", CAIRN_VERSION_MAJOR, CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH);
    if (id == HELP || id == VERSION) exit(fflush(stdout) != 0 || ferror(stdout));
}

/* Takes text, or else the next word, as the option's value. */
static bool take_value(struct reading *r, enum option_id id, const char *text, char **argv, int *i) {
    if (!text && is_value(argv[*i])) text = argv[(*i)++];
    if (!text) {
        say("--%s needs a value%s", rows[id].name, argv[*i] ? " (--name=value for one that begins with a dash)" : "");
        return false;
    }
    r->given[id] = (struct given){text, false};
    return true;
}

static bool take_long(struct reading *r, char **argv, int *i) {
    const char *name = argv[(*i)++] + 2;
    size_t n = strcspn(name, "=");
    const char *text = name[n] ? name + n + 1 : NULL;
    enum option_id id = find_long(name, n);
    if (id == OPTIONS) return false;
    if (rows[id].value) return take_value(r, id, text, argv, i);
    if (text) say("--%s takes no value", rows[id].name);
    if (!text) set_flag(r, id);
    return !text;
}

/* -m, -r3, -r=3, -r 3, -mr3. */
static bool take_letters(struct reading *r, char **argv, int *i) {
    const char *word = argv[(*i)++];
    for (const char *c = word + 1; *c; c++) {
        enum option_id id = find_letter(*c, word);
        if (id == OPTIONS) return false;
        if (rows[id].value) return take_value(r, id, c[1] ? c + 1 + (c[1] == '=') : NULL, argv, i);
        set_flag(r, id);
    }
    return true;
}

/* Everything from the first word that is not an option belongs to the program. */
static bool read_line(struct reading *r, char **argv) {
    int i = argv[0] ? 1 : 0;
    while (argv[i] && argv[i][0] == '-' && argv[i][1]) {
        bool two = argv[i][1] == '-';
        if (two && !argv[i][2]) {
            i++;
            break;
        }
        if (!(two ? take_long(r, argv, &i) : take_letters(r, argv, &i))) return false;
    }
    r->o->program = argv + i;
    return true;
}

/* An empty variable counts as unset. */
static bool read_variables(struct reading *r) {
    for (int id = 0; id < VERSION; id++) {
        char name[64];
        int on = 0;
        variable_name((enum option_id)id, name);
        const char *text = getenv(name);
        if (is_given(r, (enum option_id)id) || !text || !*text) continue;
        if (!rows[id].value && !read_whole(text, 0, 1, &on)) {
            say("%s takes 1 or 0, not '%s'", name, text);
            return false;
        }
        if (rows[id].value || on) r->given[id] = (struct given){text, true};
    }
    return true;
}

static bool set_rows(struct reading *r) {
    for (int id = 0; id < OPTIONS; id++) {
        const char *text = r->given[id].text ? r->given[id].text : rows[id].fallback;
        if (rows[id].set && text && !rows[id].set(r, (enum option_id)id, text)) return false;
    }
    return true;
}

/* ---- combinations of options ---- */

/* The endpoint's host and port override the master's. */
static bool settle_endpoint(struct reading *r) {
    const char *text = r->given[RDZV_ENDPOINT].text;
    bool given = text && *text;
    if (r->o->backend == RENDEZVOUS_C10D) {
        free(r->host);
        r->host = must(strdup("localhost"));
        r->port = given || r->o->max_nodes > 1 ? C10D_PORT : 0;
    }
    char *host = NULL;
    if (given && !read_endpoint(text, &host, &r->port)) {
        return refuse(r, RDZV_ENDPOINT, "HOST:PORT, an IPv6 address as [ADDRESS]:PORT");
    }
    if (host) {
        free(r->host);
        r->host = host;
    }
    if (r->port < 0) r->port = r->o->max_nodes > 1 ? STATIC_PORT : 0;
    if (r->port == 0 && r->o->max_nodes > 1) {
        say("%d nodes cannot meet at a port that node 0 chooses; name one with %s", r->o->max_nodes,
            r->o->backend == RENDEZVOUS_C10D ? "--rdzv-endpoint HOST:PORT" : "--master-port");
    }
    return r->port > 0 || r->o->max_nodes == 1;
}

static void notice_unused(const struct reading *r, enum option_id id, const char *why) {
    if (is_given(r, id)) say("--%s is not used: %s", rows[id].name, why);
}

static char *random_run_id(void) {
    unsigned long long bits[2] = {0};
    if (getrandom(bits, sizeof(bits), 0) != sizeof(bits)) bits[0] = (unsigned long long)getpid();
    return format_text("cairn-%016llx%016llx", bits[0], bits[1]);
}

static bool settle_standalone(struct reading *r) {
    static const char why[] = "--standalone chooses it";
    if (r->o->max_nodes > 1) {
        say("--standalone is for one node, but --nnodes says %d; leave out --standalone and name the place to meet "
            "with --rdzv-backend c10d --rdzv-endpoint HOST:PORT",
            r->o->max_nodes);
        return false;
    }
    if (r->o->backend == RENDEZVOUS_STATIC) notice_unused(r, RDZV_BACKEND, why);
    notice_unused(r, RDZV_ENDPOINT, why);
    notice_unused(r, RDZV_ID, why);
    r->given[RDZV_ENDPOINT].text = NULL;
    r->o->backend = RENDEZVOUS_C10D;
    r->o->standalone = true;
    free(r->o->run_id);
    r->o->run_id = random_run_id();
    return true;
}

static bool settle_static(struct reading *r) {
    struct options *o = r->o;
    if (o->min_nodes < o->max_nodes) {
        say("--nnodes %d:%d: a static rendezvous waits for all %d; --rdzv-backend c10d goes on with fewer",
            o->min_nodes, o->max_nodes, o->max_nodes);
    }
    o->min_nodes = o->max_nodes;
    if (o->node_rank >= o->max_nodes) {
        say("--node-rank %d: with %d node%s it is a number from 0 to %d; --nnodes sets how many there are",
            o->node_rank, o->max_nodes, o->max_nodes > 1 ? "s" : "", o->max_nodes - 1);
        return false;
    }
    bool somewhere = is_given(r, MASTER_ADDR) || is_given(r, RDZV_ENDPOINT);
    if (o->max_nodes > 1 && !somewhere) {
        say("%d nodes meet at 127.0.0.1, which is a different machine for each of them; unless all are on this "
            "machine, name node 0 with --master-addr",
            o->max_nodes);
    }
    return true;
}

static void settle_c10d(struct reading *r) {
    notice_unused(r, NODE_RANK, "c10d numbers nodes itself");
    notice_unused(r, MASTER_ADDR, "nodes meet at --rdzv-endpoint");
    notice_unused(r, MASTER_PORT, "nodes meet at --rdzv-endpoint");
    if (r->o->max_nodes > 1 && !is_given(r, RDZV_ENDPOINT)) {
        say("%d nodes meet at localhost, which is a different machine for each of them; unless all are on this "
            "machine, name one with --rdzv-endpoint",
            r->o->max_nodes);
    }
}

static bool settle_rendezvous(struct reading *r) {
    bool fine = true;
    if (is_given(r, STANDALONE)) fine = settle_standalone(r);
    if (fine && r->o->backend == RENDEZVOUS_STATIC) fine = settle_static(r);
    if (!fine || !settle_endpoint(r)) return false;
    bool c10d = r->o->backend == RENDEZVOUS_C10D;
    if (c10d) settle_c10d(r);
    double join = r->timeout > 0 ? r->timeout : c10d ? C10D_JOIN_TIMEOUT : STATIC_JOIN_TIMEOUT;
    if (r->o->join_timeout < 0) r->o->join_timeout = join;
    r->o->endpoint_host = r->host;
    r->host = NULL;
    r->o->endpoint_port = r->port;
    r->o->master_addr = r->o->endpoint_host;
    r->o->master_port = c10d ? 0 : r->port;
    return true;
}

static bool ends_in_py(const char *name) {
    size_t n = strlen(name);
    return n > 3 && strcmp(name + n - 3, ".py") == 0;
}

static bool settle_program(struct reading *r) {
    struct options *o = r->o;
    bool direct = is_given(r, NO_PYTHON), module = is_given(r, MODULE), run_path = is_given(r, RUN_PATH);
    if (!o->program[0] && !o->new_secret) {
        say("there is no program to run; see cairn-run --help");
        return false;
    }
    if (direct && module && !run_path) {
        say("--no-python and --module contradict each other: a module is run by Python; leave one out");
        return false;
    }
    if (o->as_launch && direct && !is_given(r, USE_ENV)) {
        say("cairn-launch --no-python needs --use-env too: a program run directly reads LOCAL_RANK");
        return false;
    }
    o->pass_local_rank = o->as_launch && !is_given(r, USE_ENV);
    bool script = !direct && o->program[0] && ends_in_py(o->program[0]);
    o->kind = script ? PROGRAM_PYTHON : PROGRAM_EXEC;
    if (module) o->kind = PROGRAM_MODULE;
    if (run_path) o->kind = PROGRAM_RUN_PATH;
    return true;
}

/* Variables stand in for what the command line leaves out. */
static bool settle_secret(struct reading *r) {
    struct options *o = r->o;
    const char *file = getenv("CAIRN_JOB_SECRET_FILE"), *insecure = getenv("CAIRN_INSECURE");
    if (is_given(r, SECRET_FILE) && is_given(r, SECRET_FD)) {
        say("--secret-file and --secret-fd both name a secret; leave one out");
        return false;
    }
    if (!o->secret_file && !is_given(r, SECRET_FD) && file && *file) o->secret_file = file;
    o->insecure = is_given(r, INSECURE) || (insecure && strcmp(insecure, "1") == 0);
    if (!is_given(r, TORCH_STORE)) o->has_guests = o->kind != PROGRAM_EXEC;
    return true;
}

static bool settle_virtual_local_rank(struct reading *r) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int gpus = 1;
    for (const char *c = visible; c && *c; c++) gpus += *c == ',';
    r->o->virtual_local_rank = is_given(r, VIRTUAL_LOCAL_RANK);
    if (!r->o->virtual_local_rank || !visible || gpus >= r->o->ranks) return true;
    say("--virtual-local-rank gives each of %d ranks a GPU, but CUDA_VISIBLE_DEVICES is '%s'", r->o->ranks, visible);
    return false;
}

static bool settle_shutdown_timeout(struct reading *r) {
    const char *text = getenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    if (is_given(r, SHUTDOWN_TIMEOUT) || !text || !*text) return true;
    if (read_seconds(text, &r->o->shutdown_timeout)) return true;
    say("TORCH_ELASTIC_SHUTDOWN_TIMEOUT takes a number of seconds, not '%s'", text);
    return false;
}

static void notice_omp_threads(const struct options *o) {
    if (o->omp_threads != OMP_DEFAULT || o->ranks < 2 || getenv("OMP_NUM_THREADS")) return;
    say("each rank gets OMP_NUM_THREADS=1; choose with --omp-num-threads N, or auto for processors / ranks");
}

static bool settle(struct reading *r) {
    if (!settle_rendezvous(r) || !settle_program(r) || !settle_shutdown_timeout(r)) return false;
    if (!settle_virtual_local_rank(r) || !settle_secret(r)) return false;
    notice_omp_threads(r->o);
    return true;
}

bool options_parse(struct options *o, char **argv) {
    struct reading r = {.o = o, .port = -1};
    const char *slash = argv[0] ? strrchr(argv[0], '/') : NULL;
    const char *name = slash ? slash + 1 : argv[0];
    *o = (struct options){.as_launch = name && strcmp(name, "cairn-launch") == 0,
                          .join_timeout = -1,
                          .last_call_timeout = 30,
                          .close_timeout = 30,
                          .read_timeout = 60,
                          .keep_alive_interval = 5,
                          .keep_alive_attempts = 3,
                          .is_host = -1,
                          .secret_fd = -1};
    bool fine = read_line(&r, argv) && read_variables(&r) && set_rows(&r) && settle(&r);
    free(r.host);
    return fine;
}

void options_free(struct options *o) {
    free(o->endpoint_host);
    free(o->run_id);
    free(o->local_addr);
    free(o->redirects);
    free(o->tee);
    free(o->shown);
    *o = (struct options){0};
}
