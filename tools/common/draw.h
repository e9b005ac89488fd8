/* Shared by the tools that draw pictures. */
#ifndef COMMON_DRAW_H
#define COMMON_DRAW_H

#include <stdio.h>

/* Text (of clean_text) escaped for XML and HTML. */
void draw_escaped(FILE *out, const char *text);

/* A text element, escaped; text is of clean_text. more: further attributes, with a space before them. */
void draw_text(FILE *out, double x, double y, const char *more, const char *text);

/* Returns the distance between about `ticks` ticks of an axis: 1, 2 or 5 times a power of ten. */
double draw_tick_distance(double end, int ticks);

#endif
