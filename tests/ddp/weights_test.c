/* Creating a ddp context gives all ranks rank 0's weights, and sends small tensors together. */
#include "parts.h"

enum { RANKS = 3, COUNT = 400, LONG = 25000, LARGE = 40000, BLOCKS = 2 };

/* Many small parameters, more than a block of them, and two large ones among them. */
static int64_t size_of(int i) {
    if (i % 150 == 7) return LARGE;
    return i % 30 == 3 ? LONG : i % 37 + 1;
}

static cairn_tensor *forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)context, (void)count;
    return inputs[0];
}

static cairn_module *make_model(cairn_env *env) {
    static const struct cairn_module_ops ops = {.struct_size = sizeof(ops), .name = "Many", .forward = forward};
    cairn_module *model = cairn_module_create(env, &ops, NULL);
    for (int i = 0; model && i < COUNT; i++) {
        char name[16];
        snprintf(name, sizeof(name), "p%d", i);
        if (!cairn_module_add_param(model, name, 1, (int64_t[]){size_of(i)}, i % 5 == 0)) return NULL;
    }
    return model;
}

/* What half types round, so that masters and weights differ. */
static float number(int rank, int i, size_t k) {
    return (float)((rank + 1) * 1000 + (i * 31 + (int)k * 7) % 997) + 0x1p-10f;
}

static void write_values(cairn_module *model, int rank) {
    struct cairn_param_set *set = cairn_module_params(model);
    for (int i = 0; i < COUNT; i++) {
        float *values = set->params[i]->data;
        for (size_t k = 0; k < set->params[i]->n; k++) values[k] = number(rank, i, k);
    }
}

static bool holds_rank_0s(const struct cairn__param *p, int i) {
    const struct cairn__dtype *row = cairn__dtype(p->dtype);
    for (size_t k = 0; k < p->n; k++) {
        char want[sizeof(float)];
        row->from_f32(want, number(0, i, k));
        if (memcmp(want, (const char *)p->data + k * row->nbytes, row->nbytes) != 0) return false;
        if (p->master && p->master[k] != number(0, i, k)) return false;
    }
    return true;
}

static char *make_equal(cairn_env *env, void *ctx) {
    struct trained t = {.model = make_model(env)};
    EXPECT(t.model);
    t.set = cairn_module_params(t.model);
    write_values(t.model, cairn_env_rank(env));
    EXPECT_OK(parts_optimizer(&t, BY_SGD));
    EXPECT_OK(amp_initialize(env, t.model, t.optimizer, ctx, &t.amp));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    for (int i = 0; i < COUNT; i++) EXPECT(holds_rank_0s(t.set->params[i], i));
    parts_end(&t);
    return NULL;
}

static void every_rank_begins_with_rank_0s_masters_and_their_halves(void **state) {
    (void)state;
    for (int l = 0; l < PARTS_LEVELS; l += 3) run_ranks(RANKS, make_equal, (void *)(uintptr_t)&parts_levels[l]);
}

/* ---- how many collectives that takes ---- */

static char *count_collectives(cairn_env *env, void *ctx) {
    uint64_t *count = ctx, without = 0;
    for (int sync = 0; sync <= 1; sync++) {
        ddp_context *net = NULL;
        cairn_module *model = make_model(env);
        EXPECT(model);
        write_values(model, 0);
        EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.init_sync = sync ? CAIRN_ON : CAIRN_OFF), &net));
        if (sync && cairn_env_rank(env) == 0) *count = ddp_group(net)->next_number - without;
        without = ddp_group(net)->next_number;
        ddp_destroy(&net);
        cairn_module_destroy(&model);
    }
    return NULL;
}

static void small_tensors_travel_together(void **state) {
    (void)state;
    enum { AGREEING = 8 }; /* on memory, names and amp */
    uint64_t count = 0;
    int large = 0;
    for (int i = 0; i < COUNT; i++) large += size_of(i) == LARGE;
    run_ranks(2, count_collectives, &count);
    assert_in_range(count, (uint64_t)(large + BLOCKS), (uint64_t)(large + BLOCKS + AGREEING));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_begins_with_rank_0s_masters_and_their_halves),
        cmocka_unit_test(small_tensors_travel_together),
    };
    return cmocka_run_group_tests(tests, parts_be_quiet, NULL);
}
