/* Cases of operations: views, joining and splitting. */
#include "op_cases.h"

static cairn_tensor *reshape(cairn_tensor *const *in) {
    return cairn_reshape(in[0], CAIRN_SHAPE(4, -1));
}
static cairn_tensor *reshape_scalar(cairn_tensor *const *in) {
    return cairn_reshape(in[0], 0, NULL);
}
static cairn_tensor *reshape_transposed(cairn_tensor *const *in) {
    return cairn_reshape(cairn_transpose(in[0], 0, 1), CAIRN_SHAPE(8, 3));
}
static cairn_tensor *flatten(cairn_tensor *const *in) {
    return cairn_flatten(in[0], 1, -1);
}
static cairn_tensor *squeeze(cairn_tensor *const *in) {
    return cairn_squeeze(in[0], 1);
}
static cairn_tensor *unsqueeze(cairn_tensor *const *in) {
    return cairn_unsqueeze(in[0], -1);
}
static cairn_tensor *transpose(cairn_tensor *const *in) {
    return cairn_transpose(in[0], 0, -1);
}
static cairn_tensor *permute(cairn_tensor *const *in) {
    return cairn_permute(in[0], CAIRN_DIMS(2, 0, 3, 1));
}
static cairn_tensor *permute_twice(cairn_tensor *const *in) {
    return cairn_permute(cairn_permute(in[0], CAIRN_DIMS(2, 0, 1)), CAIRN_DIMS(1, 2, 0));
}
static cairn_tensor *slice(cairn_tensor *const *in) {
    return cairn_slice(in[0], 1, 1, -1, 2);
}
static cairn_tensor *slice_nothing(cairn_tensor *const *in) {
    return cairn_slice(in[0], 0, 2, 2, 1);
}
static cairn_tensor *slices_overlap(cairn_tensor *const *in) {
    cairn_tensor *parts[] = {cairn_slice(in[0], 0, 0, 4, 1), cairn_slice(in[0], 0, 2, 6, 1)};
    return cairn_cat(2, parts, 0);
}
static cairn_tensor *select_one(cairn_tensor *const *in) {
    return cairn_select(in[0], 1, -2);
}
static cairn_tensor *expand(cairn_tensor *const *in) {
    return cairn_expand(in[0], CAIRN_SHAPE(2, 3, -1, 4));
}
static cairn_tensor *expand_scalar(cairn_tensor *const *in) {
    return cairn_expand(in[0], CAIRN_SHAPE(3, 2));
}
static cairn_tensor *expand_to_nothing(cairn_tensor *const *in) {
    return cairn_expand(in[0], CAIRN_SHAPE(0, 3));
}
static cairn_tensor *contiguous(cairn_tensor *const *in) {
    return cairn_contiguous(cairn_transpose(in[0], 0, 1));
}
static cairn_tensor *cat_rows(cairn_tensor *const *in) {
    return cairn_cat(3, in, 0);
}
static cairn_tensor *cat_columns(cairn_tensor *const *in) {
    return cairn_cat(3, in, -1);
}
static cairn_tensor *cat_itself(cairn_tensor *const *in) {
    return cairn_cat(2, (cairn_tensor *[]){in[0], in[0]}, 1);
}
static cairn_tensor *stack(cairn_tensor *const *in) {
    return cairn_stack(2, in, 1);
}
static cairn_tensor *stack_scalars(cairn_tensor *const *in) {
    return cairn_stack(3, in, 0);
}
static cairn_tensor *split(cairn_tensor *const *in) {
    cairn_tensor *parts[3];
    if (cairn_split(in[0], 3, 1, parts, 3) != CAIRN_OK) return NULL;
    return cairn_cat(3, (cairn_tensor *[]){parts[2], parts[0], parts[1]}, 1);
}

/* Of a result: further parts are added to its gradient where they stand. */
static cairn_tensor *split_result(cairn_tensor *const *in) {
    cairn_tensor *parts[3];
    if (cairn_split(cairn_neg(in[0]), 3, 1, parts, 3) != CAIRN_OK) return NULL;
    return cairn_cat(3, (cairn_tensor *[]){parts[2], parts[0], parts[1]}, 1);
}
static cairn_tensor *parts_of_result(cairn_tensor *const *in) {
    cairn_tensor *x = cairn_neg(in[0]);
    cairn_tensor *parts[] = {cairn_slice(x, 0, 0, 4, 1), x, cairn_slice(x, 0, 1, 6, 2),
                             cairn_reshape(x, CAIRN_SHAPE(6, 3))};
    return cairn_cat(4, parts, 0);
}

static const struct op_case cases[] = {
    CASE("reshape", RESHAPE, reshape, "a.reshape(4, -1)", IN("2 6")),
    CASE("reshape to no dimension", RESHAPE, reshape_scalar, "a.reshape(())", IN("1 1")),
    CASE("reshape copies a transposed", RESHAPE, reshape_transposed, "a.t().reshape(8, 3)", IN("4 6")),
    CASE("flatten", RESHAPE, flatten, "a.flatten(1)", IN("2 3 1 5")),
    CASE("squeeze", RESHAPE, squeeze, "a.squeeze(1)", IN("3 1 2")),
    CASE("unsqueeze", RESHAPE, unsqueeze, "a.unsqueeze(-1)", IN("3 2")),
    CASE("transpose", PERMUTE, transpose, "a.transpose(0, -1)", IN("3 2 5")),
    CASE("permute", PERMUTE, permute, "a.permute(2, 0, 3, 1)", IN("2 3 4 5")),
    CASE("permute back", PERMUTE, permute_twice, "a.permute(2, 0, 1).permute(1, 2, 0)", IN("2 3 4")),
    CASE("permute of an empty", PERMUTE, transpose, "a.transpose(0, -1)", IN("0 2 5")),
    CASE("slice", SLICE, slice, "a[:, 1:-1:2]", IN("3 8 2")),
    CASE("slice of nothing", SLICE, slice_nothing, "a[2:2]", IN("5 2")),
    CASE("slices overlap", SLICE, slices_overlap, "torch.cat((a[0:4], a[2:6]))", IN("6 3")),
    CASE("select", SLICE, select_one, "a.select(1, -2)", IN("2 5 3")),
    CASE("expand", EXPAND, expand, "a.expand(2, 3, -1, 4)", IN("3 5 1")),
    CASE("expand a scalar", EXPAND, expand_scalar, "a.expand(3, 2)", IN("")),
    CASE("expand to nothing", EXPAND, expand_to_nothing, "a.expand(0, 3)", IN("1 3")),
    CASE("contiguous", CONTIGUOUS, contiguous, "a.t().contiguous()", IN("7 3")),
    CASE("cat of rows", CAT, cat_rows, "torch.cat((a, b, c))", IN("2 3"), IN("1 3"), IN("4 3")),
    CASE("cat of columns", CAT, cat_columns, "torch.cat((a, b, c), -1)", IN("2 3"), IN("2 0"), IN("2 1")),
    CASE("cat of one with itself", CAT, cat_itself, "torch.cat((a, a), 1)", IN("2 3")),
    CASE("stack", STACK, stack, "torch.stack((a, b), 1)", IN("3 4"), IN("3 4")),
    CASE("stack of scalars", STACK, stack_scalars, "torch.stack((a, b, c))", IN(""), IN(""), IN("")),
    CASE("split", CAT, split, "torch.cat([a.split(3, 1)[i] for i in (2, 0, 1)], 1)", IN("2 7")),
    CASE("split of a result", CAT, split_result, "torch.cat([(-a).split(3, 1)[i] for i in (2, 0, 1)], 1)", IN("2 7")),
    CASE("slices and all of a result", SLICE, parts_of_result, "torch.cat((-a[0:4], -a, -a[1:6:2], -a))", IN("6 3")),
};

const struct op_cases cases_view = OP_CASES(cases);
