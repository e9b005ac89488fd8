/* spawned: runs any program as the ranks of cairn_spawn.   usage: spawned RANKS program arguments */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cairn/cairn.h>

static int become(int rank, void *argument) {
    char **program = argument;
    (void)rank;
    execvp(program[0], program);
    perror(program[0]);
    return 127;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: spawned RANKS program arguments\n");
        return 2;
    }
    if (cairn_spawn(become, argv + 2, atoi(argv[1]), NULL) == CAIRN_OK) return 0;
    fprintf(stderr, "spawned: %s\n", cairn_last_error());
    return 1;
}
