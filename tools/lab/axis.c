#include "axis.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../common/draw.h"

bool axis_has(const struct axis *a, double value) {
    return isfinite(value) && (a->log == 0 || value > 0);
}

/* The value in the axis's own unit (its logarithm on a logarithmic axis). */
static double scaled(const struct axis *a, double value) {
    return a->log == 2 ? log2(value) : a->log == 10 ? log10(value) : value;
}

void axis_widen(struct axis *a, double value) {
    if (!axis_has(a, value)) return;
    const double x = scaled(a, value);
    if (a->least > a->most) a->least = a->most = x, a->is_whole = true;
    a->least = fmin(a->least, x);
    a->most = fmax(a->most, x);
    a->is_whole = a->is_whole && floor(value) == value;
}

void axis_settle(struct axis *a, double margin, bool from_zero) {
    if (a->least > a->most) a->least = 0, a->most = 1;
    if (from_zero && !a->log && !a->is_power && a->least > 0 && a->least < 0.6 * a->most) a->least = 0;
    if (a->least == a->most) {
        const bool is_plain = !a->log && !a->is_power;
        const double around = is_plain && a->least != 0 ? fabs(a->least) / 2 : 1;
        a->most += around;
        a->least = is_plain && from_zero && a->least >= 0 ? 0 : a->least - around;
        return;
    }
    const double room = margin * (a->most - a->least);
    if (!(from_zero && a->least == 0)) a->least -= room;
    a->most += room;
}

double axis_place(const struct axis *a, double value) {
    const double part = (scaled(a, value) - a->least) / (a->most - a->least);
    return a->begin + part * (a->end - a->begin);
}

void axis_number(double value, char text[32]) {
    snprintf(text, 32, "%.4g", value);
    char *e = strchr(text, 'e'); /* 1e+06 is 1e6 */
    if (!e) return;
    char *digits = e + 1 + (e[1] == '+' || e[1] == '-');
    char *first = digits + strspn(digits, "0");
    char *to = e[1] == '-' ? e + 2 : e + 1;
    memmove(to, first, strlen(first) + 1);
}

/* Writes base^power with superscript digits. */
static void write_power(int base, int power, char text[32]) {
    static const char *const raised[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    char digits[16];
    size_t n = (size_t)snprintf(text, 32, "%d", base);
    snprintf(digits, sizeof(digits), "%d", power);
    for (const char *d = digits; *d; d++)
        n += (size_t)snprintf(text + n, 32 - n, "%s", *d == '-' ? "⁻" : raised[*d - '0']);
}

/* Ticks at every n-th whole power. Powers are written as plain numbers if all of the axis is small. */
static size_t power_ticks(const struct axis *a, size_t most, struct tick ticks[AXIS_MAX_TICKS]) {
    static const int distances[] = {1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 256, 512, 1024};
    const double range = a->most - a->least;
    const bool is_ten = a->log == 10;
    const bool is_plain = !a->is_power && a->least >= (is_ten ? -3 : -0.5) && a->most <= (is_ten ? 4.5 : 13.5);
    size_t n = 0, d = 0;
    while (d + 1 < sizeof(distances) / sizeof(distances[0]) && range / distances[d] > (double)most) d++;
    const int step = distances[d];
    for (int k = (int)ceil(a->least / step) * step; k <= a->most && n < AXIS_MAX_TICKS; k += step) {
        struct tick *t = &ticks[n++];
        t->at = a->begin + (k - a->least) / range * (a->end - a->begin);
        if (is_plain) axis_number(pow(is_ten ? 10 : 2, k), t->label);
        else write_power(is_ten ? 10 : 2, k, t->label);
    }
    return n;
}

size_t axis_ticks(const struct axis *a, size_t most, struct tick ticks[AXIS_MAX_TICKS]) {
    size_t n = 0;
    const bool spans_powers = a->most - a->least >= 2;
    if (most > AXIS_MAX_TICKS - 2) most = AXIS_MAX_TICKS - 2;
    if (a->is_power || (a->log && spans_powers)) return power_ticks(a, most, ticks);
    /* A narrow logarithmic axis gets ticks at round numbers. */
    const double base = a->log == 2 ? 2 : 10;
    const double least = a->log ? pow(base, a->least) : a->least, end = a->log ? pow(base, a->most) : a->most;
    double distance = draw_tick_distance(end - least, (int)most);
    if (a->is_whole && distance < 1) distance = 1;
    for (double k = ceil(least / distance); k * distance <= end && n < AXIS_MAX_TICKS; k++) {
        struct tick *t = &ticks[n++];
        t->at = axis_place(a, k * distance);
        axis_number(k == 0 ? 0 : k * distance, t->label); /* never -0 */
    }
    return n;
}

double text_width(const char *text, double font) {
    size_t letters = 0;
    for (; *text; text++) letters += (*text & 0xc0) != 0x80;
    return 0.6 * font * (double)letters;
}
