/* embedding: rows of a table by index. Its gradient is dense, as torch's is without sparse=True. */
#include "core/status.h"
#include "nn/ops_rows.h"

enum { INDICES, TABLE }; /* inputs */

static cairn_status infer(const struct cairn__node *node) {
    const cairn_tensor *indices = node->inputs[INDICES], *table = node->inputs[TABLE];
    const cairn_dtype type = cairn__tensor_dtype(indices);
    const int64_t padding = *(const int64_t *)node->attrs;
    char text[CAIRN__SHAPE_TEXT];
    REQUIRE(type == CAIRN_I64 || type == CAIRN_I32, CAIRN_EINVAL, "embedding: indices are %s; i64 and i32 are allowed",
            cairn_dtype_name(type));
    REQUIRE(table->ndim == 2, CAIRN_EINVAL, "embedding: the table is %s; expected [rows, n]",
            cairn__shape_text(table, text));
    REQUIRE(indices->ndim < CAIRN_MAX_DIMS, CAIRN_EINVAL,
            "embedding: indices are %s; they must leave room for one more dimension", cairn__shape_text(indices, text));
    REQUIRE(padding >= -1 && padding < table->shape[0], CAIRN_EINVAL,
            "embedding: padding_idx is %lld, but the table has %lld rows; -1 means none", (long long)padding,
            (long long)table->shape[0]);
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_is_float(node, TABLE, "the table"));
    node->result->ndim = indices->ndim + 1;
    memcpy(node->result->shape, indices->shape, sizeof(indices->shape));
    node->result->shape[indices->ndim] = table->shape[1];
out:
    return st;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const cairn_tensor *indices = node->inputs[INDICES], *table = node->inputs[TABLE];
    cairn__math_of(tape)->gather_rows(tape->env->device, node->result->dtype, node->result->data,
                                      cairn__tensor_data(table), cairn__tensor_data(indices),
                                      cairn__tensor_dtype(indices), indices->n, (size_t)table->shape[0],
                                      (size_t)table->shape[1], NULL);
    return CAIRN_OK;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *indices = node->inputs[INDICES], *table = node->inputs[TABLE];
    void *dtable = NULL;
    if (!cairn__wants_grad(table)) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, table, &dtable));
    cairn__math_of(tape)->scatter_rows(tape->env->device, node->result->dtype, dtable, dy, cairn__tensor_data(indices),
                                       cairn__tensor_dtype(indices), indices->n, (size_t)table->shape[0],
                                       (size_t)table->shape[1], *(const int64_t *)node->attrs);
    TRY(cairn__tensor_grad_end(tape, table, dtable));
out:
    return st;
}

static const struct cairn__op_row row = {
    .needs_math = true, .infer = infer, .forward = forward, .backward = backward, .reads = cairn__reads_inputs};

cairn_tensor *cairn_embedding_forward(cairn_tensor *indices, cairn_tensor *table, int64_t padding_idx) {
    return cairn__apply(CAIRN__OP_EMBEDDING, &row, CAIRN__INPUTS(indices, table), &padding_idx, sizeof(padding_idx));
}
