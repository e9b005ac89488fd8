"""A rank of PyTorch that trains ResNet under tools/cairn-bench resnet; steps.h has the lines, bert_torch.py the usage.

The model is torchvision's ResNet of 50 layers, or of 18; parameters are in the order of Cairn's. SGD is fused, and the
step is as PyTorch's own tuning guide has it: channels-last memory, for weights and pictures."""
import math
import sys

import numpy as np
import torch
from torch import nn

import bert_torch

BATCH, CHANNELS, EDGE, CLASSES = 8, 3, 224, 1000
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def conv(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inputs, channels, stride, is_bottleneck):
        super().__init__()
        outputs = 4 * channels if is_bottleneck else channels
        if is_bottleneck:
            self.conv1, self.bn1 = conv(inputs, channels, 1), nn.BatchNorm2d(channels)
            self.conv2, self.bn2 = conv(channels, channels, 3, stride), nn.BatchNorm2d(channels)
            self.conv3, self.bn3 = conv(channels, outputs, 1), nn.BatchNorm2d(outputs)
        else:
            self.conv1, self.bn1 = conv(inputs, channels, 3, stride), nn.BatchNorm2d(channels)
            self.conv2, self.bn2 = conv(channels, outputs, 3), nn.BatchNorm2d(outputs)
            self.conv3 = None
        self.downsample = None
        if inputs != outputs or stride != 1:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.conv3 is not None:
            y = self.bn3(self.conv3(self.relu(y)))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, depth):
        super().__init__()
        is_bottleneck, inputs = depth >= 50, 64
        self.conv1, self.bn1 = conv(CHANNELS, 64, 7, 2), nn.BatchNorm2d(64)
        for i, count in enumerate(BLOCKS[depth]):
            blocks = []
            for k in range(count):
                blocks.append(Block(inputs, 64 << i, 2 if i > 0 and k == 0 else 1, is_bottleneck))
                inputs = (4 if is_bottleneck else 1) * (64 << i)
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, CLASSES)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)

    def forward(self, x):
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def values(stream, shape):
    """As resnet_ranks.c mixes them."""
    bits = (np.arange(math.prod(shape), dtype=np.uint64) * 2654435761 + stream * 40503) & 0xFFFFFFFF
    bits = ((bits ^ bits >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    bits = ((bits ^ bits >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    bits ^= bits >> 16
    x = (bits >> 8).astype(np.float32) * np.float32(2**-24) - np.float32(0.5)
    return torch.from_numpy(x.reshape(shape))


class ResNetTraining(bert_torch.Training):
    def set_up(self, rank, layers, dropout):
        model = ResNet(layers)
        with torch.no_grad():
            for i, (name, p) in enumerate(model.named_parameters()):
                fan_out = p.shape[0] * p.shape[2] * p.shape[3] if p.dim() == 4 else 0
                p.copy_(values(i, p.shape) * (math.sqrt(24 / fan_out) if p.dim() == 4 else 0.1))
                if p.dim() == 1 and name.endswith("weight"):
                    p.add_(0.2 if name.endswith(("bn2.weight", "bn3.weight")) else 1)
        x = 4 * values(2000 + rank, (BATCH, CHANNELS, EDGE, EDGE))
        self.inputs = (x.contiguous(memory_format=torch.channels_last),)
        self.labels = (100 * torch.arange(BATCH) + rank) % CLASSES
        return model.to(memory_format=torch.channels_last)

    def flat(self, gradients=False):
        return torch.cat([(p.grad if gradients else p.detach()).float().contiguous().flatten()
                          for p in self.bare.parameters()])

    def make_optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=True)


if __name__ == "__main__":
    bert_torch.main(*sys.argv[1:], kind=ResNetTraining)
