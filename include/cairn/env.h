/* The environment: this process's rank, its device, its group, and the tape that records its operations. All other
 * objects are made in one. Two environments in one process are independent, provided that each is used by one thread at
 * a time. All ranks must make their environments in the same order. */
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
        *device;    /* "cpu", "cuda", "cuda:1", "auto"; NULL = CAIRN_DEVICE, or "cpu". "cuda" is the GPU of the local
                           rank; "auto" is that GPU if there is one, otherwise the CPU, and the log says why */
    uint64_t seed;  /* of cairn_randn and initialisations; every rank draws its own numbers from it. 0 is a seed */
    double timeout; /* seconds without progress in waiting for other ranks; 0 = CAIRN_TIMEOUT, or 300 */
    cairn_switch
        tf32; /* ON: f32 products on a GPU may round operands to 10 fraction bits. Default OFF; torch's allow_tf32 */

    /* This process's rank, if no launcher sets it; as the arguments of torch.distributed.init_process_group. */
    int world_size;          /* 0 = the launcher's */
    int rank;                /* in [0, world_size) */
    const char *init_method; /* where ranks meet: "env://" (NULL), "tcp://host:port", "file:///path" (a new file for
                               each environment) */
    cairn_store *store;      /* used instead of init_method; the caller's. It must outlive the environment, unless the
                                group's backend is shm or self, which use it only during creation */

    cairn_switch
        record_errors; /* DEFAULT: ON where a launcher named an error file (TORCHELASTIC_ERROR_FILE). See below */

    const char *backend; /* of the group (dist.h): "auto", "self", "shm", "mpi", "gloo", "nccl"; the same on every rank.
                               NULL = CAIRN_BACKEND, or "auto" */
    double meeting_timeout; /* seconds for ranks to find each other; 0 = CAIRN_MEETING_TIMEOUT, or timeout */
};
#define cairn_env_options(...) \
    (&(struct cairn_env_options){.struct_size = sizeof(struct cairn_env_options), __VA_ARGS__})

/* Detects how this process was launched (torchrun, torch.distributed.launch, cairn-run, mpirun, srun, another launcher
 * with PMI or PMIx, variables set by hand, or alone; docs/launching.md), meets the other ranks, and creates device,
 * group and tape.
 *
 *   argc, argv  the program's; --local_rank=N and --local-rank N are removed. NULL, NULL = no arguments
 *   options     NULL = all defaults
 *
 * Collective: succeeds on every rank or fails on every rank. Finding the store, meeting the others there and leaving it
 * take at most meeting_timeout each; sharing memory within machines, if there are several, takes at most another
 * timeout. What was detected is logged at info before the ranks wait for one another.
 * Error file  if the launcher named one, a process that exits with a nonzero code writes this thread's last error
 *             there, and one that dies of SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT the signal and a backtrace.
 *             Handlers are installed by the first call, only for signals without a handler of the program's. The
 *             launcher's report shows the file.
 * Store       rank 0 hosts it, unless the launcher does. With the backends shm and self it exists only during this
 *             call; with mpi, gloo and nccl as long as the environment, and on rank 0 until the last rank has left,
 *             since ranks leave their last messages there. Further environments of the same launch share it.
 * Threads     the environment is used by one thread at a time. The rank that hosts the store runs a thread for it,
 *             "cairn-store", as long as it exists.
 * Forks       a forked child of a rank is not a rank: calls that communicate with other ranks fail there (CAIRN_ESTATE)
 *             in environments of more than one rank, and so does this call if it would take the parent's place. The
 *             child may destroy its copies, which does not affect other processes, or call exec.
 * Subnormals  are kept: if this thread flushes them to zero, as the first thread of a program linked with -ffast-math
 *             or -Ofast does (crtfastmath), that is turned off, with a warning. Threads that started earlier, such as
 *             OpenMP's, are not changed, and lose bits if they call Cairn or oneDNN computes in them: create the
 *             environment first, or link without the option (compiling with it is fine).
 * Errors      CAIRN_EINVAL options or launch variables that are contradictory or incomplete, with what to set;
 *             CAIRN_ESTATE the child of a rank; CAIRN_ESYSTEM port in use, or a file that cannot be made;
 *             CAIRN_ETIMEOUT names the ranks that did not join, or every place that was searched for the store;
 *             CAIRN_EPEER; CAIRN_ENOTSUP a backend that cannot connect these ranks, or ranks on GPUs; CAIRN_ENOTBUILT
 *             device or backend; CAIRN_EDEVICE no such GPU, or none that works.
 * Source      torch.distributed.launch and torchrun (PyTorch 1.13 to 2.x), Open MPI, MPICH and Slurm for the
 *             variables. */
CAIRN_API cairn_status cairn_env_create(int *argc, char ***argv, const struct cairn_env_options *options,
                                        cairn_env **out);

/* Destroys the environment with its group, tape and leaf tensors. Destroy everything else made in it first, in the
 * order graph, ddp, amp, optimizer, module, group, environment: in any other order a destroy logs an error and does
 * nothing. Not collective. */
CAIRN_API void cairn_env_destroy(cairn_env **env);

/* Properties; any thread. */
CAIRN_API int cairn_env_rank(const cairn_env *env);
CAIRN_API int cairn_env_size(const cairn_env *env);
CAIRN_API int cairn_env_local_rank(const cairn_env *env);
/* Ranks on this machine; 0 = unknown. */
CAIRN_API int cairn_env_local_size(const cairn_env *env);
/* How often the launcher has restarted the ranks: TORCHELASTIC_RESTART_COUNT. */
CAIRN_API int cairn_env_restart_count(const cairn_env *env);

/* A description in several lines: launcher and its variables, rank and size, meeting place, device, group, and
 * variables that were ignored. Owned by the environment; "" for NULL. CAIRN_LOG=info logs it on rank 0. */
CAIRN_API const char *cairn_env_describe(const cairn_env *env);

/* Restarts the environment's random numbers from seed, as if it had been passed at creation. Do not call it while a
 * graph is being recorded: its replay then returns CAIRN_ESTATE. torch.manual_seed */
CAIRN_API void cairn_manual_seed(cairn_env *env, uint64_t seed);

/* Waits until the device has finished all queued work; counters of optimizers and scalers are then up to date. On the
 * CPU there is nothing to wait for. Errors: CAIRN_EINVAL; CAIRN_ESTATE while a graph is being recorded; CAIRN_EDEVICE
 * an error on the device; CAIRN_ENUMERIC the loss scale of a replayed step is at its floor.
 * torch.cuda.synchronize */
CAIRN_API cairn_status cairn_env_synchronize(cairn_env *env);

/* Owned by the environment; a process without other ranks has a group of size 1. */
CAIRN_API cairn_group *cairn_env_group(cairn_env *env);
CAIRN_API cairn_device *cairn_env_device(cairn_env *env);

/* ---- ranks without a launcher ---- */

struct cairn_spawn_options {
    size_t struct_size;
    double shutdown_timeout; /* seconds between SIGTERM and SIGKILL for ranks that survive a failure; 0 = 30 */
};
#define cairn_spawn_options(...) \
    (&(struct cairn_spawn_options){.struct_size = sizeof(struct cairn_spawn_options), __VA_ARGS__})

/* Runs fn(rank, argument) in nprocs processes forked from this one, and returns when all have ended. Each gets
 * torchrun's variables (RANK, WORLD_SIZE, MASTER_PORT, ..., replacing this process's), so fn calls
 * cairn_env_create(NULL, NULL, ...); this process hosts the store meanwhile. fn's return value becomes the process's
 * exit code; stdio is flushed, atexit functions are not called. After the first failure the other processes are ended,
 * by SIGTERM and later SIGKILL; they also die with this process.
 *
 *   fn        its changes to memory stay in its process
 *   options   NULL = all defaults
 *
 * Error file  this process writes one as after cairn_env_create, if a launcher started it.
 * Threads     call it before this process starts threads or opens a GPU (neither survives a fork); Cairn's own thread
 *             pool may be running.
 * Errors      CAIRN_EINVAL; CAIRN_ESTATE a GPU was opened, or there are threads; CAIRN_ESYSTEM a process could not be
 *             started, and none runs; CAIRN_EPEER the first failing rank, its process, its exit code or signal, and its
 *             last error.
 * Source      torch.multiprocessing.spawn. */
CAIRN_API cairn_status cairn_spawn(int (*fn)(int rank, void *argument), void *argument, int nprocs,
                                   const struct cairn_spawn_options *options);

struct cairn_spawn_threads_options {
    size_t struct_size;
    int num_threads; /* threads per rank, including its own (cairn_set_num_threads); 0 = OMP_NUM_THREADS, or each rank's
                        share of the processors that this process may use, at least 1 */
};
#define cairn_spawn_threads_options(...) \
    (&(struct cairn_spawn_threads_options){.struct_size = sizeof(struct cairn_spawn_threads_options), __VA_ARGS__})

/* Runs fn(rank, argument) in n threads of this process, and returns when all have ended. In each, as in a process of
 * cairn_spawn, cairn_env_create(NULL, NULL, ...) makes the rank's environment; fn destroys it before it returns. Under
 * a launcher, process p of P has ranks p * n to p * n + n - 1 of P * n; every process must then make this call, with
 * the same n, and no other such call at the same time.
 *
 *   fn        called by n threads concurrently; 0 = success. Each rank has its own last error, log lines and number of
 *             threads (cairn_set_num_threads)
 *   options   NULL = all defaults
 *
 * Device    "cuda" is the GPU of the local rank, as in processes.
 * Backends  threads within this process, shm between processes of one machine, gloo between machines; nccl. Not mpi:
 *           CAIRN_ENOTSUP.
 * Failure   a rank fails if it returns nonzero, or if its thread ends or returns while its environment is alive. Its
 *           message then ends the waits of the other ranks in what they share: groups of environments that were alive,
 *           and environments that are being made. A thread cannot be ended from outside: if a rank waits for something
 *           else or never arrives, the other ranks' timeouts detect it, and this call waits for it. An environment that
 *           fn leaves alive stays as it is, except its groups; its holder may destroy it after this call. A signal that
 *           ends a process ends all of its ranks.
 * Threads   any thread may call it, except the ranks themselves. The ranks' threads are named "cairn-rank".
 * Errors    CAIRN_EINVAL, also launch variables that are contradictory or incomplete; CAIRN_ESTATE called by a rank of
 *           this call; CAIRN_ENOMEM; CAIRN_ESYSTEM a thread could not be started, and fn runs in none; CAIRN_EPEER the
 *           first failing rank and its last error. */
CAIRN_API cairn_status cairn_spawn_threads(int (*fn)(int rank, void *argument), void *argument, int n,
                                           const struct cairn_spawn_threads_options *options);

#ifdef __cplusplus
}
#endif

#endif
