/* Two trainings in two threads of one process, each with its own environment and both on one thread pool, give the same
 * bits as each training alone: at every level, with overflow, several losses and clipping. */
#include <pthread.h>

#include "exact.h"
#include "../mlp.h"

enum { STEPS = 12, THREADS = 2, INPUTS = 64, HIDDEN = 512, OUTPUTS = 4, ROWS = 32 }; /* work for a pool */

/* What a training leaves behind. */
struct bits {
    float losses[STEPS];
    unsigned char weights[4][HIDDEN * INPUTS * 4];
    double scale;
    int64_t skipped;
};

struct job {
    const struct exact_level *level;
    uint64_t seed;
    struct bits bits;
};

struct training {
    cairn_env *env;
    cairn_module *model;
    cairn_optimizer *adam;
    amp_context *amp;
    cairn_tensor *x, *y;
    struct plant plant;
};

static void quiet(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level, (void)message;
}

static void begin(struct training *t, const struct job *job) {
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.seed = job->seed), &t->env));
    t->x = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(ROWS, INPUTS));
    t->y = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUTPUTS));
    t->model = make_mlp(t->env, INPUTS, HIDDEN, OUTPUTS);
    OK(cairn_adam_create(cairn_module_params(t->model), NULL, &t->adam));
    OK(amp_initialize(t->env, t->model, t->adam,
                      amp_options(.opt_level = job->level->level, .half_type = job->level->half, .num_losses = 2,
                                  .verbosity = -1, .loss_scale = AMP_DYNAMIC),
                      &t->amp));
    plant_install(&t->plant, cairn_module_params(t->model));
    t->plant.value = INFINITY;
}

static float step(struct training *t, int i) {
    cairn_tensor *loss = NULL;
    cairn_zero_grad(t->adam);
    for (int id = 0; id < 2; id++) {
        t->plant.target = i % 5 == 3 && id == 0 ? i % 4 : -1;
        loss = cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y);
        OK(amp_backward_with(t->amp, loss, amp_loss_options(.loss_id = id)));
    }
    OK(cairn_clip_grad_norm(t->adam, 0.5, NULL));
    OK(cairn_step(t->adam));
    return cairn_tensor_item(loss);
}

static void end(struct training *t) {
    plant_remove(&t->plant);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->adam);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x), cairn_tensor_destroy(&t->y);
    cairn_env_destroy(&t->env);
}

static void *train(void *arg) {
    struct job *job = arg;
    struct training t = {0};
    memset(&job->bits, 0, sizeof(job->bits));
    begin(&t, job);
    for (int i = 0; i < STEPS; i++) job->bits.losses[i] = step(&t, i);
    for (size_t k = 0; k < 4; k++) {
        const struct cairn__param *p = cairn_module_params(t.model)->params[k];
        memcpy(job->bits.weights[k], p->data, p->n * cairn_dtype_nbytes(p->dtype));
    }
    job->bits.scale = amp_next_scale(t.amp);
    job->bits.skipped = cairn_optimizer_skipped(t.adam);
    end(&t);
    return NULL;
}

/* Neighbours of other levels and seeds. */
static void trainings_in_parallel_threads_give_the_bits_they_give_alone(void **state) {
    (void)state;
    static struct job alone[THREADS], beside[THREADS];
    for (int l = 0; l < EXACT_LEVELS; l++) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) {
            alone[i] = (struct job){.level = &exact_levels[(l + 3 * i) % EXACT_LEVELS], .seed = (uint64_t)(l + i)};
            beside[i] = alone[i];
            train(&alone[i]);
            assert_in_range(alone[i].bits.skipped, 2, STEPS - 4);
        }
        for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, train, &beside[i]), 0);
        for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < THREADS; i++) assert_memory_equal(&alone[i].bits, &beside[i].bits, sizeof(alone[i].bits));
    }
}

static void trainings_that_share_a_thread_pool_give_the_bits_they_give_alone(void **state) {
    cairn_set_num_threads(3);
    trainings_in_parallel_threads_give_the_bits_they_give_alone(state);
    cairn_set_num_threads(1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trainings_in_parallel_threads_give_the_bits_they_give_alone),
        cmocka_unit_test(trainings_that_share_a_thread_pool_give_the_bits_they_give_alone),
    };
    cairn_set_log(quiet, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
