#include "draw.h"

#include <math.h>

void draw_escaped(FILE *out, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

void draw_text(FILE *out, double x, double y, const char *more, const char *text) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, more);
    draw_escaped(out, text);
    fputs("</text>\n", out);
}

double draw_tick_distance(double end, int ticks) {
    const double rough = end / ticks, power = pow(10, floor(log10(rough)));
    const double digit = rough / power;
    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}
