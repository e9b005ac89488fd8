/* Launch facts: the environments of real launchers and incomplete, contradictory and absurd ones, the resulting meeting
 * places, every error, and what remains in argv. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/vars.h"
#include "rendezvous/launch/launch.h"

enum { MAX_VARS = 24 };

static int clear_vars(void **state) {
    (void)state;
    for (const struct cairn__var_info *v = cairn__vars; v->name; v++) unsetenv(v->name);
    return 0;
}

/* "NAME=value" entries up to NULL. */
static void set_vars(const char *const *vars) {
    clear_vars(NULL);
    for (; *vars; vars++) {
        char name[64] = "";
        const size_t length = strcspn(*vars, "=");
        memcpy(name, *vars, length);
        setenv(name, *vars + length + 1, 1);
    }
}

static void expect_sentence(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' lacks '%s'", text, part);
}

/* ---- whole environments ---- */

#define TORCHRUN                                                                                          \
    "RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1", "MASTER_ADDR=host-a", \
        "MASTER_PORT=29733", "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=none"
/* Open MPI 4.1.4, rank 1 of 2 on one machine; and of 4 on two. */
#define OPEN_MPI_JOB                                                                                   \
    "PMIX_NAMESPACE=408682497", "OMPI_MCA_ess_base_jobid=408682497",                                   \
        "OMPI_MCA_orte_precondition_transports=2f926228dad8db65-b554cc40224e6a2c", "PMIX_HOSTNAME=vm", \
        "OMPI_MCA_orte_hnp_uri=408682496.0;tcp://192.0.2.2,198.51.100.7:34819;tcp6://[fd00::2,fd01::2]:41639"
#define OPEN_MPI                                                                        \
    "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1", \
        "OMPI_COMM_WORLD_LOCAL_SIZE=2", "OMPI_COMM_WORLD_NODE_RANK=1", "PMIX_RANK=1", OPEN_MPI_JOB
#define OPEN_MPI_TWO_NODES                                                              \
    "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1", \
        "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_RANK=3", OPEN_MPI_JOB
/* srun of Slurm 22.05, rank 5 of 7 on four machines. */
#define SRUN                                                                                           \
    "SLURM_PROCID=5", "SLURM_NTASKS=7", "SLURM_NPROCS=7", "SLURM_STEP_NUM_TASKS=7", "SLURM_LOCALID=1", \
        "SLURM_NODEID=2", "SLURM_STEP_TASKS_PER_NODE=2(x3),1", "SLURM_TASKS_PER_NODE=2(x3),1",         \
        "SLURM_STEP_NODELIST=gnode[10,20,25,37]", "SLURM_JOB_NODELIST=gnode[09-10,20,25,37]",          \
        "SLURMD_NODENAME=gnode25", "SLURM_JOB_ID=4711", "SLURM_STEP_ID=0"
/* What mpiexec of MPICH 4.0.2 adds. */
#define HYDRA "PMI_RANK=2", "PMI_SIZE=3", "MPI_LOCALRANKID=2", "MPI_LOCALNRANKS=3"

#define SINGLETON "OMPI_MCA_ess=singleton", "PMIX_RANK=0", "PMIX_NAMESPACE=2359297"

struct facts {
    const char *vars[MAX_VARS];
    const char *launcher;
    int rank, size, local_rank, local_size;
    const char *host; /* the first; NULL = no meeting */
    int port;         /* 0 = made from the job */
    const char *note; /* part of the notes; NULL = there are none */
};

static const struct facts environments[] = {
    {{NULL}, "alone", 0, 1, 0, 0, NULL, 0, NULL},
    {{"LOCAL_RANK=2"}, "alone", 0, 1, 2, 0, NULL, 0, NULL},
    {{"RANK=", "WORLD_SIZE=", "PMI_RANK=", "SLURM_PROCID="}, "alone", 0, 1, 0, 0, NULL, 0, NULL},
    {{"MASTER_ADDR=h", "MASTER_PORT=absurd"}, "alone", 0, 1, 0, 0, NULL, 0, NULL},
    /* torch, and by hand */
    {{TORCHRUN}, "torch", 3, 4, 1, 2, "host-a", 29733, NULL},
    {{"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0"}, "torch", 0, 1, 0, 0, NULL, 0, NULL},
    {{"RANK=5", "WORLD_SIZE=8", "MASTER_ADDR=::1", "MASTER_PORT=29500"}, "torch", 5, 8, 5, 0, "::1", 29500, NULL},
    {{"RANK=5", "WORLD_SIZE=8", "MASTER_ADDR=[::1]", "MASTER_PORT=1"}, "torch", 5, 8, 5, 0, "::1", 1, NULL},
    {{"RANK=5", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=h", "MASTER_PORT=65535"},
     "torch",
     5,
     8,
     1,
     4,
     "h",
     65535,
     NULL},
    {{"RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_PORT=29500"},
     "torch",
     1,
     2,
     1,
     2,
     "127.0.0.1",
     29500,
     NULL},
    /* mpirun */
    {{OPEN_MPI}, "mpirun", 1, 2, 1, 2, "127.0.0.1", 0, NULL},
    {{OPEN_MPI, "MASTER_PORT=1234"}, "mpirun", 1, 2, 1, 2, "127.0.0.1", 1234, NULL},
    {{OPEN_MPI_TWO_NODES}, "mpirun", 3, 4, 1, 2, "192.0.2.2", 0, NULL},
    {{OPEN_MPI_TWO_NODES, "MASTER_ADDR=h"}, "mpirun", 3, 4, 1, 2, "h", 0, NULL},
    {{OPEN_MPI_TWO_NODES, "MASTER_ADDR=h", "MASTER_PORT=1234"}, "mpirun", 3, 4, 1, 2, "h", 1234, NULL},
    {{OPEN_MPI, "LOCAL_RANK=0"}, "mpirun", 1, 2, 0, 2, "127.0.0.1", 0, NULL},
    {{OPEN_MPI, "RANK=0"}, "mpirun", 1, 2, 1, 2, "127.0.0.1", 0, "RANK is '0' but WORLD_SIZE is not set"},
    {{OPEN_MPI, "WORLD_SIZE=x"}, "mpirun", 1, 2, 1, 2, "127.0.0.1", 0, "WORLD_SIZE is 'x' but RANK is not set"},
    {{"MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=4", "MV2_COMM_WORLD_LOCAL_RANK=0", "MV2_COMM_WORLD_LOCAL_SIZE=2",
      "MASTER_ADDR=h", "MASTER_PORT=5"},
     "mpirun",
     1,
     4,
     0,
     2,
     "h",
     5,
     NULL},
    /* PMIx */
    {{"PMIX_RANK=1", "PMI_SIZE=2", "PMI_LOCAL_RANK=1", "PMI_LOCAL_SIZE=2", "PMIX_NAMESPACE=n"},
     "pmix",
     1,
     2,
     1,
     2,
     "127.0.0.1",
     0,
     NULL},
    {{SRUN, "PMIX_RANK=5", "PMIX_NAMESPACE=slurm.pmix.4711.0"}, "pmix", 5, 7, 1, 2, "gnode10", 0, NULL},
    /* PMI */
    {{HYDRA}, "pmi", 2, 3, 2, 3, "127.0.0.1", 0, NULL},
    {{SRUN, "PMI_RANK=5", "PMI_SIZE=7"}, "pmi", 5, 7, 1, 2, "gnode10", 0, NULL},
    {{"PALS_RANKID=1", "PMI_SIZE=2", "PALS_LOCAL_RANKID=1", "PALS_LOCAL_SIZE=2", "PALS_APID=f00"},
     "pmi",
     1,
     2,
     1,
     2,
     "127.0.0.1",
     0,
     NULL},
    /* srun */
    {{SRUN}, "srun", 5, 7, 1, 2, "gnode10", 0, NULL},
    {{SRUN, "SLURM_NODEID=3", "SLURM_LOCALID=0"}, "srun", 5, 7, 0, 1, "gnode10", 0, NULL},
    {{SRUN, "SLURM_NODEID=4"}, "srun", 5, 7, 1, 0, "gnode10", 0, NULL},
    {{SRUN, "SLURM_STEP_TASKS_PER_NODE=2(x"}, "srun", 5, 7, 1, 0, "gnode10", 0, NULL},
    {{SRUN, "SLURM_STEP_TASKS_PER_NODE=9(x4)"}, "srun", 5, 7, 1, 0, "gnode10", 0, NULL},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=3", "SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=a"},
     "srun",
     1,
     2,
     1,
     0,
     "a",
     0,
     NULL},
    {{"SLURM_PROCID=1", "SLURM_NPROCS=2", "SLURM_STEP_ID=3", "SLURM_TASKS_PER_NODE=2", "SLURM_NODEID=0",
      "SLURM_JOB_ID=7"},
     "srun",
     1,
     2,
     1,
     2,
     "127.0.0.1",
     0,
     NULL},
    {{SRUN, "MASTER_ADDR=h", "MASTER_PORT=29500"}, "srun", 5, 7, 1, 2, "h", 29500, NULL},
    /* a batch script, an allocation, and their interactive step */
    {{"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=7"},
     "alone",
     0,
     1,
     0,
     0,
     NULL,
     0,
     "start the program with srun"},
    {{"SLURM_PROCID=0", "SLURM_NPROCS=4", "SLURM_STEP_ID=4294967291"},
     "alone",
     0,
     1,
     0,
     0,
     NULL,
     0,
     "SLURM_PROCID is 0 and SLURM_NPROCS 4, but this process is in no step of srun"},
    {{"SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_JOB_ID=7"}, "alone", 0, 1, 0, 0, NULL, 0, NULL},
    {{"SLURM_NTASKS=4", "SLURM_JOB_ID=7"}, "alone", 0, 1, 0, 0, NULL, 0, NULL},
    {{"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_ID=4294967290"},
     "alone",
     0,
     1,
     0,
     0,
     NULL,
     0,
     "start the program with srun"},
    /* a program that has called MPI_Init without a launcher: Open MPI sets these then */
    {{SINGLETON}, "alone", 0, 1, 0, 0, NULL, 0, NULL},
    {{SINGLETON, TORCHRUN}, "torch", 3, 4, 1, 2, "host-a", 29733, NULL},
    {{SRUN, "OMPI_MCA_ess=singleton", "PMIX_RANK=5"}, "srun", 5, 7, 1, 2, "gnode10", 0, NULL},
    /* one launcher within another */
    {{SRUN, TORCHRUN},
     "torch",
     3,
     4,
     1,
     2,
     "host-a",
     29733,
     "SLURM_PROCID is '5' and SLURM_STEP_NUM_TASKS '7' (srun): they are another process's"},
    {{OPEN_MPI, TORCHRUN}, "torch", 3, 4, 1, 2, "host-a", 29733, "OMPI_COMM_WORLD_RANK is '1'"},
    {{OPEN_MPI, "SLURM_PROCID=absurd", "SLURM_STEP_NUM_TASKS=1", "SLURM_LOCALID=0"},
     "mpirun",
     1,
     2,
     1,
     2,
     "127.0.0.1",
     0,
     "SLURM_PROCID is 'absurd'"},
    {{OPEN_MPI_TWO_NODES, "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_NODELIST=b2",
      "SLURM_JOB_NODELIST=b[1-2]"},
     "mpirun",
     3,
     4,
     1,
     2,
     "b1",
     0,
     "SLURM_PROCID is '0'"},
    {{SRUN, "PMIX_RANK=4"}, "srun", 5, 7, 1, 2, "gnode10", 0, NULL},
    {{SRUN, "RANK=5", "WORLD_SIZE=7"}, "torch", 5, 7, 1, 2, "gnode10", 0, NULL},
};

static void expect_meeting(const struct facts *f, const struct cairn__meeting *m) {
    assert_int_equal(m->num_hosts > 0, f->host != NULL);
    if (!f->host) return;
    assert_string_equal(m->hosts[0], f->host);
    assert_int_equal(m->num_ports, f->port ? 1 : CAIRN__MAX_PORTS);
    if (f->port) assert_int_equal(m->ports[0], f->port);
    if (!f->port) assert_memory_equal(m->proof, "cairn/job/", 10);
}

static void every_launcher_is_understood(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(environments) / sizeof(environments[0]); i++) {
        const struct facts *f = &environments[i];
        struct cairn__launch l;
        set_vars(f->vars);
        if (cairn__launch_read(NULL, NULL, NULL, &l) != CAIRN_OK)
            fail_msg("environment %zu: %s", i, cairn_last_error());
        if (strcmp(l.launcher, f->launcher) != 0 || l.rank != f->rank || l.size != f->size ||
            l.local_rank != f->local_rank || l.local_size != f->local_size)
            fail_msg("environment %zu: %s, rank %d of %d, local rank %d of %d", i, l.launcher, l.rank, l.size,
                     l.local_rank, l.local_size);
        expect_meeting(f, &l.meeting);
        if (f->note) expect_sentence(l.notes, f->note);
        if (!f->note && l.notes[0]) fail_msg("environment %zu: %s", i, l.notes);
    }
}

static void torchrun_worker_uses_the_agents_store_under_its_run(void **state) {
    (void)state;
    struct cairn__launch l;
    set_vars((const char *const[]){TORCHRUN, "TORCHELASTIC_RESTART_COUNT=2", "TORCHELASTIC_RUN_ID=run7", NULL});
    assert_int_equal(cairn__launch_read(NULL, NULL, NULL, &l), CAIRN_OK);
    assert_true(l.meeting.agent_store);
    assert_string_equal(l.meeting.proof, "");
    assert_string_equal(l.meeting.from, "MASTER_ADDR, MASTER_PORT");
    assert_string_equal(l.key_prefix, "cairn/run7/2");
    assert_int_equal(l.restart_count, 2);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
    assert_int_equal(cairn__launch_read(NULL, NULL, NULL, &l), CAIRN_OK);
    assert_false(l.meeting.agent_store);
    unsetenv("TORCHELASTIC_RUN_ID");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    assert_int_equal(cairn__launch_read(NULL, NULL, NULL, &l), CAIRN_OK);
    assert_string_equal(l.key_prefix, "cairn/none/0");
}

static void mpiruns_addresses_are_all_candidates(void **state) {
    (void)state;
    static const char *const hosts[] = {"192.0.2.2", "198.51.100.7", "fd00::2", "fd01::2"};
    struct cairn__launch l;
    set_vars((const char *const[]){OPEN_MPI_TWO_NODES, NULL});
    assert_int_equal(cairn__launch_read(NULL, NULL, NULL, &l), CAIRN_OK);
    assert_int_equal(l.meeting.num_hosts, 4);
    for (int i = 0; i < 4; i++) assert_string_equal(l.meeting.hosts[i], hosts[i]);
    assert_true(l.meeting.guessed_host);
    assert_string_equal(l.meeting.from, "OMPI_MCA_orte_hnp_uri, ports from PMIX_NAMESPACE");
}

/* ---- the program says ---- */

static void options_give_rank_and_place(void **state) {
    (void)state;
    struct cairn__launch l;
    struct cairn__launch_told told = {.rank = 1, .world_size = 2, .init_method = "tcp://host-b:4000"};
    clear_vars(NULL);
    assert_int_equal(cairn__launch_read(&told, NULL, NULL, &l), CAIRN_OK);
    assert_string_equal(l.launcher, "options");
    assert_int_equal(l.rank, 1);
    assert_int_equal(l.size, 2);
    assert_int_equal(l.local_rank, 1);
    assert_string_equal(l.meeting.hosts[0], "host-b");
    assert_int_equal(l.meeting.ports[0], 4000);
    assert_false(l.meeting.guessed_host);
    told.init_method = "tcp://[fd00::2]:4000";
    assert_int_equal(cairn__launch_read(&told, NULL, NULL, &l), CAIRN_OK);
    assert_string_equal(l.meeting.hosts[0], "fd00::2");
    told.init_method = NULL;
    told.has_store = true;
    assert_int_equal(cairn__launch_read(&told, NULL, NULL, &l), CAIRN_OK);
    assert_int_equal(l.meeting.num_hosts, 0);
}

static void options_with_only_a_rank_take_the_address_from_the_environment(void **state) {
    (void)state;
    struct cairn__launch l;
    const struct cairn__launch_told told = {.rank = 1, .world_size = 2, .init_method = "env://"};
    set_vars((const char *const[]){TORCHRUN, NULL});
    assert_int_equal(cairn__launch_read(&told, NULL, NULL, &l), CAIRN_OK);
    assert_string_equal(l.launcher, "options");
    assert_string_equal(l.meeting.hosts[0], "host-a");
    assert_true(l.meeting.agent_store);
    assert_int_equal(l.local_size, 0); /* torchrun's numbers are those of four ranks */
    expect_sentence(l.notes, "RANK is '3' and WORLD_SIZE '4' (torch): they are another process's");
}

static void options_with_only_an_address_take_the_rank_from_the_launcher(void **state) {
    (void)state;
    struct cairn__launch l;
    struct cairn__launch_told told = {.init_method = "tcp://h:4000"};
    set_vars((const char *const[]){OPEN_MPI, NULL});
    assert_int_equal(cairn__launch_read(&told, NULL, NULL, &l), CAIRN_OK);
    assert_string_equal(l.launcher, "mpirun");
    assert_string_equal(l.meeting.hosts[0], "h");
    assert_int_equal(l.meeting.ports[0], 4000);
    set_vars((const char *const[]){TORCHRUN, NULL});
    told.init_method = "tcp://host-a:29733";
    assert_int_equal(cairn__launch_read(&told, NULL, NULL, &l), CAIRN_OK);
    assert_true(l.meeting.agent_store);
    told.init_method = "tcp://host-a:29734";
    assert_int_equal(cairn__launch_read(&told, NULL, NULL, &l), CAIRN_OK);
    assert_false(l.meeting.agent_store);
}

/* By which Open MPI's processes find each other. */
static void launchers_of_mpi_are_known(void **state) {
    (void)state;
    static const struct {
        const char *vars[MAX_VARS];
        bool is_mpi;
    } cases[] = {{{OPEN_MPI}, true},
                 {{SRUN, "PMIX_RANK=5", "PMIX_NAMESPACE=slurm.pmix.4711.0"}, true},
                 {{"PMIX_RANK=1", "PMI_SIZE=2", "PMI_LOCAL_SIZE=2", "PMIX_NAMESPACE=n"}, true},
                 {{OPEN_MPI, TORCHRUN}, false},
                 {{TORCHRUN}, false},
                 {{SRUN}, false},
                 {{HYDRA}, false},
                 {{NULL}, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn__launch l;
        set_vars(cases[i].vars);
        if (cairn__launch_read(NULL, NULL, NULL, &l) != CAIRN_OK) fail_msg("case %zu: %s", i, cairn_last_error());
        if (l.is_mpi != cases[i].is_mpi) fail_msg("case %zu, launched by %s", i, l.launcher);
    }
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    static const struct {
        struct cairn__launch_told told;
        const char *sentence;
    } cases[] = {
        {{.world_size = -1}, "cairn_env_options.world_size is -1"},
        {{.world_size = 70000}, "cairn_env_options.world_size is 70000"},
        {{.rank = 1}, "cairn_env_options.rank is 1 but world_size is 0; set both"},
        {{.rank = 2, .world_size = 2}, "cairn_env_options.rank is 2 but world_size is 2"},
        {{.rank = -1, .world_size = 2}, "cairn_env_options.rank is -1"},
        {{.world_size = 2}, "MASTER_ADDR is not set; set it to the address of rank 0"},
        {{.world_size = 2, .init_method = "tcp://h"}, "init_method is 'tcp://h'; it can be"},
        {{.world_size = 2, .init_method = "tcp://h:"}, "init_method is"},
        {{.world_size = 2, .init_method = "tcp://:80"}, "init_method is"},
        {{.world_size = 2, .init_method = "tcp://[]:80"}, "init_method is"},
        {{.world_size = 2, .init_method = "tcp://h:0"}, "init_method is"},
        {{.world_size = 2, .init_method = "tcp://h:65536"}, "init_method is"},
        {{.world_size = 2, .init_method = "tcp://h:80?rank=0"}, "init_method is"},
        {{.world_size = 2, .init_method = "tcp://fd00::2:80"}, "\"tcp://[v6]:port\""},
        {{.world_size = 2, .init_method = "udp://h:80"}, "init_method is"},
        {{.world_size = 2, .init_method = ""}, "init_method is"},
        {{.world_size = 1, .init_method = "tcp:"}, "init_method is"},
    };
    clear_vars(NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn__launch l;
        assert_int_equal(cairn__launch_read(&cases[i].told, NULL, NULL, &l), CAIRN_EINVAL);
        expect_sentence(cairn_last_error(), cases[i].sentence);
    }
}

/* ---- jobs ---- */

static struct cairn__launch read_with(const char *const *vars) {
    struct cairn__launch l;
    set_vars(vars);
    if (cairn__launch_read(NULL, NULL, NULL, &l) != CAIRN_OK) fail_msg("%s", cairn_last_error());
    return l;
}

static void expect_same_job(const struct cairn__launch *a, const struct cairn__launch *b) {
    assert_memory_equal(a->meeting.ports, b->meeting.ports, sizeof(a->meeting.ports));
    assert_string_equal(a->meeting.proof, b->meeting.proof);
    assert_string_equal(a->key_prefix, b->key_prefix);
}

static void ports_depend_on_the_job_only(void **state) {
    (void)state;
    const struct cairn__launch a = read_with((const char *const[]){SRUN, NULL});
    const struct cairn__launch b = read_with((const char *const[]){SRUN, "SLURM_PROCID=0", "SLURM_NODEID=0",
                                                                   "SLURM_LOCALID=0", "SLURMD_NODENAME=gnode10", NULL});
    expect_same_job(&a, &b);
    for (int i = 0; i < CAIRN__MAX_PORTS; i++) {
        assert_in_range(a.meeting.ports[i], 16000, 32767);
        for (int j = 0; j < i; j++) assert_int_not_equal(a.meeting.ports[i], a.meeting.ports[j]);
    }
    expect_sentence(a.meeting.proof, "cairn/job/srun-4711-0-");
    expect_sentence(a.key_prefix, "cairn/srun-4711-0-");
}

static void different_jobs_have_different_ports(void **state) {
    (void)state;
    static const char *const differences[] = {"SLURM_JOB_ID=4712", "SLURM_STEP_ID=1", "SLURM_RESTART_COUNT=1"};
    const struct cairn__launch a = read_with((const char *const[]){SRUN, NULL});
    for (size_t i = 0; i < 3; i++) {
        const struct cairn__launch b = read_with((const char *const[]){SRUN, differences[i], NULL});
        assert_int_not_equal(a.meeting.ports[0], b.meeting.ports[0]);
        assert_string_not_equal(a.meeting.proof, b.meeting.proof);
    }
}

/* What this program prints when a launcher starts it: its proof. */
static int tell_proof(void) {
    struct cairn__launch l;
    if (cairn__launch_read(NULL, NULL, NULL, &l) != CAIRN_OK) return 1;
    puts(l.meeting.proof);
    return 0;
}

/* The proof of a rank that is started with the variables, directly or by a shell of its own. */
static void ask_rank(const char *const *vars, int in_shell, char *proof, size_t nbytes) {
    char program[512] = "";
    int ends[2];
    assert_true(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        set_vars(vars);
        dup2(ends[1], STDOUT_FILENO);
        if (in_shell) execl("/bin/sh", "sh", "-c", "\"$0\" --tell; exit $?", program, NULL);
        execl(program, program, "--tell", NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *f = fdopen(ends[0], "r");
    assert_non_null(fgets(proof, (int)nbytes, f));
    fclose(f);
    int status = 0;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
}

/* mpiexec of MPICH numbers no jobs. A shell between it and its ranks has the ranks' variables; mpiexec has not. */
static void ranks_of_one_process_are_one_job(void **state) {
    (void)state;
    char first[128], second[128], other[128];
    ask_rank((const char *const[]){HYDRA, NULL}, 0, first, sizeof(first));
    ask_rank((const char *const[]){HYDRA, "PMI_RANK=0", "MPI_LOCALRANKID=0", NULL}, 1, second, sizeof(second));
    assert_string_equal(first, second);
    expect_sentence(first, "cairn/job/pmi-");
    const pid_t launcher = fork(); /* another process starts another job */
    if (launcher == 0) {
        ask_rank((const char *const[]){HYDRA, NULL}, 0, other, sizeof(other));
        _exit(strcmp(first, other) == 0);
    }
    int status = 0;
    waitpid(launcher, &status, 0);
    assert_int_equal(status, 0);
}

/* ---- errors ---- */

static void every_error_says_what_to_set(void **state) {
    (void)state;
    static const struct {
        const char *vars[MAX_VARS];
        const char *sentence;
    } cases[] = {
        {{"RANK=1"}, "RANK is '1' but WORLD_SIZE is not set; set RANK and WORLD_SIZE for every process, or unset RANK"},
        {{"WORLD_SIZE=2"}, "WORLD_SIZE is '2' but RANK is not set"},
        {{"RANK=x"}, "RANK is 'x' but WORLD_SIZE is not set"},
        {{"PMIX_RANK=1"}, "PMIX_RANK is '1' but PMI_SIZE is not set; set RANK and WORLD_SIZE"},
        {{"PMI_SIZE=2"}, "PMI_SIZE is '2' but PMI"},
        {{"OMPI_COMM_WORLD_RANK=0"}, "OMPI_COMM_WORLD_RANK is '0' but OMPI_COMM_WORLD_SIZE is not set"},
        {{"RANK=2", "WORLD_SIZE=2"}, "RANK is 2 but WORLD_SIZE is 2; set RANK to a number in [0, 1]"},
        {{"RANK=two", "WORLD_SIZE=2"}, "RANK='two'"},
        {{"RANK=-1", "WORLD_SIZE=2"}, "RANK='-1'"},
        {{"RANK=99999999999999999999", "WORLD_SIZE=2"}, "RANK='99999999999999999999'"},
        {{"RANK=0", "WORLD_SIZE=0"}, "WORLD_SIZE='0'"},
        {{"RANK=x", "WORLD_SIZE=2", OPEN_MPI}, "RANK='x'"},
        {{"RANK=0", "WORLD_SIZE=2"}, "2 ranks (RANK, WORLD_SIZE) need a place to meet, and MASTER_ADDR is not set"},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h"}, "MASTER_PORT is not set; set it to a free port"},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=70000"}, "MASTER_PORT='70000'"},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=[]", "MASTER_PORT=7"}, "MASTER_ADDR is '[]', which is not an address"},
        {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}, "LOCAL_RANK is 2 but LOCAL_WORLD_SIZE is 2"},
        {{"RANK=0", "WORLD_SIZE=1", "LOCAL_WORLD_SIZE=2"}, "LOCAL_WORLD_SIZE is 2, but the job's size is 1"},
        {{"LOCAL_RANK=x"}, "LOCAL_RANK='x'"},
        {{"TORCHELASTIC_RESTART_COUNT=x"}, "TORCHELASTIC_RESTART_COUNT='x'"},
        {{"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=2"},
         "OMPI_COMM_WORLD_RANK is 3 but OMPI_COMM_WORLD_SIZE is 2"},
        {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"}, "MASTER_ADDR is not set"},
        {{OPEN_MPI_TWO_NODES, "OMPI_MCA_orte_hnp_uri=408682496.0;tcp"}, "MASTER_ADDR is not set"},
        {{OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK=2"},
         "OMPI_COMM_WORLD_LOCAL_RANK is 2 but OMPI_COMM_WORLD_LOCAL_SIZE is 2"},
        {{SRUN, "SLURM_PROCID=7"}, "SLURM_PROCID is 7 but SLURM_STEP_NUM_TASKS is 7"},
        {{SRUN, "SLURM_LOCALID=x"}, "SLURM_LOCALID='x'"},
        {{SRUN, "SLURM_STEP_NODELIST=gnode[10"}, "'gnode[10' is not a node list of Slurm's"},
        {{HYDRA, "MPI_LOCALNRANKS=1", "MPI_LOCALRANKID=0"}, "MASTER_ADDR is not set"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn__launch l;
        set_vars(cases[i].vars);
        if (cairn__launch_read(NULL, NULL, NULL, &l) != CAIRN_EINVAL) fail_msg("'%s' did not fail", cases[i].sentence);
        expect_sentence(cairn_last_error(), cases[i].sentence);
    }
}

static void values_that_are_too_long_are_refused(void **state) {
    (void)state;
    struct cairn__launch l;
    char text[400];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    clear_vars(NULL);
    setenv("TORCHELASTIC_RUN_ID", text, 1);
    assert_int_equal(cairn__launch_read(NULL, NULL, NULL, &l), CAIRN_EINVAL);
    expect_sentence(cairn_last_error(), "TORCHELASTIC_RUN_ID has 399 characters");
    set_vars((const char *const[]){"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=80", NULL});
    setenv("MASTER_ADDR", text, 1);
    assert_int_equal(cairn__launch_read(NULL, NULL, NULL, &l), CAIRN_EINVAL);
    expect_sentence(cairn_last_error(), "MASTER_ADDR has 399 characters");
}

/* A megabyte of every variable at a time, and of all at once, ends in a sentence or does no harm. */
static void very_long_values_do_no_harm(void **state) {
    (void)state;
    static char text[1 << 20];
    struct cairn__launch l;
    const char *fills = "1a,[;";
    for (const char *fill = fills; *fill; fill++) {
        memset(text, *fill, sizeof(text) - 1);
        for (const struct cairn__var_info *v = cairn__vars; v->name; v++) {
            set_vars((const char *const[]){SRUN, OPEN_MPI_TWO_NODES, NULL});
            setenv(v->name, text, 1);
            if (cairn__launch_read(NULL, NULL, NULL, &l) != CAIRN_OK) assert_true(strlen(cairn_last_error()) > 10);
        }
        for (const struct cairn__var_info *v = cairn__vars; v->name; v++) setenv(v->name, text, 1);
        assert_int_equal(cairn__launch_read(NULL, NULL, NULL, &l), CAIRN_EINVAL);
    }
    clear_vars(NULL);
}

/* ---- whether rank 0 is where they meet ---- */

static void rank_0_on_another_machine_is_an_error_that_names_master_addr(void **state) {
    (void)state;
    struct cairn__launch l = {.size = 2,
                              .meeting = {.hosts = {"192.0.2.77"}, .num_hosts = 1, .from = "SLURM_STEP_NODELIST"}};
    clear_vars(NULL);
    assert_int_equal(cairn__meeting_is_here(&l), CAIRN_OK); /* a host that was given is not checked */
    l.meeting.guessed_host = true;
    assert_int_equal(cairn__meeting_is_here(&l), CAIRN_EINVAL);
    expect_sentence(cairn_last_error(),
                    "but the meeting place is '192.0.2.77' (SLURM_STEP_NODELIST); set MASTER_ADDR to");
    snprintf(l.meeting.hosts[1], sizeof(l.meeting.hosts[1]), "127.0.0.1");
    l.meeting.num_hosts = 2;
    assert_int_equal(cairn__meeting_is_here(&l), CAIRN_OK);
    l.meeting.num_hosts = 1;
    setenv("SLURMD_NODENAME", "192.0.2.77", 1);
    assert_int_equal(cairn__meeting_is_here(&l), CAIRN_OK);
    clear_vars(NULL);
    gethostname(l.meeting.hosts[0], sizeof(l.meeting.hosts[0]));
    assert_int_equal(cairn__meeting_is_here(&l), CAIRN_OK);
}

/* ---- lists of nodes ---- */

static void node_lists_are_expanded(void **state) {
    (void)state;
    static const struct {
        const char *list;
        const char *names[9];
    } cases[] = {
        {"a", {"a"}},
        {"n[01-03,07],login", {"n01", "n02", "n03", "n07", "login"}},
        {"gnode[10,20,25,37]", {"gnode10", "gnode20", "gnode25", "gnode37"}},
        {"n[8-11]", {"n8", "n9", "n10", "n11"}},
        {"n[098-101]", {"n098", "n099", "n100", "n101"}},
        {"r[1-2]n[01-02]-ib,x", {"r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib", "x"}},
        {"a,b[3],[4-5]c", {"a", "b3", "4c", "5c"}},
        {"host.example.org,h-1_x", {"host.example.org", "h-1_x"}},
        {"n[1-3,2]", {"n1", "n2", "n3", "n2"}},
    };
    char name[32];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int n = 0;
        for (; cases[i].names[n]; n++) {
            assert_int_equal(cairn__nodelist_get(cases[i].list, n, name, sizeof(name)), CAIRN_OK);
            assert_string_equal(name, cases[i].names[n]);
        }
        assert_int_equal(cairn__nodelist_get(cases[i].list, n, name, sizeof(name)), CAIRN_EINVAL);
        expect_sentence(cairn_last_error(), "has no node");
    }
}

static void large_node_lists_are_read_without_expanding_them(void **state) {
    (void)state;
    char name[64];
    assert_int_equal(cairn__nodelist_get("n[0-999999999]x[0-999999999],z", 2000000000, name, sizeof(name)), CAIRN_OK);
    assert_string_equal(name, "n2x0");
    assert_int_equal(cairn__nodelist_get("n[00001-99999]", 99998, name, sizeof(name)), CAIRN_OK);
    assert_string_equal(name, "n99999");
}

static void malformed_node_lists_are_refused(void **state) {
    (void)state;
    static const char *const lists[] = {"",      ",",     ",a",      "n[",       "n[1",           "n[1-",
                                        "n[1-]", "n[-1]", "n[]",     "n[1,]",    "n[2-1]",        "n[a]",
                                        "n]",    "n[1]]", "n[1[2]]", "n[1-2-3]", "n[1 - 2]",      "n m",
                                        "n[1;2", "n[,1]", "n[1,,2]", "n[+1]",    "n[12345678901]"};
    char name[16];
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        if (cairn__nodelist_get(lists[i], 0, name, sizeof(name)) != CAIRN_EINVAL) fail_msg("'%s' passed", lists[i]);
        expect_sentence(cairn_last_error(), "is not a node list");
    }
    assert_int_equal(cairn__nodelist_get("a", -1, name, sizeof(name)), CAIRN_EINVAL);
    assert_int_equal(cairn__nodelist_get("a-name-of-17-bytes", 0, name, sizeof(name)), CAIRN_EINVAL);
    expect_sentence(cairn_last_error(), "more than 15 characters");
    assert_int_equal(cairn__nodelist_get("a[1][1][1][1][1][1][1][1][1]", 0, name, sizeof(name)), CAIRN_EINVAL);
}

/* ---- in words ---- */

static void description_has_rank_place_and_ignored_variables(void **state) {
    (void)state;
    char text[2048];
    struct cairn__launch l = read_with((const char *const[]){SRUN, TORCHRUN, "TORCHELASTIC_RESTART_COUNT=1", NULL});
    cairn__launch_describe(&l, text, sizeof(text));
    assert_string_equal(
        text,
        "launcher: torch; rank 3 of 4, local rank 1 of 2 (RANK, WORLD_SIZE), restart 1\n"
        "meeting: at host-a port 29733 (MASTER_ADDR, MASTER_PORT), served by the launcher\n"
        "note: SLURM_PROCID is '5' and SLURM_STEP_NUM_TASKS '7' (srun): they are another process's, and are ignored\n");
    l = read_with((const char *const[]){OPEN_MPI_TWO_NODES, NULL});
    cairn__launch_describe(&l, text, sizeof(text));
    expect_sentence(text, "meeting: at 192.0.2.2 or 198.51.100.7 or fd00::2 or fd01::2 port ");
    expect_sentence(text, " or one of 15 more (OMPI_MCA_orte_hnp_uri, ports from PMIX_NAMESPACE), served by rank 0\n");
    clear_vars(NULL);
    l = read_with((const char *const[]){NULL});
    cairn__launch_describe(&l, text, sizeof(text));
    assert_string_equal(text, "launcher: alone; rank 0 of 1, local rank 0\n");
    cairn__launch_describe(&l, text, 9);
    assert_string_equal(text, "launcher");
}

/* ---- arguments ---- */

enum { MAX_ARGS = 10 };

/* What is left of `before` must be `after`. */
static void expect_argv(const char *const *before, const char *const *after, int local_rank) {
    char *args[MAX_ARGS] = {NULL};
    char **argv = args;
    int argc = 0, kept = 0;
    struct cairn__launch l;
    for (; before[argc]; argc++) args[argc] = strdup(before[argc]);
    char *owned[MAX_ARGS];
    memcpy(owned, args, sizeof(owned));
    assert_int_equal(cairn__launch_read(NULL, &argc, &argv, &l), CAIRN_OK);
    for (; after[kept]; kept++) assert_string_equal(argv[kept], after[kept]);
    assert_int_equal(argc, kept);
    assert_null(argv[kept]);
    assert_int_equal(l.local_rank, local_rank);
    for (int i = 0; i < MAX_ARGS; i++) free(owned[i]);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void every_spelling_of_local_rank_is_removed_from_argv(void **state) {
    (void)state;
    clear_vars(NULL);
    expect_argv(ARGS("p"), ARGS("p"), 0);
    expect_argv(ARGS("p", "--local_rank=3", "--x", "1"), ARGS("p", "--x", "1"), 3);
    expect_argv(ARGS("p", "--local-rank=3", "--x", "1"), ARGS("p", "--x", "1"), 3);
    expect_argv(ARGS("p", "a", "--local_rank", "2", "b"), ARGS("p", "a", "b"), 2);
    expect_argv(ARGS("p", "--local-rank", "2"), ARGS("p"), 2);
    expect_argv(ARGS("p", "--local_ranks=2", "x"), ARGS("p", "--local_ranks=2", "x"), 0);
    expect_argv(ARGS("p", "--", "--local_rank=2"), ARGS("p", "--", "--local_rank=2"), 0);
    expect_argv(ARGS("p", "--local_rank=1", "--", "--local_rank", "2"), ARGS("p", "--", "--local_rank", "2"), 1);
    set_vars((const char *const[]){"LOCAL_RANK=1", NULL});
    expect_argv(ARGS("p", "--local_rank=1"), ARGS("p"), 1);
}

static void wrong_arguments_are_named_and_stay_in_argv(void **state) {
    (void)state;
    static const struct {
        const char *args[4];
        const char *sentence;
    } cases[] = {
        {{"p", "--local_rank"}, "--local_rank has no number after it"},
        {{"p", "--local_rank=one"}, "--local_rank=one is not a whole number"},
        {{"p", "--local-rank", "-1"}, "--local_rank=-1 is not a whole number"},
        {{"p", "--local_rank="}, "--local_rank= is not a whole number"},
        {{"p", "--local_rank=0"}, "LOCAL_RANK is 1 in the environment but the argument says --local_rank=0"},
    };
    set_vars((const char *const[]){"LOCAL_RANK=1", NULL});
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *args[4] = {NULL};
        char **argv = args;
        int argc = 0;
        struct cairn__launch l;
        for (; argc < 4 && cases[i].args[argc]; argc++) args[argc] = (char *)(uintptr_t)cases[i].args[argc];
        int before = argc;
        assert_int_equal(cairn__launch_read(NULL, &argc, &argv, &l), CAIRN_EINVAL);
        expect_sentence(cairn_last_error(), cases[i].sentence);
        assert_int_equal(argc, before);
        assert_ptr_equal(argv[1], cases[i].args[1]);
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--tell") == 0) return tell_proof();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_launcher_is_understood),
        cmocka_unit_test(torchrun_worker_uses_the_agents_store_under_its_run),
        cmocka_unit_test(mpiruns_addresses_are_all_candidates),
        cmocka_unit_test(options_give_rank_and_place),
        cmocka_unit_test(options_with_only_a_rank_take_the_address_from_the_environment),
        cmocka_unit_test(options_with_only_an_address_take_the_rank_from_the_launcher),
        cmocka_unit_test(launchers_of_mpi_are_known),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(ports_depend_on_the_job_only),
        cmocka_unit_test(different_jobs_have_different_ports),
        cmocka_unit_test(ranks_of_one_process_are_one_job),
        cmocka_unit_test(every_error_says_what_to_set),
        cmocka_unit_test(values_that_are_too_long_are_refused),
        cmocka_unit_test(very_long_values_do_no_harm),
        cmocka_unit_test(rank_0_on_another_machine_is_an_error_that_names_master_addr),
        cmocka_unit_test(node_lists_are_expanded),
        cmocka_unit_test(large_node_lists_are_read_without_expanding_them),
        cmocka_unit_test(malformed_node_lists_are_refused),
        cmocka_unit_test(description_has_rank_place_and_ignored_variables),
        cmocka_unit_test(every_spelling_of_local_rank_is_removed_from_argv),
        cmocka_unit_test(wrong_arguments_are_named_and_stay_in_argv),
    };
    return cmocka_run_group_tests_name("launch", tests, clear_vars, NULL);
}
