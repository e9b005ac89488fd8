/* own_ranks: two ranks as processes, with their own buffers and their own update. Rank 1 overflows once: both ranks
 * skip the step, and rank 0 reports whose gradient it was. Then rank 1 exits, and rank 0's next step fails instead of
 * waiting. cairn-run --nproc_per_node 2 ./own_ranks */
#include "../check.h"
#include <cairn/cairn.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, STEPS = 5, BAD = 2 };

static char said[4096];

static void keep(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    if (level <= CAIRN_LOG_NOTICE) strncat(said, message, sizeof(said) - strlen(said) - 1);
}

static float w[2][N] = {{1, 2, 3}, {4, 5, 6}}, g[2][N];

static void write_gradients(amp_context *amp, cairn_param_set *set, bool overflows) {
    const float quarter = (float)amp_next_scale(amp) / 4;
    for (int i = 0; i < N; i++) g[0][i] = g[1][i] = quarter;
    if (overflows) g[1][0] = INFINITY;
    MUST(cairn_grads_ready(set, 0, 2) == CAIRN_OK);
}

static void update(amp_context *amp) {
    cairn_param masters[2];
    MUST(amp_master_params(amp, NULL, masters, 2) == CAIRN_OK);
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < N; i++) ((float *)masters[p].data)[i] -= ((const float *)masters[p].grad)[i];
    }
}

int main(int argc, char **argv) {
    cairn_env *env;
    cairn_param_set *set;
    amp_context *amp;
    int skip = 0;
    cairn_set_log(keep, NULL);
    MUST(cairn_env_create(&argc, &argv, NULL, &env) == CAIRN_OK);
    const int rank = cairn_env_rank(env);
    const cairn_param params[] = {{"encoder", w[0], g[0], CAIRN_F32, 1, {N}, CAIRN_OFF},
                                  {"decoder", w[1], g[1], CAIRN_F32, 1, {N}, CAIRN_OFF}};
    MUST(cairn_env_size(env) == 2);
    MUST(cairn_param_set_create(env, params, 2, &set) == CAIRN_OK);
    MUST(amp_initialize_params(env, set, NULL, amp_options(.opt_level = AMP_O2), &amp) == CAIRN_OK);
    for (int s = 0; s < STEPS; s++) {
        write_gradients(amp, set, rank == 1 && s == BAD);
        MUST(amp_begin_step(amp, &skip) == CAIRN_OK);
        MUST(skip == (s == BAD));
        if (!skip) update(amp);
        MUST(amp_end_step(amp) == CAIRN_OK);
    }
    for (int i = 0; i < 2 * N; i++) MUST(w[i / N][i % N] == (float)(i + 1) - 0.25f * (STEPS - 1));
    MUST(strstr(said, "reducing loss scale to 32768: non-finite gradient in decoder (1 inf of 3), on rank 1"));

    if (rank == 0) {
        write_gradients(amp, set, false);
        MUST(amp_begin_step(amp, &skip) == CAIRN_EPEER);
        MUST(strstr(cairn_last_error(), "rank 1"));
        MUST(amp_end_step(amp) == CAIRN_ESTATE);
    }
    amp_destroy(&amp);
    cairn_param_set_destroy(&set);
    cairn_env_destroy(&env);
    return 0;
}
