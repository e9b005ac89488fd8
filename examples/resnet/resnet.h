/* ResNet with torchvision's structure and weight names: cairn_module_load loads torchvision's weights, saved as
 * safetensors. conv1.weight, bn1.running_mean, layer1.0.conv1.weight, layer2.0.downsample.0.weight, fc.bias, ...
 *
 * Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2016; torchvision.models.resnet, whose
 * bottleneck blocks stride in the 3x3 convolution ("v1.5"). */
#ifndef EXAMPLES_RESNET_H
#define EXAMPLES_RESNET_H

#include <cairn/cairn.h>

struct resnet_options {
    int depth;              /* 18 or 34: basic blocks; 50, 101 or 152: bottlenecks */
    int64_t classes;        /* from 2 */
    int64_t width;          /* channels after the first convolution; 0 = 64 */
    int zero_init_residual; /* starts the last norm of each block at 0, so that each block starts as its shortcut */

    /* For a pipeline stage: only the blocks first_block <= i < end_block, counted over all layers, plus the layers
     * before the first block if it is included and those after the last block if that is included. 0, 0 = the whole
     * net. Weights keep the names that they have in the whole net. */
    int first_block, end_block;
};

/* Creates the module. The whole net maps x [N, 3, H, W] to scores [N, classes]. Convolutions are initialized with
 * Kaiming normal (fan_out), norms with 1 and 0, fc as in cairn_linear. Returns NULL on error, see
 * cairn_last_error(). */
cairn_module *resnet_create(cairn_env *env, const struct resnet_options *options);

/* Returns the number of blocks of the ResNet of this depth, or 0 if there is none. */
int resnet_is_depth(int depth);
int resnet_num_blocks(int depth);

#endif
