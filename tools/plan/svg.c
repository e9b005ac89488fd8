/* Three rows over one time axis: the processor's work, the bucket in flight, and the part of it that lengthens the
 * step. */
#include "svg.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/draw.h"
#include "../common/say.h"

enum {
    WIDTH = 1000,
    LEFT = 120, /* of the axis; row names stand before it */
    RIGHT = 20,
    TOP = 84,
    ROW = 34,
    GAP = 14,
    ROWS = 3,
    BOTTOM = TOP + ROWS * (ROW + GAP),
    HEIGHT = BOTTOM + 70,
    LETTER = 7, /* of 12 px text, about */
    LEAST = 1,  /* least width of a block */
    TICKS = 8,
};

static const char FORWARD[] = "#4e79a7", BACKWARD[] = "#59a14f", OPTIMIZER[] = "#b07aa1", WAITING[] = "#e3e3e3",
                  EVEN[] = "#f28e2b", ODD[] = "#ffbe7d", EXPOSED[] = "#e15759";

struct picture {
    FILE *out;
    double end_ns; /* right end of the axis; at least 1 ns, since ticks of distance 0 would loop forever */
};

static double x_of(const struct picture *p, double ns) {
    return LEFT + ns / p->end_ns * (WIDTH - LEFT - RIGHT);
}

static double y_of(int row) {
    return TOP + row * (ROW + GAP);
}

static void write_text(const struct picture *p, double x, double y, const char *more, const char *text) {
    draw_text(p->out, x, y, more, text);
}

/* A block from begin to end with its name, if that fits, and a tooltip. */
static void write_block(const struct picture *p, int row, double begin, double end, const char *color, const char *name,
                        const char *sentence) {
    const double x = x_of(p, begin), width = fmax(x_of(p, end) - x, LEAST);
    if (end <= begin) return;
    fprintf(p->out,
            "<g><title>%s</title><rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
            "stroke=\"#ffffff\" stroke-width=\"%s\"/>",
            sentence, x, y_of(row), width, ROW, color, width > 3 ? "0.5" : "0");
    if (width > LETTER * (double)strlen(name) + 4)
        write_text(p, x + width / 2, y_of(row) + ROW / 2.0 + 4, " text-anchor=\"middle\"", name);
    fputs("</g>\n", p->out);
}

static void write_part(const struct picture *p, double begin, double end, const char *color, const char *name) {
    char time[TEXT_NBYTES], sentence[128];
    snprintf(sentence, sizeof(sentence), "%s: %s", name, time_text(end - begin, time));
    write_block(p, 0, begin, end, color, name, sentence);
}

static void write_processor(const struct picture *p, const struct step *s) {
    write_part(p, 0, s->forward_end, FORWARD, "forward");
    write_part(p, s->forward_end, s->backward_end, BACKWARD, "backward");
    write_part(p, s->backward_end, s->settled, WAITING, "waiting");
    write_part(p, s->settled, s->end, OPTIMIZER, "optimizer");
}

/* The part of a bucket's time that lengthens the step: its end. */
static void write_bucket(const struct picture *p, const struct span *b, size_t index) {
    char time[TEXT_NBYTES], nbytes[TEXT_NBYTES], name[64], sentence[160];
    snprintf(name, sizeof(name), "%zu", index);
    snprintf(sentence, sizeof(sentence), "bucket %zu: %s, %s", index, bytes_text(b->nbytes, nbytes),
             time_text(b->end - b->begin, time));
    const char *whole = bytes_text(b->nbytes, nbytes);
    if (x_of(p, b->end) - x_of(p, b->begin) > LETTER * (double)(strlen(whole) + strlen(name) + 2) + 4)
        snprintf(name, sizeof(name), "%zu: %s", index, whole);
    write_block(p, 1, b->begin, b->end, index % 2 ? ODD : EVEN, name, sentence);
    snprintf(sentence, sizeof(sentence), "bucket %zu makes the step longer by %s", index, time_text(b->exposed, time));
    write_block(p, 2, b->end - b->exposed, b->end, EXPOSED, time, sentence);
}

/* In one unit, which is written at the axis' end. */
static void write_axis(const struct picture *p) {
    static const char *const units[] = {"ns", "us", "ms", "s"};
    const double distance = draw_tick_distance(p->end_ns, TICKS);
    double unit = 1;
    int u = 0;
    for (; p->end_ns / unit >= 5000 && u < 3; u++) unit *= 1000;
    for (int i = 0; i * distance <= p->end_ns; i++) {
        char label[TEXT_NBYTES];
        const double x = x_of(p, i * distance);
        snprintf(label, sizeof(label), "%g", i * distance / unit);
        fprintf(p->out, "<line x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%d\" stroke=\"#cccccc\"/>\n", x, TOP - 6, x,
                BOTTOM);
        write_text(p, x, BOTTOM + 16, " text-anchor=\"middle\"", label);
    }
    char unit_name[TEXT_NBYTES];
    snprintf(unit_name, sizeof(unit_name), "time, %s", units[u]);
    write_text(p, LEFT - 10, BOTTOM + 16, " text-anchor=\"end\"", unit_name);
}

static void write_key(const struct picture *p) {
    static const struct {
        const char *color, *what;
    } keys[] = {{FORWARD, "forward"},     {BACKWARD, "backward"},     {WAITING, "waiting for buckets"},
                {OPTIMIZER, "optimizer"}, {EVEN, "bucket under way"}, {EXPOSED, "makes the step longer"}};
    double x = LEFT;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        fprintf(p->out, "<rect x=\"%.1f\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, BOTTOM + 36,
                keys[i].color);
        write_text(p, x + 17, BOTTOM + 46, "", keys[i].what);
        x += 17 + LETTER * (double)strlen(keys[i].what) + 18;
    }
}

static void write_head(const struct picture *p, const struct plan *plan, const struct step *s) {
    char *line = NULL, *network = network_text(plan->net);
    char cap[TEXT_NBYTES], end[TEXT_NBYTES], exposed[TEXT_NBYTES], comm[TEXT_NBYTES];
    write_text(p, LEFT, 28, " font-size=\"16\" font-weight=\"bold\"", plan->profile->model);
    if (asprintf(&line, "%d %s, %s; bucket cap %s: a step takes %s, of %s of communication %s make it longer", s->ranks,
                 s->ranks == 1 ? "rank" : "ranks", network, bytes_text((double)s->cap, cap), time_text(s->end, end),
                 time_text(s->communication, comm), time_text(s->exposed, exposed)) < 0)
        must(NULL);
    write_text(p, LEFT, 50, "", line);
    free(line);
    free(network);
}

static void write_picture(const struct picture *p, const struct plan *plan, const struct step *s) {
    static const char *const rows[ROWS] = {"processor", "link", "exposed"};
    fprintf(p->out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    write_head(p, plan, s);
    write_axis(p);
    for (int row = 0; row < ROWS; row++) {
        write_text(p, LEFT - 10, y_of(row) + ROW / 2.0 + 4, " text-anchor=\"end\"", rows[row]);
    }
    write_processor(p, s);
    for (size_t b = 0; b < s->count; b++) write_bucket(p, &s->buckets[b], b);
    write_key(p);
    fputs("</svg>\n", p->out);
}

bool svg_write(const char *file, const struct plan *plan, const struct step *step) {
    FILE *out = fopen(file, "we");
    if (!out) return refuse("%s cannot be written: %s", file, strerror(errno));
    const struct picture picture = {out, fmax(step->end, 1)};
    write_picture(&picture, plan, step);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) return refuse("%s cannot be written: %s", file, strerror(errno));
    return true;
}
