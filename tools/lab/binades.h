/* Sums of recorded exponents, by their true magnitude. */
#ifndef LAB_BINADES_H
#define LAB_BINADES_H

#include "record.h"

enum {
    LEAST_BINADE = -300, /* of true magnitudes: f32's -149, divided by any scale */
    NUM_BINADES = 600,
    F16_ZERO = -25,    /* what is in this binade or above becomes a number of f16, below it 0 (but 2^-25 itself) */
    F16_NORMAL = -14,  /* below it f16's numbers lose digits */
    F16_OVERFLOW = 16, /* infinite from this binade on, and the last 16 of 2^15's 65536 are, too */
};

struct binades {
    double at[NUM_BINADES];
    double count, zero, inf, nan; /* elements: all, and those that are in no binade */
    double sum;                   /* those that are in one */
};

/* Where the loss scale is no power of two, a binade's elements may lie in the next one. */
void binades_add(struct binades *b, const struct exponents *e);

/* Of all of t's records. Of gradients that are equal on all ranks one rank's are taken. */
void binades_of(const struct tensor_record *t, struct binades *out);

/* Which per cent of the elements in binades are in [begin, end). */
double binades_percent(const struct binades *b, int begin, int end);

/* The least and largest binade with elements; false where there is none. */
bool binades_range(const struct binades *b, int *least, int *most);

/* The largest binade of one record; false where it has none. */
bool exponents_most(const struct exponents *e, int *most);

#endif
