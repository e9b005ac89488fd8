/* The environment: who this process is, which device it computes on, the group it belongs to, and the tape its operations
 * are recorded on. Everything else is made in one. Two environments in one process are independent, as long as each is
 * used by one thread at a time; ranks make their environments in the same order. */
#ifndef CAIRN_ENV_H
#define CAIRN_ENV_H

#include "core.h"
#include "device.h"
#include "dist.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_env cairn_env;

struct cairn_env_options {
    size_t struct_size;
    const char
        *device;    /* "cpu", "cuda", "cuda:1", "auto"; NULL = CAIRN_DEVICE, or "cpu". "cuda" alone is the GPU of the
                           local rank; "auto" is that where there is one, else the CPU, and a line in the log says why */
    uint64_t seed;  /* of cairn_randn and of initialisations; every rank draws its own numbers from it. 0 is a seed */
    double timeout; /* seconds without the other ranks; 0 = CAIRN_TIMEOUT, or 300 */
    cairn_switch
        tf32; /* ON: f32 products on a GPU may round operands to 10 bits of fraction. OFF; torch's allow_tf32 */
};
#define cairn_env_options(...) \
    (&(struct cairn_env_options){.struct_size = sizeof(struct cairn_env_options), __VA_ARGS__})

/* Finds out how this process was launched (torchrun, torch.distributed.launch, cairn-run, variables set by hand, or
 * alone), meets the other ranks, and makes device, group and tape.
 *
 *   argc, argv  the program's; --local_rank=N and --local-rank N are taken out. NULL, NULL = there are none.
 *   options     NULL = all defaults
 *
 * Collective: returns on every rank or fails on every rank, within the timeout.
 * Threads     the environment is used by one thread at a time. During this call the rank that hosts the store (rank 0,
 *             unless the launcher does) runs one thread for it, "cairn-store".
 * Errors      CAIRN_EINVAL launch facts that contradict or miss something; CAIRN_ESYSTEM port in use; CAIRN_ETIMEOUT names
 *             the ranks that did not come; CAIRN_EPEER; CAIRN_ENOTSUP ranks on several machines, or on GPUs;
 *             CAIRN_ENOTBUILT device; CAIRN_EDEVICE no such GPU, or none that works.
 * Source      torch.distributed.launch and torchrun (PyTorch 1.13 to 2.x) for the variables. */
CAIRN_API cairn_status cairn_env_create(int *argc, char ***argv, const struct cairn_env_options *options,
                                        cairn_env **out);

/* Ends the environment with its group, tape and leaf tensors. Modules, optimizers, contexts and graphs made in it end before it:
 * graph, ddp, amp, optimizer, module, environment. Out of that order a destroy logs an error and leaves everything as it is.
 * Not collective. */
CAIRN_API void cairn_env_destroy(cairn_env **env);

/* Facts; any thread. */
CAIRN_API int cairn_env_rank(const cairn_env *env);
CAIRN_API int cairn_env_size(const cairn_env *env);
CAIRN_API int cairn_env_local_rank(const cairn_env *env);

/* Starts the environment's random numbers anew from seed, as if it had been given at creation. torch.manual_seed */
CAIRN_API void cairn_manual_seed(cairn_env *env, uint64_t seed);

/* Waits until the device has done all that was queued; the counters of optimizers and scalers are then up to date. On the CPU
 * there is nothing to wait for. Errors: CAIRN_EINVAL; CAIRN_ESTATE while a graph is recorded; CAIRN_EDEVICE what went
 * wrong on the device; CAIRN_ENUMERIC the loss scale of a replayed step is at its floor. torch.cuda.synchronize */
CAIRN_API cairn_status cairn_env_synchronize(cairn_env *env);

/* Owned by the environment; the group of a process that is alone has size 1. */
CAIRN_API cairn_group *cairn_env_group(cairn_env *env);
CAIRN_API cairn_device *cairn_env_device(cairn_env *env);

#ifdef __cplusplus
}
#endif

#endif
