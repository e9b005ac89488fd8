/* The families of operations, and the input values of their cases. */
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "case_run.h"
#include "core/alloc.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "core/hash.h"
#include "core/philox.h"

const struct family families[NUM_FAMILIES] = {
    {"product", &cases_product}, {"element", &cases_element}, {"reduce", &cases_reduce}, {"view", &cases_view},
    {"rows", &cases_rows},       {"loss", &cases_loss},       {"conv", &cases_conv},     {"autograd", &cases_autograd},
};

const cairn_dtype case_types[CASE_TYPES] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};

bool case_input_is_float(const struct case_input *input) {
    return input->shape && input->values != CLASSES && input->values != MASK;
}

bool case_wants(const struct op_case *c, int input) {
    return case_input_is_float(&c->inputs[input]) && !c->inputs[input].no_grad;
}

double case_weight(size_t i) {
    return ((double)(i * 7 % 17) - 8.5) / 8;
}

void *case_room(size_t n, size_t nbytes) {
    void *p = NULL;
    if (cairn__calloc(n, nbytes, &p) != CAIRN_OK) exit(1);
    return p;
}

/* ---- values ---- */

/* A separate stream of random words for each input. */
struct words {
    uint64_t key;
    uint64_t next;
};

static struct words words_of(const char *name, int input) {
    return (struct words){cairn__hash_text(CAIRN__HASH_START, name), (uint64_t)input << 32};
}

static double next_uniform(struct words *w) {
    return (double)cairn__uniform(cairn__philox(w->key, w->next++, 0).word[0]);
}

static double next_normal(struct words *w) {
    float four[4];
    cairn__normal4(cairn__philox(w->key, w->next++, 0), four);
    return (double)four[0];
}

/* 1/8, 2/8, ... with signs, shuffled: no two have one magnitude. */
static void draw_distinct(struct words *w, double *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = (double)(i + 1) / 8 * (next_uniform(w) < 0.5 ? -1 : 1);
    for (size_t i = n; i > 1; i--) {
        const size_t j = (size_t)(next_uniform(w) * (double)i);
        const double moved = x[i - 1];
        x[i - 1] = x[j];
        x[j] = moved;
    }
}

static double draw(struct words *w, const struct case_input *input) {
    double x = 0;
    switch (input->values) {
    case NORMAL:
        return next_normal(w);
    case POSITIVE:
        return 0.5 + 1.5 * next_uniform(w);
    case UNIT:
        return -0.9 + 1.8 * next_uniform(w);
    case PROBABILITY:
        return 0.05 + 0.9 * next_uniform(w);
    case AWAY:
        x = next_normal(w);
        return x + copysign(0.25, x);
    case CLASSES:
        return floor(next_uniform(w) * (double)input->limit);
    case MASK:
        return next_uniform(w) < 0.7;
    case SIGNS:
        return next_uniform(w) < 0.5 ? -1 : 1;
    case DISTINCT:
        break;
    }
    return 0;
}

static void round_to(double *x, size_t n, cairn_dtype type) {
    for (size_t i = 0; i < n; i++) {
        uint64_t rounded = 0;
        cairn__convert(&rounded, type, &x[i], CAIRN_F64, 1);
        cairn__convert(&x[i], CAIRN_F64, &rounded, type, 1);
    }
}

static void parse_shape(const char *text, struct case_array *a) {
    a->n = 1;
    for (char *end = NULL; *text; text = end) {
        a->shape[a->ndim++] = strtoll(text, &end, 10);
        a->n *= (size_t)a->shape[a->ndim - 1];
        if (end == text) exit(2); /* the table is wrong */
    }
}

void case_draw(const struct op_case *c, cairn_dtype type, struct case_array inputs[CASE_INPUTS]) {
    memset(inputs, 0, CASE_INPUTS * sizeof(inputs[0]));
    for (int i = 0; i < CASE_INPUTS; i++) {
        const struct case_input *input = &c->inputs[i];
        struct words w = words_of(c->name, i);
        if (!input->shape) continue;
        parse_shape(input->shape, &inputs[i]);
        inputs[i].values = case_room(inputs[i].n, sizeof(double));
        inputs[i].dtype = input->values == CLASSES ? CAIRN_I64 : input->values == MASK ? CAIRN_BOOL : type;
        if (input->values == DISTINCT) {
            draw_distinct(&w, inputs[i].values, inputs[i].n);
        } else {
            for (size_t j = 0; j < inputs[i].n; j++) inputs[i].values[j] = draw(&w, input);
        }
        round_to(inputs[i].values, inputs[i].n, inputs[i].dtype);
    }
}

void case_arrays_free(struct case_array *arrays, int count) {
    for (int i = 0; i < count; i++) {
        cairn__free(arrays[i].values);
        arrays[i].values = NULL;
    }
}
