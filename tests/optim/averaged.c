/* averaged KIND DECAY START EVERY: averages of randomly changing weights, for test_averages.py. Writes binary f32: for
 * each step the weights, then the averages. */
#include <stdio.h>
#include <stdlib.h>

#include "cairn/cairn.h"

enum { N = 257, STEPS = 120 };

static unsigned next(unsigned *seed) {
    return *seed = *seed * 1664525u + 1013904223u;
}

int main(int argc, char **argv) {
    struct cairn_averages_options h = CAIRN_EMA_OPTIONS_INIT;
    static float w[N];
    unsigned seed = 1;
    cairn_env *env = NULL;
    cairn_param_set *set = NULL;
    cairn_averages *averages = NULL;
    const cairn_param param = {.name = "w", .data = w, .dtype = CAIRN_F32, .ndim = 1, .shape = {N}};
    if (argc != 5) return 1;
    h.kind = (cairn_averages_kind)atoi(argv[1]);
    h.decay = atof(argv[2]);
    h.start = atoi(argv[3]);
    h.every = atoi(argv[4]);
    CAIRN_CHECK(cairn_env_create(NULL, NULL, NULL, &env));
    CAIRN_CHECK(cairn_param_set_create(env, &param, 1, &set));
    CAIRN_CHECK(cairn_averages_create(cairn_param_set_stateful(set), &h, &averages));
    for (int t = 0; t < STEPS; t++) {
        for (int i = 0; i < N; i++) w[i] += (float)(int)(next(&seed) >> 8) * 0x1p-26f - 0.11f;
        CAIRN_CHECK(cairn_param_changed(set, 0, 0));
        CAIRN_CHECK(cairn_averages_update(averages, NULL));
        fwrite(w, sizeof(w), 1, stdout);
    }
    CAIRN_CHECK(cairn_averages_apply(averages));
    fwrite(w, sizeof(w), 1, stdout);
    cairn_averages_destroy(&averages);
    cairn_param_set_destroy(&set);
    cairn_env_destroy(&env);
    return 0;
}
