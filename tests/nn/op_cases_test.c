/* Runs every case of every operation in every way; see op_cases.h.
 *
 *   op_cases_test [words of names]          only cases whose name, family or operation contains a word
 *   op_cases_test --dump [words]            prints inputs, results and gradients as text for torch_ops.py */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "case_run.h"
#include "core/dtype.h"
#include "core/philox.h"
#include "nn/tensor.h"
#include "test_env.h"

static char **words;
static int num_words;

/* ---- over all cases ---- */

static bool is_chosen(const struct family *family, const struct op_case *c) {
    for (int i = 0; i < num_words; i++) {
        if (strstr(c->name, words[i]) || strcmp(family->name, words[i]) == 0 ||
            strcmp(cairn__op_name(c->op), words[i]) == 0)
            return true;
    }
    return num_words == 0;
}

typedef bool (*case_fn)(cairn_env *env, const struct op_case *c, char why[CASE_WHY]);

static const struct family *family_now; /* of the case that over_all_cases has come to */

static void over_all_cases(cairn_env *env, const char *what, case_fn f) {
    int cases = 0, failed = 0;
    for (int i = 0; i < NUM_FAMILIES; i++) {
        for (size_t k = 0; k < families[i].cases->count; k++) {
            const struct op_case *c = &families[i].cases->cases[k];
            char why[CASE_WHY] = "";
            if (!is_chosen(&families[i], c)) continue;
            cases++;
            family_now = &families[i];
            if (f(env, c, why)) continue;
            failed++;
            print_message("%s, \"%s\": %s\n", families[i].name, c->name, why);
        }
    }
    print_message("%s: %d cases\n", what, cases);
    if (failed) fail_msg("%s: %d of %d cases fail", what, failed, cases);
}

/* ---- comparing ---- */

static bool same_shape(const struct case_array *a, const struct case_array *b) {
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(a->shape[0])) == 0;
}

static bool arrays_agree(const char *what, const struct case_array *got, const struct case_array *want,
                         struct limit limit, char why[CASE_WHY]) {
    if (!same_shape(got, want)) {
        snprintf(why, CASE_WHY, "%s: another shape", what);
        return false;
    }
    for (size_t i = 0; i < want->n; i++) {
        if (case_is_near(got->values[i], want->values[i], limit)) continue;
        snprintf(why, CASE_WHY, "%s, element %zu: %.9g, want %.9g", what, i, got->values[i], want->values[i]);
        return false;
    }
    return true;
}

static bool results_agree(const char *what, const struct case_result *got, const struct case_result *want,
                          struct limit limit, char why[CASE_WHY]) {
    char text[128];
    snprintf(text, sizeof(text), "%s: result", what);
    if (!arrays_agree(text, &got->y, &want->y, limit, why)) return false;
    for (int i = 0; i < CASE_INPUTS; i++) {
        snprintf(text, sizeof(text), "%s: gradient of input %d", what, i);
        if (got->has_grad[i] != want->has_grad[i]) {
            snprintf(why, CASE_WHY, "%s: %s", text, got->has_grad[i] ? "there is one" : "there is none");
            return false;
        }
        if (got->has_grad[i] && !arrays_agree(text, &got->grads[i], &want->grads[i], limit, why)) return false;
    }
    return true;
}

static const struct limit EQUAL = {0, 0};

/* ---- differences ---- */

enum { ELEMENTS = 64, FEW_ELEMENTS = 4 }; /* of one input that are moved */

/* With CAIRN_TEST_SHORT in the environment few on a device, whose results have the bits or bounds of the CPU's: there a
 * difference shows that its gradients are of its own results. */
static size_t most_elements(void) {
    return check_is_short() && strcmp(test_device(), "cpu") != 0 ? FEW_ELEMENTS : ELEMENTS;
}

/* All, or a choice that the case's name makes. */
static size_t choose(const char *name, size_t n, size_t *elements) {
    const uint64_t key = strlen(name) * 31 + (unsigned char)name[0];
    const size_t most = most_elements();
    if (n <= most) {
        for (size_t i = 0; i < n; i++) elements[i] = i;
        return n;
    }
    for (size_t i = 0; i < most; i++) elements[i] = cairn__philox(key, i, 0).word[0] % n;
    return most;
}

/* Central differences with h = 1e-5 err by h^2 / 6 of the third derivative, some 1e-10, and by the rounding of the
 * losses over h, 1e-16 / 1e-5: what is allowed is far beyond both, and far below any wrong formula. */
static const struct limit DIFFERENCE = {1e-6, 1e-7};

static bool input_agrees(cairn_env *env, const struct op_case *c, const struct case_array *inputs, int input,
                         const struct case_result *result, char why[CASE_WHY]) {
    size_t elements[ELEMENTS];
    double quotients[ELEMENTS];
    const size_t count = choose(c->name, inputs[input].n, elements);
    if (!result->has_grad[input]) {
        snprintf(why, CASE_WHY, "input %d got no gradient", input);
        return false;
    }
    if (!case_differences(env, c, inputs, input, elements, count, result->y.n, quotients, why)) return false;
    for (size_t i = 0; i < count; i++) {
        const double got = result->grads[input].values[elements[i]];
        if (case_is_near(got, quotients[i], DIFFERENCE)) continue;
        snprintf(why, CASE_WHY, "input %d, element %zu: gradient %.9g, difference %.9g", input, elements[i], got,
                 quotients[i]);
        return false;
    }
    return true;
}

static bool differences_agree(cairn_env *env, const struct op_case *c, char why[CASE_WHY]) {
    const struct case_how how = {CAIRN_F64, DENSE, EVERY_GRADIENT};
    struct case_array inputs[CASE_INPUTS];
    struct case_result result;
    if (c->no_differences) return true;
    case_draw(c, CAIRN_F64, inputs);
    bool agrees = case_run(env, c, inputs, &how, &result, why);
    for (int i = 0; agrees && i < CASE_INPUTS; i++) {
        if (case_wants(c, i)) agrees = input_agrees(env, c, inputs, i, &result, why);
    }
    case_result_free(&result);
    case_arrays_free(inputs, CASE_INPUTS);
    return agrees;
}

static void gradients_are_differences_in_f64(void **state) {
    over_all_cases(test_env_of(state), "differences", differences_agree);
}

/* ---- types ---- */

/* Two ways to apply a case to one set of inputs. */
static bool ways_agree(cairn_env *env, const struct op_case *c, const char *what, const struct case_how *got_how,
                       const struct case_how *want_how, struct limit limit, char why[CASE_WHY]) {
    struct case_array inputs[CASE_INPUTS], wide[CASE_INPUTS];
    struct case_result got, want = {.y = {0}};
    case_draw(c, got_how->type, inputs);
    memcpy(wide, inputs, sizeof(wide));
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (case_input_is_float(&c->inputs[i])) wide[i].dtype = want_how->type;
    }
    const bool agrees = case_run(env, c, inputs, got_how, &got, why) && case_run(env, c, wide, want_how, &want, why) &&
                        results_agree(what, &got, &want, limit, why);
    case_result_free(&got);
    case_result_free(&want);
    case_arrays_free(inputs, CASE_INPUTS);
    return agrees;
}

static bool types_agree(cairn_env *env, const struct op_case *c, char why[CASE_WHY]) {
    const struct case_how wide = {CAIRN_F64, DENSE, EVERY_GRADIENT};
    bool agree = true;
    for (int i = 0; agree && i < CASE_TYPES; i++) {
        const struct case_how how = {case_types[i], DENSE, EVERY_GRADIENT};
        agree = ways_agree(env, c, cairn_dtype_name(case_types[i]), &how, &wide, case_limit(c, case_types[i]), why);
    }
    return agree;
}

static void every_type_agrees_with_f64(void **state) {
    over_all_cases(test_env_of(state), "types", types_agree);
}

/* oneDNN's way through a product, and with it the order of the sum, goes by where the operands' neighbours are; on a
 * GPU that of a convolution by where its arrays begin, since cuDNN takes the aligned ones. */
static bool sums_by_layout(enum cairn__op op) {
    static const enum cairn__op ops[] = {CAIRN__OP_MATMUL, CAIRN__OP_BMM, CAIRN__OP_ADDMM, CAIRN__OP_BADDBMM,
                                         CAIRN__OP_SDPA};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (ops[i] == op) return true;
    }
    return op >= CAIRN__OP_CONV1D && op <= CAIRN__OP_CONV_TRANSPOSE2D && strcmp(test_device(), "cpu") != 0;
}

static bool layouts_agree(cairn_env *env, const struct op_case *c, char why[CASE_WHY]) {
    bool agree = true;
    for (int i = 0; agree && i < CASE_TYPES; i++) {
        const struct case_how strided = {case_types[i], STRIDED, EVERY_GRADIENT},
                              dense = {case_types[i], DENSE, EVERY_GRADIENT};
        const struct limit limit = sums_by_layout(c->op) || c->adds_up ? case_limit(c, case_types[i]) : EQUAL;
        agree = ways_agree(env, c, cairn_dtype_name(case_types[i]), &strided, &dense, limit, why);
    }
    return agree;
}

static void strided_inputs_give_the_bits_of_dense_ones(void **state) {
    over_all_cases(test_env_of(state), "layouts", layouts_agree);
}

static bool runs_agree(cairn_env *env, const struct op_case *c, char why[CASE_WHY]) {
    bool agree = true;
    for (int i = 0; agree && i < CASE_TYPES; i++) {
        const struct case_how how = {case_types[i], DENSE, EVERY_GRADIENT};
        agree = ways_agree(env, c, cairn_dtype_name(case_types[i]), &how, &how, EQUAL, why);
    }
    return agree;
}

static void second_run_gives_equal_bits(void **state) {
    over_all_cases(test_env_of(state), "repeats", runs_agree);
}

/* ---- what is wanted ---- */

/* Each gradient alone is what it is among all. Another order of sums is allowed where one pass gives several. */
static bool alone_agrees(cairn_env *env, const struct op_case *c, const struct case_array *inputs, int input,
                         const struct case_result *all, char why[CASE_WHY]) {
    const struct case_how how = {CAIRN_F32, DENSE, 1u << input};
    struct case_result alone;
    char what[64];
    snprintf(what, sizeof(what), "the gradient of input %d alone", input);
    bool agrees = case_run(env, c, inputs, &how, &alone, why);
    for (int i = 0; agrees && i < CASE_INPUTS; i++) {
        agrees = i == input || !alone.has_grad[i];
        if (!agrees) snprintf(why, CASE_WHY, "%s comes with input %d's", what, i);
    }
    if (agrees && alone.has_grad[input] != all->has_grad[input]) {
        snprintf(why, CASE_WHY, "%s %s", what, alone.has_grad[input] ? "comes" : "does not come");
        agrees = false;
    }
    if (agrees && alone.has_grad[input])
        agrees = arrays_agree(what, &alone.grads[input], &all->grads[input], case_limit(c, CAIRN_F32), why);
    case_result_free(&alone);
    return agrees;
}

static bool wants_agree(cairn_env *env, const struct op_case *c, char why[CASE_WHY]) {
    const struct case_how how = {CAIRN_F32, DENSE, EVERY_GRADIENT}, none = {CAIRN_F32, DENSE, 0};
    struct case_array inputs[CASE_INPUTS];
    struct case_result all, without = {.y = {0}};
    case_draw(c, CAIRN_F32, inputs);
    bool agrees = case_run(env, c, inputs, &how, &all, why) && case_run(env, c, inputs, &none, &without, why) &&
                  arrays_agree("without gradients: result", &without.y, &all.y, EQUAL, why);
    if (agrees && without.dy.values) {
        snprintf(why, CASE_WHY, "the result requires a gradient though no input does");
        agrees = false;
    }
    for (int i = 0; agrees && i < CASE_INPUTS; i++) {
        if (case_wants(c, i)) agrees = alone_agrees(env, c, inputs, i, &all, why);
    }
    case_result_free(&all);
    case_result_free(&without);
    case_arrays_free(inputs, CASE_INPUTS);
    return agrees;
}

static void gradients_come_where_they_are_wanted_alone(void **state) {
    over_all_cases(test_env_of(state), "wanted gradients", wants_agree);
}

/* ---- PyTorch ---- */

static struct {
    const struct family *family;
    char *text;
    int cases_without;
} vectors;

/* The whole file, with a newline before it; "" where there is none. */
static char *vectors_of(const struct family *family) {
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s.txt", VECTORS, family->name);
    FILE *f = fopen(path, "rb");
    enum { MOST = 1 << 20 };
    char *text = case_room(MOST + 2, 1);
    text[0] = '\n';
    if (f) text[1 + fread(text + 1, 1, MOST, f)] = '\0';
    if (f) fclose(f);
    return text;
}

static bool vectors_agree(cairn_env *env, const struct op_case *c, char why[CASE_WHY]) {
    bool found = false;
    if (vectors.family != family_now) {
        cairn__free(vectors.text);
        vectors.family = family_now;
        vectors.text = vectors_of(family_now);
    }
    const bool agrees = case_meets_vectors(env, c, vectors.text, &found, why);
    if (c->torch && !found) {
        print_message("%s, \"%s\": no vectors\n", family_now->name, c->name);
        vectors.cases_without++;
    }
    return agrees;
}

static void operations_give_torchs_stored_vectors(void **state) {
    over_all_cases(test_env_of(state), "vectors", vectors_agree);
    cairn__free(vectors.text);
    if (vectors.cases_without) fail_msg("%d cases have no vectors: run torch_ops.py --store", vectors.cases_without);
}

static int dump(void) {
    cairn_env *env = test_env_create(1, 0);
    int failed = 0;
    for (int i = 0; i < NUM_FAMILIES; i++) {
        for (size_t k = 0; k < families[i].cases->count; k++) {
            const struct op_case *c = &families[i].cases->cases[k];
            char why[CASE_WHY] = "";
            if (!is_chosen(&families[i], c) || case_dump(env, &families[i], c, why)) continue;
            fprintf(stderr, "%s, \"%s\": %s\n", families[i].name, c->name, why);
            failed = 1;
        }
    }
    test_env_destroy(env);
    return failed;
}

/* ---- the list ---- */

/* What other rooms bring: amp's scale_loss is tested with the tape and with amp, ddp's zero_loss in grad_test.c. */
static bool is_exempt(enum cairn__op op) {
    return op == CAIRN__OP_GUEST;
}

static void every_operation_has_a_case(void **state) {
    (void)state;
    char missing[1024] = "";
    int found[CAIRN__NUM_OPS] = {0};
    for (int i = 0; i < NUM_FAMILIES; i++) {
        for (size_t k = 0; k < families[i].cases->count; k++) found[families[i].cases->cases[k].op]++;
    }
    for (int op = 0; op < CAIRN__NUM_OPS; op++) {
        const size_t used = strlen(missing);
        if (!found[op] && !is_exempt(op)) snprintf(missing + used, sizeof(missing) - used, " %s", cairn__op_name(op));
    }
    if (missing[0]) fail_msg("no case for:%s", missing);
}

static void cases_have_names_of_their_own(void **state) {
    (void)state;
    for (int i = 0; i < NUM_FAMILIES * NUM_FAMILIES; i++) {
        const struct op_cases *a = families[i / NUM_FAMILIES].cases, *b = families[i % NUM_FAMILIES].cases;
        for (size_t k = 0; k < a->count; k++) {
            assert_true(a->cases[k].torch || a->cases[k].why);
            for (size_t m = 0; m < b->count; m++) {
                if (&a->cases[k] != &b->cases[m] && strcmp(a->cases[k].name, b->cases[m].name) == 0)
                    fail_msg("two cases \"%s\"", a->cases[k].name);
            }
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(every_operation_has_a_case),
        ENV_TEST(cases_have_names_of_their_own),
        ENV_TEST(gradients_are_differences_in_f64),
        ENV_TEST(every_type_agrees_with_f64),
        ENV_TEST(strided_inputs_give_the_bits_of_dense_ones),
        ENV_TEST(second_run_gives_equal_bits),
        ENV_TEST(gradients_come_where_they_are_wanted_alone),
        ENV_TEST(operations_give_torchs_stored_vectors),
    };
    const bool dumps = argc > 1 && strcmp(argv[1], "--dump") == 0;
    words = argv + 1 + dumps;
    num_words = argc - 1 - dumps;
    if (!test_device_is_there()) return 77;
    if (dumps) return dump();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
