/* ResNet on one device, in two stages without micro-batches, and pipelined; run by tools/bench-split, which describes
 * the experiment.
 *
 *     bench-split depth width size batch cut rounds gpipe|1f1b split[,split...]
 *
 * Two ranks, each a single-threaded thread of this process. Rank 0 has the whole net; the stages are copies of its
 * halves. Output lines:
 *
 *     describe <what computes>
 *     stage <rank> <bytes of a row's output> <bytes of a row that backward needs>
 *     cost <rank> <rows> <ns of forward> <ns of backward>     of a stage by itself, with both ranks busy
 *     time <round> one|plain|split <rows of a micro-batch> <ns> <ns in which other programs had its processors>
 *     traced <rows of a micro-batch> <ns>                     a step of the best split size, followed by its turns
 *     turn <rank> forward|backward <micro-batch> <begin, ns> <end, ns>
 *
 * A step is forward and backward. Each round times all variants one after the other. The loss of the plain stages must
 * equal that of the whole net; losses with micro-batches are only close, since batch norms see each micro-batch by
 * itself.
 *
 * The kernel counts how long a thread was ready but not running. A step that lost more than 2 % that way is repeated,
 * at most twice, and the least disturbed one counts; costs are repeated at most four times. */
#include <math.h>
#include <string.h>

#include "../../examples/resnet/resnet.h"
#include "../../tests/bench.h"
#include "cairn/cairn.h"
#include "core/trace.h"
#include "nn/tape.h"

enum { RANKS = 2, CLASSES = 1000, CHANNELS = 3, MAX_SPLITS = 64, MAX_ROUNDS = 101, MAX_EVENTS = 1 << 14, POINTS = 6 };
static const int point_rows[POINTS] = {1, 2, 4, 8, 16, 32};
enum { TRACES = 3, TRIES = 3, COST_TRIES = 5 };
static const double QUIET = 0.02, SAME = 1e-3, NEAR = 0.25; /* of time; of losses */

static int depth, width, size, batch, cut, rounds, splits[MAX_SPLITS], num_splits;
static cairn_pipeline_schedule schedule;

/* Rank 0's parameters; rank 1 copies from them while rank 0 waits. */
static cairn_param_set *whole_params;
static double whole_loss, best_ns;
static int best_split;

/* ---- times and disturbances ---- */

struct sample {
    double ns, disturbed_ns;
};

static struct sample samples[RANKS]; /* of a step's ranks */

static bool is_quiet(struct sample s) {
    return s.disturbed_ns <= QUIET * s.ns;
}

/* Time in ns that this thread was ready but not running, since its start; 0 if the kernel does not report it. */
static double waited_ns(void) {
    unsigned long long ran = 0, waited = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");
    if (!file) return 0;
    if (fscanf(file, "%llu %llu", &ran, &waited) != 2) waited = 0;
    fclose(file);
    return (double)waited;
}

static struct sample sample_begin(void) {
    const double waited = waited_ns();
    return (struct sample){(double)cairn__now_ns(), waited};
}

static struct sample sample_end(struct sample begin) {
    const double end = (double)cairn__now_ns();
    return (struct sample){end - begin.ns, waited_ns() - begin.disturbed_ns};
}

static int by_ns(const void *a, const void *b) {
    return by_value(a, b);
}

static double part_disturbed(struct sample s) {
    return s.disturbed_ns / s.ns;
}

/* Median of the quiet rounds, or the least disturbed round if none was quiet. */
static double median_of_rounds(const struct sample *list) {
    static _Thread_local double values[MAX_ROUNDS];
    struct sample least = list[0];
    size_t n = 0;
    for (int i = 0; i < rounds; i++) {
        if (is_quiet(list[i])) values[n++] = list[i].ns;
        if (part_disturbed(list[i]) < part_disturbed(least)) least = list[i];
    }
    if (n == 0) return least.ns;
    qsort(values, n, sizeof(values[0]), by_ns);
    return values[n / 2];
}

/* ---- recording a pipeline rank's turns ---- */

struct event {
    bool is_wait, is_backward;
    int micro_batch;
    uint64_t begin_ns, end_ns;
};

struct recorder {
    bool on;
    size_t count;
    struct event list[MAX_EVENTS];
};

static struct recorder recorders[RANKS];
static _Thread_local struct recorder *recorder; /* NULL = not a rank's thread */
static uint64_t step_begin_ns;

static void record(void *cookie, const struct cairn__event *event) {
    (void)cookie;
    if (!recorder || !recorder->on || strcmp(event->room, "parallel") != 0) return;
    require(recorder->count < MAX_EVENTS, "too many events of a step");
    recorder->list[recorder->count++] = (struct event){.is_wait = strcmp(event->what, "wait") == 0,
                                                       .is_backward = strcmp(event->what, "backward") == 0,
                                                       .micro_batch = (int)event->index,
                                                       .begin_ns = event->begin_ns,
                                                       .end_ns = event->end_ns};
}

/* Prints the turns without their waits: for input before the computation, and for a send slot after it. Events are
 * listed by their end, so a turn's waits precede it; its computation is the longest stretch between them. */
static void print_turns(int rank) {
    const struct recorder *r = &recorders[rank];
    for (size_t i = 0, first = 0; i < r->count; i++) {
        if (r->list[i].is_wait) continue;
        uint64_t begin = r->list[i].begin_ns, end = begin, at = begin;
        for (size_t k = first; k <= i; k++) { /* the longest stretch without a wait */
            const uint64_t until = k < i ? r->list[k].begin_ns : r->list[i].end_ns;
            if (until > at && until - at > end - begin) begin = at, end = until;
            at = r->list[k].end_ns;
        }
        printf("turn %d %s %d %llu %llu\n", rank, r->list[i].is_backward ? "backward" : "forward",
               r->list[i].micro_batch, (unsigned long long)(begin - step_begin_ns),
               (unsigned long long)(end - step_begin_ns));
        first = i + 1;
    }
}

/* ---- a rank ---- */

struct rank {
    cairn_env *env;
    int number;
    cairn_module *whole, *stage; /* whole = NULL on rank 1 */
    cairn_optimizer *whole_optimizer, *optimizer;
    cairn_tensor *x, *y;
    cairn_tensor *input; /* the stage's input, kept for timing it by itself */
};

static void wait_for_all(const struct rank *r) {
    done(cairn_barrier(cairn_env_group(r->env)));
}

static cairn_tensor *cross_entropy(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    (void)ctx, (void)micro_batch;
    return cairn_cross_entropy(output, target, NULL);
}

/* Keeps the stage's input. */
static cairn_tensor *forward(void *ctx, cairn_module *module, cairn_tensor *input, int micro_batch) {
    struct rank *r = ctx;
    (void)micro_batch;
    if (!r->input) r->input = cairn_tensor_keep(input);
    return cairn_module_forward(module, input);
}

static void copy_weights(cairn_param_set *to) {
    const size_t count = cairn_param_set_count(to), all = cairn_param_set_count(whole_params);
    for (size_t i = 0; i < count; i++) {
        cairn_param mine, theirs;
        size_t n = 1, k = 0;
        done(cairn_param_set_get(to, i, &mine));
        for (; k < all; k++) {
            done(cairn_param_set_get(whole_params, k, &theirs));
            if (strcmp(mine.name, theirs.name) == 0) break;
        }
        require(k < all, "a half has a weight that the whole net has not");
        for (int d = 0; d < mine.ndim; d++) n *= (size_t)mine.shape[d];
        memcpy(mine.data, theirs.data, n * sizeof(float));
        done(cairn_param_changed(to, i, 0));
    }
}

static void make(struct rank *r) {
    struct resnet_options all = {.depth = depth, .classes = CLASSES, .width = width}, half = all;
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    *(r->number == 0 ? &half.end_block : &half.first_block) = cut;
    if (r->number == 0) {
        r->whole = resnet_create(r->env, &all);
        require(r->whole, cairn_last_error());
        whole_params = cairn_module_params(r->whole);
        done(cairn_sgd_create(whole_params, &hyper, &r->whole_optimizer));
    }
    r->stage = resnet_create(r->env, &half);
    r->x = cairn_randn(r->env, CAIRN_F32, CAIRN_SHAPE(batch, CHANNELS, size, size));
    r->y = cairn_arange(r->env, CAIRN_I64, 0, (double)batch, 1);
    require(r->stage && r->x && r->y, cairn_last_error());
    wait_for_all(r);
    copy_weights(cairn_module_params(r->stage));
    done(cairn_sgd_create(cairn_module_params(r->stage), &hyper, &r->optimizer));
    wait_for_all(r);
}

static void end(struct rank *r) {
    cairn_optimizer_destroy(&r->optimizer);
    cairn_optimizer_destroy(&r->whole_optimizer);
    cairn_module_destroy(&r->stage);
    cairn_module_destroy(&r->whole);
    cairn_tensor_destroy(&r->x);
    cairn_tensor_destroy(&r->y);
    cairn_tensor_destroy(&r->input);
}

/* ---- steps ---- */

/* The whole net, on rank 0. */
static void run_one(struct rank *r) {
    if (!r->whole) return;
    cairn_zero_grad(r->whole_optimizer);
    cairn_tensor *loss = cairn_cross_entropy(cairn_module_forward(r->whole, r->x), r->y, NULL);
    require(loss, cairn_last_error());
    done(cairn_tensor_read_as(loss, CAIRN_F64, &whole_loss, 1));
    done(cairn_backward(loss));
}

static void run_pipeline(struct rank *r, cairn_pipeline *pipeline, double tolerance) {
    double loss = 0;
    cairn_zero_grad(r->optimizer);
    done(cairn_pipeline_step(pipeline, r->x, r->y, &loss));
    require(r->number == 0 || fabs(loss - whole_loss) < tolerance * whole_loss,
            "the loss is not that of the whole net");
}

/* pipeline: NULL = the whole net. Returns the time of the slowest rank and the disturbance of all ranks. */
static struct sample time_step(struct rank *r, cairn_pipeline *pipeline, double tolerance) {
    wait_for_all(r);
    const struct sample begin = sample_begin();
    if (r->number == 0) step_begin_ns = (uint64_t)begin.ns;
    if (pipeline) {
        run_pipeline(r, pipeline, tolerance);
    } else {
        run_one(r);
    }
    samples[r->number] = sample_end(begin);
    wait_for_all(r);
    struct sample all = {0};
    for (int i = 0; i < RANKS; i++) {
        all.ns = fmax(all.ns, samples[i].ns);
        all.disturbed_ns += samples[i].disturbed_ns;
    }
    wait_for_all(r); /* all have read */
    return all;
}

/* All ranks make the same decision, since all read the same times. */
static struct sample time_quiet_step(struct rank *r, cairn_pipeline *pipeline, double tolerance) {
    struct sample best = time_step(r, pipeline, tolerance);
    for (int i = 1; i < TRIES && !is_quiet(best); i++) {
        const struct sample again = time_step(r, pipeline, tolerance);
        if (part_disturbed(again) < part_disturbed(best)) best = again;
    }
    return best;
}

/* ---- a stage by itself ---- */

static cairn_tensor *rows_of(const struct rank *r, const cairn_tensor *all, int rows) {
    int64_t shape[CAIRN_MAX_DIMS];
    const int ndim = cairn_tensor_ndim(all);
    for (int d = 0; d < ndim; d++) shape[d] = cairn_tensor_size(all, d);
    const size_t n = cairn_tensor_numel(all);
    float *values = malloc(n * sizeof(*values));
    require(values, "out of memory");
    done(cairn_tensor_read(all, values, n));
    shape[0] = rows;
    cairn_tensor *leaf = cairn_tensor_from(r->env, CAIRN_F32, ndim, shape, values);
    free(values);
    require(leaf, cairn_last_error());
    if (r->number > 0) done(cairn_tensor_require_grad(leaf));
    return leaf;
}

struct alone {
    cairn_tensor *x, *target, *grad; /* grad: of the first stage's output */
    struct sample forward[MAX_ROUNDS], backward[MAX_ROUNDS];
    double output, held; /* bytes of a row */
};

struct ways {
    struct sample forward, backward;
};

static struct ways run_alone(struct rank *r, struct alone *a, int rows) {
    struct ways found = {0};
    cairn_zero_grad(r->optimizer);
    for (int i = 0; i < 2; i++) { /* the second one accumulates */
        const size_t before = cairn__tape_memory(r->env).values.used;
        wait_for_all(r);
        const struct sample begin = sample_begin();
        cairn_tensor *from = cairn_module_forward(r->stage, a->x);
        if (r->number > 0) {
            double loss = 0;
            from = cairn_cross_entropy(from, a->target, NULL);
            require(from, cairn_last_error());
            done(cairn_tensor_read_as(from, CAIRN_F64, &loss, 1));
        }
        require(from, cairn_last_error());
        found.forward = sample_end(begin);
        a->held = (double)(cairn__tape_memory(r->env).values.used - before) / rows;
        a->output = r->number == 0 ? (double)cairn_tensor_numel(from) * sizeof(float) / rows : 0;
        if (r->number == 0 && !a->grad) a->grad = cairn_tensor_keep(cairn_mul_scalar(from, 1e-3));
        wait_for_all(r);
        const struct sample again = sample_begin();
        done(cairn_backward_with(from, cairn_backward_options(.grad = a->grad)));
        found.backward = sample_end(again);
        done(cairn_release_results(r->env));
    }
    return found;
}

static void take_quieter(struct sample *best, struct sample other, bool is_first) {
    if (is_first || part_disturbed(other) < part_disturbed(*best)) *best = other;
}

/* Repeats until both ranks have quiet forwards and backwards. */
static void time_alone(struct rank *r, struct alone *a, int rows, int round) {
    static bool quiet[RANKS];
    struct ways best = {0};
    bool all_quiet = false;
    for (int i = 0; i < COST_TRIES && !all_quiet; i++) {
        const struct ways found = run_alone(r, a, rows);
        take_quieter(&best.forward, found.forward, i == 0);
        take_quieter(&best.backward, found.backward, i == 0);
        quiet[r->number] = is_quiet(best.forward) && is_quiet(best.backward);
        wait_for_all(r);
        all_quiet = quiet[0] && quiet[1];
        wait_for_all(r); /* both have read */
    }
    if (round < 0) return;
    a->forward[round] = best.forward;
    a->backward[round] = best.backward;
}

static int make_alone(struct rank *r, struct alone *alone) {
    int points = 0;
    for (; points < POINTS && point_rows[points] <= batch; points++) {
        alone[points].x = rows_of(r, r->input, point_rows[points]);
        alone[points].target = cairn_arange(r->env, CAIRN_I64, 0, (double)point_rows[points], 1);
    }
    return points;
}

static void print_costs(struct rank *r, struct alone *alone, int points) {
    for (int turn = 0; turn < RANKS; turn++, wait_for_all(r)) {
        if (turn != r->number) continue;
        printf("stage %d %.0f %.0f\n", r->number, alone[points - 1].output, alone[points - 1].held);
        for (int p = 0; p < points; p++)
            printf("cost %d %d %.0f %.0f\n", r->number, point_rows[p], median_of_rounds(alone[p].forward),
                   median_of_rounds(alone[p].backward));
        fflush(stdout);
    }
    for (int p = 0; p < points; p++) {
        cairn_tensor_destroy(&alone[p].x);
        cairn_tensor_destroy(&alone[p].target);
        cairn_tensor_destroy(&alone[p].grad);
    }
}

/* ---- the sweep ---- */

static cairn_pipeline *make_pipeline(struct rank *r, int split) {
    cairn_pipeline *pipeline = NULL;
    done(cairn_pipeline_create(&r->stage, 1, cairn_env_group(r->env),
                               cairn_pipeline_options(.schedule = schedule, .split_size = split, .loss = cross_entropy,
                                                      .forward = forward, .ctx = r),
                               &pipeline));
    return pipeline;
}

static void note(const struct rank *r, int round, const char *what, int split, struct sample s) {
    if (r->number > 0 || round < 0) return;
    printf("time %d %s %d %.0f %.0f\n", round, what, split, s.ns, s.disturbed_ns);
    fflush(stdout);
}

/* Traces the least disturbed of a few steps. */
static void trace_best(struct rank *r, cairn_pipeline *pipeline, int split) {
    static struct recorder kept[RANKS];
    static uint64_t began;
    struct sample best = {0};
    for (int i = 0; i < TRACES; i++) {
        recorder->count = 0;
        recorder->on = true;
        const struct sample s = time_step(r, pipeline, NEAR);
        recorder->on = false;
        if (i > 0 && part_disturbed(s) >= part_disturbed(best)) continue;
        best = s;
        kept[r->number] = *recorder;
        if (r->number == 0) began = step_begin_ns;
    }
    wait_for_all(r);
    if (r->number > 0) return;
    printf("traced %d %.0f\n", split, best.ns);
    step_begin_ns = began;
    for (int rank = 0; rank < RANKS; rank++) {
        recorders[rank] = kept[rank];
        print_turns(rank);
    }
}

static void sweep(struct rank *r) {
    cairn_pipeline *plain = make_pipeline(r, batch), *pipelines[MAX_SPLITS];
    static struct sample times[MAX_SPLITS][MAX_ROUNDS];
    static _Thread_local struct alone alone[POINTS];
    for (int s = 0; s < num_splits; s++) pipelines[s] = make_pipeline(r, splits[s]);
    (void)time_step(r, NULL, SAME);
    (void)time_step(r, plain, SAME); /* forward() keeps the stage's input */
    const int points = make_alone(r, alone);
    for (int i = -1; i < rounds; i++) { /* the first one allocates memory */
        note(r, i, "one", batch, time_quiet_step(r, NULL, SAME));
        note(r, i, "plain", batch, time_quiet_step(r, plain, SAME));
        for (int p = 0; p < points; p++) time_alone(r, &alone[p], point_rows[p], i);
        for (int s = 0; s < num_splits; s++) {
            const struct sample sample = time_quiet_step(r, pipelines[s], splits[s] == batch ? SAME : NEAR);
            note(r, i, "split", splits[s], sample);
            if (r->number == 0 && i >= 0) times[s][i] = sample;
        }
    }
    for (int s = 0; r->number == 0 && s < num_splits; s++) {
        const double ns = median_of_rounds(times[s]);
        if (best_ns > 0 && ns >= best_ns) continue;
        best_ns = ns;
        best_split = s;
    }
    wait_for_all(r);
    print_costs(r, alone, points);
    trace_best(r, pipelines[best_split], splits[best_split]);
    for (int s = 0; s < num_splits; s++) cairn_pipeline_destroy(&pipelines[s]);
    cairn_pipeline_destroy(&plain);
}

static int run(int rank, void *argument) {
    struct rank r = {.number = rank};
    (void)argument;
    recorder = &recorders[rank];
    done(cairn_env_create(NULL, NULL, NULL, &r.env));
    if (rank == 0) printf("describe %s\n", cairn_env_describe(r.env));
    make(&r);
    sweep(&r);
    end(&r);
    cairn_env_destroy(&r.env);
    return 0;
}

static void read_splits(char *text) {
    for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
        require(num_splits < MAX_SPLITS, "64 split sizes at most");
        splits[num_splits] = atoi(part);
        require(splits[num_splits] > 0 && splits[num_splits] <= batch, "a split size is from 1 to the batch's rows");
        num_splits++;
    }
    require(num_splits > 0, "there is a split size at least");
}

int main(int argc, char **argv) {
    require(argc == 9, "usage: bench-split depth width size batch cut rounds gpipe|1f1b split[,split...]; "
                       "tools/bench-split starts it");
    depth = atoi(argv[1]), width = atoi(argv[2]), size = atoi(argv[3]), batch = atoi(argv[4]), cut = atoi(argv[5]);
    rounds = atoi(argv[6]);
    schedule = strcmp(argv[7], "gpipe") == 0 ? CAIRN_PIPELINE_GPIPE : CAIRN_PIPELINE_1F1B;
    require(resnet_is_depth(depth) && cut > 0 && cut < resnet_num_blocks(depth),
            "the depth is a ResNet's, and both parts have a block");
    require(batch > 1 && batch <= CLASSES && rounds > 0 && rounds <= MAX_ROUNDS && width > 0 && size > 32,
            "the batch is 2 to 1000 pictures larger than 32x32, and there are 1 to 101 rounds");
    read_splits(argv[8]);
    cairn__trace_set_sink(record, NULL);
    done(cairn_spawn_threads(run, NULL, RANKS, cairn_spawn_threads_options(.num_threads = 1)));
    return 0;
}
