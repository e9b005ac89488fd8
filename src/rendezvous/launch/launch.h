/* Launch facts: this process's rank among its ranks, as the launcher gives it, and where they meet. */
#ifndef CAIRN__RENDEZVOUS_LAUNCH_LAUNCH_H
#define CAIRN__RENDEZVOUS_LAUNCH_LAUNCH_H

#include <stdbool.h>

#include "cairn/core.h"
#include "rendezvous/secret.h"

enum { CAIRN__MAX_HOSTS = 8, CAIRN__MAX_PORTS = 16 };

/* Where the store is. Of several hosts (addresses of one machine) and ports, rank 0 serves at the first port that is
 * free, and the key `proof` identifies the store to the others (struct cairn__store_places). */
struct cairn__meeting {
    char hosts[CAIRN__MAX_HOSTS][256];
    int num_hosts; /* 0 if size is 1 */
    int ports[CAIRN__MAX_PORTS];
    int num_ports;
    char proof[96];    /* "" if a launcher or a user named the place: any store there is the right one then */
    bool agent_store;  /* the launcher hosts the store, every rank is a client */
    bool guessed_host; /* derived from variables: rank 0 checks that it is this machine (cairn__meeting_is_here) */
    char from[160];    /* for messages: "MASTER_ADDR, MASTER_PORT", "SLURM_STEP_NODELIST, ports from SLURM_JOB_ID" */
};

struct cairn__launch {
    const char *launcher; /* "options", "torch", "mpirun", "pmix", "pmi", "srun", "alone", "threads": static text */
    char variables[96];   /* the variables with rank and size, "" = none */
    int rank, size;
    int local_rank, local_size; /* local_size 0 = unknown; local_rank is then rank unless a variable has it */
    bool is_thread;             /* one of several ranks of this process */
    bool is_mpi;                /* Open MPI's processes find each other through the launcher: mpirun, or PMIx */
    int restart_count;          /* TORCHELASTIC_RESTART_COUNT, or 0 */
    struct cairn__meeting meeting;
    char key_prefix[128]; /* "cairn/<run id>/<restart count>" */
    char notes[1024];     /* lines about other variables and why they are ignored, "" = none */
};

/* What the program itself gives (cairn_env_options); NULL or world_size 0 = nothing. */
struct cairn__launch_told {
    int rank, world_size;
    const char *init_method; /* "tcp://host:port"; "env://", NULL = the launcher's. Files and stores: env.h */
    bool has_store;          /* the program has a store of its own, so no meeting place is needed */
};

/* Reads rank and size from the first complete set: the program's own options; RANK, WORLD_SIZE, LOCAL_RANK,
 * LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and TORCHELASTIC_* (torchrun, cairn-run, by hand); OMPI_COMM_WORLD_*;
 * PMIX_RANK; PMI_RANK and PMI_SIZE; SLURM_PROCID within a step; or else this process is alone. Removes --local_rank=N,
 * --local-rank=N and both with a space from argv (argc, argv may be NULL); arguments after "--" are the program's.
 * LOCAL_RANK and the argument must agree if both are given. Errors, which leave argc and argv unchanged: CAIRN_EINVAL,
 * each with what to set, if a set is incomplete and no other is complete, a value is not a number or out of range, or
 * several ranks have no place to meet. */
cairn_status cairn__launch_read(const struct cairn__launch_told *told, int *argc, char ***argv,
                                struct cairn__launch *out);

/* Rank 0 calls it before it serves. CAIRN_EINVAL, with what to set, if none of the meeting's hosts is this machine.
 * Hosts that a user or a launcher named are not checked. */
cairn_status cairn__meeting_is_here(const struct cairn__launch *launch);

/* Whether host, looked up, is a name or an address of this machine. */
bool cairn__host_is_here(const char *host);

/* Whether ranks may come from other machines: false if all are known to be on this one, or meet at a loopback
 * address. */
bool cairn__launch_has_others(const struct cairn__launch *launch);

/* Gets the job's secret from the launcher's own channel, PMIx (mpirun, srun --mpi=pmix), through the module
 * libcairn_pmix.so; it is the same in every environment of the job. *out = NULL if the launcher has no channel or this
 * build no module. timeout: seconds that rank 0 and the launcher have to answer. Errors: those of struct cairn__pmix,
 * and of modules. */
cairn_status cairn__launch_secret(const struct cairn__launch *launch, double timeout, struct cairn__secret **out);

/* Reads Slurm's node list: "n[01-03,07],login" -> n01 n02 n03 n07 login. Writes the index-th name; CAIRN_EINVAL if the
 * list is malformed or shorter. */
cairn_status cairn__nodelist_get(const char *list, int index, char *name, size_t nbytes);

/* "launcher: torch; rank 1 of 2, local rank ..." in a few lines: the beginning of cairn_env_describe. */
void cairn__launch_describe(const struct cairn__launch *launch, char *text, size_t nbytes);

#endif
