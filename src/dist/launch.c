/* Launch facts from the variables and the argument that torchrun and torch.distributed.launch give a worker.
 * Source: PyTorch's torch/distributed/run.py and launch.py: 1.x spells the argument --local_rank, 2.x --local-rank. */
#include "dist/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "core/vars.h"

enum { MAX_RANK = 65535, MAX_PORT = 65535, NOT_TOLD = -1 };

static bool is_local_rank(const char *arg, const char **value) {
    static const char *const spellings[] = {"--local_rank", "--local-rank"};
    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        size_t length = strlen(spellings[i]);
        if (strncmp(arg, spellings[i], length) != 0 || (arg[length] != '\0' && arg[length] != '=')) continue;
        *value = arg[length] == '=' ? arg + length + 1 : NULL;
        return true;
    }
    return false;
}

static cairn_status parse_rank(const char *text, int *rank) {
    REQUIRE(text, CAIRN_EINVAL, "the argument --local_rank has no number after it; write --local_rank=0");
    char *end = NULL;
    errno = 0;
    long parsed = strtol(text, &end, 10);
    REQUIRE(errno == 0 && end != text && *end == '\0' && parsed >= 0 && parsed <= MAX_RANK, CAIRN_EINVAL,
            "the argument --local_rank=%s is not a whole number in [0, %d]", text, MAX_RANK);
    *rank = (int)parsed;
    return CAIRN_OK;
}

/* Leaves argv as it was on an error. */
static cairn_status find_argument(int argc, char **argv, int *rank) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *value = NULL;
        if (!is_local_rank(argv[i], &value)) continue;
        if (!value && i + 1 < argc) value = argv[++i];
        cairn_status st = parse_rank(value, rank);
        if (st != CAIRN_OK) return st;
    }
    return CAIRN_OK;
}

static void remove_argument(int *argc, char **argv) {
    int kept = *argc > 0;
    int i = kept;
    for (; i < *argc && strcmp(argv[i], "--") != 0; i++) {
        const char *value = NULL;
        if (!is_local_rank(argv[i], &value)) {
            argv[kept++] = argv[i];
        } else if (!value) {
            i++;
        }
    }
    for (; i < *argc; i++) argv[kept++] = argv[i];
    argv[kept] = NULL;
    *argc = kept;
}

static cairn_status read_int(const char *name, long least, long most, int *value) {
    bool present = false;
    long parsed = 0;
    cairn_status st = cairn__var_int(name, least, most, &present, &parsed);
    *value = present ? (int)parsed : NOT_TOLD;
    return st;
}

static cairn_status read_ranks(struct cairn__launch *l) {
    cairn_status st = CAIRN_OK;
    TRY(read_int("RANK", 0, MAX_RANK, &l->rank));
    TRY(read_int("WORLD_SIZE", 1, MAX_RANK + 1, &l->size));
    REQUIRE(l->rank == NOT_TOLD || l->size != NOT_TOLD, CAIRN_EINVAL,
            "RANK is %d but WORLD_SIZE is not set; set WORLD_SIZE to the number of ranks, or unset RANK to run alone",
            l->rank);
    REQUIRE(l->size == NOT_TOLD || l->rank != NOT_TOLD, CAIRN_EINVAL,
            "WORLD_SIZE is %d but RANK is not set; give each process its RANK in [0, %d], or unset WORLD_SIZE to run "
            "alone",
            l->size, l->size - 1);
    REQUIRE(l->rank < l->size || l->size == NOT_TOLD, CAIRN_EINVAL,
            "RANK is %d but WORLD_SIZE is %d; set RANK to a number in [0, %d]", l->rank, l->size, l->size - 1);
    bool alone = l->size == NOT_TOLD;
    if (alone) l->rank = 0, l->size = 1;
    snprintf(l->source, sizeof(l->source), "%s", alone ? "alone" : "torch");
out:
    return st;
}

static cairn_status read_local(struct cairn__launch *l, int argument) {
    cairn_status st = CAIRN_OK;
    TRY(read_int("LOCAL_RANK", 0, MAX_RANK, &l->local_rank));
    TRY(read_int("LOCAL_WORLD_SIZE", 1, MAX_RANK + 1, &l->local_size));
    REQUIRE(l->local_rank == NOT_TOLD || argument == NOT_TOLD || l->local_rank == argument, CAIRN_EINVAL,
            "LOCAL_RANK is %d in the environment but the argument says --local_rank=%d; drop one of them",
            l->local_rank, argument);
    if (l->local_size == NOT_TOLD) l->local_size = 0;
    if (l->local_rank == NOT_TOLD) l->local_rank = argument;
    if (l->local_rank == NOT_TOLD) l->local_rank = l->local_size ? l->rank % l->local_size : l->rank;
    REQUIRE(l->local_size == 0 || l->local_rank < l->local_size, CAIRN_EINVAL,
            "LOCAL_RANK is %d but LOCAL_WORLD_SIZE is %d; set LOCAL_RANK to a number in [0, %d]", l->local_rank,
            l->local_size, l->local_size - 1);
out:
    return st;
}

static cairn_status read_master(struct cairn__launch *l) {
    const char *addr = cairn__var("MASTER_ADDR");
    const char *agent = cairn__var("TORCHELASTIC_USE_AGENT_STORE");
    cairn_status st = CAIRN_OK;
    TRY(read_int("MASTER_PORT", 1, MAX_PORT, &l->master_port));
    REQUIRE(l->size == 1 || addr, CAIRN_EINVAL,
            "WORLD_SIZE is %d but MASTER_ADDR is not set; set it to the address of rank 0 (127.0.0.1 on one machine)",
            l->size);
    REQUIRE(l->size == 1 || l->master_port != NOT_TOLD, CAIRN_EINVAL,
            "WORLD_SIZE is %d but MASTER_PORT is not set; set it to a free port, the same for every rank (29500)",
            l->size);
    REQUIRE(!addr || strlen(addr) < sizeof(l->master_addr), CAIRN_EINVAL,
            "MASTER_ADDR has %zu characters; an address has at most %zu", strlen(addr), sizeof(l->master_addr) - 1);
    if (addr) snprintf(l->master_addr, sizeof(l->master_addr), "%s", addr);
    if (l->master_port == NOT_TOLD) l->master_port = 0;
    l->agent_store = agent && strcmp(agent, "True") == 0; /* Python's str(bool) */
out:
    return st;
}

static cairn_status read_prefix(struct cairn__launch *l) {
    const char *run = cairn__var("TORCHELASTIC_RUN_ID");
    bool present = false;
    long restart = 0;
    cairn_status st = cairn__var_int("TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX, &present, &restart);
    if (st != CAIRN_OK) return st;
    int length = snprintf(l->key_prefix, sizeof(l->key_prefix), "cairn/%s/%ld", run ? run : "none", restart);
    REQUIRE(length > 0 && (size_t)length < sizeof(l->key_prefix), CAIRN_EINVAL,
            "TORCHELASTIC_RUN_ID has %zu characters; choose a run id (--rdzv_id) of at most 100",
            run ? strlen(run) : (size_t)0);
    return CAIRN_OK;
}

cairn_status cairn__launch_read(int *argc, char ***argv, struct cairn__launch *out) {
    bool arguments = argc && argv && *argv;
    int argument = NOT_TOLD;
    struct cairn__launch l = {0};
    cairn_status st = CAIRN_OK;
    if (arguments) TRY(find_argument(*argc, *argv, &argument));
    TRY(read_ranks(&l));
    TRY(read_local(&l, argument));
    TRY(read_master(&l));
    TRY(read_prefix(&l));
    if (arguments) remove_argument(argc, *argv);
    *out = l;
out:
    return st;
}
