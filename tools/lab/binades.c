#include "binades.h"

void binades_add(struct binades *b, const struct exponents *e) {
    b->count += e->count;
    b->zero += e->zero;
    b->inf += e->inf;
    b->nan += e->nan;
    for (size_t i = 0; i < e->num_binades; i++) {
        long at = (long)e->first + (long)i - e->shift - LEAST_BINADE;
        at = at < 0 ? 0 : at >= NUM_BINADES ? NUM_BINADES - 1 : at;
        b->at[at] += e->counts[i];
        b->sum += e->counts[i];
    }
}

void binades_of(const struct tensor_record *t, struct binades *out) {
    *out = (struct binades){.count = 0};
    for (size_t i = 0; i < t->count; i++) {
        if (t->kind != GRAD || t->at[i].rank == t->at[0].rank) binades_add(out, &t->at[i]);
    }
}

double binades_percent(const struct binades *b, int begin, int end) {
    double sum = 0;
    for (int i = 0; i < NUM_BINADES; i++) {
        if (i + LEAST_BINADE >= begin && i + LEAST_BINADE < end) sum += b->at[i];
    }
    return b->sum > 0 ? 100 * sum / b->sum : 0;
}

bool binades_range(const struct binades *b, int *least, int *most) {
    int first = 0, last = NUM_BINADES - 1;
    while (first < NUM_BINADES && b->at[first] == 0) first++;
    while (last >= first && b->at[last] == 0) last--;
    *least = first + LEAST_BINADE;
    *most = last + LEAST_BINADE;
    return first < NUM_BINADES;
}

bool exponents_most(const struct exponents *e, int *most) {
    size_t n = e->num_binades;
    while (n > 0 && e->counts[n - 1] == 0) n--;
    *most = e->first + (int)n - 1 - e->shift;
    return n > 0;
}
