/* An axis of a picture: where a value is drawn, and which values are written beside it. */
#ifndef LAB_AXIS_H
#define LAB_AXIS_H

#include <stdbool.h>
#include <stddef.h>

struct axis {
    int log;            /* 0, 2 or 10 */
    bool is_power;      /* values are exponents of two */
    bool is_whole;      /* all values are whole numbers */
    double least, most; /* on the axis: logarithms, where it has a log; least > most before any value */
    double begin, end;  /* pixels of least and most */
};

/* Whether the value has a place on such an axis. */
bool axis_has(const struct axis *a, double value);

/* Makes room for a value; nothing where it has no place. */
void axis_widen(struct axis *a, double value);

/* Once all values are in: an axis without a value, or with one alone, gets room around it. margin: a part of the
 * range on both ends. from_zero: an axis of plain numbers begins at 0 where these come near it. */
void axis_settle(struct axis *a, double margin, bool from_zero);

double axis_place(const struct axis *a, double value);

enum { AXIS_MAX_TICKS = 16 };

struct tick {
    double at;      /* pixel */
    char label[32]; /* UTF-8 */
};

/* About `most` ticks from least to most, in order. Returns how many. */
size_t axis_ticks(const struct axis *a, size_t most, struct tick ticks[AXIS_MAX_TICKS]);

/* "0.25", "3e6" */
void axis_number(double value, char text[32]);

/* Pixels of a text in so large a font, about; a little more than it takes. */
double text_width(const char *text, double font);

#endif
