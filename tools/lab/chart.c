#include "chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"
#include "../common/draw.h"
#include "../common/say.h"

enum {
    BAR = 14,
    BAR_GAP = 8,
    MOST_MARKERS = 64, /* lines with more points get no markers */
    RADIUS = 3,
};

static bool is_in_panel(const struct view *v, size_t row, size_t panel) {
    return v->panels.of_row[row] == panel;
}

/* ---- lines and points ---- */

/* Each series has its own marker shape, since not everyone can tell series apart by colour. */
static void write_marker(FILE *out, double x, double y, size_t series) {
    static const char *const shapes[] = {
        "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z", "m-3-3h6v6h-6z", "m0-4l4 7h-8z", "m0-4l4 4-4 4-4-4z", "m0 4l4-7h-8z",
        "m-4-1h3v-3h2v3h3v2h-3v3h-2v-3h-3z",
    };
    fprintf(out, "<path class=\"p%zu\" d=\"M%.1f %.1f%s\"/>", series % CHART_COLORS, x, y,
            shapes[series % (sizeof(shapes) / sizeof(shapes[0]))]);
}

static bool has_place(const struct frame *f, double x, double y) {
    return axis_has(&f->x, x) && axis_has(&f->y, y);
}

/* Draws one series: its line, interrupted at values that cannot be drawn, and markers if they are few. */
static void write_series(const struct frame *f, size_t series, size_t panel) {
    const struct view *v = f->view;
    const bool is_line = v->picture->form == LAB_LINES;
    size_t points = 0;
    bool is_open = false; /* the previous point was drawn, so the next one continues its line */
    for (size_t row = 0; row < table_rows(v->table); row++) {
        if (v->series.of_row[row] != series || !is_in_panel(v, row, panel)) continue;
        const double x = view_number(v, row, v->x), y = view_number(v, row, v->y);
        const bool was_open = is_open;
        is_open = has_place(f, x, y);
        if (is_open) points++;
        if (!is_line || !is_open) continue;
        if (points == 1)
            fprintf(f->out, "<path class=\"s%zu d%zu\" d=\"", series % CHART_COLORS, series / CHART_COLORS % 3);
        fprintf(f->out, "%c%.1f %.1f", was_open ? 'L' : 'M', axis_place(&f->x, x), axis_place(&f->y, y));
    }
    if (is_line && points > 0) fputs("\"/>\n", f->out);
    if (points > MOST_MARKERS && is_line) return;
    for (size_t row = 0; row < table_rows(v->table); row++) {
        if (v->series.of_row[row] != series || !is_in_panel(v, row, panel)) continue;
        const double x = view_number(v, row, v->x), y = view_number(v, row, v->y);
        if (has_place(f, x, y)) write_marker(f->out, axis_place(&f->x, x), axis_place(&f->y, y), series);
    }
    fputs("\n", f->out);
}

static void write_lines(FILE *out, const struct view *v, size_t panel, double width, const char *class) {
    struct frame f;
    frame_begin(&f, out, v, width, class);
    for (size_t s = 0; s < v->series.count; s++) write_series(&f, s, panel);
    frame_end(&f);
}

/* ---- bars ---- */

static void write_bar(const struct frame *f, double top, size_t series, double value) {
    char number[32];
    const double zero = f->x.log ? f->left : axis_place(&f->x, 0);
    if (!axis_has(&f->x, value)) {
        if (!isfinite(value)) draw_text(f->out, zero + 4, top + BAR - 3, "", number_text(value, number));
        return;
    }
    const double end = axis_place(&f->x, value), begin = fmin(zero, end);
    axis_number(value, number);
    fprintf(f->out, "<rect class=\"p%zu\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>", series % CHART_COLORS,
            begin, top + 1, fmax(fabs(end - zero), 1), BAR - 2);
    draw_text(f->out, fmax(zero, end) + 4, top + BAR - 3, "", number);
}

static void write_bars(FILE *out, const struct view *v, size_t panel, double width, const char *class) {
    struct frame f;
    frame_begin_bars(&f, out, v, width, (double)v->series.count * BAR + BAR_GAP, class);
    for (size_t row = 0; row < table_rows(v->table); row++) {
        if (!is_in_panel(v, row, panel)) continue;
        const size_t place = v->places.of_row[row], series = v->series.of_row[row];
        const double top = f.top + f.each * (double)place + f.name_height + BAR_GAP / 2.0 + BAR * (double)series;
        write_bar(&f, top, series, view_number(v, row, v->y));
    }
    frame_end(&f);
}

/* ---- heat maps ---- */

/* Edges [n + 1] of the fields of sorted values, halfway between values on the axis's own scale. */
static double *make_edges(struct axis *a, const double *values, size_t n) {
    double *edges = must(calloc(n + 2, sizeof(*edges)));
    struct axis unit = *a; /* places are on its scale */
    unit.least = unit.begin = 0;
    unit.most = unit.end = 1;
    for (size_t i = 0; i + 1 < n; i++)
        edges[i + 1] = (axis_place(&unit, values[i]) + axis_place(&unit, values[i + 1])) / 2;
    const double first = n ? axis_place(&unit, values[0]) : 0, last = n ? axis_place(&unit, values[n - 1]) : 1;
    edges[0] = n > 1 ? 2 * first - edges[1] : first - 0.5;
    edges[n > 0 ? n : 1] = n > 1 ? 2 * last - edges[n - 1] : last + 0.5;
    a->least = edges[0];
    a->most = edges[n > 0 ? n : 1];
    return edges;
}

/* Returns a level from 1 to CHART_LEVELS, or 0 = not drawn. Linear levels start at 0. */
static int level_of(const struct view *v, double value) {
    const struct axis *c = &v->colors;
    if (!(value > 0) || !isfinite(value) || c->least > c->most) return 0;
    const struct axis colors = {.log = c->log, .least = c->log ? c->least : 0, .most = c->most, .begin = 0, .end = 1};
    const double part = colors.most > colors.least ? axis_place(&colors, value) : 1;
    const int level = (int)ceil(part * CHART_LEVELS);
    return level < 1 ? 1 : level > CHART_LEVELS ? CHART_LEVELS : level;
}

static size_t find_value(const double *values, size_t n, double value) {
    size_t begin = 0, end = n;
    while (begin < end) {
        const size_t middle = begin + (end - begin) / 2;
        if (values[middle] < value) begin = middle + 1;
        else end = middle;
    }
    return begin;
}

static double edge_place(const struct axis *a, double edge) {
    return a->begin + (edge - a->least) / (a->most - a->least) * (a->end - a->begin);
}

/* Draws all fields of one level as one path, since a picture may have thousands of fields. */
static void write_level(const struct frame *f, const double *x_edges, const double *y_edges, size_t panel, int level) {
    const struct view *v = f->view;
    bool is_open = false;
    for (size_t row = 0; row < table_rows(v->table); row++) {
        if (!is_in_panel(v, row, panel) || level_of(v, view_number(v, row, v->value)) != level) continue;
        const double x = view_number(v, row, v->x), y = view_number(v, row, v->y);
        if (!has_place(f, x, y)) continue;
        const size_t i = find_value(v->xs, v->num_xs, x), j = find_value(v->ys, v->num_ys, y);
        const double left = edge_place(&f->x, x_edges[i]), right = edge_place(&f->x, x_edges[i + 1]);
        const double bottom = edge_place(&f->y, y_edges[j]), top = edge_place(&f->y, y_edges[j + 1]);
        if (!is_open) fprintf(f->out, "<path class=\"h%d\" d=\"", level);
        is_open = true;
        fprintf(f->out, "M%.1f %.1fH%.1fV%.1fH%.1fz", left, top, right, bottom, left);
    }
    if (is_open) fputs("\"/>\n", f->out);
}

static void write_heat(FILE *out, struct view v, size_t panel, double width, const char *class) {
    struct frame f;
    double *x_edges = make_edges(&v.x_axis, v.xs, v.num_xs), *y_edges = make_edges(&v.y_axis, v.ys, v.num_ys);
    for (size_t m = 0; m < LAB_MAX_MARKS && v.picture->marks[m].label; m++)
        axis_widen(v.picture->marks[m].of_y ? &v.y_axis : &v.x_axis, v.picture->marks[m].at);
    frame_begin(&f, out, &v, width, class);
    for (int level = 1; level <= CHART_LEVELS; level++) write_level(&f, x_edges, y_edges, panel, level);
    frame_end(&f);
    free(x_edges);
    free(y_edges);
}

void chart_write(FILE *out, const struct view *v, size_t panel, double width, const char *class) {
    switch (v->picture->form) {
    case LAB_BARS:
        write_bars(out, v, panel, width, class);
        return;
    case LAB_HEAT:
        write_heat(out, *v, panel, width, class);
        return;
    default:
        write_lines(out, v, panel, width, class);
    }
}

/* ---- the legend ---- */

static void write_text(FILE *out, const char *text) {
    char *clean = clean_text(text);
    draw_escaped(out, clean);
    free(clean);
}

static void write_swatch(FILE *out, const struct view *v, size_t series) {
    fputs("<span class=\"key\"><svg class=\"swatch\" width=\"26\" height=\"12\" viewBox=\"0 0 26 12\">", out);
    if (v->picture->form == LAB_BARS)
        fprintf(out, "<rect class=\"p%zu\" width=\"26\" height=\"12\"/>", series % CHART_COLORS);
    if (v->picture->form == LAB_LINES)
        fprintf(out, "<path class=\"s%zu d%zu\" d=\"M0 6H26\"/>", series % CHART_COLORS, series / CHART_COLORS % 3);
    if (v->picture->form != LAB_BARS) write_marker(out, 13, 6, series);
    fputs("</svg>", out);
}

static void write_color_scale(FILE *out, const struct view *v) {
    char label[160], number[32];
    if (v->colors.least > v->colors.most) return;
    const double base = v->colors.log, least = base > 0 ? pow(base, v->colors.least) : 0;
    column_label(v->table, v->value, label);
    fputs("<span class=\"key\">", out);
    write_text(out, label);
    axis_number(least, number);
    fprintf(out, ": %s <svg class=\"swatch\" width=\"160\" height=\"12\" viewBox=\"0 0 160 12\">", number);
    for (int i = 0; i < CHART_LEVELS; i++)
        fprintf(out, "<rect class=\"h%d\" x=\"%d\" width=\"10\" height=\"12\"/>", i + 1, 10 * i);
    axis_number(base > 0 ? pow(base, v->colors.most) : v->colors.most, number);
    fprintf(out, "</svg> %s%s</span>\n", number, base > 0 ? ", logarithmic" : "");
}

void chart_write_legend(FILE *out, const struct view *v) {
    fputs("<div class=\"legend\">\n", out);
    if (v->picture->form == LAB_HEAT) write_color_scale(out, v);
    for (size_t s = 0; v->picture->form != LAB_HEAT && s < v->series.count; s++) {
        char label[160];
        write_swatch(out, v, s);
        write_text(out, v->picture->by ? key_label(v, &v->series, s, v->picture->by, label) : v->picture->y);
        fputs("</span>\n", out);
    }
    for (size_t m = 0; m < LAB_MAX_MARKS && v->picture->marks[m].label; m++) {
        fprintf(out,
                "<span class=\"key\"><svg class=\"swatch\" width=\"26\" height=\"12\" viewBox=\"0 0 26 12\">"
                "<path class=\"m\" d=\"M0 6H26\"/></svg><b>%c</b>&#160;",
                mark_letter(m));
        write_text(out, v->picture->marks[m].label);
        fputs("</span>\n", out);
    }
    fputs("</div>\n", out);
}
