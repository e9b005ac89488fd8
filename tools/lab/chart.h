/* A picture as SVG: one panel of it, in one width. Colours are classes, which the page's style gives in light and dark;
 * title and legend are the page's, where lines wrap. */
#ifndef LAB_CHART_H
#define LAB_CHART_H

#include <stdio.h>

#include "view.h"

enum {
    CHART_WIDE = 640,
    CHART_NARROW = 344, /* pixels; a panel, and a phone */
    CHART_COLORS = 8,   /* classes s0 to s7 of lines, p0 to p7 of fills */
    CHART_LEVELS = 16,  /* classes h1 to h16 of heat maps */
};

/* class: of the svg element. */
void chart_write(FILE *out, const struct view *v, size_t panel, double width, const char *class);

/* The legend, as HTML. */
void chart_write_legend(FILE *out, const struct view *v);

#endif
