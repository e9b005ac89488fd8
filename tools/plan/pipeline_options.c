#include "pipeline_options.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flow.h"
#include "../common/say.h"

static const char usage[] =
    "usage: cairn-plan pipeline [options] STAGES\n"
    "       cairn-plan pipeline [options] --stages N --rows N --forward US,US --backward US,US\n"
    "\n"
    "Predicts how long a step of cairn_pipeline takes, from what was measured of each stage alone. STAGES is what\n"
    "tools/bench-split wrote (in Cairn's sources), or another program of that form; docs/planning.md describes it.\n"
    "Without --split-size and --micro-batches all sizes of micro-batches are tried, and the best one is suggested.\n"
    "\n"
    "  --split-size N[,...]     rows of a micro-batch, as cairn_pipeline_options.split_size\n"
    "  --micro-batches N[,...]  or how many there are, as n_microbatches\n"
    "  --schedule NAME          gpipe, 1f1b or interleaved; 1f1b, with several modules interleaved\n"
    "  --modules N              stages of each rank; 1\n"
    "  --rows N                 of the batch; the file's\n"
    "  --link NAME|FILE         what carries activations and their gradients; shm. A preset or a file with alpha_us "
    "and\n"
    "                           gbytes_per_s; cairn-plan --help lists the presets\n"
    "  --stages N               so many equal stages in place of a file\n"
    "  --forward US,US          what a micro-batch costs each, however few rows it has, and what each row adds\n"
    "  --backward US,US         the same of backward\n"
    "  --output BYTES           of a row, which goes to the next stage; 0\n"
    "  --held BYTES             of a row, which backward needs of the forward; 0\n"
    "  --trace FILE             a measured step, which --svg draws beside the predicted one\n"
    "  --svg FILE               draws the step as a timeline: the best, or the one of --split-size\n"
    "  --json                   the same figures for programs\n"
    "  --help\n"
    "\n"
    "Exit code: as cairn-plan's.\n";

enum { HELP = 256 };

static const struct option names[] = {{"split-size", required_argument, NULL, 'p'},
                                      {"micro-batches", required_argument, NULL, 'm'},
                                      {"schedule", required_argument, NULL, 's'},
                                      {"modules", required_argument, NULL, 'o'},
                                      {"rows", required_argument, NULL, 'r'},
                                      {"link", required_argument, NULL, 'l'},
                                      {"stages", required_argument, NULL, 'n'},
                                      {"forward", required_argument, NULL, 'f'},
                                      {"backward", required_argument, NULL, 'b'},
                                      {"output", required_argument, NULL, 'O'},
                                      {"held", required_argument, NULL, 'H'},
                                      {"trace", required_argument, NULL, 't'},
                                      {"svg", required_argument, NULL, 'v'},
                                      {"json", no_argument, NULL, 'j'},
                                      {"help", no_argument, NULL, HELP},
                                      {NULL, 0, NULL, 0}};

static bool takes(const char *name, const char *what, const char *text) {
    return refuse("--%s takes %s, not '%s'", name, what, text);
}

static bool read_rows(const char **text, size_t *value) {
    return read_whole(text, MAX_ROWS, value) && *value > 0;
}

static bool read_stage_count(const char **text, size_t *value) {
    return read_whole(text, MAX_STAGES, value) && *value > 0;
}

/* "120,3.5": us. */
static bool read_cost(const char *name, const char *text, struct cost *out) {
    double parts[2] = {0};
    const char *at = text;
    for (int i = 0; i < 2; i++) {
        char *end = NULL;
        const bool is_number = (*at >= '0' && *at <= '9') || *at == '.';
        parts[i] = is_number ? strtod(at, &end) : -1;
        if (!is_number || end == at || *end != (i == 0 ? ',' : '\0') || !(parts[i] <= 1e12))
            return takes(name, "two numbers of microseconds with a comma between them, such as 120,3.5", text);
        at = end + 1;
    }
    *out = (struct cost){1e3 * parts[0], 1e3 * parts[1]};
    return true;
}

static bool read_row_bytes(const char *name, const char *text, double *out) {
    size_t value = 0;
    if (strcmp(text, "0") != 0 && !read_one(text, read_bytes, &value))
        return takes(name, "bytes of a row such as 512 or 64K", text);
    *out = (double)value;
    return true;
}

static bool set_schedule(struct pipeline_options *o, const char *text) {
    static const char *const schedules[] = {[CAIRN_PIPELINE_GPIPE] = "gpipe",
                                            [CAIRN_PIPELINE_1F1B] = "1f1b",
                                            [CAIRN_PIPELINE_INTERLEAVED_1F1B] = "interleaved"};
    for (int s = CAIRN_PIPELINE_GPIPE; s <= CAIRN_PIPELINE_INTERLEAVED_1F1B; s++) {
        if (strcmp(text, schedules[s]) == 0) o->schedule = (cairn_pipeline_schedule)s;
    }
    return o->schedule || takes("schedule", "gpipe, 1f1b or interleaved", text);
}

static bool set_splits(struct pipeline_options *o, bool counts, const char *text) {
    if (o->num_splits > 0 && o->counts_micro_batches != counts)
        return refuse("--split-size and --micro-batches say the same in two ways; give one of them");
    o->counts_micro_batches = counts;
    return read_list(text, read_rows, o->splits, &o->num_splits) ||
           takes(counts ? "micro-batches" : "split-size", "numbers from 1 on with commas between them, 64 at most",
                 text);
}

static bool set(struct pipeline_options *o, int id, const char *text) {
    switch (id) {
    case 'p':
    case 'm':
        return set_splits(o, id == 'm', text);
    case 's':
        return set_schedule(o, text);
    case 'o':
        return read_one(text, read_stage_count, &o->modules) || takes("modules", "a number from 1 to 256", text);
    case 'n':
        return read_one(text, read_stage_count, &o->stages) || takes("stages", "a number from 1 to 256", text);
    case 'r':
        return read_one(text, read_rows, &o->rows) || takes("rows", "a number from 1 to 1048576", text);
    case 'f':
        return read_cost("forward", text, &o->equal.forward);
    case 'b':
        return read_cost("backward", text, &o->equal.backward);
    case 'O':
        return read_row_bytes("output", text, &o->equal.output_nbytes);
    case 'H':
        return read_row_bytes("held", text, &o->equal.held_nbytes);
    case 'l':
        o->link = text;
        return true;
    case 't':
        o->trace = text;
        return true;
    case 'v':
        o->svg = text;
        return true;
    default:
        o->json = true;
        return true;
    }
}

static bool refuse_word(int id, const char *word) {
    if (id == ':') return refuse("%s needs a value; cairn-plan pipeline --help lists the options", word);
    return refuse("%s is not an option, is ambiguous, or has a value and takes none; cairn-plan pipeline --help lists "
                  "the options",
                  word);
}

static double sum(struct cost c) {
    return c.fixed + c.row;
}

/* Options against each other. */
static bool check(const struct pipeline_options *o, int left) {
    const struct stage *e = &o->equal;
    const bool has_costs = sum(e->forward) + sum(e->backward) > 0;
    if (left > 1) return refuse("there are %d files of stages; one is expected", left);
    if (left == 0 && o->stages == 0)
        return refuse("a file of stages is missing, or --stages with --forward and --backward; see cairn-plan pipeline "
                      "--help");
    if (left == 1 && o->stages > 0) return refuse("--stages stands in place of a file; give one of them");
    if (left == 1 && (has_costs || e->output_nbytes > 0 || e->held_nbytes > 0))
        return refuse("--forward, --backward, --output and --held go with --stages; the file has its own");
    if (left == 0 && !has_costs) return refuse("--stages goes with --forward and --backward");
    if (left == 0 && o->rows == 0) return refuse("--stages goes with --rows");
    if (o->modules > 1 && o->schedule && o->schedule != CAIRN_PIPELINE_INTERLEAVED_1F1B)
        return refuse("ranks of several --modules run the schedule interleaved; leave out --schedule");
    if (o->trace && !o->svg) return refuse("--trace is drawn; it goes with --svg");
    if (o->svg && o->num_splits > 1) return refuse("--svg draws one step; give one size of micro-batches, or none");
    return true;
}

bool pipeline_options_parse(struct pipeline_options *o, int argc, char **argv) {
    *o = (struct pipeline_options){.link = "shm", .modules = 1};
    opterr = 0;
    for (int id; (id = getopt_long(argc, argv, ":", names, NULL)) != -1;) {
        if (id == HELP) {
            fputs(usage, stdout);
            exit(0);
        }
        if (id == '?' || id == ':') return refuse_word(id, argv[optind - 1]);
        if (!set(o, id, optarg)) return false;
    }
    if (!check(o, argc - optind)) return false;
    o->file = argv[optind];
    if (!o->schedule) o->schedule = o->modules > 1 ? CAIRN_PIPELINE_INTERLEAVED_1F1B : CAIRN_PIPELINE_1F1B;
    return true;
}
