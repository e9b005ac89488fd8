/* Cases of operations: reductions. */
#include <math.h>

#include "op_cases.h"

#define BUILD(name, call)                                \
    static cairn_tensor *name(cairn_tensor *const *in) { \
        return call;                                     \
    }

BUILD(sum, cairn_sum(in[0]))
BUILD(mean, cairn_mean(in[0]))
BUILD(sum_of_transposed, cairn_sum(cairn_transpose(in[0], 0, 1)))
BUILD(sum_0, cairn_sum_dims(in[0], CAIRN_DIMS(0), 0))
BUILD(sum_last, cairn_sum_dims(in[0], CAIRN_DIMS(-1), 0))
BUILD(sum_last_kept, cairn_sum_dims(in[0], CAIRN_DIMS(-1), 1))
BUILD(sum_1, cairn_sum_dims(in[0], CAIRN_DIMS(1), 0))
BUILD(sum_0_2, cairn_sum_dims(in[0], CAIRN_DIMS(2, 0), 1))
BUILD(sum_1_2, cairn_sum_dims(in[0], CAIRN_DIMS(1, 2), 0))
BUILD(sum_all, cairn_sum_dims(in[0], 0, NULL, 0))
BUILD(sum_all_kept, cairn_sum_dims(in[0], 0, NULL, 1))
BUILD(mean_0, cairn_mean_dims(in[0], CAIRN_DIMS(0), 0))
BUILD(mean_last, cairn_mean_dims(in[0], CAIRN_DIMS(-1), 1))
BUILD(mean_2_3, cairn_mean_dims(in[0], CAIRN_DIMS(2, 3), 0))
BUILD(mean_all, cairn_mean_dims(in[0], 0, NULL, 0))
BUILD(var_0, cairn_var(in[0], CAIRN_DIMS(0), 1, 0))
BUILD(var_last, cairn_var(in[0], CAIRN_DIMS(-1), 1, 1))
BUILD(var_biased, cairn_var(in[0], CAIRN_DIMS(0, 2), 0, 0))
BUILD(var_all, cairn_var(in[0], 0, NULL, 1, 0))
BUILD(std_0, cairn_std(in[0], CAIRN_DIMS(0), 1, 0))
BUILD(std_last, cairn_std(in[0], CAIRN_DIMS(-1), 0, 1))
BUILD(std_all, cairn_std(in[0], 0, NULL, 1, 0))
BUILD(std_of_equals, cairn_std(cairn_expand(in[0], CAIRN_SHAPE(3, 4)), CAIRN_DIMS(1), 1, 0))
BUILD(norm1_0, cairn_norm(in[0], 1, CAIRN_DIMS(0), 0))
BUILD(norm1_all, cairn_norm(in[0], 1, 0, NULL, 0))
BUILD(norm2_last, cairn_norm(in[0], 2, CAIRN_DIMS(-1), 1))
BUILD(norm2_all, cairn_norm(in[0], 2, 0, NULL, 0))
BUILD(norm2_of_zeros, cairn_norm(cairn_mul_scalar(in[0], 0), 2, CAIRN_DIMS(1), 0))
BUILD(norm_inf_0, cairn_norm(in[0], (double)INFINITY, CAIRN_DIMS(0), 0))
BUILD(norm_inf_last, cairn_norm(in[0], (double)INFINITY, CAIRN_DIMS(-1), 1))
BUILD(norm_inf_all, cairn_norm(in[0], (double)INFINITY, 0, NULL, 0))
BUILD(prod_0, cairn_prod(in[0], 0, 0))
BUILD(prod_last, cairn_prod(in[0], -1, 1))
BUILD(prod_1, cairn_prod(in[0], 1, 0))
BUILD(prod_with_zeros, cairn_prod(cairn_mul(in[0], in[1]), 1, 0))
BUILD(cumsum_0, cairn_cumsum(in[0], 0))
BUILD(cumsum_1, cairn_cumsum(in[0], 1))
BUILD(cumsum_last, cairn_cumsum(in[0], -1))
BUILD(cumprod_0, cairn_cumprod(in[0], 0))
BUILD(cumprod_1, cairn_cumprod(in[0], 1))
BUILD(cumprod_last, cairn_cumprod(in[0], -1))
BUILD(cumprod_with_zeros, cairn_cumprod(cairn_mul(in[0], in[1]), 1))
BUILD(max, cairn_max(in[0]))
BUILD(min, cairn_min(in[0]))
BUILD(amax_0, cairn_amax(in[0], CAIRN_DIMS(0), 0))
BUILD(amax_last, cairn_amax(in[0], CAIRN_DIMS(-1), 1))
BUILD(amax_0_2, cairn_amax(in[0], CAIRN_DIMS(0, 2), 0))
BUILD(amin_0, cairn_amin(in[0], CAIRN_DIMS(0), 1))
BUILD(amin_last, cairn_amin(in[0], CAIRN_DIMS(-1), 0))
BUILD(amin_1, cairn_amin(in[0], CAIRN_DIMS(1), 0))
BUILD(argmax_0, cairn_argmax(in[0], 0, 0))
BUILD(argmax_1, cairn_argmax(in[0], 1, 0))
BUILD(argmax_last, cairn_argmax(in[0], -1, 1))
BUILD(argmin_0, cairn_argmin(in[0], 0, 1))
BUILD(argmin_last, cairn_argmin(in[0], -1, 0))

/* No gradient, or one that differences do not show: among equals. */
#define CASE_OF_STEPS(title, id, call, expression, ...)                                                         \
    {                                                                                                           \
        .name = (title), .op = CAIRN__OP_##id, .build = (call), .torch = (expression), .inputs = {__VA_ARGS__}, \
        .no_differences = true                                                                                  \
    }

#define INF "float('inf')"
#define L   "torch.linalg.vector_norm"

static const struct op_case cases[] = {
    CASE("sum", SUM, sum, "a.sum()", IN("3 5")),
    CASE("sum of one", SUM, sum, "a.sum()", IN("")),
    CASE("sum of nothing", SUM, sum, "a.sum()", IN("3 0")),
    CASE("sum of many", SUM, sum, "a.sum()", IN("29 41")),
    CASE("sum of a transposed", SUM, sum_of_transposed, "a.t().sum()", IN("29 41")),
    CASE_OF_STEPS("sum of integers", SUM, sum, "a.sum()", {.shape = "3 5", .values = CLASSES, .limit = 1000}),
    CASE_OF_STEPS("sum of a mask counts", SUM, sum, "a.sum()", IN_AS("3 50", MASK)),
    CASE("mean", MEAN, mean, "a.mean()", IN("3 5")),
    CASE("mean of one", MEAN, mean, "a.mean()", IN("")),
    CASE("mean of many", MEAN, mean, "a.mean()", IN("7 11 13")),
    CASE_OF_STEPS("mean of nothing is NaN", MEAN, mean, "a.mean()", IN("0")),

    CASE("sum_dims of rows", SUM_DIMS, sum_last, "a.sum(-1)", IN("3 5")),
    CASE("sum_dims of columns", SUM_DIMS, sum_0, "a.sum(0)", IN("3 5")),
    CASE("sum_dims of long rows", SUM_DIMS, sum_last_kept, "a.sum(-1, keepdim=True)", IN("2 2100")),
    CASE("sum_dims of long columns", SUM_DIMS, sum_0, "a.sum(0)", IN("2100 2")),
    CASE("sum_dims of wide columns", SUM_DIMS, sum_0, "a.sum(0)", IN("3 1100")),
    CASE("sum_dims in the middle", SUM_DIMS, sum_1, "a.sum(1)", IN("2 7 3")),
    CASE("sum_dims around the middle", SUM_DIMS, sum_0_2, "a.sum((0, 2), keepdim=True)", IN("4 3 5")),
    CASE("sum_dims behind", SUM_DIMS, sum_1_2, "a.sum((1, 2))", IN("2 3 5 4")),
    CASE("sum_dims of all", SUM_DIMS, sum_all, "a.sum()", IN("3 5")),
    CASE("sum_dims of all, kept", SUM_DIMS, sum_all_kept, "a.sum((0, 1), keepdim=True)", IN("3 5")),
    CASE("sum_dims of one", SUM_DIMS, sum_0, "a.sum(0)", IN("")),
    CASE("sum_dims of nothing", SUM_DIMS, sum_last, "a.sum(-1)", IN("3 0")),
    CASE("sum_dims to nothing", SUM_DIMS, sum_0, "a.sum(0)", IN("3 0")),
    CASE_OF_STEPS("sum_dims of integers", SUM_DIMS, sum_0, "a.sum(0)",
                  {.shape = "3 5", .values = CLASSES, .limit = 1000}),
    CASE("mean_dims of rows", MEAN_DIMS, mean_last, "a.mean(-1, keepdim=True)", IN("3 7")),
    CASE("mean_dims of columns", MEAN_DIMS, mean_0, "a.mean(0)", IN("3 5")),
    CASE("mean_dims of planes", MEAN_DIMS, mean_2_3, "a.mean((2, 3))", IN("2 3 4 5")),
    CASE("mean_dims of all", MEAN_DIMS, mean_all, "a.mean()", IN("3 5")),
    CASE("mean_dims of one", MEAN_DIMS, mean_last, "a.mean(-1, keepdim=True)", IN("")),
    CASE("mean_dims to nothing", MEAN_DIMS, mean_0, "a.mean(0)", IN("3 0")),

    CASE("var of columns", VAR, var_0, "a.var(0)", IN("7 3")),
    CASE("var of rows", VAR, var_last, "a.var(-1, keepdim=True)", IN("3 7")),
    CASE("var of long rows", VAR, var_last, "a.var(-1, keepdim=True)", IN("2 1500")),
    CASE("var of long columns", VAR, var_0, "a.var(0)", IN("300 5")),
    CASE("var biased, of channels", VAR, var_biased, "a.var((0, 2), correction=0)", IN("4 3 5")),
    CASE("var of all", VAR, var_all, "a.var()", IN("3 5")),
    CASE_OF_STEPS("var of one is NaN", VAR, var_0, "a.var(0)", IN("1 3")),
    CASE("std of columns", STD, std_0, "a.std(0)", IN("7 3")),
    CASE("std biased, of rows", STD, std_last, "a.std(-1, correction=0, keepdim=True)", IN("3 7")),
    CASE("std of all", STD, std_all, "a.std()", IN("3 5")),
    CASE_OF_STEPS("std of equals has slope 0", STD, std_of_equals, "a.expand(3, 4).std(1)", IN("3 1")),

    CASE("norm 1 of columns", NORM, norm1_0, L "(a, 1, 0)", IN_AS("7 3", AWAY)),
    CASE("norm 1 of all", NORM, norm1_all, L "(a, 1)", IN_AS("3 5", AWAY)),
    CASE("norm 2 of rows", NORM, norm2_last, L "(a, 2, -1, keepdim=True)", IN("3 5")),
    CASE("norm 2 of long rows", NORM, norm2_last, L "(a, 2, -1, keepdim=True)", IN("2 1500")),
    CASE("norm 2 of all", NORM, norm2_all, L "(a, 2)", IN("3 5")),
    CASE("norm 2 of one", NORM, norm2_all, L "(a, 2)", IN_AS("", AWAY)),
    CASE_OF_STEPS("norm 2 of nothing", NORM, norm2_all, L "(a, 2)", IN("0")),
    CASE_OF_STEPS("norm 2 of zeros has slope 0", NORM, norm2_of_zeros, L "(a * 0, 2, 1)", IN("3 5")),
    CASE("norm inf of columns", NORM, norm_inf_0, L "(a, " INF ", 0)", IN_AS("7 3", DISTINCT)),
    CASE("norm inf of rows", NORM, norm_inf_last, L "(a, " INF ", -1, keepdim=True)", IN_AS("3 7", DISTINCT)),
    CASE("norm inf of all", NORM, norm_inf_all, L "(a, " INF ")", IN_AS("3 5", DISTINCT)),
    CASE_OF_STEPS("norm inf among equals", NORM, norm_inf_last, L "(a, " INF ", -1, keepdim=True)",
                  IN_AS("3 4", SIGNS)),

    CASE("prod of columns", PROD, prod_0, "a.prod(0)", IN_AS("5 3", AWAY)),
    CASE("prod of rows", PROD, prod_last, "a.prod(-1, keepdim=True)", IN_AS("3 5", POSITIVE)),
    CASE("prod in the middle", PROD, prod_1, "a.prod(1)", IN_AS("2 4 3", AWAY)),
    CASE("prod with zeros", PROD, prod_with_zeros, "(a * b).prod(1)", IN_AS("6 4", POSITIVE), IN_AS("6 4", MASK)),
    CASE("prod of one", PROD, prod_0, "a.prod(0)", IN("")),
    CASE("prod of two", PROD, prod_0, "a.prod(0)", IN("2")),
    CASE("prod of one in a row", PROD, prod_1, "a.prod(1)", IN("3 1")),
    CASE("prod of nothing", PROD, prod_1, "a.prod(1)", IN("3 0")),
    CASE_OF_STEPS("prod of integers", PROD, prod_0, "a.prod(0)", {.shape = "3 5", .values = CLASSES, .limit = 50}),

    CASE("cumsum of columns", CUMSUM, cumsum_0, "a.cumsum(0)", IN("5 3")),
    CASE("cumsum of rows", CUMSUM, cumsum_last, "a.cumsum(-1)", IN("3 5")),
    CASE("cumsum in the middle", CUMSUM, cumsum_1, "a.cumsum(1)", IN("2 5 3")),
    CASE("cumsum of a long row", CUMSUM, cumsum_last, "a.cumsum(-1)", IN_AS("1100", UNIT)),
    CASE("cumsum of one", CUMSUM, cumsum_0, "a.cumsum(0)", IN("")),
    CASE("cumsum of nothing", CUMSUM, cumsum_0, "a.cumsum(0)", IN("0 3")),
    CASE_OF_STEPS("cumsum of integers", CUMSUM, cumsum_0, "a.cumsum(0)",
                  {.shape = "7", .values = CLASSES, .limit = 1000}),
    CASE("cumprod of columns", CUMPROD, cumprod_0, "a.cumprod(0)", IN_AS("5 3", AWAY)),
    CASE("cumprod of rows", CUMPROD, cumprod_last, "a.cumprod(-1)", IN_AS("3 5", POSITIVE)),
    CASE("cumprod in the middle", CUMPROD, cumprod_1, "a.cumprod(1)", IN_AS("2 4 3", AWAY)),
    CASE("cumprod with zeros", CUMPROD, cumprod_with_zeros, "(a * b).cumprod(1)", IN_AS("6 4", POSITIVE),
         IN_AS("6 4", MASK)),
    CASE("cumprod of one", CUMPROD, cumprod_0, "a.cumprod(0)", IN("")),
    CASE("cumprod of nothing", CUMPROD, cumprod_0, "a.cumprod(0)", IN("0 3")),

    CASE("max", AMAX, max, "a.max()", IN_AS("3 5", DISTINCT)),
    CASE("max of one", AMAX, max, "a.max()", IN("")),
    CASE("min", AMIN, min, "a.min()", IN_AS("3 5", DISTINCT)),
    CASE_OF_STEPS("max shares among equals", AMAX, max, "a.amax()", IN_AS("3 5", SIGNS)),
    CASE("amax of columns", AMAX, amax_0, "a.amax(0)", IN_AS("7 3", DISTINCT)),
    CASE("amax of rows", AMAX, amax_last, "a.amax(-1, keepdim=True)", IN_AS("3 7", DISTINCT)),
    CASE("amax around the middle", AMAX, amax_0_2, "a.amax((0, 2))", IN_AS("4 3 5", DISTINCT)),
    CASE_OF_STEPS("amax among equals", AMAX, amax_last, "a.amax(-1, keepdim=True)", IN_AS("3 4", SIGNS)),
    CASE("amax to nothing", AMAX, amax_0, "a.amax(0)", IN("3 0")),
    CASE("amin of columns", AMIN, amin_0, "a.amin(0, keepdim=True)", IN_AS("7 3", DISTINCT)),
    CASE("amin of rows", AMIN, amin_last, "a.amin(-1)", IN_AS("3 7", DISTINCT)),
    CASE("amin in the middle", AMIN, amin_1, "a.amin(1)", IN_AS("2 5 3", DISTINCT)),
    CASE_OF_STEPS("amin among equals", AMIN, amin_0, "a.amin(0, keepdim=True)", IN_AS("3 4", SIGNS)),
    CASE_OF_STEPS("amax of integers", AMAX, amax_0, "a.amax(0)", {.shape = "3 5", .values = CLASSES, .limit = 1000}),

    CASE_OF_STEPS("argmax of columns", ARGMAX, argmax_0, "a.argmax(0)", IN_AS("7 3", DISTINCT)),
    CASE_OF_STEPS("argmax of rows", ARGMAX, argmax_last, "a.argmax(-1, keepdim=True)", IN_AS("3 7", DISTINCT)),
    CASE_OF_STEPS("argmax in the middle", ARGMAX, argmax_1, "a.argmax(1)", IN_AS("2 5 3", DISTINCT)),
    CASE_OF_STEPS("argmax of a long row", ARGMAX, argmax_0, "a.argmax(0)", IN("2100")),
    CASE_OF_STEPS("argmax of one", ARGMAX, argmax_0, "a.argmax(0)", IN("")),
    CASE_OF_STEPS("argmax to nothing", ARGMAX, argmax_0, "a.argmax(0)", IN("3 0")),
    CASE_OF_STEPS("argmin of columns", ARGMIN, argmin_0, "a.argmin(0, keepdim=True)", IN_AS("7 3", DISTINCT)),
    CASE_OF_STEPS("argmin of rows", ARGMIN, argmin_last, "a.argmin(-1)", IN_AS("3 7", DISTINCT)),
    CASE_OF_STEPS("argmin of integers", ARGMIN, argmin_0, "a.argmin(0, keepdim=True)",
                  {.shape = "9 2", .values = CLASSES, .limit = 100000}),
};

const struct op_cases cases_reduce = OP_CASES(cases);
