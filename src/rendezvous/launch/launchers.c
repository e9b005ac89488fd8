/* The launchers as data: which variables hold rank and size.
 *
 * torch's come first: torchrun inside srun or mpirun leaves the outer launcher's variables in place, which describe
 * torchrun itself. Sources: Open MPI 4.1.4 and 5.0 "Environment variables set for MPI applications"; MPICH 4.0.2
 * (Hydra), which Intel MPI follows; MVAPICH2 2.3; Cray PALS; Slurm 22.05 srun(1) "OUTPUT ENVIRONMENT VARIABLES". */
#include <stdlib.h>
#include <string.h>

#include "core/vars.h"
#include "rendezvous/launch/parts.h"

/* Step numbers of batch scripts and interactive shells begin here (slurm.h: SLURM_MAX_NORMAL_STEP_ID). */
static const unsigned long long FIRST_SPECIAL_STEP = 0xfffffff0;

/* A batch script outside srun has SLURM_PROCID=0 and SLURM_NTASKS too, but it is one process. */
static bool is_in_step(void) {
    const char *step = cairn__var("SLURM_STEP_ID");
    if (step) return strtoull(step, NULL, 10) < FIRST_SPECIAL_STEP;
    return cairn__var("SLURM_STEP_NUM_TASKS") != NULL;
}

bool cairn__mpi_is_singleton(void) {
    const char *start = cairn__var("OMPI_MCA_ess");
    return start && strcmp(start, "singleton") == 0;
}

/* PMIx gives the size only through a call. Slurm's variables have it, unless they describe the step of another process
 * (of a daemon). */
static bool is_task_of_step(void) {
    const char *rank = cairn__var("PMIX_RANK"), *task = cairn__var("SLURM_PROCID");
    return rank && task && is_in_step() && strcmp(rank, task) == 0 && !cairn__mpi_is_singleton();
}

static int local_size_in_step(void) {
    const char *list = cairn__var("SLURM_STEP_TASKS_PER_NODE");
    const char *node = cairn__var("SLURM_NODEID");
    if (!list) list = cairn__var("SLURM_TASKS_PER_NODE");
    if (!list || !node || node[strspn(node, "0123456789")] != '\0' || strlen(node) > 6) return 0;
    return cairn__tasks_on_node(list, atoi(node));
}

#define SLURM_SIZE \
    { "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS" }
#define SLURM_JOB \
    { "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT" }

/* clang-format off */
const struct cairn__launcher cairn__launchers[] = {
    {.name = "torch", .rank = {"RANK"}, .size = {"WORLD_SIZE"},
     .local_rank = {"LOCAL_RANK"}, .local_size = {"LOCAL_WORLD_SIZE"}},
    {.name = "mpirun", .rank = {"OMPI_COMM_WORLD_RANK"}, .size = {"OMPI_COMM_WORLD_SIZE"},
     .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"}, .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     .job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_precondition_transports"}, .is_mpi = true},
    {.name = "mpirun", .rank = {"MV2_COMM_WORLD_RANK"}, .size = {"MV2_COMM_WORLD_SIZE"},
     .local_rank = {"MV2_COMM_WORLD_LOCAL_RANK"}, .local_size = {"MV2_COMM_WORLD_LOCAL_SIZE"}, .job_is_process = true},
    {.name = "pmix", .rank = {"PMIX_RANK"}, .size = {"PMI_SIZE"},
     .local_rank = {"PMI_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID"},
     .local_size = {"PMI_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE"}, .job = {"PMIX_NAMESPACE", "PALS_APID"},
     .is_mpi = true},
    {.name = "pmix", .rank = {"PMIX_RANK"}, .size = SLURM_SIZE, .counts = is_task_of_step,
     .local_rank = {"SLURM_LOCALID"}, .local_size_of = local_size_in_step, .job = SLURM_JOB, .is_mpi = true},
    {.name = "pmi", .rank = {"PMI_RANK", "PALS_RANKID"}, .size = {"PMI_SIZE"},
     .local_rank = {"PMI_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID"},
     .local_size = {"PMI_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE"}, .job = {"PALS_APID"},
     .job_is_process = true},
    {.name = "srun", .rank = {"SLURM_PROCID"}, .size = SLURM_SIZE, .counts = is_in_step,
     .local_rank = {"SLURM_LOCALID"}, .local_size_of = local_size_in_step, .job = SLURM_JOB},
    {.name = NULL},
};
/* clang-format on */

const char *cairn__first_set(const cairn__names names) {
    for (int i = 0; i < CAIRN__MAX_NAMES && names[i]; i++) {
        if (cairn__var(names[i])) return names[i];
    }
    return NULL;
}

static bool says(const char *name, int number) {
    char *end = NULL;
    return name && strtol(cairn__var(name), &end, 10) == number && *end == '\0';
}

bool cairn__launcher_agrees(const struct cairn__launcher *by, int rank, int size) {
    if (by->counts && !by->counts()) return false;
    return says(cairn__first_set(by->rank), rank) && says(cairn__first_set(by->size), size);
}
