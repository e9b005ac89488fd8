/* A user's program, built against an installed Cairn by means of pkg-config only. */
#include <cairn/cairn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    cairn_env *env = NULL;
    if (cairn_env_create(&argc, &argv, NULL, &env) != CAIRN_OK) {
        fprintf(stderr, "user: %s\n", cairn_last_error());
        return 1;
    }
    printf("rank %d of %d\n", cairn_env_rank(env), cairn_env_size(env));
    cairn_env_destroy(&env);
    return 0;
}
