/* Cases of operations, written once and run in many ways: finite differences in f64; f32, f16 and bf16 against f64;
 * strided inputs against dense ones; outputs and gradients against PyTorch, or against its stored results (vectors/).
 *
 * Each family of operations has its cases in cases_<family>.c. Every operation of op_list.h needs a case; a test names
 * those without one. */
#ifndef OP_CASES_H
#define OP_CASES_H

#include <stdbool.h>

#include "nn/hooks.h"

enum { CASE_INPUTS = 8, CASE_DIMS = 5 };

/* How the values of an input are drawn, seeded by the case's name and the input's index. */
enum values {
    NORMAL = 0,  /* standard normals */
    POSITIVE,    /* uniform in [0.5, 2] */
    UNIT,        /* uniform in [-0.9, 0.9] */
    PROBABILITY, /* uniform in [0.05, 0.95] */
    DISTINCT,    /* a shuffled ramp of nonzero multiples of 1/8: no two are equal, for maxima and kinks */
    AWAY,        /* normals moved away from 0 by 0.25: for kinks at 0 */
    CLASSES,     /* i64 in [0, limit) */
    MASK,        /* bool */
    SIGNS,       /* -1 or 1 */
};

struct case_input {
    const char *shape; /* "64 3", "" = no dimension; NULL = this optional input is omitted */
    enum values values;
    int64_t limit; /* CLASSES: the number of classes */
    bool no_grad;  /* of a float */
};

struct op_case {
    const char *name;  /* unique: "add broadcasts a column" */
    enum cairn__op op; /* the operation under test */
    /* Computes the result; a fixed weighted sum reduces a result of several elements to a loss. */
    cairn_tensor *(*build)(cairn_tensor *const *in);
    struct case_input inputs[CASE_INPUTS];
    const char
        *torch; /* a Python expression of inputs a, b, c, ...: "torch.add(a, b)"; F, torch, math are there. NULL = torch
                          has no such thing, and `why` says what the case is compared with instead */
    const char *why;
    double tolerance; /* factor for the tolerances; 0 = 1. Needs a comment with the reason */
    bool adds_up;     /* uses an input twice: its gradients are added in f32 if it is a leaf, otherwise in its type */
    bool no_differences; /* no finite differences: the result is not a float, or is a step function */
};

/* Macros for the common forms; other cases are written out: {.name = ..., .tolerance = ...}. */
#define IN(sizes) \
    { .shape = (sizes) }
#define IN_AS(sizes, kind) \
    { .shape = (sizes), .values = (kind) }
#define CASE(title, id, call, expression, ...)                                                                   \
    {                                                                                                            \
        .name = (title), .op = CAIRN__OP_##id, .build = (call), .torch = (expression), .inputs = { __VA_ARGS__ } \
    }

struct op_cases {
    const struct op_case *cases;
    size_t count;
};
#define OP_CASES(array) \
    { (array), sizeof(array) / sizeof((array)[0]) }

/* One list per family; op_cases.c lists the families. */
extern const struct op_cases cases_product, cases_element, cases_reduce, cases_view, cases_rows, cases_loss, cases_conv,
    cases_autograd;

#endif
