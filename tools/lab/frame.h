/* The parts that all forms of pictures share: axes, ticks, lines of marks. */
#ifndef LAB_FRAME_H
#define LAB_FRAME_H

#include <stdio.h>

#include "view.h"

enum { FONT = 12 };

struct frame {
    FILE *out;
    const struct view *view;
    struct axis x, y; /* with pixels; y begins at the bottom. Of bars, x is the axis of their lengths */
    double width, height, left, right, top, bottom; /* of the picture, and of the field within its axes */
    double each, name_height;                       /* of bars: of a place, and of its name where that is above it */
};

/* Lays out a picture with an axis below and one on the left. x_label, y_label: what they show. */
void frame_begin(struct frame *f, FILE *out, const struct view *v, double width, const char *class);

/* Lays out bars, so many pixels for those of a place: names on the left, or above where they are long, and the axis of
 * their lengths below. */
void frame_begin_bars(struct frame *f, FILE *out, const struct view *v, double width, double bars, const char *class);

/* Draws marks over what was drawn, and ends the picture. */
void frame_end(struct frame *f);

/* The text, or its end behind "…" where it is wider than `room` pixels. */
void frame_text(FILE *out, double x, double y, double room, const char *more, const char *text);

/* The letter of a mark in pictures and the legend: "a", "b", ... */
char mark_letter(size_t mark);

#endif
