"""Times training of ResNet against PyTorch, alternating in one run, one thread each.

The model is torchvision's ResNet-50, or with --layers another of them: batch 8 of 224x224 on each rank, 1000 classes; a
step is forward, backward and SGD with momentum and decay. f32 is O0; in bf16, O1 and O2, PyTorch has autocast. f16 is
timed against Cairn's own f32. PyTorch runs eagerly, in channels-last memory, or by torch.compile.

Times of one rank are processor time, times of several ranks are wall-clock time of the slowest rank; printed are
medians over rounds, of times and of each round's ratios. The first loss, the first gradients and the change of the
weights in two steps are compared with PyTorch's from equal weights and data, as in bert, whose --help has the details.
"""
import bert
import collectives

RESNET = bert.Kind("resnet", {"f32": (1e-5, 2e-2, 2e-2), "bf16 O1": (1e-2, 0.5, 0.5), "bf16 O2": (1e-2, 0.5, 0.5)},
                   {1: {"f32": 1.0, "bf16 O1": 1.0, "bf16 O2": 1.0}}, {})


def add_options(parser):
    parser.add_argument("--layers", type=int, choices=(18, 34, 50), default=50, help="50")
    parser.set_defaults(kind=RESNET, dropout=0)
    bert.add_common_options(parser)


main = bert.main
