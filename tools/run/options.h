/* cairn-run's options: torchrun's, and under the name cairn-launch those of torch.distributed.launch. */
#ifndef RUN_OPTIONS_H
#define RUN_OPTIONS_H

#include <signal.h>
#include <stdbool.h>

struct cairn__secret;

enum rendezvous_backend { RENDEZVOUS_STATIC = 1, RENDEZVOUS_C10D };

/* How a rank becomes the program. */
enum program_kind {
    PROGRAM_EXEC = 1, /* program arguments */
    PROGRAM_PYTHON,   /* python -u program arguments: what ends in .py */
    PROGRAM_MODULE,   /* python -u -m program arguments */
    PROGRAM_RUN_PATH, /* runpy.run_path in a python */
};

/* Bits for redirected or teed streams of a local rank. */
enum { STREAM_OUT = 1, STREAM_ERR = 2 };

enum { OMP_DEFAULT = 0, OMP_CORES_PER_RANK = -1 };

enum { OPTIONS_MAX_RANKS = 4096 /* of a node */ };

struct options {
    bool as_launch; /* called cairn-launch */

    int min_nodes, max_nodes;
    int ranks; /* of this node */
    enum rendezvous_backend backend;
    char *endpoint_host; /* never NULL once parsed */
    int endpoint_port;   /* 0 = a free one */
    bool standalone;
    char *run_id; /* --rdzv_id; "none" is torch's default, a standalone run has a random one */
    double join_timeout, last_call_timeout, close_timeout, read_timeout; /* --rdzv_conf, seconds */
    double keep_alive_interval, keep_alive_attempts; /* --rdzv_conf: a node is lost after their product of seconds */
    int is_host;                                     /* --rdzv_conf is_host: -1 = not given, 0, 1 */

    int node_rank;
    const char *master_addr; /* static: where the store is, as the endpoint says it; c10d: given or 127.0.0.1 */
    int master_port;         /* 0 = a free one: static with one node and no port given, or c10d */
    char *local_addr;        /* address by which other nodes reach this one; NULL = detected */

    struct cairn__secret *secret; /* secret.c: authenticates nodes and ranks; NULL = none */
    const char *secret_file;      /* NULL = none */
    int secret_fd;                /* as given; then secret.c's, memory that ranks inherit; -1 = none */
    const char *new_secret;       /* --new-secret: the only thing to do */
    bool insecure;                /* trust nodes without proof, and print no warning */
    bool has_guests;              /* torch's ranks on other nodes may use the store; their protocol has no proof */

    int max_restarts;
    double monitor_interval, shutdown_timeout;
    sigset_t signals;         /* to forward: SIGTERM, SIGINT, SIGHUP, SIGQUIT */
    const char *signal_names; /* as the user wrote them */
    const char *role;

    const char *log_dir; /* NULL = a folder of its own below TMPDIR, removed unless something was redirected into it */
    unsigned char *redirects, *tee; /* [ranks] of STREAM_ bits */
    bool *shown;                    /* [ranks]: --local_ranks_filter lets its output through */
    const char *line_prefix;        /* template of what is before each teed line */

    int omp_threads; /* --omp_num_threads: a number, OMP_CORES_PER_RANK, or OMP_DEFAULT: 1 where ranks > 1 */
    enum program_kind kind;
    bool pass_local_rank;    /* --local_rank=N goes before the user's arguments */
    bool virtual_local_rank; /* each rank sees its own GPU alone, as number 0 */
    char **program;          /* program and its arguments, NULL at the end */
};

/* argv before PET_* before defaults. False for a wrong option, after a message. --help prints and exits. */
bool options_parse(struct options *o, char **argv);
void options_free(struct options *o);

#endif
