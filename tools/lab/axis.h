/* An axis of a picture: maps values to pixels and chooses ticks. */
#ifndef LAB_AXIS_H
#define LAB_AXIS_H

#include <stdbool.h>
#include <stddef.h>

struct axis {
    int log;            /* 0, 2 or 10 */
    bool is_power;      /* values are exponents of two */
    bool is_whole;      /* all values are whole numbers */
    double least, most; /* logarithms if log is set; least > most = no value yet */
    double begin, end;  /* pixels of least and most */
};

/* Whether the value can be drawn on this axis. */
bool axis_has(const struct axis *a, double value);

/* Extends the axis to a value; ignores values that cannot be drawn. */
void axis_widen(struct axis *a, double value);

/* Call after all values: an axis with no or one value gets a range around it. margin: fraction of the range added at
 * both ends. from_zero: a linear axis starts at 0 if its values come near 0. */
void axis_settle(struct axis *a, double margin, bool from_zero);

double axis_place(const struct axis *a, double value);

enum { AXIS_MAX_TICKS = 16 };

struct tick {
    double at;      /* pixel */
    char label[32]; /* UTF-8 */
};

/* Writes about `most` ticks from least to most, in order. Returns their number. */
size_t axis_ticks(const struct axis *a, size_t most, struct tick ticks[AXIS_MAX_TICKS]);

/* "0.25", "3e6" */
void axis_number(double value, char text[32]);

/* Upper estimate of a text's width in pixels for a font size. */
double text_width(const char *text, double font);

#endif
