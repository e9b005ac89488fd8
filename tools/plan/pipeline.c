#include "pipeline.h"

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "flow.h"
#include "pipeline_options.h"
#include "report.h"
#include "../common/say.h"
#include "timeline.h"

enum { EXIT_USAGE = 2, SHOWN = 24 };

struct forecast {
    struct pipe pipe;
    struct flow whole;  /* the whole batch as one micro-batch */
    struct flow *list;  /* [count] */
    size_t count, best; /* best = count: no suggestion */
};

/* ---- input ---- */

static bool make_stages(const struct pipeline_options *o, struct stages *s) {
    if (o->file) return stages_read(o->file, s);
    char name[64];
    snprintf(name, sizeof(name), "%zu equal stages", o->stages);
    *s = (struct stages){.model = clean_text(name), .count = o->stages, .rows = (double)o->rows};
    s->list = must(calloc(s->count, sizeof(*s->list)));
    for (size_t i = 0; i < s->count; i++) s->list[i] = o->equal;
    return true;
}

static bool check_splits(struct pipeline_options *o, int64_t rows) {
    for (size_t i = 0; i < o->num_splits; i++) {
        if (o->counts_micro_batches) o->splits[i] = (size_t)split_for(rows, (int64_t)o->splits[i]);
        if ((rows - 1) / (int64_t)o->splits[i] >= MAX_MICRO_BATCHES)
            return refuse(
                "--split-size %zu cuts %lld rows into more than %d micro-batches, which are not planned; give "
                "a larger one",
                o->splits[i], (long long)rows, MAX_MICRO_BATCHES);
    }
    return true;
}

static bool make_pipe(struct pipeline_options *o, const struct stages *s, const struct link *link, struct pipe *out) {
    if (s->count % o->modules != 0)
        return refuse("%zu stages cannot be spread over ranks of %zu modules each; give --modules that divides them",
                      s->count, o->modules);
    if (o->modules == 1 && o->schedule == CAIRN_PIPELINE_INTERLEAVED_1F1B)
        return refuse("--schedule interleaved goes with --modules from 2 on");
    if (link->count > 0)
        return refuse("the link %s has times of all-reduces; stages send messages, so give it alpha_us and "
                      "gbytes_per_s",
                      link->name);
    if (o->rows == 0 && !(s->rows > 0)) return refuse("%s has no rows; give --rows", o->file);
    *out = (struct pipe){.stages = s, .link = link, .schedule = o->schedule, .modules = (int)o->modules};
    out->rows = o->rows ? (int64_t)o->rows : (int64_t)s->rows;
    return check_splits(o, out->rows);
}

/* Reads a trace and checks that it belongs to the drawn step. */
static bool read_trace(const char *file, const struct flow *f, struct trace *trace) {
    if (!file) return true;
    if (!trace_read(file, trace)) return false;
    if (trace->ranks != f->ranks)
        return refuse("%s: it is of %d ranks, and the prediction of %d", file, trace->ranks, f->ranks);
    if ((int64_t)trace->split != f->split)
        return refuse("%s: it is of micro-batches of %.0f rows, and the prediction of %lld; give --split-size %.0f",
                      file, trace->split, (long long)f->split, trace->split);
    return true;
}

/* ---- for readers ---- */

static void print_cost(struct cost c) {
    char fixed[TEXT_NBYTES], row[TEXT_NBYTES];
    printf(" %10s %10s", time_text(c.fixed, fixed), time_text(c.row, row));
}

static void print_head(const struct forecast *f) {
    const struct stages *s = f->pipe.stages;
    char a[TEXT_NBYTES], b[TEXT_NBYTES];
    printf("%s: %zu stages on %d ranks, %lld rows, %s over %s\n\n", s->model, s->count, f->whole.ranks,
           (long long)f->pipe.rows, schedule_name(f->pipe.schedule), f->pipe.link->name);
    printf("%5s %21s %21s %21s\n%5s %10s %10s %10s %10s %10s %10s\n", "", "forward", "backward", "of a row", "stage",
           "fixed", "a row", "fixed", "a row", "output", "held");
    for (size_t i = 0; i < s->count; i++) {
        printf("%5zu", i);
        print_cost(s->list[i].forward);
        print_cost(s->list[i].backward);
        printf(" %10s %10s\n", bytes_text(s->list[i].output_nbytes, a), bytes_text(s->list[i].held_nbytes, b));
    }
    if (s->worst > 0) printf("these lines miss a measured time by %.1f %% at most\n", 100 * s->worst);
    putchar('\n');
}

/* Shows all rows if they are few; of many only powers of two, three times those, and the neighbours of the best. */
static bool is_shown(const struct forecast *f, size_t i) {
    const int m = f->list[i].micro_batches;
    int odd = m;
    while (odd % 2 == 0) odd /= 2;
    return f->count <= SHOWN || f->best == f->count || odd == 1 || odd == 3 || (i + 1 >= f->best && i <= f->best + 1);
}

static void report(const struct forecast *f) {
    print_head(f);
    printf("%10s %13s %10s %8s %10s %10s %7s\n", "split size", "micro-batches", "step", "idle", "in flight", "held",
           "times");
    for (size_t i = 0; i < f->count; i++) {
        const struct flow *w = &f->list[i];
        char end[TEXT_NBYTES], held[TEXT_NBYTES];
        if (!is_shown(f, i)) continue;
        printf("%10lld %13d %10s %6.1f %% %10d %10s %7.2f%s\n", (long long)w->split, w->micro_batches,
               time_text(w->end, end), 100 * w->idle, w->in_flight, bytes_text(w->held, held),
               w->end > 0 ? f->whole.end / w->end : 1, i == f->best ? "  <- best" : "");
    }
    if (f->best < f->count)
        printf("\nsuggested: cairn_pipeline_options(.split_size = %lld)\n", (long long)f->list[f->best].split);
}

/* ---- for programs ---- */

static json_t *turn_json(const struct turn *t) {
    return must(json_pack("{s:s, s:i, s:i, s:f, s:f}", "turn", t->is_backward ? "backward" : "forward", "stage",
                          t->stage, "micro_batch", t->micro_batch, "begin_ns", t->begin, "end_ns", t->end));
}

static void add(json_t *list, json_t *value) {
    if (json_array_append_new(list, value) != 0) must(NULL);
}

static json_t *flow_json(const struct flow *f, double whole) {
    json_t *ranks = must(json_array()), *in_flight = must(json_array());
    for (int r = 0; r < f->ranks; r++) {
        add(in_flight, must(json_integer(f->in_flight_of[r])));
        json_t *turns = must(json_array());
        for (int i = 0; f->list && i < f->turns; i++) add(turns, turn_json(&f->list[r * f->turns + i]));
        add(ranks, turns);
    }
    json_t *all = must(json_pack("{s:I, s:i, s:f, s:f, s:o, s:f, s:f}", "split_size", (json_int_t)f->split,
                                 "micro_batches", f->micro_batches, "step_ns", f->end, "idle", f->idle, "in_flight",
                                 in_flight, "held_bytes", f->held, "times", f->end > 0 ? whole / f->end : 1));
    if (!f->list) {
        json_decref(ranks);
    } else if (json_object_set_new(all, "ranks", ranks) != 0) {
        must(NULL);
    }
    return all;
}

static void report_for_programs(const struct forecast *f) {
    json_t *steps = must(json_array());
    for (size_t i = 0; i < f->count; i++) add(steps, flow_json(&f->list[i], f->whole.end));
    json_t *best = f->best < f->count ? json_integer((json_int_t)f->best) : json_null();
    json_t *all =
        must(json_pack("{s:s, s:s, s:s, s:I, s:f, s:o, s:o}", "model", f->pipe.stages->model, "schedule",
                       schedule_name(f->pipe.schedule), "link", f->pipe.link->name, "rows", (json_int_t)f->pipe.rows,
                       "worst_fit", f->pipe.stages->worst, "steps", steps, "best", best));
    json_dumpf(all, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(all);
}

/* ---- the command ---- */

static void predict(const struct pipeline_options *o, struct forecast *f) {
    flow_run(&f->pipe, f->pipe.rows, &f->whole);
    if (o->num_splits == 0) {
        f->count = flow_search(&f->pipe, &f->list);
        f->best = flow_best(f->list, f->count);
        return;
    }
    f->list = must(calloc(o->num_splits, sizeof(*f->list)));
    for (; f->count < o->num_splits; f->count++) flow_run(&f->pipe, (int64_t)o->splits[f->count], &f->list[f->count]);
    f->best = f->count;
}

static bool draw(const struct pipeline_options *o, const struct forecast *f) {
    struct flow drawn;
    struct trace trace = {0};
    flow_run(&f->pipe, f->list[f->best < f->count ? f->best : 0].split, &drawn);
    const bool good =
        read_trace(o->trace, &drawn, &trace) && timeline_write(o->svg, &f->pipe, &drawn, o->trace ? &trace : NULL);
    trace_free(&trace);
    flow_free(&drawn);
    return good;
}

static bool run(struct pipeline_options *o, const struct stages *stages, const struct link *link) {
    struct forecast f = {0};
    if (!make_pipe(o, stages, link, &f.pipe)) return false;
    predict(o, &f);
    bool good = !o->svg || draw(o, &f);
    if (good) {
        (o->json ? report_for_programs : report)(&f);
        good = fflush(stdout) == 0 || refuse("the result cannot be written to standard output");
    }
    for (size_t i = 0; i < f.count; i++) flow_free(&f.list[i]);
    free(f.list);
    flow_free(&f.whole);
    return good;
}

int pipeline_main(int argc, char **argv) {
    struct pipeline_options o;
    struct stages stages = {0};
    struct link link = {0};
    if (!pipeline_options_parse(&o, argc, argv)) return EXIT_USAGE;
    const bool good = make_stages(&o, &stages) && link_read(o.link, &link) && run(&o, &stages, &link);
    stages_free(&stages);
    link_free(&link);
    return good ? 0 : 1;
}
