/* Memory of data parallelism: gradients are stored in the buckets that are reduced and nowhere else.
 *
 * The test measures every block that a rank's thread gets from Cairn's allocator (it replaces the C library's
 * aligned_alloc), without subtracting freed ones, and the memory files that the process maps. */
#include <stdlib.h>

void *aligned_alloc(size_t align, size_t nbytes);
static _Thread_local size_t allocated;

void *aligned_alloc(size_t align, size_t nbytes) {
    void *p = NULL;
    allocated += nbytes;
    return posix_memalign(&p, align, nbytes) == 0 ? p : NULL;
}

#include "../on_gpu.h"
#include "../ranks.h"

enum { RANKS = 2, LAYERS = 6, WIDTH = 512, BATCH = 4, STEPS = 4 };
enum { GRADS = LAYERS * (WIDTH * WIDTH + WIDTH) * (int)sizeof(float), SLACK = GRADS / 32 };

struct run {
    const struct ddp_options *options; /* NULL: no ddp */
    size_t blocks[RANKS];              /* bytes */
    size_t files;                      /* of all ranks */
};

/* Bytes of memory files that this process maps, each once. */
static size_t mapped_files(void) {
    enum { MOST = 256 };
    unsigned long inodes[MOST];
    char line[512];
    size_t count = 0, nbytes = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof(line), maps)) {
        unsigned long begin = 0, end = 0, inode = 0;
        bool known = false;
        if (!strstr(line, "/memfd:") || sscanf(line, "%lx-%lx %*s %*s %*s %lu", &begin, &end, &inode) != 3) continue;
        for (size_t i = 0; i < count; i++) known |= inodes[i] == inode;
        if (known || count == MOST) continue;
        inodes[count++] = inode;
        nbytes += end - begin;
    }
    if (maps) fclose(maps);
    return nbytes;
}

static char *steps(cairn_env *env, cairn_module *model, ddp_context *net) {
    cairn_optimizer *sgd = NULL;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
    EXPECT_OK(cairn_sgd_create(cairn_module_params(model), NULL, &sgd));
    for (int i = 0; i < STEPS; i++) {
        cairn_zero_grad(sgd);
        EXPECT_OK(cairn_backward(cairn_mean(net ? ddp_forward(net, x) : cairn_module_forward(model, x))));
        EXPECT_OK(cairn_step(sgd));
    }
    cairn_optimizer_destroy(&sgd);
    cairn_tensor_destroy(&x);
    return NULL;
}

static char *train(cairn_env *env, void *ctx) {
    struct run *run = ctx;
    cairn_module *layers[LAYERS];
    ddp_context *net = NULL;
    for (int i = 0; i < LAYERS; i++) layers[i] = cairn_linear(env, WIDTH, WIDTH);
    cairn_module *model = cairn_sequential(env, LAYERS, layers);
    EXPECT(model);
    const size_t files = mapped_files();
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    allocated = 0;
    if (run->options) EXPECT_OK(ddp_create(model, cairn_env_group(env), run->options, &net));
    PASS(steps(env, model, net));
    run->blocks[cairn_env_rank(env)] = allocated;
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    if (cairn_env_rank(env) == 0) run->files = mapped_files() - files;
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static struct run measure(const struct ddp_options *options) {
    struct run run = {.options = options};
    run_ranks(RANKS, train, &run);
    print_message("blocks of rank 0: %zu, of rank 1: %zu, memory files of both: %zu bytes; gradients of one: %d\n",
                  run.blocks[0], run.blocks[1], run.files, GRADS);
    return run;
}

static void gradients_exist_once_where_buckets_hold_them(void **state) {
    (void)state;
    NOT_ON_A_GPU("what is counted is the host's memory");
    const struct run alone = measure(NULL), together = measure(ddp_options(.bucket_nbytes = 1 << 20));
    assert_true(alone.blocks[0] > GRADS && alone.files == 0);
    for (int r = 0; r < RANKS; r++) assert_true(together.blocks[r] + GRADS <= alone.blocks[r] + SLACK);
    assert_true(together.files >= (size_t)RANKS * GRADS);
    assert_true(together.files <= (size_t)RANKS * GRADS + GRADS / 2); /* the channel has some for itself */
}

static void a_copying_mode_has_them_twice(void **state) {
    (void)state;
    NOT_ON_A_GPU("what is counted is the host's memory");
    const struct run once = measure(ddp_options(.bucket_nbytes = 1 << 20));
    const struct run twice = measure(ddp_options(.bucket_nbytes = 1 << 20, .gradient_as_bucket_view = CAIRN_OFF));
    for (int r = 0; r < RANKS; r++) assert_true(twice.blocks[r] + SLACK >= once.blocks[r] + GRADS);
    assert_true(twice.files >= (size_t)RANKS * GRADS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_exist_once_where_buckets_hold_them),
        cmocka_unit_test(a_copying_mode_has_them_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
