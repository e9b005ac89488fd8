/* Cases of operations: softmax, norms, embedding, dropout. */
#include <math.h>

#include "device/env.h"
#include "nn/tensor.h"
#include "op_cases.h"

/* ---- softmax ---- */

static cairn_tensor *softmax(cairn_tensor *const *in) {
    return cairn_softmax(in[0], -1);
}
static cairn_tensor *softmax_first(cairn_tensor *const *in) {
    return cairn_softmax(in[0], 0);
}
static cairn_tensor *softmax_middle(cairn_tensor *const *in) {
    return cairn_softmax(in[0], 1);
}
static cairn_tensor *log_softmax(cairn_tensor *const *in) {
    return cairn_log_softmax(in[0], -1);
}
static cairn_tensor *log_softmax_middle(cairn_tensor *const *in) {
    return cairn_log_softmax(in[0], -2);
}

static cairn_tensor *softmin(cairn_tensor *const *in) {
    return cairn_softmin(in[0], 0);
}

/* ---- norms ---- */

static cairn_tensor *layer_norm(cairn_tensor *const *in) {
    return cairn_layer_norm_forward(in[0], in[1], in[2], 1, 1e-5);
}
static cairn_tensor *layer_norm_two(cairn_tensor *const *in) {
    return cairn_layer_norm_forward(in[0], in[1], in[2], 2, 0.1);
}
static cairn_tensor *rms_norm(cairn_tensor *const *in) {
    return cairn_rms_norm_forward(in[0], in[1], 1, 1e-5);
}
static cairn_tensor *rms_norm_two(cairn_tensor *const *in) {
    return cairn_rms_norm_forward(in[0], in[1], 2, 1e-5);
}
static cairn_tensor *group_norm(cairn_tensor *const *in) {
    return cairn_group_norm_forward(in[0], 2, in[1], in[2], 1e-5);
}
static cairn_tensor *group_norm_one(cairn_tensor *const *in) {
    return cairn_group_norm_forward(in[0], 1, in[1], in[2], 1e-5);
}
static cairn_tensor *batch_norm(cairn_tensor *const *in) {
    return cairn_batch_norm_forward(in[0], NULL, NULL, in[1], in[2], 1, 0.1, 1e-5);
}
/* Running statistics are f32, or f64 to check by. */
static cairn_tensor *running(cairn_tensor *t) {
    return cairn_tensor_dtype(t) == CAIRN_F64 ? t : cairn_cast(t, CAIRN_F32);
}
static cairn_tensor *batch_norm_eval(cairn_tensor *const *in) {
    return cairn_batch_norm_forward(in[0], running(in[3]), running(in[4]), in[1], in[2], 0, 0.1, 1e-5);
}

static cairn_tensor *normalize(cairn_tensor *const *in) {
    return cairn_normalize(in[0], 2, 1, 1e-12);
}
static cairn_tensor *normalize_by_greatest(cairn_tensor *const *in) {
    return cairn_normalize(in[0], INFINITY, -1, 1e-12);
}
static cairn_tensor *cosine_similarity(cairn_tensor *const *in) {
    return cairn_cosine_similarity(in[0], in[1], -1, 1e-8);
}

/* ---- embedding, dropout ---- */

static cairn_tensor *embedding(cairn_tensor *const *in) {
    return cairn_embedding_forward(in[0], in[1], -1);
}
static cairn_tensor *embedding_padded(cairn_tensor *const *in) {
    return cairn_embedding_forward(in[0], in[1], 2);
}
/* The same numbers every time. */
static cairn_tensor *dropout(cairn_tensor *const *in) {
    in[0]->env->next_stream = 77;
    return cairn_dropout_forward(in[0], 0.4, 1);
}
static cairn_tensor *dropout_all(cairn_tensor *const *in) {
    return cairn_dropout_forward(in[0], 1, 1);
}

#define FIXED(sizes, kind) \
    { .shape = (sizes), .values = (kind), .no_grad = true }
#define INDEX(sizes, classes) \
    { .shape = (sizes), .values = CLASSES, .limit = (classes) }
#define NONE \
    { .shape = NULL }

/* Compositions that divide by what they make of an input. */
#define TWICE(title, call, expression, ...)                                                                    \
    {                                                                                                          \
        .name = (title), .op = CAIRN__OP_DIV, .build = (call), .torch = (expression), .inputs = {__VA_ARGS__}, \
        .adds_up = true                                                                                        \
    }

#define TORCH_RMS(dims) "a / torch.sqrt((a * a).mean(" dims ", keepdim=True) + 1e-5)"
#define TORCH_BATCH     "F.batch_norm(a, None, None, b, c, True, 0.1, 1e-5)"
#define TORCH_EVAL      "F.batch_norm(a, d.to(a.dtype), e.to(a.dtype), b, c, False, 0.1, 1e-5)"

static const char dropout_why[] = "torch has other random numbers: against the definition, in rows_test.c";

static const struct op_case cases[] = {
    CASE("softmax of rows", SOFTMAX, softmax, "torch.softmax(a, -1)", IN("3 7")),
    CASE("softmax of one element", SOFTMAX, softmax, "torch.softmax(a, -1)", IN("1")),
    CASE("softmax of a number", SOFTMAX, softmax, "torch.softmax(a, -1)", IN("")),
    CASE("softmax of nothing", SOFTMAX, softmax, "torch.softmax(a, -1)", IN("0 4")),
    CASE("softmax of rows of nothing", SOFTMAX, softmax, "torch.softmax(a, -1)", IN("4 0")),
    CASE("softmax over the middle", SOFTMAX, softmax_middle, "torch.softmax(a, 1)", IN("2 5 3")),
    CASE("softmax over the first", SOFTMAX, softmax_first, "torch.softmax(a, 0)", IN("4 3")),
    CASE("softmax of many short rows", SOFTMAX, softmax, "torch.softmax(a, -1)", IN("70 33")),
    CASE("softmax of a long row", SOFTMAX, softmax, "torch.softmax(a, -1)", IN("2 2100")),
    CASE("log_softmax of rows", LOG_SOFTMAX, log_softmax, "torch.log_softmax(a, -1)", IN("3 7")),
    CASE("log_softmax of one element", LOG_SOFTMAX, log_softmax, "torch.log_softmax(a, -1)", IN("1 1")),
    CASE("log_softmax of nothing", LOG_SOFTMAX, log_softmax, "torch.log_softmax(a, -1)", IN("0")),
    CASE("log_softmax over the middle", LOG_SOFTMAX, log_softmax_middle, "torch.log_softmax(a, -2)", IN("2 5 3")),
    {.name = "log_softmax of a long row",
     .op = CAIRN__OP_LOG_SOFTMAX,
     .build = log_softmax,
     .torch = "torch.log_softmax(a, -1)",
     .inputs = {IN("2 1030")},
     .tolerance = 8}, /* the gradient is made of the rounded result, as torch's */

    CASE("softmin over the first", SOFTMAX, softmin, "F.softmin(a, 0)", IN("4 3")),

    CASE("layer_norm", LAYER_NORM, layer_norm, "F.layer_norm(a, (7,), b, c, 1e-5)", IN("5 7"), IN("7"), IN("7")),
    CASE("layer_norm without weights", LAYER_NORM, layer_norm, "F.layer_norm(a, (9,), None, None, 1e-5)", IN("2 3 9")),
    CASE("layer_norm with a weight alone", LAYER_NORM, layer_norm, "F.layer_norm(a, (5,), b, None, 1e-5)", IN("3 5"),
         IN("5")),
    CASE("layer_norm with a bias alone", LAYER_NORM, layer_norm, "F.layer_norm(a, (5,), None, c, 1e-5)", IN("3 5"),
         NONE, IN("5")),
    CASE("layer_norm over two dimensions", LAYER_NORM, layer_norm_two, "F.layer_norm(a, (3, 5), b, c, 0.1)",
         IN("2 3 5"), IN("3 5"), IN("3 5")),
    {.name = "layer_norm of rows of one",
     .op = CAIRN__OP_LAYER_NORM,
     .build = layer_norm,
     .torch = "F.layer_norm(a, (1,), b, c, 1e-5)",
     .inputs = {IN("3 1"), IN("1"), IN("1")},
     .tolerance = 8}, /* PyTorch takes x * rstd - mean * rstd, with an rstd of 316 */
    CASE("layer_norm of nothing", LAYER_NORM, layer_norm, "F.layer_norm(a, (4,), b, c, 1e-5)", IN("0 4"), IN("4"),
         IN("4")),
    CASE("layer_norm of many rows", LAYER_NORM, layer_norm, "F.layer_norm(a, (33,), b, c, 1e-5)", IN("70 33"), IN("33"),
         IN("33")),
    CASE("layer_norm of long rows", LAYER_NORM, layer_norm, "F.layer_norm(a, (1100,), b, c, 1e-5)", IN("2 1100"),
         IN("1100"), IN("1100")),
    CASE("rms_norm", RMS_NORM, rms_norm, TORCH_RMS("-1") " * b", IN("5 7"), IN("7")),
    CASE("rms_norm without a weight", RMS_NORM, rms_norm, TORCH_RMS("-1"), IN("2 3 9")),
    CASE("rms_norm over two dimensions", RMS_NORM, rms_norm_two, TORCH_RMS("(-2, -1)") " * b", IN("2 3 5"), IN("3 5")),
    CASE("rms_norm of nothing", RMS_NORM, rms_norm, TORCH_RMS("-1") " * b", IN("0 4"), IN("4")),
    CASE("group_norm", GROUP_NORM, group_norm, "F.group_norm(a, 2, b, c, 1e-5)", IN("3 6 2 5"), IN("6"), IN("6")),
    CASE("group_norm without weights", GROUP_NORM, group_norm, "F.group_norm(a, 2, None, None, 1e-5)", IN("2 4 17")),
    CASE("group_norm of a matrix", GROUP_NORM, group_norm, "F.group_norm(a, 2, b, c, 1e-5)", IN("3 8"), IN("8"),
         IN("8")),
    CASE("group_norm of one group", GROUP_NORM, group_norm_one, "F.group_norm(a, 1, b, c, 1e-5)", IN("2 3 4 5"),
         IN("3"), IN("3")),
    CASE("group_norm of nothing", GROUP_NORM, group_norm, "F.group_norm(a, 2, b, c, 1e-5)", IN("0 4 3"), IN("4"),
         IN("4")),
    CASE("batch_norm of images", BATCH_NORM, batch_norm, TORCH_BATCH, IN("3 4 5 3"), IN("4"), IN("4")),
    CASE("batch_norm of sequences", BATCH_NORM, batch_norm, TORCH_BATCH, IN("2 3 37"), IN("3"), IN("3")),
    CASE("batch_norm of a matrix", BATCH_NORM, batch_norm, TORCH_BATCH, IN("6 5"), IN("5"), IN("5")),
    CASE("batch_norm of a wide matrix", BATCH_NORM, batch_norm, TORCH_BATCH, IN("5 300"), IN("300"), IN("300")),
    CASE("batch_norm without weights", BATCH_NORM, batch_norm, TORCH_BATCH, IN("4 3 2 2")),
    CASE("batch_norm of nothing", BATCH_NORM, batch_norm, TORCH_BATCH, IN("0 3 4"), IN("3"), IN("3")),
    CASE("batch_norm in evaluation", BATCH_NORM, batch_norm_eval, TORCH_EVAL, IN("3 4 5"), IN("4"), IN("4"),
         FIXED("4", NORMAL), FIXED("4", POSITIVE)),
    CASE("batch_norm of a matrix in evaluation", BATCH_NORM, batch_norm_eval, TORCH_EVAL, IN("5 4"), IN("4"), IN("4"),
         FIXED("4", NORMAL), FIXED("4", POSITIVE)),

    TWICE("normalize", normalize, "F.normalize(a, 2.0, 1)", IN("3 4 2")),
    TWICE("normalize by the greatest", normalize_by_greatest, "F.normalize(a, math.inf, -1)", IN_AS("3 4", DISTINCT)),
    TWICE("cosine_similarity", cosine_similarity, "F.cosine_similarity(a, b, -1)", IN("3 5"), IN("3 5")),
    TWICE("cosine_similarity broadcasts", cosine_similarity, "F.cosine_similarity(a, b, -1)", IN("3 1 5"), IN("2 5")),

    CASE("embedding", EMBEDDING, embedding, "F.embedding(a, b)", INDEX("3 5", 6), IN("6 4")),
    CASE("embedding of one index", EMBEDDING, embedding, "F.embedding(a, b)", INDEX("", 6), IN("6 5")),
    CASE("embedding of nothing", EMBEDDING, embedding, "F.embedding(a, b)", INDEX("0", 6), IN("6 5")),
    CASE("embedding of wide rows", EMBEDDING, embedding, "F.embedding(a, b)", INDEX("9", 3), IN("3 1050")),
    {.name = "embedding with a padding row",
     .op = CAIRN__OP_EMBEDDING,
     .build = embedding_padded,
     .torch = "F.embedding(a, b, padding_idx=2)",
     .inputs = {INDEX("20", 4), IN("4 3")},
     .no_differences = true}, /* the padding row has none by decree */
    {.name = "dropout", .op = CAIRN__OP_DROPOUT, .build = dropout, .inputs = {IN("3 70")}, .why = dropout_why},
    {.name = "dropout of nothing",
     .op = CAIRN__OP_DROPOUT,
     .build = dropout,
     .inputs = {IN("0 3")},
     .why = dropout_why},
    CASE("dropout of everything", DROPOUT, dropout_all, "a * 0", IN("5")),
};

const struct op_cases cases_rows = OP_CASES(cases);
