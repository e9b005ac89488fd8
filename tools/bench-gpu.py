#!/usr/bin/env python3
"""Times PyTorch with the same work on the same GPU, for comparison with cuda-bench and gpu-bench.

usage: tools/bench-gpu.py [--device cuda] [--compiled] [--elements N] [--size N] [--width N] [--batch N] [--sequences N]
                          [--pictures N]

Prints "name = value unit" under the names that Cairn's two programs use, as medians over rounds; if PyTorch has several
ways, the fastest counts. Exits with 77 without PyTorch or the device."""
import argparse
import os
import statistics
import sys
import tempfile
import time

try:
    import torch
except ImportError as missing:
    print(f"no PyTorch: {missing}")
    sys.exit(77)

ROUNDS = 7
LAYERS = 6
WARM_UP = 6


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(device, work, times):
    wait(device)
    begin = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return (time.perf_counter() - begin) / times


def measure(device, jobs, long_enough):
    """Median seconds of each of {name: work}, taken in turn."""
    times = {}
    for name, work in jobs.items():
        timed(device, work, WARM_UP)
        times[name] = max(1, min(10000, int(long_enough / timed(device, work, 2))))
    took = {name: [] for name in jobs}
    for _ in range(ROUNDS):
        for name, work in jobs.items():
            took[name].append(timed(device, work, times[name]))
    return {name: statistics.median(values) for name, values in took.items()}


def say(name, value, unit):
    print(f"{name} = {value:.2f} {unit}", flush=True)


# ---- passes over memory ----

def fused_adamw(params):
    """The fastest AdamW that this PyTorch has here."""
    for way in ({"fused": True}, {"foreach": True}, {}):
        try:
            return torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, **way)
        except (RuntimeError, TypeError, ValueError):
            continue
    raise RuntimeError("no AdamW")


def bench_passes(device, n):
    x = torch.randn(n, device=device)
    y, half = torch.empty_like(x), torch.empty(n, device=device, dtype=torch.float16)
    factor, found = torch.full((), 1 / 1024, device=device), torch.zeros((), device=device)
    master = torch.nn.Parameter(x.clone())
    master.grad = torch.randn(n, device=device)
    adamw = fused_adamw([master])

    def adamw_with_masters():
        # PyTorch's fused AdamW reads f32 gradients and writes f32 weights: the halves are passes of their own.
        master.grad.copy_(half)
        torch._amp_foreach_non_finite_check_and_unscale_([master.grad], found, factor)
        adamw.step()
        half.copy_(master.detach())

    def unscale():
        y.copy_(half)
        torch._amp_foreach_non_finite_check_and_unscale_([y], found, factor)

    jobs = {
        "copy": (8, lambda: y.copy_(x)),
        "cast f32 f16": (6, lambda: half.copy_(x)),
        "unscale f16 f32": (6, unscale),
        "l2norm f32": (4, lambda: torch.linalg.vector_norm(x)),
        "adamw f16 masters": (28, adamw_with_masters),
    }
    took = measure(device, {name: work for name, (_, work) in jobs.items()}, 0.02)
    for name, seconds in took.items():
        say(name, jobs[name][0] * n / seconds * 1e-9, "GB/s")


# ---- products ----

def product(a, b, c, v, shape):
    """v [n]: a bias, or where the sums of a go, which make the gradient of one."""
    def dw_row_sums():
        torch.mm(a.t(), b, out=c)
        torch.sum(a, 0, out=v)

    return {
        "y": lambda: torch.mm(a, b.t(), out=c),
        "dx": lambda: torch.mm(a, b, out=c),
        "dw": lambda: torch.mm(a.t(), b, out=c),
        "y bias": lambda: torch.addmm(v, a, b.t(), out=c),
        "y bias relu": lambda: torch._addmm_activation(v, a, b.t(), use_gelu=False, out=c),
        "dw row sums": dw_row_sums,
    }[shape]


def bench_products(device, size):
    for name, dtype, tf32 in (("f32", torch.float32, False), ("tf32", torch.float32, True),
                              ("f16", torch.float16, False), ("bf16", torch.bfloat16, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        jobs, sizes = {}, {}
        for n, shape in ((size, "y"), (size // 2, "y"), (size // 2, "dx"), (size // 2, "dw"), (size // 2, "y bias"),
                         (size // 2, "y bias relu"), (size // 2, "dw row sums")):
            a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
            v = torch.full((n,), 0.5, device=device, dtype=dtype)
            job = f"product {name} {n} {shape}"
            jobs[job], sizes[job] = product(a, b, torch.empty_like(a), v, shape), n
        for job, seconds in measure(device, jobs, 0.02).items():
            say(job, 2e-12 * sizes[job] ** 3 / seconds, "TFLOP/s")
    torch.backends.cuda.matmul.allow_tf32 = False


# ---- the quick start ----

class QuickStart:
    """Linear 1024 -> 16, batch 64, mse, SGD, autocast to f16 with a GradScaler."""

    def __init__(self, device, fused):
        torch.manual_seed(0)
        self.device = device
        self.x, self.y = torch.randn(64, 1024, device=device), torch.randn(64, 16, device=device)
        self.model = torch.nn.Linear(1024, 16).to(device)
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=1e-3, fused=True) if fused else \
            torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler(device.type)
        self.loss = None

    def forward_backward(self):
        with torch.autocast(self.device.type, dtype=torch.float16):
            prediction = self.model(self.x)
        self.loss = torch.nn.functional.mse_loss(prediction.float(), self.y)
        self.scaler.scale(self.loss).backward()

    def update(self):
        self.scaler.step(self.sgd)
        self.scaler.update()

    def step(self):
        self.sgd.zero_grad(set_to_none=True)
        self.forward_backward()
        self.update()

    def record(self, work):
        """work as one CUDA graph, after a warm-up on a stream of its own (PyTorch's notes on CUDA graphs)."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.sgd.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph

    def whole_graph(self):
        """Everything recorded: a fused optimizer takes the scaler's flag on the device."""
        def work():
            self.forward_backward()
            self.update()

        return self.record(work).replay

    def graph_then_update(self):
        graph = self.record(self.forward_backward)

        def step():
            graph.replay()
            self.update()

        return step


def eager_ways(device):
    for fused in (False, True):
        try:
            start = QuickStart(device, fused)
            start.step()
            yield start.step
        except (RuntimeError, TypeError, ValueError) as why:
            print(f"(quick start eager, fused={fused}: {why})", file=sys.stderr)


def graph_ways(device):
    for fused, way in ((True, QuickStart.whole_graph), (True, QuickStart.graph_then_update),
                       (False, QuickStart.graph_then_update)):
        try:
            step = way(QuickStart(device, fused))
            step()
            wait(device)
            yield step
        except (RuntimeError, TypeError, ValueError, AssertionError) as why:
            print(f"(quick start graph, {way.__name__}, fused={fused}: {why})", file=sys.stderr)


def bench_quick_start(device):
    for name, ways in ("quick start eager", eager_ways), ("quick start graph", graph_ways):
        if name.endswith("graph") and device.type != "cuda":
            continue
        jobs = {str(i): step for i, step in enumerate(ways(device))}
        if jobs:
            say(name, 1e6 * min(measure(device, jobs, 0.1).values()), "us")


# ---- the MLP ----

def mlp(width, device, dtype):
    layers = []
    for i in range(LAYERS):
        layers += [torch.nn.Linear(width, width, device=device, dtype=dtype), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def mlp_step(device, width, batch, autocast, wrap=lambda model: model):
    """f32 weights under autocast, which is PyTorch's mixed precision; or everything in bf16, which has no masters."""
    model = wrap(mlp(width, device, torch.float32 if autocast else torch.bfloat16))
    x, y = (torch.randn(batch, width, device=device, dtype=torch.float32 if autocast else torch.bfloat16)
            for _ in range(2))
    adamw = fused_adamw(model.parameters())

    def step():
        adamw.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
            prediction = model(x)
        torch.nn.functional.mse_loss(prediction.float(), y.float()).backward()
        adamw.step()

    return step


def say_mlp(name, device, width, batch, step):
    seconds = measure(device, {name: step}, 0.1)[name]
    say(name, 1e6 * seconds, "us")
    say(f"{name} rate", 2 * (3 * LAYERS - 1) * batch * width * width / seconds * 1e-12, "TFLOP/s")


def bench_mlp(device, width, batch):
    for name, autocast in (("mlp eager", True), ("mlp eager, no masters", False)):
        say_mlp(name, device, width, batch, mlp_step(device, width, batch, autocast))


def bench_ddp(device, width, batch):
    """The same under DistributedDataParallel, on one rank."""
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=0, world_size=1,
                                             init_method=f"file://{folder}/store")
        ids = [device.index or 0] if device.type == "cuda" else None
        step = mlp_step(device, width, batch, True,
                        lambda model: torch.nn.parallel.DistributedDataParallel(model, device_ids=ids))
        say_mlp("mlp ddp eager", device, width, batch, step)
        torch.distributed.destroy_process_group()


# ---- BERT-base's encoder ----

def encoder_step(device, batch, layers, compiled, dropout):
    """Post-norm layers, bf16 autocast, as gpu-bench has them."""
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, dropout=dropout, activation="gelu", batch_first=True,
                                             device=device)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    run = torch.compile(model) if compiled else model
    x, y = (torch.randn(batch, 128, 768, device=device) for _ in range(2))
    adamw = fused_adamw(model.parameters())

    def step():
        adamw.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            prediction = run(x)
        torch.nn.functional.mse_loss(prediction.float(), y).backward()
        adamw.step()

    return step


def bench_encoder(device, batch):
    for name, layers, dropout in (("encoder layer eager", 1, 0.1), ("encoder eager", 12, 0.1),
                                  ("encoder without dropout eager", 12, 0.0)):
        seconds = measure(device, {name: encoder_step(device, batch, layers, False, dropout)}, 0.1)[name]
        say(name, 1e6 * seconds, "us")


def bench_compiled(device, batch):
    for name, layers in (("encoder layer compiled", 1), ("encoder compiled", 12)):
        seconds = measure(device, {name: encoder_step(device, batch, layers, True, 0.1)}, 0.1)[name]
        say(name, 1e6 * seconds, "us")


# ---- ResNet-50 ----

def resnet_step(device, batch):
    """bf16 autocast, channels last, as PyTorch's tuning guide has it; SGD fused."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench"))
    from resnet_torch import CLASSES, ResNet # it needs numpy

    model = ResNet(50).to(device, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
    y = 7 * torch.arange(batch, device=device) % CLASSES
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)

    def step():
        sgd.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(x)
        torch.nn.functional.cross_entropy(scores.float(), y).backward()
        sgd.step()

    return step


def bench_resnet(device, batch):
    """With the algorithms that cuDNN's heuristics choose, and with those that it finds fastest by trial."""
    ways = []
    for tries in False, True:
        with torch.backends.cudnn.flags(benchmark=tries):
            ways.append(measure(device, {"resnet": resnet_step(device, batch)}, 0.1)["resnet"])
    say("resnet eager", 1e6 * min(ways), "us")


def attempt(bench, *args):
    """What one PyTorch cannot do costs no other figure."""
    try:
        bench(*args)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as why:
        print(f"({bench.__name__}: {type(why).__name__}: {why})", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--elements", type=int, default=256 << 20)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--compiled", action="store_true", help="torch.compile's encoder, and nothing else; minutes")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} sees no GPU")
        sys.exit(77)
    device = torch.device(args.device)
    chip = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {chip}")
    if args.compiled:
        attempt(bench_compiled, device, args.sequences)
        return
    attempt(bench_passes, device, args.elements)
    attempt(bench_products, device, args.size)
    attempt(bench_quick_start, device)
    attempt(bench_mlp, device, args.width, args.batch)
    attempt(bench_ddp, device, args.width, args.batch)
    attempt(bench_encoder, device, args.sequences)
    attempt(bench_resnet, device, args.pictures)


if __name__ == "__main__":
    main()
