/* Metrics on 1 to 8 ranks against a model that sees all examples at once; and collectives of tensors. */
#include <math.h>

#include "../ranks.h"

enum { EXAMPLES = 3 * 5 * 7 * 8 + 1, CLASSES = 5, K = 2, BATCH = 16, IGNORED = 3 };

/* Scores from few values, so that many are equal; a NaN now and then. */
static double score(int64_t example, int64_t c) {
    const uint32_t mixed = (uint32_t)(example * CLASSES + c + 1) * 2654435761u;
    return (mixed >> 16) % 97 == 0 ? (double)NAN : (double)((mixed >> 20) % 16) / 4 - 2;
}

static double finite_score(int64_t example, int64_t c) {
    return isnan(score(example, c)) ? 3 : score(example, c);
}

static int64_t target(int64_t example) {
    return (int64_t)((uint32_t)(example + 1) * 2246822519u >> 13) % CLASSES;
}

/* ---- the model ---- */

struct expected {
    double accuracy, top, perplexity, mean, matrix[CLASSES][CLASSES], counted;
};

static bool beats(int64_t example, int64_t a, int64_t b) {
    const double x = score(example, a), y = score(example, b);
    if (isnan(x) != isnan(y)) return isnan(x);
    return isnan(x) || x == y ? a < b : x > y;
}

static struct expected expect_all(void) {
    struct expected e = {0};
    long double nll = 0, mean = 0;
    for (int64_t i = 0; i < EXAMPLES; i++) {
        mean += (long double)i * 0.1L;
        if (target(i) == IGNORED) continue;
        int64_t above = 0, best = 0;
        long double sum = 0;
        for (int64_t c = 0; c < CLASSES; c++) {
            above += beats(i, c, target(i));
            if (beats(i, c, best)) best = c;
            sum += expl((long double)finite_score(i, c));
        }
        e.counted++;
        e.accuracy += above == 0;
        e.top += above < K;
        e.matrix[target(i)][best]++;
        nll += logl(sum) - (long double)finite_score(i, target(i));
    }
    e.accuracy /= e.counted;
    e.top /= e.counted;
    e.perplexity = (double)expl(nll / (long double)e.counted);
    e.mean = (double)(mean / EXAMPLES);
    return e;
}

/* ---- on ranks ---- */

enum { ACCURACY, TOP, PERPLEXITY, MEAN, MATRIX, F1_MACRO, COUNT };

static char *make_metrics(cairn_metric *m[COUNT]) {
    const struct cairn_metric_options *o = cairn_metric_options(.ignore_index = IGNORED);
    EXPECT_OK(cairn_accuracy_create(1, o, &m[ACCURACY]));
    EXPECT_OK(cairn_accuracy_create(K, o, &m[TOP]));
    EXPECT_OK(cairn_perplexity_create(o, &m[PERPLEXITY]));
    EXPECT_OK(cairn_mean_create(&m[MEAN]));
    EXPECT_OK(cairn_confusion_matrix_create(CLASSES, o, &m[MATRIX]));
    EXPECT_OK(cairn_f1_create(CLASSES, CAIRN_AVERAGE_MACRO, o, &m[F1_MACRO]));
    return NULL;
}

static char *count_batch(cairn_env *env, cairn_metric *m[COUNT], const int64_t *batch, int64_t n) {
    double scores[2][BATCH][CLASSES];
    int64_t targets[BATCH];
    for (int64_t i = 0; i < n; i++) {
        targets[i] = target(batch[i]);
        for (int64_t c = 0; c < CLASSES; c++) {
            scores[0][i][c] = score(batch[i], c);
            scores[1][i][c] = finite_score(batch[i], c);
        }
        EXPECT_OK(cairn_metric_add(m[MEAN], (double)batch[i] * 0.1, 1));
    }
    cairn_tensor *y = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(n), targets);
    for (int k = 0; k < COUNT; k++) {
        if (k == MEAN) continue;
        cairn_tensor *x = cairn_tensor_from(env, CAIRN_F64, CAIRN_SHAPE(n, CLASSES), scores[k == PERPLEXITY]);
        EXPECT_OK(cairn_metric_update(m[k], x, y));
        cairn_tensor_destroy(&x);
    }
    cairn_tensor_destroy(&y);
    return NULL;
}

static double macro_of(double matrix[CLASSES][CLASSES]) {
    double sum = 0, seen = 0;
    for (int c = 0; c < CLASSES; c++) {
        double both = 0;
        for (int j = 0; j < CLASSES; j++) both += matrix[c][j] + matrix[j][c];
        sum += both > 0 ? 2 * matrix[c][c] / both : 0;
        seen += both > 0;
    }
    return sum / seen;
}

static bool is_near(double a, double b) {
    return fabs(a - b) <= 1e-12 * fabs(b);
}

static char *evaluate(cairn_env *env, void *ctx) {
    struct expected e = expect_all();
    cairn_metric *m[COUNT];
    cairn_sampler *sampler;
    int64_t batch[BATCH], n;
    double matrix[CLASSES][CLASSES];
    (void)ctx;
    PASS(make_metrics(m));
    EXPECT_OK(cairn_distributed_sampler_create(EXAMPLES, cairn_env_rank(env), cairn_env_size(env),
                                               cairn_sampler_options(.pad = CAIRN_OFF), &sampler));
    for (int epoch = 0; epoch < 2; epoch++) {
        EXPECT_OK(cairn_sampler_set_epoch(sampler, epoch));
        while ((n = (int64_t)cairn_sampler_next(sampler, batch, BATCH)) > 0) PASS(count_batch(env, m, batch, n));
        EXPECT_OK(cairn_metrics_reduce(m, COUNT, cairn_env_group(env)));
        EXPECT(cairn_metric_value(m[ACCURACY]) == e.accuracy);
        EXPECT(cairn_metric_value(m[TOP]) == e.top);
        EXPECT(is_near(cairn_metric_value(m[PERPLEXITY]), e.perplexity));
        EXPECT(is_near(cairn_metric_value(m[MEAN]), e.mean));
        EXPECT_OK(cairn_metric_read(m[MATRIX], matrix[0], sizeof(matrix) / sizeof(double)));
        EXPECT(memcmp(matrix, e.matrix, sizeof(matrix)) == 0);
        EXPECT(cairn_metric_value(m[MATRIX]) == e.accuracy);
        EXPECT(is_near(cairn_metric_value(m[F1_MACRO]), macro_of(e.matrix)));
        EXPECT_REFUSED(cairn_metric_add(m[MEAN], 1, 1), CAIRN_ESTATE, "call cairn_metric_reset first");
        EXPECT_REFUSED(cairn_metrics_reduce(m, COUNT, cairn_env_group(env)), CAIRN_ESTATE, "reset it first");
        for (int k = 0; k < COUNT; k++) cairn_metric_reset(m[k]);
    }
    for (int k = 0; k < COUNT; k++) cairn_metric_destroy(&m[k]);
    cairn_sampler_destroy(&sampler);
    return NULL;
}

static void any_number_of_ranks_gives_the_counts_of_one(void **state) {
    (void)state;
    const struct expected e = expect_all();
    assert_true(e.accuracy > 0.1 && e.accuracy < e.top && e.top < 0.9 && e.counted < EXAMPLES);
    for (int p = 1; p <= 8; p++) run_ranks(p, evaluate, NULL);
}

/* The last of p ranks has no example at all. */
static char *evaluate_one_example(cairn_env *env, void *ctx) {
    cairn_metric *accuracy;
    (void)ctx;
    EXPECT_OK(cairn_accuracy_create(1, NULL, &accuracy));
    EXPECT(isnan(cairn_metric_value(accuracy)));
    if (cairn_env_rank(env) == 0) {
        cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2), (float[]){1, 2});
        cairn_tensor *y = cairn_tensor_from(env, CAIRN_I32, CAIRN_SHAPE(1), (int32_t[]){1});
        EXPECT_OK(cairn_metric_update(accuracy, x, y));
        cairn_tensor_destroy(&x);
        cairn_tensor_destroy(&y);
    }
    EXPECT_OK(cairn_metrics_reduce(&accuracy, 1, cairn_env_group(env)));
    EXPECT(cairn_metric_value(accuracy) == 1);
    cairn_metric_destroy(&accuracy);
    return NULL;
}

static void ranks_without_an_example_get_the_total_of_the_others(void **state) {
    (void)state;
    run_ranks(3, evaluate_one_example, NULL);
}

static char *bring_other_metrics(cairn_env *env, void *ctx) {
    cairn_metric *m[2];
    (void)ctx;
    EXPECT_OK(cairn_accuracy_create(cairn_env_rank(env) == 2 ? 5 : 1, NULL, &m[0]));
    EXPECT_OK(cairn_mean_create(&m[1]));
    EXPECT_REFUSED(cairn_metrics_reduce(m, 2, cairn_env_group(env)), CAIRN_EPEER,
                   "rank 2 has other metrics than rank 0");
    cairn_metric_destroy(&m[0]);
    cairn_metric_destroy(&m[1]);
    return NULL;
}

static void other_metrics_on_one_rank_fail_on_all(void **state) {
    (void)state;
    run_ranks(3, bring_other_metrics, NULL);
}

static char *add_numbers(cairn_env *env, void *ctx) {
    const int r = cairn_env_rank(env), p = cairn_env_size(env);
    double values[3] = {r + 1, 0.1 * r, r == 0 ? INFINITY : 0}, tenths = 0, mean = r == 1 ? (double)NAN : r + 0.5;
    (void)ctx;
    for (int k = 0; k < p; k++) tenths += 0.1 * k;
    EXPECT_OK(ddp_sum(values, 3, cairn_env_group(env)));
    EXPECT(values[0] == p * (p + 1) / 2.0 && values[1] == tenths && isinf(values[2]));
    EXPECT_OK(ddp_mean(&mean, r == 1 ? 0 : r + 1, cairn_env_group(env)));
    double sum = 0, weights = 0;
    for (int k = 0; k < p; k++) {
        sum += k == 1 ? 0 : (k + 0.5) * (k + 1);
        weights += k == 1 ? 0 : k + 1;
    }
    EXPECT(mean == sum / weights);
    EXPECT_OK(ddp_mean(&mean, 0, cairn_env_group(env)));
    EXPECT(isnan(mean));
    EXPECT_OK(ddp_sum(NULL, 0, cairn_env_group(env)));
    return NULL;
}

static void sums_and_means_of_numbers_are_equal_on_all_ranks(void **state) {
    (void)state;
    for (int p = 1; p <= 5; p++) run_ranks(p, add_numbers, NULL);
}

/* ---- tensors ---- */

static char *exchange_tensors(cairn_env *env, void *ctx) {
    const int r = cairn_env_rank(env), p = cairn_env_size(env);
    cairn_group *group = cairn_env_group(env);
    float own[3] = {(float)r, 1, 2}, all[3 * 4];
    int64_t ids[2] = {r, -r};
    uint8_t mask[2] = {r == 1, 1};
    (void)ctx;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 3), own), *gathered;
    EXPECT_OK(cairn_tensor_allgather(x, group, &gathered));
    EXPECT(cairn_tensor_size(gathered, 0) == p && cairn_tensor_size(gathered, 1) == 3);
    EXPECT_OK(cairn_tensor_read(gathered, all, 3 * (size_t)p));
    for (int k = 0; k < p; k++) EXPECT(all[3 * k] == (float)k && all[3 * k + 2] == 2);
    EXPECT_OK(cairn_tensor_allreduce(x, CAIRN_SUM, group));
    EXPECT_OK(cairn_tensor_read(x, all, 3));
    EXPECT(all[0] == (float)(p * (p - 1) / 2) && all[1] == (float)p && all[2] == (float)(2 * p));
    cairn_tensor_destroy(&gathered);
    cairn_tensor_destroy(&x);

    cairn_tensor *i = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(2), ids);
    EXPECT_OK(cairn_tensor_broadcast(i, p - 1, group));
    EXPECT_OK(cairn_tensor_read_as(i, CAIRN_I64, ids, 2));
    EXPECT(ids[0] == p - 1 && ids[1] == 1 - p);
    cairn_tensor_destroy(&i);

    cairn_tensor *b = cairn_tensor_from(env, CAIRN_BOOL, CAIRN_SHAPE(2), mask);
    EXPECT_OK(cairn_tensor_broadcast(b, 0, group));
    EXPECT(!cairn_tensor_read_as(b, CAIRN_BOOL, mask, 2) && mask[0] == 0 && mask[1] == 1);
    EXPECT_REFUSED(cairn_tensor_allreduce(b, CAIRN_SUM, group), CAIRN_EINVAL, "bool");
    cairn_tensor_destroy(&b);

    /* A result, and a scalar at that. */
    cairn_tensor *one = cairn_full(env, CAIRN_F16, 0, NULL, r + 1);
    EXPECT_OK(cairn_tensor_allgather(cairn_add(one, one), group, &gathered));
    EXPECT(cairn_tensor_ndim(gathered) == 1 && cairn_tensor_dtype(gathered) == CAIRN_F16);
    EXPECT_OK(cairn_tensor_read(gathered, all, (size_t)p));
    for (int k = 0; k < p; k++) EXPECT(all[k] == (float)(2 * (k + 1)));
    EXPECT_REFUSED(cairn_tensor_allreduce(cairn_add(one, one), CAIRN_SUM, group), CAIRN_ESTATE, "not a result");
    EXPECT_REFUSED(cairn_tensor_broadcast(NULL, 0, group), CAIRN_EINVAL, "must be set");
    cairn_tensor_destroy(&gathered);
    cairn_tensor_destroy(&one);
    return NULL;
}

static void tensors_are_gathered_reduced_and_sent(void **state) {
    (void)state;
    for (int p = 1; p <= 4; p++) run_ranks(p, exchange_tensors, NULL);
}

/* ---- one rank ---- */

/* The example of scikit-learn's documentation of f1_score. */
static char *sklearn_f1(cairn_env *env, void *ctx) {
    static const float scores[6][3] = {{1}, {0, 0, 1}, {0, 1}, {1}, {1}, {0, 1}};
    static const int32_t targets[6] = {0, 1, 2, 0, 1, 2};
    static const struct {
        cairn_average average;
        double value;
    } expected[] = {{CAIRN_AVERAGE_MACRO, 4.0 / 15},
                    {CAIRN_AVERAGE_MICRO, 1.0 / 3},
                    {CAIRN_AVERAGE_WEIGHTED, 4.0 / 15}};
    (void)ctx;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(6, 3), scores);
    cairn_tensor *y = cairn_tensor_from(env, CAIRN_I32, CAIRN_SHAPE(6), targets);
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        cairn_metric *f1;
        EXPECT_OK(cairn_f1_create(3, expected[i].average, NULL, &f1));
        EXPECT_OK(cairn_metric_update(f1, x, y));
        EXPECT(is_near(cairn_metric_value(f1), expected[i].value));
        cairn_metric_destroy(&f1);
    }
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    return NULL;
}

static void f1_is_that_of_scikit_learn(void **state) {
    (void)state;
    run_ranks(1, sklearn_f1, NULL);
}

/* Classes that never occur do not lower the mean, and binary is of class 1. */
static char *absent_classes(cairn_env *env, void *ctx) {
    cairn_metric *macro, *binary;
    (void)ctx;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 4), (float[]){1, 0, 0, 0, 0, 1, 0, 0});
    cairn_tensor *two = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(3, 2), (float[]){1, 0, 0, 1, 0, 1});
    cairn_tensor *y = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(2), (int64_t[]){0, 1});
    cairn_tensor *z = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(3), (int64_t[]){0, 0, 1});
    EXPECT_OK(cairn_f1_create(4, CAIRN_AVERAGE_MACRO, NULL, &macro));
    EXPECT_OK(cairn_f1_create(2, CAIRN_AVERAGE_BINARY, NULL, &binary));
    EXPECT_OK(cairn_metric_update(macro, x, y));
    EXPECT_OK(cairn_metric_update(binary, two, z));
    EXPECT(cairn_metric_value(macro) == 1);
    EXPECT(is_near(cairn_metric_value(binary), 2.0 / 3));
    cairn_metric_destroy(&macro);
    cairn_metric_destroy(&binary);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&two);
    cairn_tensor_destroy(&y);
    cairn_tensor_destroy(&z);
    return NULL;
}

static void macro_f1_leaves_out_classes_that_never_occur(void **state) {
    (void)state;
    run_ranks(1, absent_classes, NULL);
}

/* Scores [N, C, W] and targets [N, W] are those of N * W rows. */
static char *planes(cairn_env *env, void *ctx) {
    enum { N = 2, C = 3, W = 4 };
    float scores[N][C][W], rows[N * W][C];
    int32_t targets[N][W];
    cairn_metric *m[4];
    (void)ctx;
    for (int i = 0; i < N * W; i++) {
        targets[i / W][i % W] = i * 7 % C;
        for (int c = 0; c < C; c++) scores[i / W][c][i % W] = rows[i][c] = (float)finite_score(i, c);
    }
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, C, W), scores);
    cairn_tensor *flat = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N * W, C), rows);
    cairn_tensor *y = cairn_tensor_from(env, CAIRN_I32, CAIRN_SHAPE(N, W), targets);
    cairn_tensor *z = cairn_tensor_from(env, CAIRN_I32, CAIRN_SHAPE(N * W), targets);
    for (int k = 0; k < 4; k++) {
        EXPECT_OK(k < 2 ? cairn_accuracy_create(2, NULL, &m[k]) : cairn_perplexity_create(NULL, &m[k]));
        EXPECT_OK(cairn_metric_update(m[k], k % 2 ? flat : x, k % 2 ? z : y));
    }
    EXPECT(cairn_metric_value(m[0]) == cairn_metric_value(m[1]) && cairn_metric_value(m[0]) > 0);
    EXPECT(cairn_metric_value(m[2]) == cairn_metric_value(m[3]) && cairn_metric_value(m[2]) > 1);
    EXPECT_REFUSED(cairn_metric_update(m[0], x, z), CAIRN_EINVAL, "shape of scores, [N, C, ...], without C");
    EXPECT_REFUSED(cairn_metric_update(m[0], y, z), CAIRN_EINVAL, "scores are i32");
    EXPECT_REFUSED(cairn_metric_update(m[0], flat, flat), CAIRN_EINVAL, "targets are f32");
    for (int k = 0; k < 4; k++) cairn_metric_destroy(&m[k]);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&flat);
    cairn_tensor_destroy(&y);
    cairn_tensor_destroy(&z);
    return NULL;
}

static void planes_of_scores_count_as_rows(void **state) {
    (void)state;
    run_ranks(1, planes, NULL);
}

static char *bad_batch(cairn_env *env, void *ctx) {
    cairn_metric *accuracy, *matrix, *mean;
    double sums[2];
    (void)ctx;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(3, 2), (float[]){0, 1, 0, 1, 0, 1});
    cairn_tensor *y = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(3), (int64_t[]){1, -100, 2});
    EXPECT_OK(cairn_accuracy_create(1, NULL, &accuracy));
    EXPECT_OK(cairn_confusion_matrix_create(3, NULL, &matrix));
    EXPECT_OK(cairn_mean_create(&mean));
    EXPECT_REFUSED(cairn_metric_update(accuracy, x, y), CAIRN_EINVAL, "target 2 is 2; it must be a class from 0 to 1");
    EXPECT_OK(cairn_metric_read(accuracy, sums, 2));
    EXPECT(sums[0] == 0 && sums[1] == 0);
    EXPECT_REFUSED(cairn_metric_update(matrix, x, y), CAIRN_EINVAL, "scores have 2 classes, but the metric has 3");
    EXPECT_REFUSED(cairn_metric_update(mean, x, y), CAIRN_EINVAL, "use cairn_metric_add");
    EXPECT_REFUSED(cairn_metric_add(accuracy, 1, 1), CAIRN_EINVAL, "use cairn_metric_update");
    EXPECT_REFUSED(cairn_metric_add(mean, 1, -1), CAIRN_EINVAL, "weight is -1");
    EXPECT_REFUSED(cairn_metric_add(mean, 1, NAN), CAIRN_EINVAL, "weight is ");
    EXPECT_OK(cairn_metric_add(mean, NAN, 0));
    EXPECT(isnan(cairn_metric_value(mean)));
    EXPECT_OK(cairn_metric_add(mean, 3, 2));
    EXPECT(cairn_metric_value(mean) == 3);
    EXPECT_REFUSED(cairn_metrics_reduce((cairn_metric *[]){mean, mean}, 2, NULL), CAIRN_EINVAL, "are the same metric");
    EXPECT_REFUSED(cairn_metric_read(mean, sums, 1), CAIRN_EINVAL, "count is 1, but the mean has 2 counts");
    EXPECT_REFUSED(cairn_accuracy_create(0, NULL, &accuracy), CAIRN_EINVAL, "k is 0");
    EXPECT_REFUSED(cairn_f1_create(3, CAIRN_AVERAGE_BINARY, NULL, &matrix), CAIRN_EINVAL, "for 2 classes, not 3");
    EXPECT_REFUSED(cairn_perplexity_create(cairn_metric_options(.ignore_index = 1, .ignores_zero = CAIRN_ON), &matrix),
                   CAIRN_EINVAL, "choose one");
    cairn_metric_destroy(&accuracy);
    cairn_metric_destroy(&matrix);
    cairn_metric_destroy(&mean);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    return NULL;
}

static void bad_batches_count_nothing(void **state) {
    (void)state;
    run_ranks(1, bad_batch, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_gives_the_counts_of_one),
        cmocka_unit_test(ranks_without_an_example_get_the_total_of_the_others),
        cmocka_unit_test(other_metrics_on_one_rank_fail_on_all),
        cmocka_unit_test(sums_and_means_of_numbers_are_equal_on_all_ranks),
        cmocka_unit_test(tensors_are_gathered_reduced_and_sent),
        cmocka_unit_test(f1_is_that_of_scikit_learn),
        cmocka_unit_test(macro_f1_leaves_out_classes_that_never_occur),
        cmocka_unit_test(planes_of_scores_count_as_rows),
        cmocka_unit_test(bad_batches_count_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
