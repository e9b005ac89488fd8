"""ResNet-18 and -50 of examples/resnet beside PyTorch modules of torchvision's structure and names: scores, gradients
and running statistics, in training and evaluation, from the same file of weights; and weights go back unchanged.

usage: test_resnet.py resnet_tool

The module below is torchvision's by the paper and by torchvision's documentation; torchvision itself is not needed."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import with_modules

with_modules.go_on_with("numpy", "torch", "safetensors.torch")

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

TOOL = os.path.abspath(sys.argv[1])
CLASSES, BOUND = 10, 1e-4


class Block(nn.Module):
    """BasicBlock, or Bottleneck with the stride in its 3x3 convolution."""

    def __init__(self, inputs, channels, stride, is_bottleneck):
        super().__init__()
        outputs = 4 * channels if is_bottleneck else channels
        shapes = [(inputs, channels, 1, 1), (channels, channels, 3, stride), (channels, outputs, 1, 1)] \
            if is_bottleneck else [(inputs, channels, 3, stride), (channels, channels, 3, 1)]
        for i, (i_n, o_n, kernel, its_stride) in enumerate(shapes, 1):
            setattr(self, f"conv{i}", nn.Conv2d(i_n, o_n, kernel, its_stride, kernel // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(o_n))
        self.count = len(shapes)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = torch.relu(y) if i < self.count else y
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, depth):
        super().__init__()
        blocks, is_bottleneck = {18: ([2, 2, 2, 2], False), 50: ([3, 4, 6, 3], True)}[depth]
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        inputs = 64
        for stage, count in enumerate(blocks):
            layers, channels = [], 64 << stage
            for i in range(count):
                layers.append(Block(inputs, channels, 2 if stage > 0 and i == 0 else 1, is_bottleneck))
                inputs = 4 * channels if is_bottleneck else channels
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


def randomized(depth, bias):
    """Weights and statistics as after some training: none is 0 or 1. With a bias of 3 few values are at ReLU's kink,
    where a rounding decides over a gradient: with 0 the last blocks of ResNet-50 have some that do."""
    torch.manual_seed(depth)
    net = ResNet(depth)
    for name, tensor in net.state_dict().items():
        if name.endswith("running_var") or ("bn" in name or "downsample.1" in name) and name.endswith("weight"):
            tensor.uniform_(0.5, 1.5)
        elif name.endswith(("running_mean", "bn1.bias", "bn2.bias", "bn3.bias")):
            tensor.normal_(0 if name.endswith("mean") else bias, 0.1)
        elif name.endswith("num_batches_tracked"):
            tensor.fill_(7)
        elif tensor.dim() == 4:
            nn.init.kaiming_normal_(tensor, mode="fan_out", nonlinearity="relu")
    return net


def distance(ours, theirs, least=0):
    """In parts of the truth's norm, or of least where that is more."""
    return float(np.linalg.norm(ours.ravel().astype("f8") - theirs.ravel()) / max(np.linalg.norm(theirs), least))


class TestResNet(unittest.TestCase):
    def compare(self, depth, mode, batch, bias=0):
        net = randomized(depth, bias)
        with tempfile.TemporaryDirectory() as folder:
            before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
            save_file(before, f"{folder}/weights.safetensors")
            x, y = torch.randn(batch, 3, 64, 64), torch.randint(0, CLASSES, (batch,))
            np.save(f"{folder}/x.npy", x.numpy())
            np.save(f"{folder}/y.npy", y.numpy())
            done = subprocess.run([TOOL, str(depth), str(CLASSES), mode, folder], capture_output=True, text=True,
                                  timeout=300, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            net = net.double().train(mode == "train")  # the truth, from the same f32 weights
            scores = net(x.double())
            nn.functional.cross_entropy(scores, y).backward()
            found = {"scores": distance(np.fromfile(f"{folder}/scores.raw", "f4"), scores.detach().numpy())}
            # A bias whose norm comes before another norm without a kink between has a true gradient of 0.
            least = max(float(parameter.grad.norm()) for parameter in net.parameters()) / 100
            for name, parameter in net.named_parameters():
                found[name] = distance(np.fromfile(f"{folder}/{name}.grad", "f4"), parameter.grad.numpy(), least)
            after = load_file(f"{folder}/after.safetensors")
            self.assertEqual(after.keys(), before.keys())
            for name, tensor in net.state_dict().items():
                if "running" in name:
                    found[name] = distance(after[name].numpy(), tensor.numpy())
                elif "tracked" in name:
                    self.assertEqual(int(after[name]), int(tensor), name)
                else:
                    self.assertTrue(torch.equal(after[name], before[name]), name)
        worst = max(found, key=found.get)
        print(f"ResNet-{depth} {mode}: {len(found)} tensors, the farthest {worst}, {found[worst]:.1e}", file=sys.stderr)
        self.assertLess(found[worst], BOUND, worst)

    def test_resnet_18_trains_as_in_pytorch(self):
        self.compare(18, "train", 8)

    def test_resnet_18_evaluates_as_in_pytorch(self):
        self.compare(18, "eval", 2)

    def test_resnet_50_trains_as_in_pytorch(self):
        self.compare(50, "train", 8, bias=3)

    def test_resnet_50_evaluates_as_in_pytorch(self):
        self.compare(50, "eval", 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
