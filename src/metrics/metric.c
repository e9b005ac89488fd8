/* Metrics. Each is an array of f64 sums, added up over batches and ranks, and a value computed from them. Kinds differ
 * in what a batch of scores adds and how the value is computed. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "cairn/metrics.h"
#include "comm/group.h"
#include "core/alloc.h"
#include "core/hash.h"
#include "core/options.h"
#include "core/status.h"

enum kind { MEAN = 1, ACCURACY, PERPLEXITY, CONFUSION_MATRIX, F1 };

static const char *const kind_names[] = {[MEAN] = "mean",
                                         [ACCURACY] = "accuracy",
                                         [PERPLEXITY] = "perplexity",
                                         [CONFUSION_MATRIX] = "confusion matrix",
                                         [F1] = "F1"};

enum { SUM, WEIGHT, SUMS }; /* sums of all kinds without a matrix */

struct cairn_metric {
    enum kind kind;
    int k;                 /* for accuracies */
    int64_t classes;       /* for matrices; 0 = as many as scores have */
    cairn_average average; /* for F1 */
    int64_t ignored;
    bool is_reduced;
    size_t n;
    double *counts; /* [n]: SUM, WEIGHT, or [target][prediction] */
    void *scratch;  /* for a batch: scores, then targets */
    size_t scratch_nbytes;
};

/* ---- making ---- */

static cairn_status make(struct cairn_metric metric, const struct cairn_metric_options *options, cairn_metric **out) {
    struct cairn_metric_options o = *cairn_metric_options(.ignores_zero = CAIRN_OFF);
    cairn_metric *m = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(out, CAIRN_EINVAL, "%s: out is NULL", kind_names[metric.kind]);
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_metric_options"));
    REQUIRE(o.ignores_zero != CAIRN_ON || o.ignore_index == 0, CAIRN_EINVAL,
            "cairn_metric_options: ignores_zero is on, but ignore_index is %" PRId64 "; choose one", o.ignore_index);
    TRY(cairn__calloc(1, sizeof(*m), (void **)&m));
    *m = metric;
    m->ignored = o.ignores_zero == CAIRN_ON ? 0 : o.ignore_index ? o.ignore_index : -100;
    m->n = metric.classes ? (size_t)metric.classes * (size_t)metric.classes : SUMS;
    TRY(cairn__calloc(m->n, sizeof(*m->counts), (void **)&m->counts));
    *out = m;
    return CAIRN_OK;
out:
    cairn_metric_destroy(&m);
    return st;
}

cairn_status cairn_mean_create(cairn_metric **out) {
    return make((struct cairn_metric){.kind = MEAN}, NULL, out);
}

cairn_status cairn_accuracy_create(int k, const struct cairn_metric_options *options, cairn_metric **out) {
    REQUIRE(k >= 1, CAIRN_EINVAL, "cairn_accuracy_create: k is %d; it must be at least 1", k);
    return make((struct cairn_metric){.kind = ACCURACY, .k = k}, options, out);
}

cairn_status cairn_perplexity_create(const struct cairn_metric_options *options, cairn_metric **out) {
    return make((struct cairn_metric){.kind = PERPLEXITY}, options, out);
}

cairn_status cairn_confusion_matrix_create(int classes, const struct cairn_metric_options *options,
                                           cairn_metric **out) {
    REQUIRE(classes >= 1, CAIRN_EINVAL, "cairn_confusion_matrix_create: classes is %d; it must be at least 1", classes);
    return make((struct cairn_metric){.kind = CONFUSION_MATRIX, .classes = classes}, options, out);
}

cairn_status cairn_f1_create(int classes, cairn_average average, const struct cairn_metric_options *options,
                             cairn_metric **out) {
    REQUIRE(classes >= 1, CAIRN_EINVAL, "cairn_f1_create: classes is %d; it must be at least 1", classes);
    REQUIRE(average >= CAIRN_AVERAGE_BINARY && average <= CAIRN_AVERAGE_WEIGHTED, CAIRN_EINVAL,
            "cairn_f1_create: average is %d; it must be CAIRN_AVERAGE_BINARY, _MICRO, _MACRO or _WEIGHTED",
            (int)average);
    REQUIRE(average != CAIRN_AVERAGE_BINARY || classes == 2, CAIRN_EINVAL,
            "cairn_f1_create: CAIRN_AVERAGE_BINARY is for 2 classes, not %d", classes);
    return make((struct cairn_metric){.kind = F1, .classes = classes, .average = average}, options, out);
}

void cairn_metric_destroy(cairn_metric **metric) {
    if (!metric || !*metric) return;
    cairn__free((*metric)->counts);
    cairn__free((*metric)->scratch);
    cairn__free(*metric);
    *metric = NULL;
}

void cairn_metric_reset(cairn_metric *metric) {
    if (!metric) return;
    memset(metric->counts, 0, metric->n * sizeof(*metric->counts));
    metric->is_reduced = false;
}

/* ---- a batch ---- */

/* Scores [outer][classes][inner] and a target for each of outer * inner rows. Element j of a row is row[j * inner]. */
struct batch {
    const double *scores;
    const int64_t *targets;
    int64_t outer, classes, inner;
};

static bool ranks_above(double a, double b) {
    return a > b || (isnan(a) && !isnan(b));
}

/* The number of classes that rank above class c: those with a higher score, or an equal score and a lower number. */
static int64_t num_above(const struct batch *b, const double *row, int64_t c) {
    int64_t above = 0;
    for (int64_t j = 0; j < b->classes; j++) {
        const double x = row[j * b->inner], y = row[c * b->inner];
        above += ranks_above(x, y) || (j < c && !ranks_above(y, x));
    }
    return above;
}

static int64_t highest(const struct batch *b, const double *row) {
    int64_t best = 0;
    for (int64_t j = 1; j < b->classes; j++) {
        if (ranks_above(row[j * b->inner], row[best * b->inner])) best = j;
    }
    return best;
}

/* -log softmax(row)[c], relative to the largest score so that nothing overflows. */
static double nll(const struct batch *b, const double *row, int64_t c) {
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < b->classes; j++) most = fmax(most, row[j * b->inner]);
    for (int64_t j = 0; j < b->classes; j++) sum += exp(row[j * b->inner] - most);
    return log(sum) + most - row[c * b->inner];
}

static void count_row(cairn_metric *m, const struct batch *b, const double *row, int64_t target) {
    if (m->kind == CONFUSION_MATRIX || m->kind == F1) {
        m->counts[target * m->classes + highest(b, row)]++;
        return;
    }
    m->counts[SUM] += m->kind == ACCURACY ? num_above(b, row, target) < m->k : nll(b, row, target);
    m->counts[WEIGHT]++;
}

static bool is_index(cairn_dtype dtype) {
    return dtype == CAIRN_I32 || dtype == CAIRN_I64;
}

/* Checks that targets have the shape of scores without the dimension of classes, which is 1, or 0 for a single row. */
static cairn_status check_shapes(const cairn_metric *m, const cairn_tensor *scores, const cairn_tensor *targets,
                                 struct batch *out) {
    const int ndim = cairn_tensor_ndim(scores), axis = ndim > 1;
    const cairn_dtype dtype = cairn_tensor_dtype(scores), index = cairn_tensor_dtype(targets);
    const char *name = kind_names[m->kind];
    REQUIRE(ndim >= 0 && cairn_tensor_ndim(targets) >= 0, CAIRN_ESTATE,
            "%s: scores or targets are results of an earlier step; update metrics before cairn_zero_grad", name);
    REQUIRE(ndim > 0, CAIRN_EINVAL, "%s: scores are a scalar; they must be [N, C, ...] or [C]", name);
    REQUIRE(!is_index(dtype) && dtype != CAIRN_BOOL, CAIRN_EINVAL, "%s: scores are %s; they must be of a float type",
            name, cairn_dtype_name(dtype));
    REQUIRE(is_index(index), CAIRN_EINVAL, "%s: targets are %s; they must be i32 or i64", name,
            cairn_dtype_name(index));
    *out = (struct batch){.outer = axis ? cairn_tensor_size(scores, 0) : 1,
                          .classes = cairn_tensor_size(scores, axis),
                          .inner = 1};
    bool fits = axis == 0 ? cairn_tensor_numel(targets) == 1 : cairn_tensor_ndim(targets) == ndim - 1;
    for (int i = 0; axis && fits && i < ndim - 1; i++) {
        const int64_t size = cairn_tensor_size(scores, i < axis ? i : i + 1);
        fits = cairn_tensor_size(targets, i) == size;
        if (i >= axis) out->inner *= size;
    }
    REQUIRE(fits, CAIRN_EINVAL, "%s: targets must have the shape of scores, [N, C, ...], without C", name);
    REQUIRE(m->classes == 0 || m->classes == out->classes, CAIRN_EINVAL,
            "%s: scores have %" PRId64 " classes, but the metric has %" PRId64, name, out->classes, m->classes);
    return CAIRN_OK;
}

static cairn_status read_batch(cairn_metric *m, const cairn_tensor *scores, const cairn_tensor *targets,
                               struct batch *b) {
    const size_t n = cairn_tensor_numel(scores), rows = cairn_tensor_numel(targets);
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow(&m->scratch, &m->scratch_nbytes, n * sizeof(double) + rows * sizeof(int64_t), 1));
    double *values = m->scratch;
    int64_t *indices = (int64_t *)(values + n);
    TRY(cairn_tensor_read_as(scores, CAIRN_F64, values, n));
    TRY(cairn_tensor_read_as(targets, CAIRN_I64, indices, rows));
    b->scores = values;
    b->targets = indices;
    for (size_t i = 0; i < rows; i++) {
        REQUIRE(indices[i] == m->ignored || (indices[i] >= 0 && indices[i] < b->classes), CAIRN_EINVAL,
                "%s: target %zu is %" PRId64 "; it must be a class from 0 to %" PRId64, kind_names[m->kind], i,
                indices[i], b->classes - 1);
    }
out:
    return st;
}

cairn_status cairn_metric_update(cairn_metric *metric, const cairn_tensor *scores, const cairn_tensor *targets) {
    REQUIRE(metric, CAIRN_EINVAL, "cairn_metric_update: metric is NULL");
    if (!scores || !targets) {
        /* Of the call that failed to make a tensor, whose message is kept. */
        const cairn_status cause = cairn__last_status();
        return cause == CAIRN_OK ? cairn__fail(CAIRN_EINVAL, "cairn_metric_update: scores or targets are NULL") : cause;
    }
    REQUIRE(metric->kind != MEAN, CAIRN_EINVAL,
            "cairn_metric_update: a mean is not computed from scores; use cairn_metric_add");
    REQUIRE(!metric->is_reduced, CAIRN_ESTATE,
            "cairn_metric_update: the metric holds the total of all ranks; call cairn_metric_reset first");
    struct batch b = {0};
    cairn_status st = CAIRN_OK;
    TRY(check_shapes(metric, scores, targets, &b));
    TRY(read_batch(metric, scores, targets, &b));
    for (int64_t o = 0; o < b.outer; o++) {
        for (int64_t i = 0; i < b.inner; i++) {
            const int64_t target = b.targets[o * b.inner + i];
            const double *row = b.scores + o * b.classes * b.inner + i;
            if (target != metric->ignored) count_row(metric, &b, row, target);
        }
    }
out:
    return st;
}

cairn_status cairn_metric_add(cairn_metric *metric, double value, double weight) {
    REQUIRE(metric, CAIRN_EINVAL, "cairn_metric_add: metric is NULL");
    REQUIRE(metric->kind == MEAN || metric->kind == PERPLEXITY, CAIRN_EINVAL,
            "cairn_metric_add: %s is computed from scores; use cairn_metric_update", kind_names[metric->kind]);
    REQUIRE(weight >= 0 && isfinite(weight), CAIRN_EINVAL,
            "cairn_metric_add: weight is %g; it must be finite and not negative", weight);
    REQUIRE(!metric->is_reduced, CAIRN_ESTATE,
            "cairn_metric_add: the metric holds the total of all ranks; call cairn_metric_reset first");
    if (weight > 0) metric->counts[SUM] += value * weight;
    metric->counts[WEIGHT] += weight;
    return CAIRN_OK;
}

/* ---- ranks ---- */

/* A hash of what must be equal on all ranks. */
static uint64_t describe(cairn_metric *const *metrics, int count) {
    uint64_t hash = CAIRN__HASH_START;
    for (int i = 0; i < count; i++) {
        const int64_t what[] = {metrics[i]->kind, metrics[i]->k, metrics[i]->classes, metrics[i]->average,
                                metrics[i]->ignored};
        hash = cairn__hash_bytes(hash, what, sizeof(what));
    }
    return hash;
}

static cairn_status add_ranks(cairn_metric *const *metrics, int count, size_t n, cairn_group *group) {
    cairn_status st = CAIRN_OK;
    double *sums = NULL;
    size_t at = 0;
    int odd = -1;
    TRY(cairn__alloc(n * sizeof(*sums), (void **)&sums));
    for (int i = 0; i < count; at += metrics[i++]->n)
        memcpy(sums + at, metrics[i]->counts, metrics[i]->n * sizeof(*sums));
    TRY(cairn__group_sum(group, sums, n, describe(metrics, count), &odd));
    TRY(odd < 0 ? CAIRN_OK
                : cairn__fail(CAIRN_EPEER,
                              "cairn_metrics_reduce: rank %d has other metrics than rank 0, or in another order; pass "
                              "the same kinds with the same options on every rank",
                              odd));
    for (int i = count; i-- > 0;)
        memcpy(metrics[i]->counts, sums + (at -= metrics[i]->n), metrics[i]->n * sizeof(*sums));
out:
    cairn__free(sums);
    return st;
}

cairn_status cairn_metrics_reduce(cairn_metric *const *metrics, int count, cairn_group *group) {
    cairn_status st = CAIRN_OK;
    size_t n = 0;
    REQUIRE(count >= 0 && (metrics || count == 0), CAIRN_EINVAL, "cairn_metrics_reduce: count is %d and metrics is %p",
            count, (const void *)metrics);
    for (int i = 0; i < count; i++) {
        REQUIRE(metrics[i], CAIRN_EINVAL, "cairn_metrics_reduce: metrics[%d] is NULL", i);
        REQUIRE(!metrics[i]->is_reduced, CAIRN_ESTATE,
                "cairn_metrics_reduce: metrics[%d] holds the total of all ranks already; reset it first", i);
        for (int j = 0; j < i; j++)
            REQUIRE(metrics[j] != metrics[i], CAIRN_EINVAL,
                    "cairn_metrics_reduce: metrics[%d] and metrics[%d] are the same metric", j, i);
        n += metrics[i]->n;
    }
    if (group && cairn_group_size(group) > 1) TRY(add_ranks(metrics, count, n, group));
    for (int i = 0; i < count; i++) metrics[i]->is_reduced = true;
out:
    return st;
}

/* ---- values ---- */

/* For one class, or summed over classes. */
struct tally {
    double hits, targets, predictions;
};

static struct tally tally_of(const cairn_metric *m, int64_t c) {
    struct tally t = {.hits = m->counts[c * m->classes + c]};
    for (int64_t j = 0; j < m->classes; j++) {
        t.targets += m->counts[c * m->classes + j];
        t.predictions += m->counts[j * m->classes + c];
    }
    return t;
}

/* 2 tp / (2 tp + fp + fn), where targets = tp + fn and predictions = tp + fp. */
static double f1_of(struct tally t) {
    return t.targets + t.predictions > 0 ? 2 * t.hits / (t.targets + t.predictions) : 0;
}

static double matrix_value(const cairn_metric *m) {
    struct tally all = {0};
    double macro = 0, weighted = 0, seen = 0;
    for (int64_t c = 0; c < m->classes; c++) {
        const struct tally t = tally_of(m, c);
        all = (struct tally){all.hits + t.hits, all.targets + t.targets, all.predictions + t.predictions};
        macro += f1_of(t);
        weighted += f1_of(t) * t.targets;
        seen += t.targets + t.predictions > 0;
    }
    if (all.targets == 0) return NAN;
    if (m->kind == CONFUSION_MATRIX || m->average == CAIRN_AVERAGE_MICRO) return all.hits / all.targets;
    if (m->average == CAIRN_AVERAGE_BINARY) return f1_of(tally_of(m, 1));
    return m->average == CAIRN_AVERAGE_MACRO ? macro / seen : weighted / all.targets;
}

double cairn_metric_value(const cairn_metric *metric) {
    if (!metric) return NAN;
    if (metric->classes) return matrix_value(metric);
    const double weight = metric->counts[WEIGHT], mean = weight > 0 ? metric->counts[SUM] / weight : NAN;
    return metric->kind == PERPLEXITY ? exp(mean) : mean;
}

cairn_status cairn_metric_read(const cairn_metric *metric, double *counts, size_t n) {
    REQUIRE(metric && counts, CAIRN_EINVAL, "cairn_metric_read: metric and counts must be set");
    REQUIRE(n == metric->n, CAIRN_EINVAL, "cairn_metric_read: count is %zu, but the %s has %zu counts", n,
            kind_names[metric->kind], metric->n);
    memcpy(counts, metric->counts, n * sizeof(*counts));
    return CAIRN_OK;
}
