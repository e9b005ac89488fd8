/* The environment: who this process is, which device it computes on, the group it belongs to, and the tape its
 * operations are recorded on. Everything else is made in one. Two environments in one process are independent, as long
 * as each is used by one thread at a time; ranks make their environments in the same order. */
#ifndef CAIRN_ENV_H
#define CAIRN_ENV_H

#include "core.h"
#include "device.h"
#include "dist.h"
#include "store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_env cairn_env;

struct cairn_env_options {
    size_t struct_size;
    const char
        *device;    /* "cpu", "cuda", "cuda:1", "auto"; NULL = CAIRN_DEVICE, or "cpu". "cuda" alone is the GPU of the
                           local rank; "auto" is that where there is one, else the CPU, and a line in the log says
                           why */
    uint64_t seed;  /* of cairn_randn and of initialisations; every rank draws its own numbers from it. 0 is a seed */
    double timeout; /* seconds without the other ranks; 0 = CAIRN_TIMEOUT, or 300 */
    cairn_switch
        tf32; /* ON: f32 products on a GPU may round operands to 10 bits of fraction. OFF; torch's allow_tf32 */

    /* This process's rank, if no launcher gives it: torch.distributed.init_process_group's arguments. */
    int world_size;          /* 0 = the launcher's */
    int rank;                /* in [0, world_size) */
    const char *init_method; /* where ranks meet: "env://" (NULL), "tcp://host:port", "file:///path" (a new one for
                               each environment) */
    cairn_store *store; /* instead of init_method; the caller's. It outlives the environment, unless the group's backend
                                is shm or self: these use it during creation only */

    cairn_switch
        record_errors; /* DEFAULT: ON where a launcher named an error file (TORCHELASTIC_ERROR_FILE). See below */

    const char *backend; /* of the group (dist.h): "auto", "self", "shm", "mpi", "gloo", "nccl"; the same on every rank.
                               NULL = CAIRN_BACKEND, or "auto" */
    double meeting_timeout; /* seconds for finding each other; 0 = CAIRN_MEETING_TIMEOUT, or timeout */
};
#define cairn_env_options(...) \
    (&(struct cairn_env_options){.struct_size = sizeof(struct cairn_env_options), __VA_ARGS__})

/* Finds out how this process was launched (torchrun, torch.distributed.launch, cairn-run, mpirun, srun, another
 * launcher with PMI or PMIx, variables set by hand, or alone; docs/launching.md), meets the other ranks, and makes
 * device, group and tape.
 *
 *   argc, argv  the program's; --local_rank=N and --local-rank N are taken out. NULL, NULL = there are none.
 *   options     NULL = all defaults
 *
 * Collective: returns on every rank or fails on every rank. Finding the store, meeting the others there and parting
 * from it have meeting_timeout each; sharing memory within machines, where there are several, has timeout besides. What
 * was found is logged at info before the ranks wait for one another.
 * Error file  where the launcher named one, a process that ends with a code that is not 0 leaves this thread's last
 *             error there, and one that dies of SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT the signal and a backtrace;
 *             handlers are set from the first call on, only where the program has none. The launcher's report shows it.
 * Store       rank 0 hosts it, unless the launcher does. With the backends shm and self it is there during this call
 *             only, with mpi, gloo and nccl as long as the environment, and at rank 0 until the last rank has left,
 *             since ranks leave their last words there. A further environment of the same launch shares it.
 * Threads     the environment is used by one thread at a time. The rank that hosts the store runs one thread for it
 *             while it is there, "cairn-store".
 * Forks       a child of a rank is no rank: there every call that would talk to the others fails (CAIRN_ESTATE), in
 *             environments of more than one rank, and so does this call where it would take the parent's place. It may
 *             destroy its copies, which tells nobody, or call exec.
 * Subnormals  are kept: if this thread treats them as zero, as the first thread of a program linked with -ffast-math or
 *             -Ofast does (crtfastmath), that is turned off, with a warning. Threads that started before, such as
 *             OpenMP's, are not changed, and lose bits if they call Cairn or oneDNN computes in them: make the
 *             environment first, or link without the option (compiling with it is fine).
 * Errors      CAIRN_EINVAL options or launch facts that contradict or miss something, with what to set; CAIRN_ESTATE
 *             the child of a rank; CAIRN_ESYSTEM
 *             port in use, or a file that cannot be made; CAIRN_ETIMEOUT names the ranks that did not join, or every
 *             place that was searched for the store; CAIRN_EPEER; CAIRN_ENOTSUP a backend that cannot join these ranks,
 *             or ranks on GPUs; CAIRN_ENOTBUILT device or backend; CAIRN_EDEVICE no such GPU, or none that works.
 * Source      torch.distributed.launch and torchrun (PyTorch 1.13 to 2.x), Open MPI, MPICH and Slurm for the
 *             variables. */
CAIRN_API cairn_status cairn_env_create(int *argc, char ***argv, const struct cairn_env_options *options,
                                        cairn_env **out);

/* Ends the environment with its group, tape and leaf tensors. Modules, optimizers, contexts, graphs and groups made in
 * it end before it: graph, ddp, amp, optimizer, module, group, environment. Out of that order a destroy logs an error
 * and leaves everything as it is. Not collective. */
CAIRN_API void cairn_env_destroy(cairn_env **env);

/* Facts; any thread. */
CAIRN_API int cairn_env_rank(const cairn_env *env);
CAIRN_API int cairn_env_size(const cairn_env *env);
CAIRN_API int cairn_env_local_rank(const cairn_env *env);
/* Ranks on this machine; 0 = unknown. */
CAIRN_API int cairn_env_local_size(const cairn_env *env);
/* How often the launcher has started the ranks anew: TORCHELASTIC_RESTART_COUNT. */
CAIRN_API int cairn_env_restart_count(const cairn_env *env);

/* A description in lines of text: the launcher and its variables, rank and size, meeting place, device, group, and
 * variables that were ignored. Owned by the environment; "" for NULL. CAIRN_LOG=info logs it on rank 0. */
CAIRN_API const char *cairn_env_describe(const cairn_env *env);

/* Starts the environment's random numbers anew from seed, as if it had been given at creation. Not while a graph is
 * recorded, whose replay then returns CAIRN_ESTATE. torch.manual_seed */
CAIRN_API void cairn_manual_seed(cairn_env *env, uint64_t seed);

/* Waits until the device has done all that was queued; the counters of optimizers and scalers are then up to date. On
 * the CPU there is nothing to wait for. Errors: CAIRN_EINVAL; CAIRN_ESTATE while a graph is recorded; CAIRN_EDEVICE
 * what went wrong on the device; CAIRN_ENUMERIC the loss scale of a replayed step is at its floor.
 * torch.cuda.synchronize */
CAIRN_API cairn_status cairn_env_synchronize(cairn_env *env);

/* Owned by the environment; the group of a process that is alone has size 1. */
CAIRN_API cairn_group *cairn_env_group(cairn_env *env);
CAIRN_API cairn_device *cairn_env_device(cairn_env *env);

/* ---- ranks without a launcher ---- */

struct cairn_spawn_options {
    size_t struct_size;
    double shutdown_timeout; /* seconds between SIGTERM and SIGKILL for ranks that outlive a failure; 0 = 30 */
};
#define cairn_spawn_options(...) \
    (&(struct cairn_spawn_options){.struct_size = sizeof(struct cairn_spawn_options), __VA_ARGS__})

/* Runs fn(rank, argument) in nprocs processes, forked from this one, and returns when all have ended. Each gets
 * torchrun's variables (RANK, WORLD_SIZE, MASTER_PORT, ..., in place of this process's own), so fn calls
 * cairn_env_create(NULL, NULL, ...); this process hosts the store meanwhile. What fn returns is the process's exit
 * code; stdio is flushed, functions of atexit are not called. The first failure ends the others, by SIGTERM and later
 * SIGKILL; ranks die with this process.
 *
 *   fn        what it changes in memory stays in its process
 *   options   NULL = all defaults
 *
 * Error file  this process leaves one as after cairn_env_create, where a launcher started it.
 * Threads     call it before this process starts threads or opens a GPU (neither survives a fork); Cairn's own pool may
 *             run.
 * Errors      CAIRN_EINVAL; CAIRN_ESTATE a GPU was opened, or there are threads; CAIRN_ESYSTEM a process could not be
 *             started: none runs then; CAIRN_EPEER the first failing rank, its process, its exit code or signal, and
 *             its last error.
 * Source      torch.multiprocessing.spawn. */
CAIRN_API cairn_status cairn_spawn(int (*fn)(int rank, void *argument), void *argument, int nprocs,
                                   const struct cairn_spawn_options *options);

struct cairn_spawn_threads_options {
    size_t struct_size;
    int num_threads; /* of each rank, itself among them (cairn_set_num_threads); 0 = OMP_NUM_THREADS, or each rank's
                        share of the processors that this process may use, 1 at least */
};
#define cairn_spawn_threads_options(...) \
    (&(struct cairn_spawn_threads_options){.struct_size = sizeof(struct cairn_spawn_threads_options), __VA_ARGS__})

/* Runs fn(rank, argument) in n threads of this process, and returns when all have ended. In each, as in a process of
 * cairn_spawn, cairn_env_create(NULL, NULL, ...) makes the rank's environment; fn destroys it before it returns. A
 * process that is rank p of P of a launcher has the ranks p * n to p * n + n - 1 of P * n; every process makes the call
 * then, with the same n, and no other at the same time.
 *
 *   fn        called by n threads at once; 0 = success. Its rank's last error, log lines and number of threads
 *             (cairn_set_num_threads) are its own
 *   options   NULL = all defaults
 *
 * Device    "cuda" is the GPU of the local rank, as in processes.
 * Backends  threads within this process, shm between processes of one machine, gloo between machines; nccl. Not mpi:
 *           CAIRN_ENOTSUP.
 * Failure   a rank fails that returns another number than 0, or ends or returns while its environment is alive. It ends
 *           the others' waits with its sentence, in what they have in common: groups of environments that were alive,
 *           and environments that are being made. Nothing can end a thread from outside: a rank that waits for
 *           something else, or one that never comes, is found by the others' timeouts, and this call waits for it. An
 *           environment that fn leaves alive stays as it is, but for its groups; whoever holds it may destroy it after
 *           this call. A signal that ends a process ends all of its ranks.
 * Threads   any, but for the ranks themselves. The ranks' threads are called "cairn-rank".
 * Errors    CAIRN_EINVAL, also launch facts that contradict or miss something; CAIRN_ESTATE called by a rank of this
 *           call; CAIRN_ENOMEM; CAIRN_ESYSTEM a thread could not be started: fn runs in none then; CAIRN_EPEER the
 *           first failing rank and its last error. */
CAIRN_API cairn_status cairn_spawn_threads(int (*fn)(int rank, void *argument), void *argument, int n,
                                           const struct cairn_spawn_threads_options *options);

#ifdef __cplusplus
}
#endif

#endif
