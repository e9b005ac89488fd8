/* The argument that torch.distributed.launch passes to a worker: 1.x spells it --local_rank, 2.x --local-rank. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "rendezvous/launch/parts.h"

static bool is_local_rank(const char *arg, const char **value) {
    static const char *const spellings[] = {"--local_rank", "--local-rank"};
    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        const size_t length = strlen(spellings[i]);
        if (strncmp(arg, spellings[i], length) != 0 || (arg[length] != '\0' && arg[length] != '=')) continue;
        *value = arg[length] == '=' ? arg + length + 1 : NULL;
        return true;
    }
    return false;
}

cairn_status cairn__argument_find(int argc, char **argv, int *local_rank) {
    *local_rank = CAIRN__NOT_TOLD;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *value = NULL;
        if (!is_local_rank(argv[i], &value)) continue;
        if (!value && i + 1 < argc) value = argv[++i];
        REQUIRE(value, CAIRN_EINVAL, "the argument --local_rank has no number after it; write --local_rank=0");
        char *end = NULL;
        errno = 0;
        const long parsed = strtol(value, &end, 10);
        REQUIRE(errno == 0 && end != value && *end == '\0' && parsed >= 0 && parsed <= CAIRN__MAX_RANK, CAIRN_EINVAL,
                "the argument --local_rank=%s is not a whole number in [0, %d]", value, CAIRN__MAX_RANK);
        *local_rank = (int)parsed;
    }
    return CAIRN_OK;
}

void cairn__argument_remove(int *argc, char **argv) {
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
