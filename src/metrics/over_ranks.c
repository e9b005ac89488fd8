/* Collectives on numbers and tensors. */
#include <math.h>

#include "cairn/metrics.h"
#include "comm/group.h"
#include "core/status.h"
#include "device/env.h"
#include "nn/hooks.h"

/* ---- numbers ---- */

cairn_status ddp_sum(double *values, size_t n, cairn_group *group) {
    int odd;
    REQUIRE(values || n == 0, CAIRN_EINVAL, "ddp_sum: values is NULL");
    if (!group || cairn_group_size(group) == 1) return CAIRN_OK;
    return cairn__group_sum(group, values, n, 0, &odd);
}

cairn_status ddp_mean(double *value, double weight, cairn_group *group) {
    REQUIRE(value, CAIRN_EINVAL, "ddp_mean: value is NULL");
    REQUIRE(weight >= 0 && isfinite(weight), CAIRN_EINVAL, "ddp_mean: weight is %g; it must be finite and not negative",
            weight);
    double sums[2] = {weight > 0 ? *value * weight : 0, weight};
    const cairn_status st = ddp_sum(sums, 2, group);
    if (st == CAIRN_OK) *value = sums[1] > 0 ? sums[0] / sums[1] : NAN;
    return st;
}

/* ---- tensors ---- */

/* Returns the memory of a leaf tensor, for a collective. */
static cairn_status open_tensor(cairn_tensor *x, const char *call, cairn_group *group, void **data) {
    REQUIRE(x && group, CAIRN_EINVAL, "%s: tensor and group must be set", call);
    const struct cairn_device *exchanged = cairn__group_device(group);
    REQUIRE(!exchanged || exchanged == cairn__tensor_env(x)->device, CAIRN_EINVAL,
            "%s: the group belongs to another environment; use cairn_env_group of the tensor's environment", call);
    return cairn__tensor_open(x, call, data);
}

/* A bool is sent as a byte; the collective refuses reductions of bytes. */
static cairn_dtype copied_as(const cairn_tensor *x) {
    const cairn_dtype dtype = cairn_tensor_dtype(x);
    return dtype == CAIRN_BOOL ? CAIRN_U8 : dtype;
}

cairn_status cairn_tensor_allreduce(cairn_tensor *x, cairn_redop op, cairn_group *group) {
    void *data = NULL;
    cairn_status st = CAIRN_OK;
    TRY(open_tensor(x, "cairn_tensor_allreduce", group, &data));
    TRY(cairn_allreduce(group, data, cairn_tensor_numel(x), cairn_tensor_dtype(x), op, NULL));
out:
    return st;
}

cairn_status cairn_tensor_broadcast(cairn_tensor *x, int root, cairn_group *group) {
    void *data = NULL;
    cairn_status st = CAIRN_OK;
    TRY(open_tensor(x, "cairn_tensor_broadcast", group, &data));
    TRY(cairn_broadcast(group, data, cairn_tensor_numel(x), copied_as(x), root, NULL));
out:
    return st;
}

cairn_status cairn_tensor_allgather(const cairn_tensor *x, cairn_group *group, cairn_tensor **out) {
    REQUIRE(x && group && out, CAIRN_EINVAL, "cairn_tensor_allgather: x, group and out must be set");
    cairn_status st = CAIRN_OK;
    cairn_tensor *own = cairn_tensor_keep(x), *all = NULL; /* keeps the values of a result, dense */
    void *from = NULL, *to = NULL;
    int64_t shape[CAIRN_MAX_DIMS] = {1};
    if (!own) return cairn__last_status();
    const int ndim = cairn_tensor_ndim(own);
    for (int i = 0; i < ndim; i++) shape[i] = cairn_tensor_size(own, i);
    shape[0] *= cairn_group_size(group);
    TRY(open_tensor(own, "cairn_tensor_allgather", group, &from));
    all = cairn_zeros(cairn__tensor_env(x), cairn_tensor_dtype(own), ndim ? ndim : 1, shape);
    TRY(all ? open_tensor(all, "cairn_tensor_allgather", group, &to) : cairn__last_status());
    TRY(cairn_allgather(group, to, from, cairn_tensor_numel(own), copied_as(own), NULL));
    *out = all;
    all = NULL;
out:
    cairn_tensor_destroy(&own);
    cairn_tensor_destroy(&all);
    return st;
}
