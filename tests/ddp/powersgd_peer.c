/* Cairn's half of powersgd_torch.py: writes the gradients of two ranks; then trains with these gradients, starting from
 * torch's first Q, and compares every average with torch's.
 *
 *     powersgd_peer write DIR RANK STEPS
 *     powersgd_peer compare DIR RANK STEPS TOLERANCE */
#include "given_grads.h"
#include "param/stateful.h"

enum { RANKS = 2, ROOM = 4096 };

struct job {
    const char *folder;
    int rank, steps; /* of the approximation */
    double tolerance, most;
};

static FILE *open_file(const struct job *job, const char *name, const char *mode) {
    char path[ROOM];
    snprintf(path, sizeof(path), "%s/%s", job->folder, name);
    return fopen(path, mode);
}

/* Of each rank and step: the gradients, one after the other. */
static int write_inputs(const struct job *job) {
    struct given_values g;
    FILE *f = open_file(job, "inputs", "wb");
    if (!f) return 1;
    for (int rank = 0; rank < RANKS; rank++) {
        for (int step = 0; step < job->steps; step++) {
            given_gradients(job->rank, rank, step, &g);
            for (int k = 0; k < GIVEN; k++) fwrite(g.of[k], sizeof(float), given_n(k), f);
        }
    }
    return fclose(f);
}

/* torch's [cols, rank] of every compressed parameter, into the context's state. */
static char *take_torchs_q(cairn_env *env, const struct job *job, ddp_context *net) {
    const cairn_stateful state = ddp_stateful(net);
    struct cairn__entries entries = {.env = env, .object = "ddp"};
    EXPECT_OK(state.ops->list(state.object, &entries));
    for (int k = 0; k < 3; k++) {
        const size_t cols = (size_t)given_shapes[k].cols, r = (size_t)job->rank;
        float theirs[ROOM], ours[ROOM];
        char name[64];
        snprintf(name, sizeof(name), "q.%s", given_shapes[k].name);
        FILE *f = open_file(job, name, "rb");
        EXPECT(f && fread(theirs, sizeof(float), cols * r, f) == cols * r);
        fclose(f);
        for (size_t i = 0; i < cols * r; i++) ours[i % r * cols + i / r] = theirs[i];
        snprintf(name, sizeof(name), "powersgd.q.%s", given_shapes[k].name);
        const struct cairn__entry *e = cairn__entries_find(&entries, name);
        EXPECT(e && e->nbytes == cols * r * sizeof(float));
        EXPECT_OK(cairn__device_upload(env->device, e->memory, ours, e->nbytes));
    }
    cairn__entries_clear(&entries);
    return NULL;
}

static char *compare_step(cairn_env *env, struct job *job, cairn_module *model, FILE *outs) {
    float got[GIVEN_MOST], want[GIVEN_MOST];
    for (int k = 0; k < GIVEN; k++) {
        double most = 0, off = 0;
        EXPECT(fread(want, sizeof(float), given_n(k), outs) == given_n(k));
        PASS(read_given(env, model, k, got));
        for (size_t i = 0; i < given_n(k); i++) {
            most = fmax(most, fabs(want[i]));
            off = fmax(off, fabs(got[i] - want[i]));
        }
        if (cairn_env_rank(env) == 0) job->most = fmax(job->most, off / most);
        EXPECT(off <= job->tolerance * most);
    }
    return NULL;
}

static char *follow_torch(cairn_env *env, void *ctx) {
    struct job *job = ctx;
    struct given_inputs x;
    struct given_values g;
    ddp_context *net = NULL;
    cairn_module *model = make_given(env);
    FILE *outs = open_file(job, "outs", "rb");
    EXPECT(model && outs);
    PASS(make_given_inputs(env, &x));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    EXPECT_OK(ddp_powersgd_register(net, ddp_powersgd_options(.matrix_approximation_rank = job->rank,
                                                              .start_powerSGD_iter = 2, .min_compression_rate = 1.25)));
    PASS(take_torchs_q(env, job, net));
    for (int step = 0; step < job->steps; step++) {
        given_gradients(job->rank, cairn_env_rank(env), step, &g);
        for (int k = 0; k < GIVEN; k++) EXPECT_OK(cairn_tensor_write(x.of[k], g.of[k], (int64_t)given_n(k)));
        cairn_param_set_zero_grad(cairn_module_params(model));
        EXPECT_OK(cairn_backward(ddp_forward_n(net, x.of, GIVEN)));
        PASS(compare_step(env, job, model, outs));
    }
    fclose(outs);
    ddp_destroy(&net);
    end_given_inputs(&x);
    cairn_module_destroy(&model);
    return NULL;
}

static struct job job;

static void averages_are_torchs(void **state) {
    (void)state;
    run_ranks(RANKS, follow_torch, &job);
    printf("rank %d: %d steps, at most %.3g of the largest number off torch's\n", job.rank, job.steps, job.most);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(averages_are_torchs)};
    if (argc < 5) return 2;
    job = (struct job){.folder = argv[2], .rank = atoi(argv[3]), .steps = atoi(argv[4])};
    if (strcmp(argv[1], "write") == 0) return write_inputs(&job);
    job.tolerance = argc > 5 ? atof(argv[5]) : 1e-5;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
