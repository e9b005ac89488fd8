/* ResNet with torchvision's structure and names of weights: a file of torchvision's, as safetensors, is loaded by
 * cairn_module_load. conv1.weight, bn1.running_mean, layer1.0.conv1.weight, layer2.0.downsample.0.weight, fc.bias, ...
 *
 * Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2016; torchvision.models.resnet, whose
 * bottleneck has its stride in the 3x3 convolution ("v1.5"). */
#ifndef EXAMPLES_RESNET_H
#define EXAMPLES_RESNET_H

#include <cairn/cairn.h>

struct resnet_options {
    int depth;              /* 18 or 34: basic blocks; 50, 101 or 152: bottlenecks */
    int64_t classes;        /* from 2 */
    int64_t width;          /* channels behind the first convolution; 0 = 64 */
    int zero_init_residual; /* the last norm of each block begins as 0, so that a block begins as the way past it */

    /* A part of the net, for a stage of a pipeline: the blocks from first_block to before end_block, counted over all
     * layers; with the first of them what comes before, with the last what comes behind. 0, 0 = all. Its weights have
     * the names that they have in the whole net. */
    int first_block, end_block;
};

/* x [N, 3, H, W] to scores [N, classes], of the whole net. Convolutions are kaiming normal by fan_out, norms 1 and 0,
 * fc as every linear layer. NULL on error, as of every module. */
cairn_module *resnet_create(cairn_env *env, const struct resnet_options *options);

/* Whether there is a ResNet of this depth, and how many blocks it has; 0 for none. */
int resnet_is_depth(int depth);
int resnet_num_blocks(int depth);

#endif
