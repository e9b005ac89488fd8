/* Options are rows of a table; --help prints the same table. */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum kind { TEXT, WHOLE, REAL, SWITCH };

struct row {
    const char *name;
    enum kind kind;
    size_t at;
    double least, most; /* bounds of numbers */
    const char *what;
};

#define ROW(name, kind, field, least, most, what) \
    { name, kind, offsetof(struct options, field), least, most, what }
static const struct row rows[] = {
    ROW("--model", TEXT, model, 0, 0, "FOLDER  with config.json, vocab.txt and model.safetensors, as Hugging Face has"),
    ROW("--train", TEXT, train, 0, 0, "FILE  MNLI's .jsonl or GLUE's .tsv; without it the model is evaluated alone"),
    ROW("--from-scratch", SWITCH, from_scratch, 0, 0, "begin with random weights; no model.safetensors is read"),
    ROW("--save", TEXT, save, 0, 0, "FOLDER  for the trained model, which Hugging Face's from_pretrained reads"),
    ROW("--report", TEXT, report, 0, 0, "FILE  for the curve of the loss, accuracies and confusion matrices, as JSON"),
    ROW("--opt-level", TEXT, opt_level, 0, 0, "O0..O3  of mixed precision; O0"),
    ROW("--half", TEXT, half_type, 0, 0, "f16|bf16  the half type of O1 to O3; f16"),
    ROW("--batch-size", WHOLE, batch_size, 1, 1 << 20, "N  examples of a micro-batch on each rank; 32"),
    ROW("--accumulate", WHOLE, accumulate, 1, 1 << 20, "N  micro-batches of a step; 1"),
    ROW("--epochs", WHOLE, epochs, 1, 1 << 20, "N  3"),
    ROW("--max-steps", WHOLE, max_steps, 1, 1e15, "N  ends after so many steps, whatever --epochs says"),
    ROW("--lr", REAL, lr, 0, 1e3, "X  the rate that falls to 0 along a line; 5e-5"),
    ROW("--warmup-steps", WHOLE, warmup_steps, 0, 1e15, "N  in which the rate rises to --lr; 0"),
    ROW("--weight-decay", REAL, weight_decay, 0, 1e3,
        "X  of all but biases and normalisations; 0.01 (Hugging Face: 0)"),
    ROW("--clip", REAL, clip, 0, 1e30, "X  the most that the norm of all gradients may be; 0 = any; 1"),
    ROW("--max-length", WHOLE, max_length, 8, 1 << 20, "N  tokens of a pair, the longer sentence is cut; 512"),
    ROW("--gradient-checkpointing", SWITCH, gradient_checkpointing, 0, 0, "less memory, more time, the same bits"),
    ROW("--in-order", SWITCH, in_order, 0, 0, "take examples in the file's order, and do not shuffle"),
    ROW("--workers", WHOLE, workers, 0, 256, "N  threads of each rank that read and tokenize ahead; 1"),
    ROW("--seed", WHOLE, seed, 0, 1e15, "N  of shuffles, dropout and random weights; 0"),
    ROW("--log-every", WHOLE, log_every, 1, 1e15, "N  steps between points of the curve; 10"),
};
enum { NUM_ROWS = sizeof(rows) / sizeof(rows[0]) };

static void usage(FILE *to) {
    fprintf(to, "usage: bert_mnli --model FOLDER [--train FILE] [--eval FILE]... [OPTION VALUE]...\n\n"
                "Fine-tunes BERT on MNLI, on each of the ranks that a launcher starts, and evaluates it.\n\n");
    for (int i = 0; i < NUM_ROWS; i++) fprintf(to, "  %-24s %s\n", rows[i].name, rows[i].what);
    fprintf(to, "  %-24s FILE  to evaluate on, at the end of each epoch; up to %d of them\n", "--eval", MOST_EVALS);
    fprintf(to, "  %-24s FOLDER  from which a training that was ended goes on\n", "--checkpoint");
    fprintf(to, "  %-24s N  steps between two checkpoints; 100\n", "--save-every");
}

static void fail(const char *name, const char *value, const char *why) {
    fprintf(stderr, "bert_mnli: %s%s%s%s (--help shows all options)\n", name, *value ? " " : "", value, why);
    exit(2);
}

static void take_number(const struct row *row, const char *value, void *field) {
    char *end, why[120];
    errno = 0;
    const double x = strtod(value, &end);
    const int is_number = *value && !*end && errno == 0 && (row->kind == REAL || x == floor(x));
    snprintf(why, sizeof(why), ": it must be a %snumber from %.15g to %.15g", row->kind == WHOLE ? "whole " : "",
             row->least, row->most);
    if (!is_number || !(x >= row->least && x <= row->most)) fail(row->name, value, why);
    if (row->kind == WHOLE) *(int64_t *)field = (int64_t)x;
    else *(double *)field = x;
}

static const struct row *find(const char *name) {
    for (int i = 0; i < NUM_ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    }
    return NULL;
}

static void take_eval(struct options *o, const char *value) {
    if (o->num_evals == MOST_EVALS) fail("--eval", value, ": there are four of them already");
    o->evals[o->num_evals++] = value;
}

static void take(struct options *o, const struct row *row, const char *name, const char *value) {
    void *field = row ? (char *)o + row->at : NULL;
    if (!*value) fail(name, "", row || strcmp(name, "--eval") == 0 ? ": its value is missing" : ": no such option");
    else if (row && row->kind == TEXT) *(const char **)field = value;
    else if (row) take_number(row, value, field);
    else if (strcmp(name, "--eval") == 0) take_eval(o, value);
    else if (!checkpoint_option(&o->checkpoint, name, value)) fail(name, "", ": no such option, or a wrong value");
}

static void check(struct options *o) {
    if (!o->model) fail("--model", "", " is missing: the folder of a BERT");
    if (!o->train && !o->num_evals) fail("--train", "", " and --eval are missing: there is nothing to do");
    if (!o->train && (o->checkpoint.folder || o->save || o->from_scratch))
        fail("--checkpoint", "", ", --save and --from-scratch are for a training, which --train begins");
    if (o->opt_level && amp_opt_level_parse(o->opt_level, &o->amp.opt_level) != CAIRN_OK)
        fail("--opt-level", o->opt_level, ": it must be O0, O1, O2 or O3");
    if (o->half_type && amp_half_type_parse(o->half_type, &o->amp.half_type) != CAIRN_OK)
        fail("--half", o->half_type, ": it must be f16 or bf16");
}

void options_parse(int argc, char **argv, struct options *o) {
    *o = (struct options){.amp = *amp_options(.opt_level = AMP_O0), .batch_size = 32, .accumulate = 1, .epochs = 3};
    o->lr = 5e-5, o->weight_decay = 0.01, o->clip = 1;
    o->max_length = 512, o->workers = 1, o->log_every = 10;
    for (int i = 1; i < argc; i++) {
        const struct row *row = find(argv[i]);
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) usage(stdout), exit(0);
        if (row && row->kind == SWITCH) {
            *(int *)(void *)((char *)o + row->at) = 1;
        } else {
            take(o, row, argv[i], i + 1 < argc ? argv[i + 1] : "");
            i++;
        }
    }
    check(o);
}
