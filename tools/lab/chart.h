/* Draws one panel of a picture as SVG, in one width. Colours are CSS classes that the page's style defines for light
 * and dark; the page has title and legend in HTML, so that their lines can wrap. */
#ifndef LAB_CHART_H
#define LAB_CHART_H

#include <stdio.h>

#include "view.h"

enum {
    CHART_WIDE = 640,
    CHART_NARROW = 344, /* pixels; a panel, and a phone */
    CHART_COLORS = 8,   /* CSS classes s0 to s7 for lines, p0 to p7 for fills */
    CHART_LEVELS = 16,  /* CSS classes h1 to h16 for heat maps */
};

/* class: CSS class of the svg element. */
void chart_write(FILE *out, const struct view *v, size_t panel, double width, const char *class);

/* The legend, as HTML. */
void chart_write_legend(FILE *out, const struct view *v);

#endif
