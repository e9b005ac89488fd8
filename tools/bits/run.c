/* Runs a program and records what it computes.
 *
 * usage: PROGRAM PATH RANKS ARGUMENTS...    RANKS 0: one process without a group. Records are PATH.rankN.record,
 *                                           output is PATH.rankN.output */
#include "record.h"

#include <string.h>

struct arguments {
    int count;
    char **at;
};

static int run(int rank, void *argument) {
    const struct arguments *a = argument;
    (void)rank;
    return program_main(a->count, a->at);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s PATH RANKS ARGUMENTS...\n", argv[0]);
        return 2;
    }
    const char *path = argv[1];
    const int ranks = (int)strtol(argv[2], NULL, 10);
    argv[2] = argv[0];
    return record_ranks(path, ranks, run, &(struct arguments){argc - 2, argv + 2});
}
