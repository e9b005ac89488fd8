/* Cases of operations: matmul and related products, linear, attention. */
#include <math.h>

#include "op_cases.h"

static cairn_tensor *matmul(cairn_tensor *const *in) {
    return cairn_matmul(in[0], in[1]);
}
static cairn_tensor *matmul_transposed(cairn_tensor *const *in) {
    return cairn_matmul(cairn_transpose(in[0], -1, -2), cairn_transpose(in[1], -1, -2));
}
static cairn_tensor *matmul_of_heads(cairn_tensor *const *in) {
    return cairn_matmul(cairn_transpose(in[0], 1, 2), cairn_permute(in[1], CAIRN_DIMS(0, 2, 3, 1)));
}
static cairn_tensor *matmul_of_slices(cairn_tensor *const *in) {
    return cairn_matmul(cairn_slice(in[0], 1, 0, INT64_MAX, 2), cairn_slice(in[1], 0, 1, INT64_MAX, 1));
}
static cairn_tensor *matmul_by_itself(cairn_tensor *const *in) {
    return cairn_matmul(in[0], cairn_transpose(in[0], 0, 1));
}
static cairn_tensor *matmul_expanded(cairn_tensor *const *in) {
    return cairn_matmul(cairn_expand(in[0], CAIRN_SHAPE(3, 4)), in[1]);
}
static cairn_tensor *bmm(cairn_tensor *const *in) {
    return cairn_bmm(in[0], in[1]);
}
static cairn_tensor *addmm(cairn_tensor *const *in) {
    return cairn_addmm(in[0], in[1], in[2], 1, 1);
}
static cairn_tensor *addmm_scaled(cairn_tensor *const *in) {
    return cairn_addmm(in[0], in[1], in[2], 0.5, 3);
}
static cairn_tensor *addmm_alone(cairn_tensor *const *in) {
    return cairn_addmm(in[0], in[1], in[2], 0, 2);
}
static cairn_tensor *baddbmm(cairn_tensor *const *in) {
    return cairn_baddbmm(in[0], in[1], in[2], 1, 1);
}
static cairn_tensor *baddbmm_scaled(cairn_tensor *const *in) {
    return cairn_baddbmm(in[0], in[1], in[2], -2, 0.5);
}
static cairn_tensor *linear(cairn_tensor *const *in) {
    return cairn_linear_forward(in[0], in[1], in[2]);
}
static cairn_tensor *linear_transposed(cairn_tensor *const *in) {
    return cairn_linear_forward(cairn_transpose(in[0], 0, 1), in[1], in[2]);
}

static cairn_tensor *attention(cairn_tensor *const *in) {
    return cairn_scaled_dot_product_attention(in[0], in[1], in[2], NULL);
}
static cairn_tensor *attention_causal(cairn_tensor *const *in) {
    return cairn_scaled_dot_product_attention(in[0], in[1], in[2], cairn_attention_options(.causal = CAIRN_ON));
}
static cairn_tensor *attention_scaled(cairn_tensor *const *in) {
    return cairn_scaled_dot_product_attention(in[0], in[1], in[2], cairn_attention_options(.scale = 0.5));
}
static cairn_tensor *attention_masked(cairn_tensor *const *in) {
    return cairn_scaled_dot_product_attention(in[0], in[1], in[2], cairn_attention_options(.mask = in[3]));
}
/* No row is hidden whole: torch has NaN there. */
static cairn_tensor *attention_hidden(cairn_tensor *const *in) {
    cairn_tensor *mask = cairn_cast(cairn_slice(in[3], -1, 0, INT64_MAX, 1), CAIRN_BOOL);
    return cairn_scaled_dot_product_attention(in[0], in[1], in[2], cairn_attention_options(.mask = mask));
}
static cairn_tensor *attention_of_heads(cairn_tensor *const *in) {
    cairn_tensor *part[3];
    for (int i = 0; i < 3; i++) part[i] = cairn_transpose(in[i], 1, 2);
    return cairn_scaled_dot_product_attention(part[0], part[1], part[2], NULL);
}

#define SOFTMAX(scores) "torch.matmul(torch.softmax(" scores ", -1), c)"
#define SCORES(scale)   "(torch.matmul(a, b.transpose(-1, -2)) * " scale ")"
#define FUTURE(t, s)    ".masked_fill(torch.ones(" t ", " s ").tril() == 0, -math.inf)"

static const struct op_case cases[] = {
    CASE("matmul", MATMUL, matmul, "torch.matmul(a, b)", IN("3 4"), IN("4 5")),
    CASE("matmul of one element", MATMUL, matmul, "torch.matmul(a, b)", IN("1 1"), IN("1 1")),
    CASE("matmul of vectors", MATMUL, matmul, "torch.matmul(a, b)", IN("7"), IN("7")),
    CASE("matmul of a vector and a matrix", MATMUL, matmul, "torch.matmul(a, b)", IN("4"), IN("4 5")),
    CASE("matmul of a matrix and a vector", MATMUL, matmul, "torch.matmul(a, b)", IN("5 4"), IN("4")),
    CASE("matmul of a batch and a matrix", MATMUL, matmul, "torch.matmul(a, b)", IN("2 3 4"), IN("4 5")),
    CASE("matmul of a batch and a vector", MATMUL, matmul, "torch.matmul(a, b)", IN("2 3 4"), IN("4")),
    CASE("matmul of a vector and a batch", MATMUL, matmul, "torch.matmul(a, b)", IN("3"), IN("2 3 4")),
    CASE("matmul of a matrix and a batch", MATMUL, matmul, "torch.matmul(a, b)", IN("5 3"), IN("2 3 4")),
    CASE("matmul of batches", MATMUL, matmul, "torch.matmul(a, b)", IN("2 3 4"), IN("2 4 5")),
    CASE("matmul broadcasts batches", MATMUL, matmul, "torch.matmul(a, b)", IN("2 1 3 4"), IN("5 4 2")),
    CASE("matmul broadcasts either way", MATMUL, matmul, "torch.matmul(a, b)", IN("2 1 3 4"), IN("1 3 4 2")),
    CASE("matmul with nothing inside is zero", MATMUL, matmul, "torch.matmul(a, b)", IN("3 0"), IN("0 2")),
    CASE("matmul without rows", MATMUL, matmul, "torch.matmul(a, b)", IN("0 3"), IN("3 2")),
    CASE("matmul without a batch", MATMUL, matmul, "torch.matmul(a, b)", IN("0 2 3"), IN("3 2")),
    CASE("matmul of transposed", MATMUL, matmul_transposed, "torch.matmul(a.transpose(-1, -2), b.transpose(-1, -2))",
         IN("2 4 3"), IN("5 4")),
    CASE("matmul of heads", MATMUL, matmul_of_heads, "torch.matmul(a.transpose(1, 2), b.permute(0, 2, 3, 1))",
         IN("2 3 4 5"), IN("2 6 4 5")),
    CASE("matmul of slices", MATMUL, matmul_of_slices, "torch.matmul(a[:, ::2], b[1:])", IN("3 8"), IN("5 3")),
    CASE("matmul of a matrix with itself", MATMUL, matmul_by_itself, "torch.matmul(a, a.t())", IN("3 5")),
    CASE("matmul of a repeated row", MATMUL, matmul_expanded, "torch.matmul(a.expand(3, 4), b)", IN("1 4"), IN("4 2")),
    CASE("matmul of odd sizes", MATMUL, matmul, "torch.matmul(a, b)", IN("17 33"), IN("33 9")),

    CASE("bmm", BMM, bmm, "torch.bmm(a, b)", IN("3 4 5"), IN("3 5 2")),
    CASE("bmm without a batch", BMM, bmm, "torch.bmm(a, b)", IN("0 4 5"), IN("0 5 2")),

    CASE("addmm", ADDMM, addmm, "torch.addmm(a, b, c)", IN("3 5"), IN("3 4"), IN("4 5")),
    CASE("addmm adds a row", ADDMM, addmm, "torch.addmm(a, b, c)", IN("5"), IN("3 4"), IN("4 5")),
    CASE("addmm adds a column", ADDMM, addmm_scaled, "torch.addmm(a, b, c, beta=0.5, alpha=3)", IN("3 1"), IN("3 4"),
         IN("4 5")),
    CASE("addmm scaled", ADDMM, addmm_scaled, "torch.addmm(a, b, c, beta=0.5, alpha=3)", IN("3 5"), IN("3 4"),
         IN("4 5")),
    CASE("addmm with beta 0", ADDMM, addmm_alone, "torch.addmm(a, b, c, beta=0, alpha=2)", IN("3 5"), IN("3 4"),
         IN("4 5")),
    CASE("addmm of a vector", ADDMM, addmm_scaled, "torch.addmv(a, b, c, beta=0.5, alpha=3)", IN("3"), IN("3 4"),
         IN("4")),
    CASE("addmm of two vectors", ADDMM, addmm_scaled, "torch.addr(a, b, c, beta=0.5, alpha=3)", IN("3 4"), IN("3"),
         IN("4")),
    CASE("addmm with nothing inside", ADDMM, addmm, "torch.addmm(a, b, c)", IN("3 5"), IN("3 0"), IN("0 5")),
    CASE("baddbmm", BADDBMM, baddbmm, "torch.baddbmm(a, b, c)", IN("2 3 5"), IN("2 3 4"), IN("2 4 5")),
    CASE("baddbmm adds a row to all", BADDBMM, baddbmm_scaled, "torch.baddbmm(a, b, c, beta=-2, alpha=0.5)", IN("5"),
         IN("2 3 4"), IN("2 4 5")),

    CASE("linear", LINEAR, linear, "F.linear(a, b, c)", IN("3 4"), IN("5 4"), IN("5")),
    CASE("linear without bias", LINEAR, linear, "F.linear(a, b)", IN("3 4"), IN("5 4")),
    CASE("linear of a vector", LINEAR, linear, "F.linear(a, b, c)", IN("4"), IN("5 4"), IN("5")),
    CASE("linear of a batch", LINEAR, linear, "F.linear(a, b, c)", IN("2 3 4"), IN("5 4"), IN("5")),
    CASE("linear of a batch without bias", LINEAR, linear, "F.linear(a, b)", IN("2 2 3 4"), IN("5 4")),
    CASE("linear of few columns", LINEAR, linear, "F.linear(a, b, c)", IN("40 9"), IN("3 9"), IN("3")),
    CASE("linear to one column", LINEAR, linear, "F.linear(a, b, c)", IN("6 9"), IN("1 9"), IN("1")),
    CASE("linear of nothing inside is the bias", LINEAR, linear, "F.linear(a, b, c)", IN("3 0"), IN("5 0"), IN("5")),
    CASE("linear without rows", LINEAR, linear, "F.linear(a, b, c)", IN("0 4"), IN("5 4"), IN("5")),
    CASE("linear of a transposed", LINEAR, linear_transposed, "F.linear(a.t(), b, c)", IN("4 3"), IN("5 4"), IN("5")),

    CASE("attention", SDPA, attention, SOFTMAX(SCORES("0.5")), IN("2 3 5 4"), IN("2 3 6 4"), IN("2 3 6 3")),
    CASE("attention of one position", SDPA, attention, SOFTMAX(SCORES("0.5")), IN("1 2 1 4"), IN("1 2 1 4"),
         IN("1 2 1 4")),
    CASE("attention of one query", SDPA, attention, SOFTMAX(SCORES("0.5")), IN("1 1 1 4"), IN("1 1 7 4"),
         IN("1 1 7 2")),
    CASE("attention with a scale", SDPA, attention_scaled, SOFTMAX(SCORES("0.5")), IN("1 2 5 3"), IN("1 2 4 3"),
         IN("1 2 4 3")),
    CASE("attention of the past", SDPA, attention_causal, SOFTMAX(SCORES("0.5") FUTURE("5", "5")), IN("1 2 5 4"),
         IN("1 2 5 4"), IN("1 2 5 4")),
    CASE("attention of the past, more queries", SDPA, attention_causal, SOFTMAX(SCORES("0.5") FUTURE("7", "4")),
         IN("1 1 7 4"), IN("1 1 4 4"), IN("1 1 4 4")),
    CASE("attention of the past, more keys", SDPA, attention_causal, SOFTMAX(SCORES("0.5") FUTURE("4", "7")),
         IN("1 1 4 4"), IN("1 1 7 4"), IN("1 1 7 4")),
    CASE("attention with a mask added", SDPA, attention_masked, SOFTMAX(SCORES("0.5") " + d"), IN("2 2 3 4"),
         IN("2 2 5 4"), IN("2 2 5 3"), {.shape = "3 5", .no_grad = true}),
    CASE("attention with a mask of columns", SDPA, attention_masked, SOFTMAX(SCORES("0.5") " + d"), IN("2 2 3 4"),
         IN("2 2 5 4"), IN("2 2 5 3"), {.shape = "2 1 1 5", .no_grad = true}),
    CASE("attention with a mask of rows", SDPA, attention_masked, SOFTMAX(SCORES("0.5") " + d"), IN("2 2 3 4"),
         IN("2 2 5 4"), IN("2 2 5 3"), {.shape = "3 1", .no_grad = true}),
    CASE("attention with hidden columns", SDPA, attention_hidden,
         SOFTMAX(SCORES("0.5") ".masked_fill(d == 0, -math.inf)"), IN("2 2 3 4"), IN("2 2 9 4"), IN("2 2 9 3"),
         {.shape = "3 9", .values = MASK}),
    CASE("attention over several blocks", SDPA, attention, SOFTMAX(SCORES("0.5")), IN("1 1 131 4"), IN("1 1 140 4"),
         IN("1 1 140 2")),
    CASE("attention of the past over several blocks", SDPA, attention_causal,
         SOFTMAX(SCORES("0.5") FUTURE("150", "150")), IN("1 1 150 4"), IN("1 1 150 4"), IN("1 1 150 2")),
    CASE("attention of heads", SDPA, attention_of_heads,
         "torch.matmul(torch.softmax(torch.matmul(a.transpose(1, 2), b.permute(0, 2, 3, 1)) * 0.5, -1), "
         "c.transpose(1, 2))",
         IN("2 5 3 4"), IN("2 6 3 4"), IN("2 6 3 4")),
    CASE("attention without rows", SDPA, attention, SOFTMAX(SCORES("0.5")), IN("1 2 0 4"), IN("1 2 3 4"),
         IN("1 2 3 4")),
};

const struct op_cases cases_product = OP_CASES(cases);
