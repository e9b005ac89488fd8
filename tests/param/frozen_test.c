/* Frozen parameters: patterns that select them, the fate of a pending gradient and its memory, and user-owned
 * arrays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "optim/optim.h"

enum { PARAMS = 4, N = 6 };
static const char *const names[PARAMS] = {"embed.weight", "layer.0.weight", "layer.0.bias", "layer.10.weight"};

static cairn_param_set *make_set(cairn_env *env) {
    cairn_param_set *set = NULL;
    OK(cairn__param_set_new(env, &set));
    for (size_t i = 0; i < PARAMS; i++) {
        struct cairn__param *p = NULL;
        OK(cairn__param_set_add(set, names[i], 1, (int64_t[]){N}, false, &p));
        env->device->passes->fill(env->device, CAIRN_F32, p->data, N, 1);
    }
    return set;
}

static unsigned required(const cairn_param_set *set) {
    unsigned mask = 0;
    for (size_t i = 0; i < PARAMS; i++) mask |= (unsigned)cairn_param_requires_grad(set, i) << i;
    return mask;
}

static void a_pattern_names_the_parameters(void **state) {
    static const struct {
        const char *pattern;
        unsigned left; /* that still require a gradient */
    } cases[] = {{"*", 0},
                 {"embed.*", 0xe},
                 {"*.weight", 0x4},
                 {"layer.?.*", 0x9},
                 {"layer.[0-9].weight", 0xd},
                 {"layer.*.weight", 0x5},
                 {"layer.0.bias", 0xb},
                 {"*bias", 0xb}};
    cairn_param_set *set = make_set(*state);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        OK(cairn_param_set_require_grad(set, cases[c].pattern, CAIRN_OFF));
        assert_int_equal(required(set), cases[c].left);
        OK(cairn_param_set_require_grad(set, cases[c].pattern, CAIRN_ON));
        assert_int_equal(required(set), 0xf);
    }
    OK(cairn_param_set_require_grad(set, "*", 0));
    OK(cairn_param_require_grad(set, 2, 1));
    assert_int_equal(required(set), 0x4);
    cairn_param_set_destroy(&set);
}

static void pattern_without_a_match_is_refused(void **state) {
    cairn_param_set *set = make_set(*state);
    REFUSED(cairn_param_set_require_grad(set, "embeddings.*", 0), CAIRN_EINVAL,
            "cairn_param_set_require_grad: no parameter's name matches 'embeddings.*'");
    REFUSED(cairn_param_set_require_grad(set, "", 0), CAIRN_EINVAL, "matches ''");
    REFUSED(cairn_param_set_require_grad(set, "embed", 0), CAIRN_EINVAL, "matches 'embed'"); /* whole names */
    REFUSED(cairn_param_set_require_grad(set, NULL, 0), CAIRN_EINVAL, "pattern is NULL");
    REFUSED(cairn_param_set_require_grad(NULL, "*", 0), CAIRN_EINVAL, "set is NULL");
    REFUSED(cairn_param_require_grad(set, PARAMS, 0), CAIRN_EINVAL,
            "parameter index is 4, but the set has 4 parameters");
    REFUSED(cairn_param_require_grad(NULL, 0, 0), CAIRN_EINVAL, "set is NULL");
    assert_int_equal(required(set), 0xf);
    assert_int_equal(cairn_param_requires_grad(set, PARAMS), 0);
    assert_int_equal(cairn_param_requires_grad(NULL, 0), 0);
    cairn_param_set_destroy(&set);
}

/* ---- blocks that gradients hold ---- */

enum { BLOCKS = 16 };
static struct cairn__device_ops counting;
static const struct cairn__device_ops *real;
static void *blocks[BLOCKS];

static cairn_status count_alloc(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out) {
    const cairn_status st = real->alloc(d, holder, nbytes, out);
    int i = 0;
    while (holder == CAIRN__HOLDS_GRADS && i < BLOCKS && blocks[i]) i++;
    if (st == CAIRN_OK && holder == CAIRN__HOLDS_GRADS && i < BLOCKS) blocks[i] = *out;
    return st;
}

static void count_free(struct cairn_device *d, void *p) {
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i] == p) blocks[i] = NULL;
    }
    real->free(d, p);
}

static void count_blocks(cairn_env *env) {
    memset(blocks, 0, sizeof(blocks));
    real = env->device->ops;
    counting = *real;
    counting.alloc = count_alloc;
    counting.free = count_free;
    env->device->ops = &counting;
}

static int held(void) {
    int n = 0;
    for (int i = 0; i < BLOCKS; i++) n += blocks[i] != NULL;
    return n;
}

static void write(struct cairn__param *p, bool unsynced) {
    void *slot = NULL;
    p->set->unsynced = unsynced;
    OK(cairn__grad_begin_write(p->gradient, &slot));
    for (int i = 0; i < N; i++) ((float *)slot)[i] = 1;
    cairn__grad_mark_written(p->gradient);
    p->set->unsynced = false;
}

static void freezing_drops_slot_accumulated_and_unsynced_sum_with_their_memory(void **state) {
    cairn_param_set *set = make_set(*state);
    struct cairn__param *p = set->params[1];
    count_blocks(*state);
    write(p, true);
    write(p, true);
    write(p, false);
    write(p, false);
    write(p, true);
    assert_int_equal(held(), 3); /* the slot and both sums */
    OK(cairn_param_require_grad(set, 1, CAIRN_OFF));
    const struct cairn__grad_states is = cairn__grad_states(p->gradient);
    assert_int_equal(is.slot, CAIRN__SLOT_EMPTY);
    assert_int_equal(is.accumulated, CAIRN__ACCUMULATED_ABSENT);
    assert_int_equal(is.unsynced, CAIRN__UNSYNCED_NONE);
    assert_int_equal(held(), 0);
    (*(cairn_env **)state)->device->ops = real;
    OK(cairn_param_require_grad(set, 1, CAIRN_ON));
    assert_false(cairn__grad_exists(p->gradient));
    write(p, false);
    assert_true(cairn__grad_exists(p->gradient));
    cairn_param_set_destroy(&set);
}

static void arrays_of_the_user_stay_bound_and_are_passed_over(void **state) {
    float w[2][N], g[N];
    cairn_param got;
    cairn_param_set *set = NULL;
    cairn_optimizer *sgd = NULL;
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 1;
    for (int i = 0; i < N; i++) w[0][i] = w[1][i] = g[i] = 1;
    const cairn_param params[] = {{.name = "a", .data = w[0], .grad = g, .dtype = CAIRN_F32, .ndim = 1, .shape = {N}},
                                  {.name = "b", .data = w[1], .dtype = CAIRN_F32, .ndim = 1, .shape = {N}}};
    OK(cairn_param_set_create(*state, params, 2, &set));
    OK(cairn_sgd_create(set, &hyper, &sgd));
    OK(cairn_param_set_require_grad(set, "*", CAIRN_OFF));
    OK(cairn_param_set_get(set, 0, &got));
    assert_ptr_equal(got.grad, g);
    OK(cairn_param_set_get(set, 1, &got));
    assert_null(got.grad);            /* and none is made */
    OK(cairn_grads_ready(set, 0, 2)); /* b has no memory to declare */
    OK(cairn_step(sgd));
    assert_true(w[0][0] == 1 && w[1][0] == 1);

    OK(cairn_param_require_grad(set, 0, CAIRN_ON));
    OK(cairn_grads_ready(set, 0, 2));
    OK(cairn_param_require_grad(set, 0, CAIRN_OFF)); /* declared, and dropped */
    OK(cairn_param_require_grad(set, 0, CAIRN_ON));
    OK(cairn_step(sgd));
    assert_true(w[0][0] == 1);
    OK(cairn_grads_ready(set, 0, 2));
    OK(cairn_step(sgd));
    assert_true(w[0][0] == 0 && w[1][0] == 1);
    cairn_optimizer_destroy(&sgd);
    cairn_param_set_destroy(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pattern_names_the_parameters),
        cmocka_unit_test(pattern_without_a_match_is_refused),
        cmocka_unit_test(freezing_drops_slot_accumulated_and_unsynced_sum_with_their_memory),
        cmocka_unit_test(arrays_of_the_user_stay_bound_and_are_passed_over),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
