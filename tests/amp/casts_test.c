/* How O1 chooses types: op classes by name, scopes, banned operations, in-place operations, and a cached weight cast
 * that is renewed after every change of the weight. op_table_test.c tests the types of each operation. */
#include <stdio.h>
#include <string.h>

#include "casts.h"
#include "core/status.h"
#include "nn/tensor.h"
#include "ops.h"
#include "../nn/test_env.h"
#include "../ranks.h"

static cairn_tensor *ones(cairn_env *env, cairn_dtype dtype) {
    return cairn_full(env, dtype, CAIRN_SHAPE(2, 2), 1);
}

static void assert_null_because(const cairn_tensor *y, const char *words) {
    assert_null(y);
    REFUSED(cairn__last_status(), CAIRN_EINVAL, words);
}

static cairn_dtype type_of_product(cairn_env *env) {
    return cairn_tensor_dtype(cairn_matmul(ones(env, CAIRN_F32), ones(env, CAIRN_F32)));
}

/* ---- classes ---- */

static void a_class_is_set_by_name_and_taken_back(void **state) {
    cairn_env *env = test_env_of(state);
    const char *why = NULL;
    assert_int_equal(amp_op_cast(env, "matmul", &why), AMP_CAST_HALF);
    assert_string_equal(why, "a product, as all of this family");
    assert_int_equal(amp_op_set_cast(env, "matmul", AMP_CAST_F32), CAIRN_OK); /* before O1 */
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_F16, false), CAIRN_OK);
    assert_int_equal(type_of_product(env), CAIRN_F32);
    assert_int_equal(amp_op_cast(env, "matmul", &why), AMP_CAST_F32);
    assert_string_equal(why, "set by amp_op_set_cast");
    assert_int_equal(amp_op_set_cast(env, "matmul", (amp_cast)0), CAIRN_OK); /* and after */
    assert_int_equal(type_of_product(env), CAIRN_F16);
    assert_int_equal(amp_op_set_cast(env, "relu", AMP_CAST_HALF), CAIRN_OK);
    assert_int_equal(cairn_tensor_dtype(cairn_relu(ones(env, CAIRN_F32))), CAIRN_F16);
    cairn__casts_end_o1(env);
    assert_int_equal(cairn_tensor_dtype(cairn_relu(ones(env, CAIRN_F32))), CAIRN_F32);
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_BF16, false), CAIRN_OK); /* the next context finds it too */
    assert_int_equal(cairn_tensor_dtype(cairn_relu(ones(env, CAIRN_F32))), CAIRN_BF16);
}

static void wrong_names_are_refused_with_a_guess(void **state) {
    cairn_env *env = test_env_of(state);
    static const char *const guesses[][2] = {
        {"gleu", "'gelu'"},
        {"GELU", "'gelu'"},
        {"geluu", "'gelu'"},
        {"log_softmx", "'log_softmax'"},
        {"logsoftmax", "log_soft"},
        {"cairn_softmax", "'softmax'"},
        {"linear_forward", "'linear'"},
        {"exp_", "'exp'"},
        {"binary_cross_entropy", "'bce'"},
        {"mm", "'matmul'"},
        {"normalize", "'norm' and 'div'"},
        {"cross_entropy_loss", NULL},
    };
    for (size_t i = 0; i < sizeof(guesses) / sizeof(guesses[0]); i++) {
        const cairn_status st = amp_op_set_cast(env, guesses[i][0], AMP_CAST_F32);
        if (guesses[i][1]) {
            REFUSED(st, CAIRN_EINVAL, guesses[i][1]);
            assert_int_equal(amp_op_cast(env, guesses[i][0], NULL), 0);
        } else {
            assert_int_equal(st, CAIRN_OK);
        }
    }
    static const char *const own[] = {"selu", "conv3d", "elu", "geglu", "sort", "layer_norm2d", "my_gelu", "rope"};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        if (amp_op_set_cast(env, own[i], AMP_CAST_F32) != CAIRN_OK) fail_msg("%s: %s", own[i], cairn_last_error());
        assert_int_equal(amp_op_cast(env, own[i], NULL), AMP_CAST_F32);
    }
}

static void nonsense_arguments_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    REFUSED(amp_op_set_cast(env, "linear", (amp_cast)7), CAIRN_EINVAL, "cast is 7;");
    REFUSED(amp_op_set_cast(env, "linear", (amp_cast)-1), CAIRN_EINVAL, "cast is -1;");
    REFUSED(amp_op_set_cast(env, "", AMP_CAST_F32), CAIRN_EINVAL, "name");
    REFUSED(amp_op_set_cast(env, NULL, AMP_CAST_F32), CAIRN_EINVAL, "name");
    REFUSED(amp_op_set_cast(NULL, "linear", AMP_CAST_F32), CAIRN_EINVAL, "env");
    REFUSED(amp_op_set_cast(env, "reshape", AMP_CAST_HALF), CAIRN_EINVAL, "moves values without computing");
    REFUSED(amp_op_set_cast(env, "cast", AMP_CAST_HALF), CAIRN_EINVAL, "moves values without computing");
    assert_int_equal(amp_op_set_cast(env, "reshape", AMP_CAST_FOLLOW), CAIRN_OK);
    assert_int_equal(amp_op_cast(NULL, "linear", NULL), 0);
    assert_int_equal(amp_op_cast(env, NULL, NULL), 0);
    assert_int_equal(amp_op_cast(env, "no such operation", NULL), 0);
    char *const endless = memset(malloc(5000), 'a', 4999);
    endless[4999] = '\0';
    assert_int_equal(amp_op_set_cast(env, endless, AMP_CAST_F32), CAIRN_OK);
    assert_int_equal(amp_op_cast(env, endless, NULL), AMP_CAST_F32);
    free(endless);
}

/* ---- operations of the user's own ---- */

static cairn_dtype seen; /* the type that the custom operation's input came in */

static cairn_status identity(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)count;
    seen = x[0].dtype;
    memset(y->data, 0, y->n * cairn_dtype_nbytes(y->dtype));
    return CAIRN_OK;
}
static const struct cairn_custom_op own_op = {.struct_size = sizeof(own_op), .name = "twirl", .forward = identity};

static cairn_dtype type_seen(cairn_env *env, cairn_dtype input) {
    cairn_tensor *x = ones(env, input);
    seen = (cairn_dtype)0;
    (void)cairn_custom(&own_op, NULL, CAIRN_F32, CAIRN_SHAPE(2, 2), &x, 1);
    return seen;
}

static void own_operations_have_classes_by_their_names(void **state) {
    cairn_env *env = test_env_of(state);
    assert_int_equal(amp_op_set_cast(env, "twirl", AMP_CAST_HALF), CAIRN_OK);
    assert_int_equal(type_seen(env, CAIRN_F32), CAIRN_F32); /* no casts here */
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_BF16, false), CAIRN_OK);
    assert_int_equal(type_seen(env, CAIRN_F32), CAIRN_BF16);
    assert_int_equal(amp_op_set_cast(env, "twirl", AMP_CAST_F32), CAIRN_OK);
    assert_int_equal(type_seen(env, CAIRN_F16), CAIRN_F32);
    assert_int_equal(amp_op_set_cast(env, "twirl", AMP_CAST_BANNED), CAIRN_OK);
    assert_int_equal(type_seen(env, CAIRN_F16), 0);
    REFUSED(cairn__last_status(), CAIRN_EINVAL, "amp_op_set_cast(env, \"twirl\", AMP_CAST_F32)");
    assert_int_equal(amp_op_set_cast(env, "twirl", (amp_cast)0), CAIRN_OK);
    assert_int_equal(amp_op_cast(env, "twirl", NULL), 0);
    assert_int_equal(type_seen(env, CAIRN_F16), CAIRN_F16);
    assert_int_equal(amp_op_set_cast(env, "custom", AMP_CAST_F32), CAIRN_OK); /* all that have none of their own */
    assert_int_equal(type_seen(env, CAIRN_F16), CAIRN_F32);
}

/* ---- bans, f64, in place ---- */

static void bce_of_halves_is_an_error_with_advice(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *half = cairn_full(env, CAIRN_F16, CAIRN_SHAPE(2), 0.5);
    cairn_tensor *wide = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2), 0.5);
    assert_non_null(cairn_bce(half, half, NULL)); /* its own affair, without casts */
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_F16, false), CAIRN_OK);
    assert_null_because(cairn_bce(half, half, NULL), "cairn_bce_with_logits");
    assert_null_because(cairn_bce(wide, half, NULL), "amp_op_set_cast(env, \"bce\", AMP_CAST_F32)");
    assert_null_because(cairn_bce(cairn_full(env, CAIRN_F64, CAIRN_SHAPE(2), 0.5), half, NULL), "bce");
    assert_int_equal(cairn_tensor_dtype(cairn_bce(wide, wide, NULL)), CAIRN_F32);
    assert_int_equal(amp_op_set_cast(env, "bce", AMP_CAST_F32), CAIRN_OK);
    assert_int_equal(cairn_tensor_dtype(cairn_bce(half, half, NULL)), CAIRN_F32);
}

static void f64_is_never_narrowed(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ones(env, CAIRN_F64), *f = ones(env, CAIRN_F32), *h = ones(env, CAIRN_F16);
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_F16, false), CAIRN_OK);
    assert_int_equal(cairn_tensor_dtype(cairn_matmul(x, x)), CAIRN_F64); /* half */
    assert_int_equal(cairn_tensor_dtype(cairn_matmul(x, f)), CAIRN_F64);
    assert_int_equal(cairn_tensor_dtype(cairn_exp(x)), CAIRN_F64);    /* f32 */
    assert_int_equal(cairn_tensor_dtype(cairn_add(x, h)), CAIRN_F64); /* widest */
    assert_int_equal(cairn_tensor_dtype(cairn_bce(x, x, NULL)), CAIRN_F64);
    assert_null_because(cairn_linear_forward(x, f, NULL), "linear"); /* as without casts */
}

static void in_place_operations_keep_the_type_of_their_tensor(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *h = ones(env, CAIRN_F16), *b = ones(env, CAIRN_BF16), *f = ones(env, CAIRN_F32);
    assert_non_null(cairn_exp_(h)); /* outside: computed in its type */
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_F16, false), CAIRN_OK);
    assert_null_because(cairn_exp_(h), "cannot call in-place exp_ on an f16 tensor");
    assert_null_because(cairn_pow_scalar_(b, 2), "cannot call in-place pow_scalar_ on a bf16 tensor");
    assert_non_null(cairn_exp_(f));
    assert_non_null(cairn_add_(h, f));
    assert_int_equal(cairn_tensor_dtype(h), CAIRN_F16);
    assert_non_null(cairn_add_(f, h));
    assert_non_null(cairn_mul_(h, b));
    assert_non_null(cairn_sqrt_(h));
    assert_int_equal(amp_op_set_cast(env, "add", AMP_CAST_F32), CAIRN_OK);
    assert_null_because(cairn_add_(h, f), "add_");
    assert_null_because(cairn_add_(ones(env, CAIRN_I64), h), "the result is f32, which does not fit into");
    assert_int_equal(amp_op_set_cast(env, "add", AMP_CAST_HALF), CAIRN_OK);
    assert_non_null(cairn_add_(f, h));
}

/* 1 + 2^-12: f16's neighbours of 1 are 2^-10 apart, so what is cast to f16 first adds nothing. */
static void in_place_casts_the_other_tensor_first(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *h = cairn_full(env, CAIRN_F16, CAIRN_SHAPE(1), 1);
    cairn_tensor *f = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1), 1 + 0x1p-12);
    assert_non_null(cairn_sub_(h, f)); /* outside in f32: -2^-12 */
    assert_true(cairn_tensor_item(h) == -0x1p-12f);
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_F16, false), CAIRN_OK);
    h = cairn_full(env, CAIRN_F16, CAIRN_SHAPE(1), 1);
    assert_non_null(cairn_sub_(h, f));
    assert_true(cairn_tensor_item(h) == 0);
    h = cairn_full(env, CAIRN_F16, CAIRN_SHAPE(1), 1);
    assert_non_null(cairn_add_(f, h)); /* an f32 tensor loses nothing */
    assert_true(cairn_tensor_item(f) == 2 + 0x1p-12f);
}

/* ---- scopes ---- */

static void scopes_nest_and_end_what_is_inside_them(void **state) {
    cairn_env *env = test_env_of(state);
    int a = 0, b = 0, c = 0;
    assert_int_equal(amp_autocast_type(env), 0);
    assert_int_equal(type_of_product(env), CAIRN_F32);
    assert_int_equal(amp_autocast_begin(env, NULL, &a), CAIRN_OK);
    assert_int_equal(type_of_product(env), CAIRN_F16);
    assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.half_type = CAIRN_BF16), &b), CAIRN_OK);
    assert_int_equal(type_of_product(env), CAIRN_BF16);
    assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.enabled = CAIRN_OFF), NULL), CAIRN_OK);
    assert_int_equal(type_of_product(env), CAIRN_F32);
    assert_int_equal(amp_autocast_type(env), 0);
    assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.enabled = CAIRN_ON), &c), CAIRN_OK);
    assert_int_equal(amp_autocast_type(env), CAIRN_BF16); /* of the scopes around it */
    assert_true(a > 0 && b > a && c > b);
    assert_int_equal(amp_autocast_end(env, b), CAIRN_OK); /* with the two inside */
    assert_int_equal(amp_autocast_type(env), CAIRN_F16);
    REFUSED(amp_autocast_end(env, c), CAIRN_ESTATE, "is not open");
    assert_int_equal(amp_autocast_end(env, 0), CAIRN_OK);
    REFUSED(amp_autocast_end(env, 0), CAIRN_ESTATE, "and no other is");
    REFUSED(amp_autocast_end(env, a), CAIRN_ESTATE, "is not open");
    REFUSED(amp_autocast_end(env, -3), CAIRN_ESTATE, "-3 is not open");
    REFUSED(amp_autocast_end(NULL, 0), CAIRN_EINVAL, "NULL");
    assert_int_equal(type_of_product(env), CAIRN_F32);
}

static void scope_options_are_checked(void **state) {
    cairn_env *env = test_env_of(state);
    REFUSED(amp_autocast_begin(env, amp_autocast_options(.half_type = CAIRN_F32), NULL), CAIRN_EINVAL,
            "half_type is f32");
    REFUSED(amp_autocast_begin(env, amp_autocast_options(.enabled = (cairn_switch)7), NULL), CAIRN_EINVAL,
            "enabled is 7");
    REFUSED(amp_autocast_begin(env, &(struct amp_autocast_options){0}, NULL), CAIRN_EINVAL, "struct_size");
    REFUSED(amp_autocast_begin(NULL, NULL, NULL), CAIRN_EINVAL, "NULL");
    assert_int_equal(amp_autocast_type(NULL), 0);
    assert_int_equal(amp_autocast_type(env), 0);
}

static void scopes_lie_on_o1(void **state) {
    cairn_env *env = test_env_of(state);
    int off = 0;
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_BF16, false), CAIRN_OK);
    assert_int_equal(amp_autocast_type(env), CAIRN_BF16);
    assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.enabled = CAIRN_OFF), &off), CAIRN_OK);
    assert_int_equal(type_of_product(env), CAIRN_F32);
    assert_int_equal(cairn_tensor_dtype(cairn_exp(ones(env, CAIRN_F16))), CAIRN_F16);
    assert_int_equal(amp_autocast_end(env, off), CAIRN_OK);
    assert_int_equal(type_of_product(env), CAIRN_BF16);
    REFUSED(amp_autocast_end(env, 0), CAIRN_ESTATE, "is not open"); /* O1 is no scope */
    assert_int_equal(type_of_product(env), CAIRN_BF16);
}

static void an_environment_has_one_o1_context(void **state) {
    cairn_env *env = test_env_of(state);
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_F16, false), CAIRN_OK);
    REFUSED(cairn__casts_begin_o1(env, CAIRN_BF16, false), CAIRN_ESTATE, "amp_initialize_all");
    assert_int_equal(amp_autocast_type(env), CAIRN_F16);
    cairn__casts_end_o1(env);
    assert_int_equal(amp_autocast_type(env), 0);
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_BF16, false), CAIRN_OK);
    assert_int_equal(amp_autocast_type(env), CAIRN_BF16);
}

static void scopes_left_open_do_no_harm(void **state) {
    cairn_env *env = test_env_of(state);
    int around = 0, inside = 0;
    cairn__casts_end_o1(env); /* there is none */
    assert_int_equal(amp_autocast_begin(env, NULL, &around), CAIRN_OK);
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_BF16, false), CAIRN_OK);
    assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.enabled = CAIRN_OFF), &inside), CAIRN_OK);
    assert_null(cairn_matmul(ones(env, CAIRN_F32), NULL)); /* an error, and the scope is not ended */
    cairn__casts_end_o1(env);
    assert_int_equal(amp_autocast_type(env), CAIRN_F16); /* of the scope that was open before the context */
    REFUSED(amp_autocast_end(env, inside), CAIRN_ESTATE, "is not open");
    assert_int_equal(amp_autocast_end(env, around), CAIRN_OK);

    assert_int_equal(amp_autocast_begin(env, NULL, &around), CAIRN_OK);
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_BF16, false), CAIRN_OK);
    assert_int_equal(amp_autocast_end(env, around), CAIRN_OK); /* below the context */
    assert_int_equal(amp_autocast_begin(env, NULL, NULL), CAIRN_OK);
    cairn__casts_end_o1(env);
    assert_int_equal(amp_autocast_type(env), 0);
    for (int i = 0; i < 100; i++) assert_int_equal(amp_autocast_begin(env, NULL, NULL), CAIRN_OK);
}

/* w * x, 1 + 2^-9 in f16 and 1 in bf16. */
static cairn_tensor *product(void *ctx, cairn_tensor *const *in, int count) {
    (void)count;
    return cairn_matmul(in[0], ctx);
}

static void checkpoint_runs_again_under_the_scope_it_ran_in(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 1), 1 + 0x1p-9);
    cairn_tensor *w = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 1), 1 + 0x1p-9);
    cairn_tensor_require_grad(x), cairn_tensor_require_grad(w);
    assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.half_type = CAIRN_BF16), NULL), CAIRN_OK);
    cairn_tensor *y = cairn_checkpoint(product, w, &x, 1);
    assert_int_equal(amp_autocast_end(env, 0), CAIRN_OK);
    assert_int_equal(cairn_tensor_dtype(y), CAIRN_BF16);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    assert_true(cairn_tensor_grad(w)[0] == 1);
    assert_int_equal(amp_autocast_type(env), 0);

    y = cairn_checkpoint(product, w, &x, 1); /* f32; its backward is within a scope */
    assert_int_equal(amp_autocast_begin(env, NULL, NULL), CAIRN_OK);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    assert_true(cairn_tensor_grad(w)[0] == 2 + 0x1p-9f);
    assert_int_equal(amp_autocast_type(env), CAIRN_F16);
}

/* A scope inside the function has the half type of the one around, although that is off. */
static cairn_tensor *scoped_product(void *ctx, cairn_tensor *const *in, int count) {
    cairn_env *env = ctx;
    (void)count;
    if (amp_autocast_begin(env, NULL, NULL) != CAIRN_OK) return NULL;
    cairn_tensor *y = cairn_matmul(in[0], in[0]);
    return amp_autocast_end(env, 0) == CAIRN_OK ? y : NULL;
}

static void checkpoint_keeps_the_half_type_of_a_scope_that_is_off(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ones(env, CAIRN_F32);
    cairn_tensor_require_grad(x);
    assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.half_type = CAIRN_BF16), NULL), CAIRN_OK);
    assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.enabled = CAIRN_OFF), NULL), CAIRN_OK);
    cairn_tensor *y = cairn_checkpoint(scoped_product, env, &x, 1);
    assert_int_equal(cairn_tensor_dtype(y), CAIRN_BF16);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    assert_true(cairn_tensor_grad(x)[0] == 4);
}

static void checkpoint_refuses_to_run_again_under_other_classes(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 1), 1),
                 *w = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 1), 1);
    cairn_tensor_require_grad(x), cairn_tensor_require_grad(w);
    assert_int_equal(amp_autocast_begin(env, NULL, NULL), CAIRN_OK);
    cairn_tensor *y = cairn_sum(cairn_checkpoint(product, w, &x, 1));
    assert_int_equal(amp_op_set_cast(env, "matmul", AMP_CAST_HALF), CAIRN_OK); /* which it is */
    assert_int_equal(amp_op_set_cast(env, "twirl", (amp_cast)0), CAIRN_OK);
    assert_int_equal(cairn_backward(y), CAIRN_OK);
    y = cairn_sum(cairn_checkpoint(product, w, &x, 1));
    assert_int_equal(amp_op_set_cast(env, "matmul", AMP_CAST_F32), CAIRN_OK);
    REFUSED(cairn_backward(y), CAIRN_ESTATE, "amp_op_set_cast has changed a class since forward");
    y = cairn_sum(cairn_checkpoint(product, w, &x, 1));
    assert_int_equal(amp_op_set_cast(env, "twirl", AMP_CAST_F32), CAIRN_OK);
    REFUSED(cairn_backward(y), CAIRN_ESTATE, "amp_op_set_cast has changed a class since forward");
    y = cairn_sum(cairn_checkpoint(product, w, &x, 1));
    assert_int_equal(cairn_backward(y), CAIRN_OK);
}

/* ---- the log ---- */

static char log_text[1024];

static void keep_log(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level;
    const size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof(log_text) - used, "%s\n", message);
}

static void assert_logged(cairn_tensor *y, const char *want) {
    assert_non_null(y);
    assert_string_equal(log_text, want);
    log_text[0] = '\0';
}

static void verbose_contexts_log_every_cast(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *f = ones(env, CAIRN_F32), *h = ones(env, CAIRN_F16), *b = ones(env, CAIRN_BF16);
    cairn_set_log(keep_log, NULL);
    log_text[0] = '\0';
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_F16, true), CAIRN_OK);
    assert_logged(cairn_linear_forward(f, f, NULL), "f32 -> f16 (linear)\n");
    assert_logged(cairn_matmul(f, b), "f32 -> f16 (matmul)\nbf16 -> f16 (matmul)\n");
    assert_logged(cairn_exp(h), "f16 -> f32 (exp)\n");
    assert_logged(cairn_add(h, f), "f16 -> f32 (add)\n");
    assert_logged(cairn_add(h, h), "");
    assert_logged(cairn_relu(h), "");
    assert_logged(cairn_exp(f), "");
    assert_logged(cairn_cast(f, CAIRN_F16), ""); /* the user's own */
    assert_logged(cairn_add_(h, f), "f32 -> f16 (add)\n");
    cairn__casts_end_o1(env);
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_F16, false), CAIRN_OK);
    assert_logged(cairn_matmul(f, f), "");
    cairn_set_log(NULL, NULL);
}

/* ---- the cast of a weight is kept, and is right ---- */

struct layer {
    cairn_module *module;
    cairn_tensor *w, *x;
};

static struct layer make_layer(cairn_env *env, double w) {
    struct layer l = {.module = cairn_linear_without_bias(env, 1, 1)};
    l.w = cairn_module_get(l.module, "weight");
    l.x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 1), 1);
    assert_int_equal(cairn_init_constant(l.w, w), CAIRN_OK);
    return l;
}

/* The weight as a product sees it: rounded to the type of the product. */
static float seen_by(const struct layer *l) {
    return cairn_tensor_item(cairn_module_forward(l->module, l->x));
}

static float seen_by_evaluation(cairn_env *env, const struct layer *l) {
    cairn_no_grad_begin(env);
    const float w = seen_by(l);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    return w;
}

static void load(const struct layer *l, float w) {
    struct cairn_param_set *set = cairn_module_params(l->module);
    *(float *)set->params[0]->data = w;
    assert_int_equal(cairn_param_changed(set, 0, 0), CAIRN_OK);
}

static struct layer make_o1_layer(cairn_env *env, double w) {
    assert_int_equal(cairn__casts_begin_o1(env, CAIRN_F16, false), CAIRN_OK);
    return make_layer(env, w);
}

static void a_weight_is_cast_once(void **state) {
    cairn_env *env = test_env_of(state);
    struct layer l = make_o1_layer(env, 3);
    assert_true(seen_by(&l) == 3);
    *(float *)cairn_module_params(l.module)->params[0]->data = 5; /* without cairn_param_changed */
    for (int i = 0; i < 3; i++) {
        assert_true(seen_by(&l) == 3);
        assert_true(seen_by_evaluation(env, &l) == 3);
        env->begin_step(env);
    }
    cairn_module_destroy(&l.module);
}

static void cast_is_right_after_a_step(void **state) {
    cairn_env *env = test_env_of(state);
    struct layer l = make_o1_layer(env, 3);
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    cairn_optimizer *sgd = NULL;
    hyper.lr = 0.5;
    assert_int_equal(cairn_sgd_create(cairn_module_params(l.module), &hyper, &sgd), CAIRN_OK);
    for (int i = 0; i < 4; i++) { /* d w / d w = 1 */
        cairn_zero_grad(sgd);
        assert_true(seen_by(&l) == 3 - 0.5f * (float)i);
        assert_int_equal(cairn_backward(cairn_sum(cairn_module_forward(l.module, l.x))), CAIRN_OK);
        assert_int_equal(cairn_step(sgd), CAIRN_OK);
        assert_true(seen_by(&l) == 2.5f - 0.5f * (float)i); /* before the next zero_grad too */
    }
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&l.module);
}

static void cast_is_right_after_loads(void **state) {
    cairn_env *env = test_env_of(state);
    struct layer l = make_o1_layer(env, 3);
    assert_true(seen_by(&l) == 3);
    load(&l, 4);
    assert_true(seen_by(&l) == 4);
    assert_int_equal(cairn_init_constant(l.w, 5), CAIRN_OK);
    assert_true(seen_by(&l) == 5);
    assert_int_equal(cairn_init_uniform(l.w, 6, 6), CAIRN_OK);
    assert_true(seen_by(&l) == 6);
    cairn_module_destroy(&l.module);
}

/* NVIDIA/apex issue 796: two evaluations with a load between them saw the old weights. */
static void cast_is_right_in_an_evaluation_after_a_load(void **state) {
    cairn_env *env = test_env_of(state);
    struct layer l = make_o1_layer(env, 3);
    for (int i = 0; i < 4; i++) {
        load(&l, (float)i);
        assert_true(seen_by_evaluation(env, &l) == (float)i);
        assert_true(seen_by_evaluation(env, &l) == (float)i);
    }
    cairn_no_grad_begin(env);
    for (int i = 0; i < 4; i++) { /* and within one */
        load(&l, (float)i);
        assert_true(seen_by(&l) == (float)i);
    }
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    cairn_module_destroy(&l.module);
}

static void cast_is_right_after_a_write_in_place(void **state) {
    cairn_env *env = test_env_of(state);
    struct layer l = make_o1_layer(env, 3);
    assert_true(seen_by(&l) == 3);
    cairn_no_grad_begin(env);
    assert_non_null(cairn_mul_scalar_(l.w, 2));
    assert_true(seen_by(&l) == 6);
    assert_non_null(cairn_add_(l.w, cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1), 0.5)));
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    assert_true(seen_by(&l) == 6.5f);
    cairn_module_destroy(&l.module);
}

/* 1 + 2^-9 is an f16 value; bf16 rounds it to 1. 1 + 2^-12 is neither's. */
static void cast_is_right_in_another_type_and_outside(void **state) {
    cairn_env *env = test_env_of(state);
    struct layer l = make_layer(env, 1 + 0x1p-9 + 0x1p-12);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(amp_autocast_begin(env, NULL, NULL), CAIRN_OK);
        assert_true(seen_by(&l) == 1 + 0x1p-9f);
        assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.half_type = CAIRN_BF16), NULL), CAIRN_OK);
        assert_true(seen_by(&l) == 1);
        assert_int_equal(amp_autocast_end(env, 0), CAIRN_OK);
        assert_true(seen_by(&l) == 1 + 0x1p-9f);
        assert_int_equal(amp_autocast_end(env, 0), CAIRN_OK);
        assert_true(seen_by(&l) == 1 + 0x1p-9f + 0x1p-12f);
        assert_true(seen_by_evaluation(env, &l) == 1 + 0x1p-9f + 0x1p-12f);
        if (i == 1) env->begin_step(env);
    }
    cairn_module_destroy(&l.module);
}

/* The graph of one type waits for its backward while the weight is cast to another. */
static void graphs_of_two_types_have_their_own_casts(void **state) {
    cairn_env *env = test_env_of(state);
    struct layer l = make_layer(env, 1 + 0x1p-9);
    cairn_tensor_require_grad(l.x);
    cairn_tensor *y[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.half_type = i ? CAIRN_BF16 : CAIRN_F16), NULL),
                         CAIRN_OK);
        y[i] = cairn_sum(cairn_module_forward(l.module, l.x));
        assert_int_equal(amp_autocast_end(env, 0), CAIRN_OK);
    }
    assert_int_equal(cairn_backward(y[0]), CAIRN_OK);
    assert_true(cairn_tensor_grad(l.x)[0] == 1 + 0x1p-9f);
    cairn_tensor_clear_grad(l.x);
    assert_int_equal(cairn_backward(y[1]), CAIRN_OK);
    assert_true(cairn_tensor_grad(l.x)[0] == 1);
    cairn_module_destroy(&l.module);
}

static char *see_rank_0_s_weight(cairn_env *env, void *ctx) {
    (void)ctx;
    ddp_context *ddp = NULL;
    cairn_module *m = cairn_linear_without_bias(env, 1, 1);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 1), 1);
    EXPECT_OK(cairn_init_constant(cairn_module_get(m, "weight"), 3 + cairn_env_rank(env)));
    EXPECT_OK(amp_autocast_begin(env, NULL, NULL));
    EXPECT(cairn_tensor_item(cairn_module_forward(m, x)) == (float)(3 + cairn_env_rank(env)));
    EXPECT_OK(ddp_create(m, cairn_env_group(env), NULL, &ddp));
    EXPECT(cairn_tensor_item(cairn_module_forward(m, x)) == 3);
    ddp_destroy(&ddp);
    cairn_module_destroy(&m);
    return NULL;
}

static void cast_is_right_after_a_broadcast(void **state) {
    (void)state;
    run_ranks(2, see_rank_0_s_weight, NULL);
}

/* ---- contexts ---- */

struct prepared {
    struct layer layer;
    cairn_optimizer *sgd;
    amp_context *amp;
};

static cairn_status prepare(cairn_env *env, struct prepared *p, const struct amp_options *options) {
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    *p = (struct prepared){.layer = make_layer(env, 1 + 0x1p-9)};
    assert_int_equal(cairn_sgd_create(cairn_module_params(p->layer.module), &hyper, &p->sgd), CAIRN_OK);
    return amp_initialize(env, p->layer.module, p->sgd, options, &p->amp);
}

static void end(struct prepared *p) {
    amp_destroy(&p->amp);
    cairn_optimizer_destroy(&p->sgd);
    cairn_module_destroy(&p->layer.module);
}

static void o1_contexts_come_and_go(void **state) {
    cairn_env *env = test_env_of(state);
    struct prepared first, second, half;
    cairn_set_log(keep_log, NULL);
    assert_int_equal(amp_op_set_cast(env, "relu", AMP_CAST_HALF), CAIRN_OK);
    assert_int_equal(prepare(env, &first, amp_options(.half_type = CAIRN_BF16, .verbosity = 2)), CAIRN_OK);
    REFUSED(prepare(env, &second, NULL), CAIRN_ESTATE, "amp_initialize_all");
    assert_int_equal(prepare(env, &half, amp_options(.opt_level = AMP_O2)), CAIRN_OK);
    log_text[0] = '\0';
    assert_true(seen_by(&first.layer) == 1);
    assert_logged(first.layer.x, "f32 -> bf16 (linear)\n");
    assert_int_equal(type_of_product(env), CAIRN_BF16);
    assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.enabled = CAIRN_OFF), NULL), CAIRN_OK);
    amp_destroy(&first.amp); /* and the scope with it */
    REFUSED(amp_autocast_end(env, 0), CAIRN_ESTATE, "is not open");
    assert_int_equal(type_of_product(env), CAIRN_F32);
    assert_int_equal(amp_initialize(env, second.layer.module, second.sgd, NULL, &second.amp), CAIRN_OK);
    assert_int_equal(cairn_tensor_dtype(cairn_relu(ones(env, CAIRN_F32))), CAIRN_F16);
    end(&half), end(&second), end(&first);
    cairn_set_log(NULL, NULL);
}

/* A bf16 weight with a master: what a scope casts is the weight. */
static void scopes_work_at_o2(void **state) {
    cairn_env *env = test_env_of(state);
    struct prepared p;
    assert_int_equal(prepare(env, &p, amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1)),
                     CAIRN_OK);
    assert_int_equal(amp_autocast_begin(env, NULL, NULL), CAIRN_OK);
    cairn_tensor *y = cairn_linear_forward(p.layer.x, p.layer.w, NULL);
    assert_int_equal(cairn_tensor_dtype(y), CAIRN_F16);
    assert_true(cairn_tensor_item(y) == 1);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    assert_int_equal(cairn_module_params(p.layer.module)->params[0]->dtype, CAIRN_BF16);
    cairn_no_grad_begin(env);
    assert_non_null(cairn_exp_(cairn_mul_scalar_(p.layer.w, 0))); /* of the master, which is f32 */
    assert_true(seen_by(&p.layer) == 1);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    assert_int_equal(amp_autocast_end(env, 0), CAIRN_OK);
    end(&p);
}

/* ---- memory ---- */

static void steady_scopes_allocate_nothing(void **state) {
    cairn_env *env = test_env_of(state);
    struct layer l = make_o1_layer(env, 3);
    uint64_t before = 0;
    for (int i = 0; i < 30; i++) {
        if (i == 8) before = cairn__alloc_counters().allocations;
        env->begin_step(env);
        assert_int_equal(amp_autocast_begin(env, NULL, NULL), CAIRN_OK);
        assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.enabled = CAIRN_OFF), NULL), CAIRN_OK);
        assert_true(seen_by(&l) == 3);
        assert_int_equal(amp_autocast_end(env, 0), CAIRN_OK);
        assert_int_equal(cairn_backward(cairn_sum(cairn_module_forward(l.module, l.x))), CAIRN_OK);
        assert_int_equal(amp_autocast_end(env, 0), CAIRN_OK);
    }
    assert_int_equal(cairn__alloc_counters().allocations, before);
    cairn_module_destroy(&l.module);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(a_class_is_set_by_name_and_taken_back),
        ENV_TEST(wrong_names_are_refused_with_a_guess),
        ENV_TEST(nonsense_arguments_are_refused),
        ENV_TEST(own_operations_have_classes_by_their_names),
        ENV_TEST(bce_of_halves_is_an_error_with_advice),
        ENV_TEST(f64_is_never_narrowed),
        ENV_TEST(in_place_operations_keep_the_type_of_their_tensor),
        ENV_TEST(in_place_casts_the_other_tensor_first),
        ENV_TEST(scopes_nest_and_end_what_is_inside_them),
        ENV_TEST(scope_options_are_checked),
        ENV_TEST(scopes_lie_on_o1),
        ENV_TEST(an_environment_has_one_o1_context),
        ENV_TEST(scopes_left_open_do_no_harm),
        ENV_TEST(checkpoint_runs_again_under_the_scope_it_ran_in),
        ENV_TEST(checkpoint_keeps_the_half_type_of_a_scope_that_is_off),
        ENV_TEST(checkpoint_refuses_to_run_again_under_other_classes),
        ENV_TEST(verbose_contexts_log_every_cast),
        ENV_TEST(a_weight_is_cast_once),
        ENV_TEST(cast_is_right_after_a_step),
        ENV_TEST(cast_is_right_after_loads),
        ENV_TEST(cast_is_right_in_an_evaluation_after_a_load),
        ENV_TEST(cast_is_right_after_a_write_in_place),
        ENV_TEST(cast_is_right_in_another_type_and_outside),
        ENV_TEST(graphs_of_two_types_have_their_own_casts),
        cmocka_unit_test(cast_is_right_after_a_broadcast),
        ENV_TEST(o1_contexts_come_and_go),
        ENV_TEST(scopes_work_at_o2),
        ENV_TEST(steady_scopes_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
