/* Cases of operations: losses. */
#include "op_cases.h"

/* A build function: the call on in[0] and in[1] with the options. */
#define LOSS(name, call, ...)                                               \
    static cairn_tensor *name(cairn_tensor *const *in) {                    \
        return cairn_##call(in[0], in[1], cairn_loss_options(__VA_ARGS__)); \
    }

static cairn_tensor *mse(cairn_tensor *const *in) {
    return cairn_mse_loss(in[0], in[1]);
}
LOSS(mse_sum, mse_loss_with, .reduction = CAIRN_SUM_ALL)
LOSS(mse_none, mse_loss_with, .reduction = CAIRN_NONE)
LOSS(l1, l1_loss, .reduction = CAIRN_MEAN)
LOSS(l1_sum, l1_loss, .reduction = CAIRN_SUM_ALL)
LOSS(l1_none, l1_loss, .reduction = CAIRN_NONE)
LOSS(smooth_l1, smooth_l1_loss, .reduction = CAIRN_MEAN)
LOSS(smooth_l1_half, smooth_l1_loss, .reduction = CAIRN_NONE, .beta = 0.5)
LOSS(bce, bce, .reduction = CAIRN_MEAN)
LOSS(bce_weighted, bce, .weight = in[2])
LOSS(bce_none, bce, .weight = in[2], .reduction = CAIRN_NONE)
LOSS(logits, bce_with_logits, .reduction = CAIRN_MEAN)
LOSS(logits_weighted, bce_with_logits, .weight = in[2], .pos_weight = in[3])
LOSS(logits_none, bce_with_logits, .weight = in[2], .pos_weight = in[3], .reduction = CAIRN_NONE)
LOSS(logits_positives, bce_with_logits, .pos_weight = in[2], .reduction = CAIRN_SUM_ALL)
LOSS(kl_div, kl_div, .reduction = CAIRN_MEAN)
LOSS(kl_div_batch, kl_div, .batch_mean = CAIRN_ON)
LOSS(kl_div_log, kl_div, .log_target = CAIRN_ON, .reduction = CAIRN_SUM_ALL)
LOSS(kl_div_none, kl_div, .log_target = CAIRN_ON, .reduction = CAIRN_NONE)
LOSS(soft_margin, soft_margin_loss, .reduction = CAIRN_MEAN)
LOSS(soft_margin_none, soft_margin_loss, .reduction = CAIRN_NONE)
LOSS(poisson, poisson_nll_loss, .reduction = CAIRN_MEAN)
LOSS(poisson_none, poisson_nll_loss, .reduction = CAIRN_NONE)

LOSS(cross, cross_entropy, .reduction = CAIRN_MEAN)
LOSS(cross_sum, cross_entropy, .reduction = CAIRN_SUM_ALL)
LOSS(cross_none, cross_entropy, .reduction = CAIRN_NONE)
LOSS(cross_smooth, cross_entropy, .label_smoothing = 0.2)
LOSS(cross_ignore, cross_entropy, .ignore_index = 2)
LOSS(cross_all, cross_entropy, .weight = in[2], .ignore_index = 1, .label_smoothing = 0.1)
LOSS(cross_all_none, cross_entropy, .weight = in[2], .ignore_index = 0, .ignores_zero = CAIRN_ON,
     .label_smoothing = 0.1, .reduction = CAIRN_NONE)
LOSS(nll, nll_loss, .reduction = CAIRN_MEAN)
LOSS(nll_all, nll_loss, .weight = in[2], .ignore_index = 1)
LOSS(nll_none, nll_loss, .weight = in[2], .reduction = CAIRN_NONE)

#define FIXED(sizes, kind) \
    { .shape = (sizes), .values = (kind), .no_grad = true }
#define INDEX(sizes, classes) \
    { .shape = (sizes), .values = CLASSES, .limit = (classes) }

static const struct op_case cases[] = {
    CASE("mse_loss", MSE_LOSS, mse, "F.mse_loss(a, b)", IN("5 3"), IN("5 3")),
    CASE("mse_loss of one", MSE_LOSS, mse, "F.mse_loss(a, b)", IN(""), IN("")),
    CASE("mse_loss broadcasts", MSE_LOSS, mse, "torch.mean((a - b) ** 2)", IN("4 1 3"), IN("5 1")),
    CASE("mse_loss summed", MSE_LOSS, mse_sum, "F.mse_loss(a, b, reduction='sum')", IN("33"), IN("33")),
    CASE("mse_loss of each", MSE_LOSS, mse_none, "(a - b) ** 2", IN("3 4"), IN("4")),
    CASE("mse_loss of nothing, summed", MSE_LOSS, mse_sum, "F.mse_loss(a, b, reduction='sum')", IN("0 3"), IN("0 3")),
    CASE("l1_loss", L1_LOSS, l1, "F.l1_loss(a, b)", IN("5 3"), IN("5 3")),
    CASE("l1_loss summed, broadcast", L1_LOSS, l1_sum, "(a - b).abs().sum()", IN("5 3"), IN("3")),
    CASE("l1_loss of each", L1_LOSS, l1_none, "F.l1_loss(a, b, reduction='none')", IN("2 2"), IN("2 2")),
    CASE("smooth_l1_loss", SMOOTH_L1_LOSS, smooth_l1, "F.smooth_l1_loss(a, b)", IN("5 7"), IN("5 7")),
    CASE("smooth_l1_loss of each, beta 1/2", SMOOTH_L1_LOSS, smooth_l1_half,
         "F.smooth_l1_loss(a, b, reduction='none', beta=0.5)", IN("5 7"), IN("5 7")),
    CASE("bce", BCE, bce, "F.binary_cross_entropy(a, b)", IN_AS("5 3", PROBABILITY), FIXED("5 3", PROBABILITY)),
    CASE("bce, gradient of the target", BCE, bce, "-(b * a.log() + (1 - b) * (1 - a).log()).mean()",
         IN_AS("5 3", PROBABILITY), IN_AS("5 3", PROBABILITY)),
    CASE("bce weighted", BCE, bce_weighted, "F.binary_cross_entropy(a, b, c.expand(5, 3))", IN_AS("5 3", PROBABILITY),
         FIXED("5 3", PROBABILITY), FIXED("3", POSITIVE)),
    CASE("bce of each, weighted", BCE, bce_none, "F.binary_cross_entropy(a, b, c, reduction='none')",
         IN_AS("4", PROBABILITY), FIXED("4", PROBABILITY), FIXED("4", POSITIVE)),
    CASE("bce_with_logits", BCE_WITH_LOGITS, logits, "F.binary_cross_entropy_with_logits(a, b)", IN("5 3"),
         IN_AS("5 3", PROBABILITY)),
    CASE("bce_with_logits weighted", BCE_WITH_LOGITS, logits_weighted,
         "F.binary_cross_entropy_with_logits(a, b, c, pos_weight=d)", IN("5 3"), FIXED("5 3", PROBABILITY),
         FIXED("5 3", POSITIVE), FIXED("3", POSITIVE)),
    CASE("bce_with_logits of each, weighted", BCE_WITH_LOGITS, logits_none,
         "F.binary_cross_entropy_with_logits(a, b, c, pos_weight=d, reduction='none')", IN("4 3"),
         FIXED("4 3", PROBABILITY), FIXED("3", POSITIVE), FIXED("3", POSITIVE)),
    CASE("bce_with_logits, gradient of the target", BCE_WITH_LOGITS, logits_positives,
         "((1 - b) * a + ((c - 1) * b + 1) * F.softplus(-a)).sum()", IN("5 3"), IN_AS("5 3", PROBABILITY),
         FIXED("3", POSITIVE)),
    CASE("kl_div", KL_DIV, kl_div, "F.kl_div(a, b, reduction='mean')", IN("5 3"), IN_AS("5 3", PROBABILITY)),
    CASE("kl_div by the batch", KL_DIV, kl_div_batch, "F.kl_div(a, b, reduction='batchmean')", IN("5 3"),
         IN_AS("5 3", PROBABILITY)),
    CASE("kl_div of logarithms", KL_DIV, kl_div_log, "F.kl_div(a, b, reduction='sum', log_target=True)", IN("5 3"),
         IN("5 3")),
    CASE("kl_div of each", KL_DIV, kl_div_none, "F.kl_div(a, b, reduction='none', log_target=True)", IN("7"), IN("7")),
    CASE("soft_margin_loss", SOFT_MARGIN_LOSS, soft_margin, "torch.log(1 + torch.exp(-b * a)).mean()", IN("5 3"),
         IN_AS("5 3", SIGNS)),
    CASE("soft_margin_loss of each", SOFT_MARGIN_LOSS, soft_margin_none, "F.soft_margin_loss(a, b, reduction='none')",
         IN("5 3"), FIXED("5 3", SIGNS)),
    CASE("poisson_nll_loss", POISSON_NLL_LOSS, poisson, "F.poisson_nll_loss(a, b)", IN("5 3"), IN_AS("5 3", POSITIVE)),
    CASE("poisson_nll_loss of each", POISSON_NLL_LOSS, poisson_none, "F.poisson_nll_loss(a, b, reduction='none')",
         IN("5 3"), IN_AS("5 3", POSITIVE)),

    CASE("cross_entropy", CROSS_ENTROPY, cross, "F.cross_entropy(a, b)", IN("6 5"), INDEX("6", 5)),
    CASE("cross_entropy of one row", CROSS_ENTROPY, cross, "F.cross_entropy(a, b)", IN("5"), INDEX("", 5)),
    CASE("cross_entropy summed", CROSS_ENTROPY, cross_sum, "F.cross_entropy(a, b, reduction='sum')", IN("6 5"),
         INDEX("6", 5)),
    CASE("cross_entropy of each", CROSS_ENTROPY, cross_none, "F.cross_entropy(a, b, reduction='none')", IN("6 5"),
         INDEX("6", 5)),
    CASE("cross_entropy of nothing, summed", CROSS_ENTROPY, cross_sum, "F.cross_entropy(a, b, reduction='sum')",
         IN("0 5"), INDEX("0", 5)),
    CASE("cross_entropy smoothed", CROSS_ENTROPY, cross_smooth, "F.cross_entropy(a, b, label_smoothing=0.2)", IN("6 5"),
         INDEX("6", 5)),
    CASE("cross_entropy ignores a class", CROSS_ENTROPY, cross_ignore, "F.cross_entropy(a, b, ignore_index=2)",
         IN("9 4"), INDEX("9", 4)),
    CASE("cross_entropy with all options", CROSS_ENTROPY, cross_all,
         "F.cross_entropy(a, b, c, ignore_index=1, label_smoothing=0.1)", IN("9 4"), INDEX("9", 4),
         FIXED("4", POSITIVE)),
    CASE("cross_entropy of each with all options", CROSS_ENTROPY, cross_all_none,
         "F.cross_entropy(a, b, c, ignore_index=0, label_smoothing=0.1, reduction='none')", IN("9 4"), INDEX("9", 4),
         FIXED("4", POSITIVE)),
    CASE("cross_entropy of images", CROSS_ENTROPY, cross, "F.cross_entropy(a, b)", IN("2 4 3 5"), INDEX("2 3 5", 4)),
    CASE("cross_entropy of images with all options", CROSS_ENTROPY, cross_all,
         "F.cross_entropy(a, b, c, ignore_index=1, label_smoothing=0.1)", IN("2 4 3 5"), INDEX("2 3 5", 4),
         FIXED("4", POSITIVE)),
    CASE("cross_entropy of a wide image", CROSS_ENTROPY, cross_none, "F.cross_entropy(a, b, reduction='none')",
         IN("1 3 300"), INDEX("1 300", 3)),
    CASE("cross_entropy of many classes", CROSS_ENTROPY, cross_smooth, "F.cross_entropy(a, b, label_smoothing=0.2)",
         IN("3 2100"), INDEX("3", 2100)),
    CASE("nll_loss", NLL_LOSS, nll, "F.nll_loss(a, b)", IN("6 5"), INDEX("6", 5)),
    CASE("nll_loss weighted, ignoring a class", NLL_LOSS, nll_all, "F.nll_loss(a, b, c, ignore_index=1)", IN("9 4"),
         INDEX("9", 4), FIXED("4", POSITIVE)),
    CASE("nll_loss of each", NLL_LOSS, nll_none, "F.nll_loss(a, b, c, reduction='none')", IN("2 3 7"), INDEX("2 7", 3),
         FIXED("3", POSITIVE)),
};

const struct op_cases cases_loss = OP_CASES(cases);
