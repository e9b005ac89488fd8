#include "timeline.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/draw.h"
#include "report.h"
#include "../common/say.h"

/* Narrow, with large letters, so that they can be read where the picture is small. */
enum {
    WIDTH = 640,
    RIGHT = 26,
    TITLE_LETTERS = 60,
    LINE = 20, /* of the head and the key */
    ROW = 26,
    GAP = 12,   /* between ranks */
    NUMBER = 8, /* a digit of 13 px, about */
    TICKS = 6,
    MARGIN = 10,
};

/* [0] the model, or [1] measured; [][1] every second module of a rank. */
static const char *const FORWARD[2][2] = {{"#c6dbef", "#9ecae1"}, {"#2171b5", "#08519c"}};
static const char *const BACKWARD[2][2] = {{"#fdd0a2", "#fdae6b"}, {"#d94801", "#a63603"}};
static const char IDLE[] = "#eeeeee";

struct picture {
    FILE *out;
    const struct pipe *pipe;
    const struct flow *flow;
    const struct trace *trace; /* NULL = none */
    double end;                /* ns at the right end */
    int left, top, bottom;     /* of the rows */
};

const char *schedule_name(cairn_pipeline_schedule schedule) {
    return schedule == CAIRN_PIPELINE_GPIPE ? "GPipe" : schedule == CAIRN_PIPELINE_1F1B ? "1F1B" : "interleaved 1F1B";
}

static double x_of(const struct picture *p, double ns) {
    return p->left + ns / p->end * (WIDTH - p->left - RIGHT);
}

static int rows_each(const struct picture *p) {
    return p->trace ? 2 : 1;
}

static double y_of(const struct picture *p, int rank, bool measured) {
    return p->top + rank * (rows_each(p) * ROW + GAP) + (measured ? ROW : 0);
}

static void write_turn(const struct picture *p, int rank, const struct turn *t, bool measured) {
    const int shade = t->stage / p->flow->ranks % 2;
    const double x = x_of(p, t->begin), width = x_of(p, t->end) - x, y = y_of(p, rank, measured);
    char number[TEXT_NBYTES], time[TEXT_NBYTES];
    snprintf(number, sizeof(number), "%d", t->micro_batch);
    fprintf(p->out,
            "<g><title>%s of micro-batch %d, stage %d, %s: %s</title><rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" "
            "height=\"%d\" fill=\"%s\" stroke=\"%s\" stroke-width=\"%s\"/>\n",
            t->is_backward ? "backward" : "forward", t->micro_batch, t->stage, measured ? "measured" : "model",
            time_text(t->end - t->begin, time), x, y, width, ROW,
            (t->is_backward ? BACKWARD : FORWARD)[measured][shade],
            measured ? "#ffffff" : (t->is_backward ? BACKWARD : FORWARD)[1][0], width > 3 ? "0.8" : "0");
    if (width > NUMBER * (double)strlen(number) + 3)
        draw_text(p->out, x + width / 2, y + ROW / 2.0 + 5,
                  measured ? " text-anchor=\"middle\" font-size=\"13\" fill=\"#ffffff\""
                           : " text-anchor=\"middle\" font-size=\"13\"",
                  number);
    fputs("</g>\n", p->out);
}

static void write_row(const struct picture *p, int rank, bool measured) {
    const double y = y_of(p, rank, measured);
    char name[64];
    snprintf(name, sizeof(name), "%s %d%s", p->pipe->modules > 1 ? "rank" : "stage", rank,
             !p->trace  ? ""
             : measured ? " measured"
                        : " model");
    fprintf(p->out, "<rect x=\"%d\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>\n", p->left, y,
            x_of(p, measured ? p->trace->end : p->flow->end) - p->left, ROW, IDLE);
    draw_text(p->out, p->left - 8, y + ROW / 2.0 + 5, " text-anchor=\"end\"", name);
    if (measured) {
        for (size_t i = p->trace->first[rank]; i < p->trace->first[rank + 1]; i++)
            write_turn(p, rank, &p->trace->turns[i], true);
        return;
    }
    for (int i = 0; i < p->flow->turns; i++) write_turn(p, rank, &p->flow->list[rank * p->flow->turns + i], false);
}

/* Always in ms, so that pictures of different steps can be compared. */
static void write_axis(const struct picture *p) {
    const double distance = draw_tick_distance(p->end, TICKS);
    for (int i = 0; i * distance <= p->end; i++) {
        char label[TEXT_NBYTES];
        const double x = x_of(p, i * distance);
        snprintf(label, sizeof(label), "%g", i * distance * 1e-6);
        fprintf(p->out, "<line x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%d\" stroke=\"#bbbbbb\"/>\n", x, p->top - 5, x,
                p->bottom);
        draw_text(p->out, x, p->bottom + 16, " text-anchor=\"middle\"", label);
    }
    draw_text(p->out, (p->left + WIDTH - RIGHT) / 2.0, p->bottom + 36, " text-anchor=\"middle\"",
              "time from the begin of the step, ms");
}

static double write_key(const struct picture *p, double x, double y, const char *color, const char *edge,
                        const char *what) {
    fprintf(p->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"13\" height=\"13\" fill=\"%s\" stroke=\"%s\"/>\n", x, y - 11,
            color, edge);
    draw_text(p->out, x + 19, y, "", what);
    return x + 19 + 7.8 * (double)strlen(what) + 16;
}

static void write_keys(const struct picture *p) {
    double y = p->bottom + 62, x = write_key(p, MARGIN, y, FORWARD[0][0], FORWARD[1][0], "forward, model");
    x = write_key(p, x, y, BACKWARD[0][0], BACKWARD[1][0], "backward, model");
    write_key(p, x, y, IDLE, "#bbbbbb", "idle");
    y += LINE;
    if (p->trace) {
        x = write_key(p, MARGIN, y, FORWARD[1][0], "#ffffff", "forward, measured");
        write_key(p, x, y, BACKWARD[1][0], "#ffffff", "backward, measured");
        y += LINE;
    }
    draw_text(p->out, MARGIN, y, "",
              p->pipe->modules > 1 ? "Numbers are those of micro-batches; each second module is darker."
                                   : "Numbers are those of micro-batches.");
}

static void write_head(const struct picture *p) {
    const struct flow *f = p->flow;
    char title[TITLE_LETTERS * 4 + 8], line[256], end[TEXT_NBYTES];
    const char *model = p->pipe->stages->model;
    size_t n = 0, letters = 0;
    for (; model[n] && letters < TITLE_LETTERS; n++) letters += (model[n + 1] & 0xc0) != 0x80;
    snprintf(title, sizeof(title), "%.*s%s", (int)n, model, model[n] ? "..." : "");
    draw_text(p->out, MARGIN, 26, " font-size=\"16\" font-weight=\"bold\"", title);
    snprintf(line, sizeof(line), "%zu stages on %d ranks, %s: %lld rows in %d micro-batches of %lld",
             p->pipe->stages->count, f->ranks, schedule_name(p->pipe->schedule), (long long)p->pipe->rows,
             f->micro_batches, (long long)f->split);
    draw_text(p->out, MARGIN, 26 + LINE, "", line);
    snprintf(line, sizeof(line), "model: a step takes %s, %.1f %% of it idle, %d in flight at most",
             time_text(f->end, end), 100 * f->idle, f->in_flight);
    draw_text(p->out, MARGIN, 26 + 2 * LINE, "", line);
    if (!p->trace) return;
    double busy = 0;
    for (size_t i = 0; i < p->trace->count; i++) busy += p->trace->turns[i].end - p->trace->turns[i].begin;
    snprintf(line, sizeof(line), "measured: a step takes %s, %.1f %% of it idle", time_text(p->trace->end, end),
             100 * (1 - busy / (p->trace->end * p->trace->ranks)));
    draw_text(p->out, MARGIN, 26 + 3 * LINE, "", line);
}

static void write_picture(const struct picture *p) {
    const int height = p->bottom + 62 + (p->trace ? 2 : 1) * LINE + 14;
    fprintf(p->out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"14\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            WIDTH, height, WIDTH, height);
    write_head(p);
    write_axis(p);
    for (int r = 0; r < p->flow->ranks; r++) {
        write_row(p, r, false);
        if (p->trace) write_row(p, r, true);
    }
    write_keys(p);
    fputs("</svg>\n", p->out);
}

bool timeline_write(const char *file, const struct pipe *pipe, const struct flow *flow, const struct trace *trace) {
    FILE *out = fopen(file, "we");
    if (!out) return refuse("%s cannot be written: %s", file, strerror(errno));
    struct picture p = {.out = out, .pipe = pipe, .flow = flow, .trace = trace};
    p.end = fmax(fmax(flow->end, trace ? trace->end : 0), 1);
    p.left = trace ? 150 : 76;
    p.top = 26 + (trace ? 4 : 3) * LINE + 4;
    p.bottom = p.top + flow->ranks * (rows_each(&p) * ROW + GAP);
    write_picture(&p);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) return refuse("%s cannot be written: %s", file, strerror(errno));
    return true;
}
