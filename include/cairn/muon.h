/* Muon: momentum with orthogonalised updates for the matrices of a model, and AdamW for all other parameters, in one
 * optimizer.
 *
 *     struct cairn_muon_options muon = CAIRN_MUON_OPTIONS_INIT;
 *     muon.lr = 0.02;
 *     CAIRN_CHECK(cairn_muon_create(cairn_module_params(model), &muon, NULL, &optimizer));
 *
 * Embeddings and the last layer are matrices too, but train better with AdamW:
 *
 *     const cairn_group_rule rules[] = {{.names = "embedding.*", .adam = &hyper},
 *                                       {.are = CAIRN_PARAMS_MATRICES, .muon = &muon},
 *                                       {.adam = &hyper}};
 *     CAIRN_CHECK(cairn_muon_create_grouped(set, rules, 3, &optimizer)); */
#ifndef CAIRN_MUON_H
#define CAIRN_MUON_H

#include "core.h"
#include "optim.h"
#include "param_groups.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The factor `adjust` that the learning rate of a matrix [A, B] is multiplied by. */
typedef enum cairn_muon_adjust {
    CAIRN_MUON_ORIGINAL = 1,       /* sqrt(max(1, A / B)) */
    CAIRN_MUON_MATCH_RMS_ADAMW = 2 /* 0.2 sqrt(max(A, B)): updates as large as AdamW's, so its lr and decay fit */
} cairn_muon_adjust;

struct cairn_muon_options {
    size_t struct_size;
    double lr;                 /* >= 0 */
    double momentum;           /* in [0, 1) */
    double weight_decay;       /* decoupled; >= 0 */
    double ns_coefficients[3]; /* a, b, c of an iteration: X = a X + (b G + c G G) X, G = X X^T */
    double eps;                /* > 0: lower bound of the norm that the momentum is divided by */
    int ns_steps;              /* iterations, 1 to 100 */
    cairn_muon_adjust adjust;  /* 0 = CAIRN_MUON_ORIGINAL */
    cairn_switch nesterov;     /* CAIRN_DEFAULT is on */
    cairn_switch maximize;
};
#define CAIRN_MUON_OPTIONS_INIT                                                                                      \
    {                                                                                                                \
        sizeof(struct cairn_muon_options), 1e-3, 0.95, 0.1, {3.4445, -4.7750, 2.0315}, 1e-7, 5, CAIRN_MUON_ORIGINAL, \
            CAIRN_DEFAULT, CAIRN_DEFAULT                                                                             \
    }

/* Make a Muon optimizer over every parameter of set: group 0 has the matrices (CAIRN_PARAMS_MATRICES), updated by Muon;
 * group 1 has all others, updated by AdamW with `others` (NULL = CAIRN_ADAMW_OPTIONS_INIT). A parameter of more than
 * two dimensions, such as a convolution's, counts as a matrix of shape[0] rows, also in `adjust`: B is then the product
 * of all other dimensions.
 *
 *     b = momentum * b + g,  u = nesterov ? g + momentum * b : b,  X = u / max(|u|, eps), then ns_steps iterations
 *     w = w - lr * (adjust * X + weight_decay * w)
 *
 * create_over and add_group make groups of Muon only, and refuse parameters with fewer than two dimensions; add further
 * groups of AdamW with cairn_adam_add_group. create_grouped: a rule with .adam makes a group of AdamW, a rule with
 * .muon or neither a group of Muon.
 *
 * Numerics   f32, products too (on a GPU in TF32 only if that is switched on); torch's are bf16. The momentum is that
 *            of Keller Jordan; torch's is (1 - momentum) times as large, a factor that the norm cancels.
 * Cost       For a matrix [A, B] with m = min(A, B): in each iteration 2 m A B + m^3 multiplications and as many
 *            additions, and some passes over A B + m^2 elements; scratch of 4 (2 A B + 2 m^2) bytes for the largest
 *            matrix; state of 4 bytes per parameter element. A skipped step does the same computation, but writes
 *            nothing.
 * Errors     as cairn_sgd_create; from cairn_step: CAIRN_ENOMEM at the first step; CAIRN_ENOTSUP ranks share updates
 *            (ddp_options.shard_optimizer), so no rank has a whole matrix.
 * Source     Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; torch.optim.Muon (PyTorch
 *            2.9); the second adjustment: Liu et al., "Muon is Scalable for LLM Training", 2025. */
CAIRN_API cairn_status cairn_muon_create(cairn_param_set *set, const struct cairn_muon_options *options,
                                         const struct cairn_adam_options *others, cairn_optimizer **out);
CAIRN_API cairn_status cairn_muon_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                              const struct cairn_muon_options *options, cairn_optimizer **out);
CAIRN_API cairn_status cairn_muon_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices,
                                            size_t count, const struct cairn_muon_options *options);
CAIRN_API cairn_status cairn_muon_create_grouped(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                                 cairn_optimizer **out);
CAIRN_API cairn_status cairn_muon_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                       const cairn_group_rule *rules, size_t count,
                                                       cairn_optimizer **out);
#define cairn_muon_create_grouped(...) cairn_muon_create_grouped_sized(sizeof(cairn_group_rule), __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
