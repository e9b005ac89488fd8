/* Sums recorded exponent counts by true (unscaled) magnitude. */
#ifndef LAB_BINADES_H
#define LAB_BINADES_H

#include "record.h"

enum {
    LEAST_BINADE = -300, /* least true magnitude: f32's 2^-149 divided by a large loss scale */
    NUM_BINADES = 600,
    F16_ZERO = -25,    /* from this binade on values round to a nonzero f16 (2^-25 itself to 0), below it to 0 */
    F16_NORMAL = -14,  /* below this binade f16 loses digits */
    F16_OVERFLOW = 16, /* from this binade on infinite in f16, as are the last 16 values in 2^15's 65536 */
};

struct binades {
    double at[NUM_BINADES];
    double count, zero, inf, nan; /* count: all elements; the others are in no binade */
    double sum;                   /* elements in a binade */
};

/* If the loss scale is not a power of two, elements may be counted one binade off. */
void binades_add(struct binades *b, const struct exponents *e);

/* Sums all of t's records. Gradients that are equal on all ranks are taken from one rank. */
void binades_of(const struct tensor_record *t, struct binades *out);

/* Percentage of elements with a binade that are in [begin, end). */
double binades_percent(const struct binades *b, int begin, int end);

/* Smallest and largest binade with elements; returns false if there is none. */
bool binades_range(const struct binades *b, int *least, int *most);

/* Largest binade of one record; returns false if there is none. */
bool exponents_most(const struct exponents *e, int *most);

#endif
