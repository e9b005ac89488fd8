#include "frame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/draw.h"
#include "../common/say.h"

enum {
    GAP = 6,   /* between a tick's label and its axis */
    LINE = 18, /* from one line of text to the next */
    TAG = 12,  /* space for a mark's letter */
    Y_TICKS = 6,
};

char mark_letter(size_t mark) {
    return (char)('a' + mark);
}

/* Skips this many letters, which may have several bytes each. */
static const char *skip_letters(const char *text, size_t letters) {
    for (; *text && letters > 0; letters--) {
        do text++;
        while ((*text & 0xc0) == 0x80);
    }
    return text;
}

void frame_text(FILE *out, double x, double y, double room, const char *more, const char *text) {
    char *clean = clean_text(text), *cut = NULL;
    const double letter = text_width("m", FONT), width = text_width(clean, FONT);
    if (width > room) { /* keep the end, which says most in "encoder.layer.3.weight" */
        const size_t letters = (size_t)(width / letter + 0.5),
                     fits = room > 2 * letter ? (size_t)(room / letter) - 1 : 1;
        if (asprintf(&cut, "…%s", skip_letters(clean, letters - fits)) < 0) must(NULL);
    }
    draw_text(out, x, y, more, cut ? cut : clean);
    free(cut);
    free(clean);
}

static size_t count_marks(const struct view *v, bool of_y) {
    size_t n = 0;
    for (size_t m = 0; m < LAB_MAX_MARKS && v->picture->marks[m].label; m++) n += v->picture->marks[m].of_y == of_y;
    return n;
}

static void open_svg(const struct frame *f, const char *class) {
    char *title = clean_text(f->view->picture->title);
    fprintf(f->out,
            "<svg class=\"%s\" xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f "
            "%.0f\" font-size=\"%d\" role=\"img\" aria-label=\"",
            class, f->width, f->height, f->width, f->height, FONT);
    draw_escaped(f->out, title);
    fputs("\">\n", f->out);
    free(title);
}

/* The axis's name with its unit, or without it if the ticks are powers of two, which show the unit. */
static void name_axis(const struct frame *f, size_t column, const struct axis *axis, char label[160]) {
    if (axis->is_power) snprintf(label, 160, "%s", f->view->table->columns[column].name);
    else column_label(f->view->table, column, label);
}

/* Draws the x axis: its name, and those ticks whose labels do not overlap. */
static void write_x_axis(const struct frame *f, const char *label) {
    struct tick ticks[AXIS_MAX_TICKS];
    double taken = 0;
    const size_t n = axis_ticks(&f->x, (size_t)((f->right - f->left) / 55), ticks);
    for (size_t i = 0; i < n; i++) {
        const double width = text_width(ticks[i].label, FONT), x = ticks[i].at;
        if (x - width / 2 < taken || x + width / 2 > f->width) continue;
        taken = x + width / 2 + 4;
        fprintf(f->out, "<path class=\"g\" d=\"M%.1f %.1fV%.1f\"/>\n", x, f->top, f->bottom);
        draw_text(f->out, x, f->bottom + GAP + FONT, " text-anchor=\"middle\"", ticks[i].label);
    }
    const double room = f->width - 4, width = fmin(text_width(label, FONT), room);
    const double middle = fmin(fmax((f->left + f->right) / 2, width / 2 + 2), f->width - width / 2 - 2);
    frame_text(f->out, middle, f->bottom + GAP + FONT + LINE, room, " class=\"n\" text-anchor=\"middle\"", label);
}

static void write_y_axis(const struct frame *f, const struct tick *ticks, size_t n, const char *label) {
    double taken = f->bottom + FONT;
    for (size_t i = 0; i < n; i++) {
        const double y = ticks[i].at;
        if (y + 0.25 * FONT > taken) continue;
        taken = y - 0.8 * FONT;
        fprintf(f->out, "<path class=\"g\" d=\"M%.1f %.1fH%.1f\"/>\n", f->left, y, f->right);
        draw_text(f->out, f->left - GAP, y + 0.35 * FONT, " text-anchor=\"end\"", ticks[i].label);
    }
    frame_text(f->out, 2, FONT + 1, f->width - 4, " class=\"n\"", label);
}

static void widest_label(const struct tick *ticks, size_t n, double *width) {
    for (size_t i = 0; i < n; i++) *width = fmax(*width, text_width(ticks[i].label, FONT));
}

void frame_begin(struct frame *f, FILE *out, const struct view *v, double width, const char *class) {
    const bool is_heat = v->picture->form == LAB_HEAT;
    char x_label[160], y_label[160];
    struct tick ticks[AXIS_MAX_TICKS];
    double widest = FONT;
    *f = (struct frame){.out = out, .view = v, .x = v->x_axis, .y = v->y_axis, .width = width};
    f->height = floor(width > 500 ? 0.55 * width : 0.78 * width);
    name_axis(f, v->x, &v->x_axis, x_label);
    name_axis(f, v->y, &v->y_axis, y_label);
    if (!is_heat) {
        axis_settle(&f->x, 0.02, false);
        axis_settle(&f->y, 0.05, true);
    }
    f->top = LINE + GAP + (count_marks(v, false) ? TAG + 2 : 0);
    f->bottom = f->height - (GAP + FONT + LINE + GAP);
    f->y.begin = f->bottom;
    f->y.end = f->top;
    const size_t n = axis_ticks(&f->y, Y_TICKS, ticks);
    widest_label(ticks, n, &widest);
    f->left = ceil(widest + GAP + 2);
    f->right = width - (count_marks(v, true) ? TAG + 4 : 12);
    f->x.begin = f->left;
    f->x.end = f->right;
    open_svg(f, class);
    write_y_axis(f, ticks, n, y_label);
    write_x_axis(f, x_label);
}

/* Writes the name next to a group of bars. */
static void write_place(const struct frame *f, size_t i) {
    char text[32];
    const char *name = key_text(&f->view->places, i, text);
    const double top = f->top + f->each * (double)i;
    if (f->name_height > 0) frame_text(f->out, f->left + 3, top + FONT + 3, f->width - f->left - 2, "", name);
    else
        frame_text(f->out, f->left - GAP, top + 0.5 * f->each + 0.35 * FONT, f->left - GAP, " text-anchor=\"end\"",
                   name);
}

void frame_begin_bars(struct frame *f, FILE *out, const struct view *v, double width, double bars, const char *class) {
    char label[160], text[32];
    double widest = FONT;
    *f = (struct frame){.out = out, .view = v, .x = v->y_axis, .width = width};
    for (size_t i = 0; i < v->places.count; i++) widest = fmax(widest, text_width(key_text(&v->places, i, text), FONT));
    column_label(v->table, v->x, label);
    f->name_height = widest > 0.42 * width ? FONT + 3 : 0;
    f->each = bars + f->name_height;
    f->left = f->name_height > 0 ? GAP + 2 : ceil(widest + GAP + 2);
    f->right = width - 60; /* leaves space for the number after each bar */
    f->top = LINE + GAP + (count_marks(v, true) ? TAG + 2 : 0);
    f->bottom = f->top + f->each * (double)v->places.count;
    f->height = f->bottom + GAP + FONT + LINE + GAP;
    if (f->x.log) axis_settle(&f->x, 0.1, false); /* so that the shortest bar is visible */
    else axis_settle(&f->x, 0, true);
    f->x.begin = f->left;
    f->x.end = f->right;
    open_svg(f, class);
    frame_text(out, 2, FONT + 1, width - 4, " class=\"n\"", label);
    name_axis(f, v->y, &v->y_axis, label);
    write_x_axis(f, label);
    for (size_t i = 0; i < v->places.count; i++) write_place(f, i);
}

/* Positions of marks' letters along one side. */
struct letters {
    double at[LAB_MAX_MARKS];
    size_t count;
};

/* Returns `at`, or the nearest free position for a letter towards the middle. */
static double place_letter(struct letters *letters, double at, double middle) {
    const double step = at > middle ? -TAG : TAG;
    for (size_t i = 0; i < letters->count; i++) {
        if (fabs(letters->at[i] - at) > TAG - 0.5) continue; /* the sum at[i] + step may have been rounded */
        at = letters->at[i] + step;
        i = (size_t)-1; /* compare with all letters again: an earlier one may be there */
    }
    return letters->at[letters->count++] = at;
}

static void write_mark(const struct frame *f, size_t m, struct letters *letters) {
    const struct lab_mark *mark = &f->view->picture->marks[m];
    const bool is_row = mark->of_y && f->view->picture->form != LAB_BARS;
    const struct axis *axis = is_row ? &f->y : &f->x;
    const char letter[2] = {mark_letter(m), '\0'};
    if (!axis_has(axis, mark->at)) return;
    const double at = axis_place(axis, mark->at), free_at = place_letter(letters, at, (axis->begin + axis->end) / 2);
    if (is_row) {
        fprintf(f->out, "<path class=\"m\" d=\"M%.1f %.1fH%.1f\"/>\n", f->left, at, f->right);
        draw_text(f->out, f->right + 4, free_at + 0.35 * FONT, " class=\"n\"", letter);
    } else {
        fprintf(f->out, "<path class=\"m\" d=\"M%.1f %.1fV%.1f\"/>\n", at, f->top, f->bottom);
        draw_text(f->out, free_at, f->top - 4, " class=\"n\" text-anchor=\"middle\"", letter);
    }
}

void frame_end(struct frame *f) {
    struct letters letters[2] = {{{0}, 0}};
    fprintf(f->out, "<path class=\"a\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", f->left, f->top, f->bottom, f->right);
    for (size_t m = 0; m < LAB_MAX_MARKS && f->view->picture->marks[m].label; m++)
        write_mark(f, m, &letters[f->view->picture->marks[m].of_y]);
    fputs("</svg>\n", f->out);
}
