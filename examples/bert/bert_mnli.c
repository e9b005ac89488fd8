/* Fine-tunes BERT on MNLI from the original files of Hugging Face and MNLI, on any number of ranks: docs/bert.md.
 *
 *     bert_mnli --model bert-base-cased --train multinli_1.0_train.jsonl --eval multinli_1.0_dev_matched.jsonl
 *     cairn-run --nproc_per_node 2 --max-restarts 3 bert_mnli ... --opt-level O2 --half bf16 --checkpoint runs/a
 *
 * A step's loss is the mean over its examples on all ranks: each micro-batch is weighted by its number of examples,
 * which is equal on all ranks because the sampler pads. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "mnli.h"
#include "model.h"
#include "options.h"
#include "report.h"

struct trainer {
    struct options o;
    struct bert_config config;
    struct mnli_text text;
    struct mnli_file train, evals[MOST_EVALS];
    struct report report;

    cairn_env *env;
    cairn_module *model;
    cairn_optimizer *adamw;
    amp_context *amp;
    ddp_context *net;
    cairn_sampler *sampler;
    cairn_loader *loader;
    cairn_progress *progress;
    int64_t total, epochs; /* total: steps; epochs: how many epochs those are */
    int64_t first;         /* steps done before this run */
    double loss;           /* the curve's last point */
};

static void die(const char *why) {
    fprintf(stderr, "bert_mnli: %s\n", why);
    exit(1);
}

static void check(cairn_status st) {
    if (st != CAIRN_OK) die(cairn_last_error());
}

/* Rank 0 opens the file first and writes its index for the other ranks. */
static void open_file(struct trainer *t, struct mnli_file *file, const char *path) {
    const int rank = cairn_env_rank(t->env);
    if (rank != 0) check(cairn_barrier(cairn_env_group(t->env)));
    check(mnli_file_open(file, path, &t->config, &t->text));
    if (rank == 0) check(cairn_barrier(cairn_env_group(t->env)));
}

static void open_files(struct trainer *t) {
    check(mnli_text_open(&t->text, t->o.model, &t->config, t->o.max_length));
    if (t->o.train) open_file(t, &t->train, t->o.train);
    for (int i = 0; i < t->o.num_evals; i++) open_file(t, &t->evals[i], t->o.evals[i]);
}

/* Fails before hours of training rather than after. */
static void check_outputs(const struct options *o) {
    FILE *report = o->report ? fopen(o->report, "ab") : NULL;
    if (o->report && (!report || fclose(report) != 0))
        fprintf(stderr, "bert_mnli: %s: cannot be written: %s\n", o->report, strerror(errno)), exit(1);
    if (!o->save || ((mkdir(o->save, 0777) == 0 || errno == EEXIST) && access(o->save, W_OK | X_OK) == 0)) return;
    fprintf(stderr, "bert_mnli: --save %s: no folder that can be written: %s\n", o->save, strerror(errno));
    exit(1);
}

/* ---- the model ---- */

static void make_model(struct trainer *t) {
    char note[300] = "";
    const cairn_switch again = t->o.gradient_checkpointing ? CAIRN_ON : CAIRN_OFF;
    t->model = bert_create(t->env, &t->config, &(struct bert_options){.gradient_checkpointing = again});
    if (!t->model) die(cairn_last_error());
    if (!t->o.from_scratch) check(bert_load(t->model, t->o.model, note, sizeof(note)));
    if (*note && !t->o.train) die(note);
    if (*note && cairn_env_rank(t->env) == 0) printf("%s\n", note);
}

/* No weight decay for biases and normalisations, as in Hugging Face's trainer. */
static void make_optimizer(struct trainer *t) {
    struct cairn_adam_options matrices = CAIRN_ADAMW_OPTIONS_INIT, others = matrices;
    matrices.lr = others.lr = t->o.lr;
    matrices.weight_decay = t->o.weight_decay, others.weight_decay = 0;
    const cairn_group_rule rules[] = {{.are = CAIRN_PARAMS_MATRICES, .adam = &matrices}, {.adam = &others}};
    check(cairn_adamw_create_grouped(cairn_module_params(t->model), rules, 2, &t->adamw));
    if (t->total > 0)
        check(cairn_optimizer_set_schedule(t->adamw, cairn_linear_schedule(.warmup_steps = t->o.warmup_steps,
                                                                           .total_steps = t->total)));
}

/* The last step of an epoch takes the remaining examples. */
static void plan(struct trainer *t) {
    if (!t->o.train) return;
    check(cairn_distributed_sampler_create(cairn_dataset_count(t->train.tokens), cairn_env_rank(t->env),
                                           cairn_env_size(t->env),
                                           cairn_sampler_options(.seed = (uint64_t)t->o.seed,
                                                                 .shuffle = t->o.in_order ? CAIRN_OFF : CAIRN_ON),
                                           &t->sampler));
    check(mnli_loader_create(t->env, &t->train, &t->text, t->sampler, t->o.batch_size, t->o.workers, &t->loader));
    const int64_t a_step = t->o.batch_size * t->o.accumulate;
    const int64_t steps = (cairn_sampler_length(t->sampler) + a_step - 1) / a_step;
    t->total = t->o.max_steps > 0 ? t->o.max_steps : t->o.epochs * steps;
    t->epochs = (t->total + steps - 1) / steps;
    if (t->total / t->o.log_every >= INT_MAX)
        die("--log-every: the curve would have over 2^31 points; give more steps");
    if (t->o.warmup_steps > t->total) die("--warmup-steps is more than all steps of the training");
}

static void begin(struct trainer *t) {
    plan(t);
    make_model(t);
    make_optimizer(t);
    check(amp_initialize(t->env, t->model, t->adamw, &t->o.amp, &t->amp));
    check(ddp_create(t->model, cairn_env_group(t->env), NULL, &t->net));
    check(report_create(&t->report, t->total, t->epochs, &t->o, t->config.num_labels));
    checkpoint_begin(&t->o.checkpoint, t->env, t->model, t->adamw, t->amp, t->net, t->sampler);
    if (t->o.checkpoint.state) check(report_add_to(&t->report, t->o.checkpoint.state));
    checkpoint_resume(&t->o.checkpoint); /* resumes within the epoch if the checkpoint was saved there */
    t->first = t->o.checkpoint.steps;
}

/* ---- evaluation: each example once, whatever the number of ranks ---- */

static cairn_tensor *scores(struct trainer *t, const struct cairn_batch *b) {
    cairn_tensor *inputs[BERT_INPUTS] = {
        [BERT_IDS] = b->tensors[MNLI_IDS], [BERT_MASK] = b->tensors[MNLI_MASK], [BERT_TYPES] = b->tensors[MNLI_TYPES]};
    return ddp_forward_n(t->net, inputs, BERT_INPUTS);
}

static void count(struct trainer *t, cairn_loader *loader, cairn_metric *const *metrics) {
    const struct cairn_batch *b;
    cairn_module_train(t->model, 0);
    for (;;) {
        check(cairn_loader_next(loader, &b));
        if (!b) break;
        cairn_no_grad_begin(t->env);
        cairn_tensor *x = scores(t, b);
        check(cairn_metric_update(metrics[0], x, b->tensors[MNLI_LABELS]));
        const double loss = (double)cairn_tensor_item(cairn_cross_entropy(x, b->tensors[MNLI_LABELS], NULL));
        check(cairn_metric_add(metrics[1], loss, (double)b->n));
        check(cairn_no_grad_end(t->env));
    }
    cairn_module_train(t->model, 1);
    check(cairn_metrics_reduce(metrics, 2, cairn_env_group(t->env)));
}

static void evaluate(struct trainer *t, int i) {
    struct evaluation *e = &t->report.evals[i];
    cairn_metric *metrics[2];
    cairn_sampler *sampler;
    cairn_loader *loader;
    double loss[2];
    check(cairn_distributed_sampler_create(cairn_dataset_count(t->evals[i].tokens), cairn_env_rank(t->env),
                                           cairn_env_size(t->env),
                                           cairn_sampler_options(.shuffle = CAIRN_OFF, .pad = CAIRN_OFF), &sampler));
    check(mnli_loader_create(t->env, &t->evals[i], &t->text, sampler, t->o.batch_size, t->o.workers, &loader));
    check(cairn_confusion_matrix_create(t->config.num_labels, NULL, &metrics[0]));
    check(cairn_mean_create(&metrics[1]));
    count(t, loader, metrics);
    e->accuracy = cairn_metric_value(metrics[0]);
    check(cairn_metric_read(metrics[0], e->confusion, (size_t)(t->config.num_labels * t->config.num_labels)));
    check(cairn_metric_read(metrics[1], loss, 2));
    e->examples = loss[1], e->loss = loss[0] / loss[1];
    for (int m = 0; m < 2; m++) cairn_metric_destroy(&metrics[m]);
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
}

/* Evaluates after an epoch (counted from 0), or at the end of training. */
static void evaluate_all(struct trainer *t, int64_t epoch, int is_end) {
    for (int i = 0; i < t->o.num_evals; i++) {
        evaluate(t, i);
        if (epoch >= 0) t->report.accuracies[epoch * t->o.num_evals + i] = t->report.evals[i].accuracy;
        if (cairn_env_rank(t->env) != 0) continue;
        if (!is_end) printf("epoch %lld: ", (long long)epoch + 1);
        report_print(&t->report.evals[i], &t->config, is_end);
    }
}

/* ---- training ---- */

/* Records a step's loss. Each rank holds a part of it. */
static void note(struct trainer *t, double loss, int64_t examples) {
    const int64_t step = t->o.checkpoint.steps + 1;
    check(ddp_mean(&loss, (double)examples, cairn_env_group(t->env)));
    t->loss = loss;
    t->report.points[step / t->o.log_every - 1] =
        (struct point){.step = (double)step, .loss = loss, .lr = cairn_optimizer_step_lr(t->adamw, 0)};
}

static void show(struct trainer *t) {
    if (!cairn_progress_step(t->progress)) return;
    const struct cairn_progress_values *values =
        cairn_progress_values(.loss = t->loss, .lr = cairn_optimizer_step_lr(t->adamw, 0),
                              .scale = amp_scaler_get_scale(amp_scaler_of(t->amp, 0)),
                              .skipped = cairn_optimizer_skipped(t->adamw));
    cairn_progress_show(t->progress, values);
}

/* One step of at most o.accumulate micro-batches; only the last backward reduces gradients. Returns 0 at the end of the
 * epoch. */
static int step(struct trainer *t) {
    const int64_t left = cairn_sampler_length(t->sampler) - cairn_sampler_position(t->sampler);
    const int64_t most = t->o.batch_size * t->o.accumulate, examples = left < most ? left : most;
    const int due = (t->o.checkpoint.steps + 1) % t->o.log_every == 0;
    const struct cairn_batch *b;
    double loss = 0;
    if (examples == 0) return 0;
    cairn_zero_grad(t->adamw);
    for (int64_t done = 0; done < examples; done += (int64_t)b->n) {
        if (done > 0) check(cairn_release_results(t->env)); /* a step needs one micro-batch's memory */
        check(cairn_loader_next(t->loader, &b));
        check(ddp_no_sync(t->net, done + (int64_t)b->n < examples));
        cairn_tensor *mean = cairn_cross_entropy(scores(t, b), b->tensors[MNLI_LABELS], NULL);
        cairn_tensor *part = cairn_mul_scalar(mean, (double)b->n / (double)examples);
        check(amp_backward(t->amp, part, t->adamw));
        if (due) loss += (double)cairn_tensor_item(part);
    }
    if (t->o.clip > 0) check(cairn_clip_grad_norm(t->adamw, t->o.clip, NULL));
    check(cairn_step(t->adamw));
    if (due) note(t, loss, examples);
    show(t);
    return 1;
}

/* checkpoint_step exits the program after a SIGTERM. */
static void run_epoch(struct trainer *t) {
    while (t->o.checkpoint.steps < t->total && step(t)) checkpoint_step(&t->o.checkpoint);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* Returns the duration of the steps in seconds. */
static double train(struct trainer *t) {
    double seconds = 0;
    check(cairn_progress_create(t->env, t->total, cairn_progress_options(.title = "train", .done = t->first),
                                &t->progress));
    while (t->o.checkpoint.steps < t->total) {
        const int64_t epoch = cairn_sampler_epoch(t->sampler);
        const double start = now();
        run_epoch(t);
        check(cairn_env_synchronize(t->env));
        seconds += now() - start;
        if (t->o.checkpoint.steps >= t->total) break;
        evaluate_all(t, epoch, 0);
        check(cairn_sampler_set_epoch(t->sampler, epoch + 1));
    }
    cairn_progress_destroy(&t->progress);
    checkpoint_end(&t->o.checkpoint);
    return seconds;
}

/* ---- the end ---- */

static int64_t count_weights(const struct trainer *t) {
    cairn_param_set *set = cairn_module_params(t->model);
    int64_t n = 0;
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        int64_t of_this = 1;
        check(cairn_param_set_get(set, i, &p));
        for (int d = 0; d < p.ndim; d++) of_this *= p.shape[d];
        n += of_this;
    }
    return n;
}

static int is_same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static void copy_file(const char *from, const char *to, const char *name) {
    char path[2][4096], block[4096];
    if (is_same_folder(from, to)) return;
    snprintf(path[0], sizeof(path[0]), "%s/%s", from, name);
    snprintf(path[1], sizeof(path[1]), "%s/%s", to, name);
    FILE *in = fopen(path[0], "rb"), *out = in ? fopen(path[1], "wb") : NULL;
    int failed = in && !out;
    for (size_t n; out && !failed && (n = fread(block, 1, sizeof(block), in)) > 0;)
        failed = fwrite(block, 1, n, out) != n;
    if (in) failed |= ferror(in) != 0, fclose(in);
    if (out) failed |= fclose(out) != 0;
    if (failed) fprintf(stderr, "bert_mnli: %s could not be copied to %s\n", path[0], path[1]), exit(1);
}

/* Writes a folder that --model and Hugging Face can load. */
static void save(struct trainer *t) {
    check(bert_save(t->model, &t->config, t->o.save, CAIRN_F32));
    copy_file(t->o.model, t->o.save, "vocab.txt");
    copy_file(t->o.model, t->o.save, "tokenizer_config.json");
}

static void write_report(struct trainer *t, double seconds) {
    const struct report_facts facts = {.ranks = cairn_env_size(t->env),
                                       .steps = t->o.checkpoint.steps,
                                       .skipped = cairn_optimizer_skipped(t->adamw),
                                       .parameters = count_weights(t),
                                       .seconds = seconds,
                                       .run_steps = t->o.checkpoint.steps - t->first};
    check(report_write(&t->report, &t->o, &t->config, &facts));
}

static void end(struct trainer *t) {
    cairn_loader_destroy(&t->loader);
    cairn_sampler_destroy(&t->sampler);
    for (int i = 0; i < t->o.num_evals; i++) mnli_file_close(&t->evals[i]);
    mnli_file_close(&t->train);
    mnli_text_close(&t->text);
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->adamw);
    cairn_module_destroy(&t->model);
    report_clear(&t->report);
    bert_config_clear(&t->config);
    cairn_env_destroy(&t->env);
}

int main(int argc, char **argv) {
    static struct trainer t;
    CAIRN_CHECK(cairn_env_create(&argc, &argv, NULL, &t.env));
    options_parse(argc, argv, &t.o);
    cairn_manual_seed(t.env, (uint64_t)t.o.seed);
    check(bert_config_read(&t.config, t.o.model));
    check(mnli_set_labels(&t.config));
    if (cairn_env_rank(t.env) == 0) check_outputs(&t.o);
    open_files(&t);
    begin(&t);
    const double seconds = t.o.train ? train(&t) : 0;
    evaluate_all(&t, t.epochs - 1, 1);
    if (cairn_env_rank(t.env) == 0 && t.o.save) save(&t);
    if (cairn_env_rank(t.env) == 0 && t.o.report) write_report(&t, seconds);
    end(&t);
    return 0;
}
