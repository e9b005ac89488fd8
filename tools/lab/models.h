/* Small models for the pictures of waves.h, with a watched place (watch.h) before every operation. Except for the
 * ResNet's relu, activations have a nonzero slope everywhere, so that gradients only vanish by the type's range. */
#ifndef LAB_MODELS_H
#define LAB_MODELS_H

#include "watch.h"

enum lab_model {
    LAB_MLP = 1, /* three hidden layers of 64 */
    LAB_CONV,    /* two convolutions and a linear layer */
    LAB_ENCODER, /* a transformer encoder of two layers over the picture's rows, with normalisation first */
    LAB_RESNET,  /* two residual blocks with batch normalisation and relu; it has no watched places */
};

/* "mlp", "conv", "encoder", "resnet" */
const char *lab_model_name(enum lab_model model);

/* [N, LAB_PIXELS] to scores [N, LAB_CLASSES]. watch (NULL = none) outlives the module. NULL on error. */
cairn_module *lab_model_create(cairn_env *env, enum lab_model model, struct lab_watch *watch);

#endif
