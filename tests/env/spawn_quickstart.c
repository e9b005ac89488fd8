/* usage: spawn_quickstart ranks [options of 01_linear_regression]
 *
 * Includes the quick start's source and runs its main in ranks of cairn_spawn. */
static int train(int argc, char **argv);
#define main train
#include "../../examples/01_linear_regression.c"
#undef main

struct command {
    int argc;
    char **argv;
};

static int run(int rank, void *argument) {
    const struct command *command = argument;
    (void)rank;
    return train(command->argc, command->argv);
}

int main(int argc, char **argv) {
    struct command command = {argc - 1, argv + 1};
    if (argc >= 2 && cairn_spawn(run, &command, atoi(argv[1]), NULL) == CAIRN_OK) return 0;
    fprintf(stderr, "spawn_quickstart: %s\n", argc >= 2 ? cairn_last_error() : "how many ranks?");
    return 1;
}
