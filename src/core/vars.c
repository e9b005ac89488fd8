/* Environment variables: the table of all of them, and strict parsing. */
#include "core/vars.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

const struct cairn__var_info cairn__vars[] = {
    {"CAIRN_LOG", "highest log level shown: error, warning, notice (default), info, debug"},
    {"CAIRN_CPU", "highest instruction set used: ref, avx2, avx512, avx512_bf16; can only remove"},
    {"CAIRN_DEVICE", "device of environments that name none: cpu (default), cuda, cuda:N, auto"},
    {"CAIRN_MODULE_PATH", "folder in which modules such as libcairn_cuda.so are looked for, and no other"},
    {"CAIRN_CUDNN", "0: convolutions on a GPU go by im2col, whether or not there is cuDNN (1)"},
    {"CAIRN_TIMEOUT", "seconds a rank waits for another before it gives up (300)"},
    {"CAIRN_CHECK", "1: ranks of mpi, gloo and nccl groups compare their calls before each collective and message (0)"},
    {"CAIRN_MEETING_TIMEOUT", "seconds the ranks have to find each other when an environment is made (CAIRN_TIMEOUT)"},
    {"CAIRN_BACKEND", "group backend of environments that name none: auto (default), self, shm, mpi, gloo, nccl"},
    {"CAIRN_HIERARCHY",
     "auto (default): sums of mpi and gloo groups are made within machines first, then between them; flat: at once"},
    {"GLOO_SOCKET_IFNAME", "network interface, or an address of it, by which gloo reaches the other machines"},
    {"CAIRN_HOST_ID", "overrides the boot id by which ranks tell that they share a host"},
    {"CAIRN_JOB_SECRET_FILE",
     "file, mode 0600, with the secret by which ranks of a job on several machines prove themselves to its store"},
    {"CAIRN_JOB_SECRET_FD", "inherited descriptor of the job's secret, as cairn-run sets it"},
    {"CAIRN_STORE_HAS_SECRET", "set where the launcher's store asks for the job's secret, as cairn-run's may"},
    {"CAIRN_INSECURE",
     "1: whoever reaches the store's port is trusted, from this machine or another, without a word (0)"},
    {"CAIRN_STORE_DIALECT",
     "dialect of a TCP store's server: 1.13, 2.1 or 2.2 (PyTorch's version that began it); detected where unset"},
    {"OMP_NUM_THREADS",
     "threads inside a rank, the first number of a list; 1, unless cairn_set_num_threads says otherwise"},
    {"TORCH_DISTRIBUTED_DEBUG", "INFO: the settings of each ddp context are logged; DETAIL: their times too, after "
                                "iterations 1 to 10 and each 100th"},
    {"CAIRN_DDP_LOG",
     "file for ddp's measurements of rank 0; with %r in its name, the rank's number, one for each rank"},
    {"CAIRN_TIMELINE", "file for a timeline of all ranks, which Perfetto shows"},
    {"CAIRN_CSV", "file for rank 0's scalars; with %r in its name, the rank's number, one for each rank"},
    {"CAIRN_TENSORBOARD", "folder for rank 0's scalars as TensorBoard reads them; with %r in its name, the rank's "
                          "number, one for each rank"},
    {"CAIRN_LAB", "folder for what cairn-lab report reads: each rank's facts, scalars and exponents of gradients"},
    {"CAIRN_LAB_EVERY", "steps from one record of exponents to the next, of CAIRN_LAB (10)"},
    {"RANK", "this process's rank, as torchrun sets it"},
    {"WORLD_SIZE", "number of ranks, as torchrun sets it"},
    {"LOCAL_RANK", "rank on this machine, as torchrun sets it"},
    {"LOCAL_WORLD_SIZE", "ranks on this machine, as torchrun sets it"},
    {"MASTER_ADDR", "address of the store where ranks meet"},
    {"MASTER_PORT", "port of the store where ranks meet"},
    {"TORCHELASTIC_USE_AGENT_STORE", "\"True\": the launcher hosts the store and every rank is a client"},
    {"TORCHELASTIC_RESTART_COUNT", "how often the launcher restarted the ranks; part of the store's key prefix"},
    {"TORCHELASTIC_RUN_ID", "name of the run; part of the store's key prefix"},
    {"OMPI_COMM_WORLD_RANK", "rank, as Open MPI's mpirun sets it"},
    {"OMPI_COMM_WORLD_SIZE", "number of ranks, as Open MPI's mpirun sets it"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "rank on this machine, as Open MPI's mpirun sets it"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "ranks on this machine, as Open MPI's mpirun sets it"},
    {"OMPI_MCA_ess", "\"singleton\": MPI_Init was called without a launcher, and PMIX_* are of MPI's own making"},
    {"OMPI_MCA_ess_base_jobid", "Open MPI's number of the job; ports and keys are made from it"},
    {"OMPI_MCA_orte_precondition_transports", "Open MPI's random number of the job; ports and keys are made from it"},
    {"OMPI_MCA_orte_hnp_uri", "addresses of the machine where mpirun runs; ranks of several machines meet there"},
    {"MV2_COMM_WORLD_RANK", "rank, as MVAPICH2 sets it"},
    {"MV2_COMM_WORLD_SIZE", "number of ranks, as MVAPICH2 sets it"},
    {"MV2_COMM_WORLD_LOCAL_RANK", "rank on this machine, as MVAPICH2 sets it"},
    {"MV2_COMM_WORLD_LOCAL_SIZE", "ranks on this machine, as MVAPICH2 sets it"},
    {"PMIX_RANK", "rank, as launchers with PMIx set it"},
    {"PMIX_NAMESPACE", "PMIx's name of the job; ports and keys are made from it; set where ranks can share a secret"},
    {"PMI_RANK", "rank, as launchers with PMI set it: MPICH, Intel MPI, Cray, srun --mpi=pmi2"},
    {"PMI_SIZE", "number of ranks, as launchers with PMI set it"},
    {"PMI_LOCAL_RANK", "rank on this machine, as Cray's launcher sets it"},
    {"PMI_LOCAL_SIZE", "ranks on this machine, as Cray's launcher sets it"},
    {"MPI_LOCALRANKID", "rank on this machine, as MPICH and Intel MPI set it"},
    {"MPI_LOCALNRANKS", "ranks on this machine, as MPICH and Intel MPI set it"},
    {"PALS_RANKID", "rank, as Cray PALS sets it"},
    {"PALS_LOCAL_RANKID", "rank on this machine, as Cray PALS sets it"},
    {"PALS_LOCAL_SIZE", "ranks on this machine, as Cray PALS sets it"},
    {"PALS_APID", "Cray PALS's name of the job; ports and keys are made from it"},
    {"SLURM_PROCID", "rank, as srun sets it; counts within a step only"},
    {"SLURM_STEP_NUM_TASKS", "number of ranks of a step, as srun sets it"},
    {"SLURM_NTASKS", "the same, of a job where the step does not say"},
    {"SLURM_NPROCS", "SLURM_NTASKS's older name"},
    {"SLURM_LOCALID", "rank on this machine, as srun sets it"},
    {"SLURM_NODEID", "number of this machine in the step"},
    {"SLURM_STEP_TASKS_PER_NODE", "ranks on each machine of the step, such as 2(x3),1"},
    {"SLURM_TASKS_PER_NODE", "the same, where the step does not say"},
    {"SLURM_STEP_NODELIST", "machines of the step, such as n[01-03,07]; ranks meet on the first"},
    {"SLURM_JOB_NODELIST", "machines of the job"},
    {"SLURM_NODELIST", "SLURM_JOB_NODELIST's older name"},
    {"SLURMD_NODENAME", "Slurm's name of this machine"},
    {"SLURM_JOB_ID", "number of the job; ports and keys are made from it"},
    {"SLURM_STEP_ID", "number of the step; likewise"},
    {"SLURM_RESTART_COUNT", "how often Slurm has started the job anew; likewise"},
    {"TORCHELASTIC_ERROR_FILE", "file for the error of a rank that fails, for the launcher's report"},
    {NULL, NULL},
};

#ifndef NDEBUG
static bool is_known(const char *name) {
    for (const struct cairn__var_info *v = cairn__vars; v->name; v++) {
        if (strcmp(v->name, name) == 0) return true;
    }
    return false;
}
#endif

const char *cairn__var(const char *name) {
    assert(is_known(name));
    const char *text = secure_getenv(name); /* NULL in a program with more rights than its user */
    return text && text[0] ? text : NULL;
}

bool cairn__var_in_process(int pid, const char *name) {
    char path[64], *entry = NULL;
    size_t room = 0;
    const size_t length = strlen(name);
    bool found = false;
    assert(is_known(name));
    snprintf(path, sizeof(path), "/proc/%d/environ", pid);
    FILE *f = fopen(path, "re");
    while (f && !found && getdelim(&entry, &room, '\0', f) > 0) {
        found = strncmp(entry, name, length) == 0 && entry[length] == '=';
    }
    free(entry);
    if (f) fclose(f);
    return found;
}

/* strtol and strtod also accept leading white space, signs, hexadecimals and "nan", which are mistakes in a
 * variable. */
static bool consists_of(const char *text, const char *characters) {
    return text[strspn(text, characters)] == '\0';
}

cairn_status cairn__var_int(const char *name, long least, long most, bool *present, long *value) {
    const char *text = cairn__var(name);
    *present = text != NULL;
    if (!text) return CAIRN_OK;
    char *end = NULL;
    errno = 0;
    long parsed = strtol(text, &end, 10);
    REQUIRE(consists_of(text, "-0123456789") && errno == 0 && end != text && *end == '\0' && parsed >= least &&
                parsed <= most,
            CAIRN_EINVAL, "%s='%s' in the environment is not a whole number in [%ld, %ld]", name, text, least, most);
    *value = parsed;
    return CAIRN_OK;
}

cairn_status cairn__var_seconds(const char *name, double *value) {
    const char *text = cairn__var(name);
    if (!text) return CAIRN_OK;
    char *end = NULL;
    double parsed = strtod(text, &end);
    REQUIRE(consists_of(text, "0123456789.eE+-") && end != text && *end == '\0' && isfinite(parsed) && parsed > 0,
            CAIRN_EINVAL, "%s='%s' in the environment is not a positive number of seconds", name, text);
    *value = parsed;
    return CAIRN_OK;
}
