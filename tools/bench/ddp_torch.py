"""A rank of PyTorch's DistributedDataParallel under tools/cairn-bench ddp; ddp_ranks.c has the lines and the models.

usage: ddp_torch.py SOCKET FILE FORM, with RANK and WORLD_SIZE in the environment

FORM is how bf16 is done: "autocast", f32 weights that autocast rounds for the products, f32 gradients; or "weights",
bf16 weights and gradients without masters, which is less than O2 does, and moves weights otherwise: there these are
not compared."""
import math
import os
import socket
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def values(stream, shape):
    n = int(np.prod(shape))
    bits = (np.arange(1, n + 1, dtype=np.uint64) * 2654435761 + stream * 40503 * 65537) & 0xFFFFFFFF
    x = (bits >> 8).astype(np.float32) * np.float32(2**-24) - np.float32(0.5)
    return torch.from_numpy(x.reshape(shape))


def make_model(is_mlp):
    if not is_mlp:
        return torch.nn.Linear(1024, 16)
    layers = []
    for i in range(6):
        layers += [torch.nn.Linear(1024, 1024)] + ([torch.nn.ReLU()] if i < 5 else [])
    return torch.nn.Sequential(*layers)


def read(folder, what):
    return torch.from_numpy(np.fromfile(os.path.join(folder, what), dtype=np.float32))


def distance(ours, theirs):
    return ((theirs - ours).double().norm() / ours.double().norm()).item()


class Training:
    def __init__(self, name, dtype, bucket_nbytes, form):
        is_mlp, rank = name == "mlp", dist.get_rank()
        model = make_model(is_mlp)
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(values(i, p.shape) * (math.sqrt(24 / p.shape[1]) if p.dim() == 2 else 0.1))
        batch, into = (128, 1024) if is_mlp else (64, 16)
        self.x, self.y = 2 * values(100 + 2 * rank, (batch, 1024)), 2 * values(101 + 2 * rank, (batch, into))
        self.cast = dtype == "bf16" and form == "autocast"
        if dtype == "bf16" and form == "weights":
            model, self.x = model.bfloat16(), self.x.bfloat16()
        caps = {"bucket_cap_mb": bucket_nbytes / (1 << 20)} if bucket_nbytes else {}
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True, **caps)
        self.has_masters = form == "autocast" or dtype == "f32"
        params = self.model.parameters()
        self.optimizer = torch.optim.AdamW(params, lr=1e-4) if is_mlp else torch.optim.SGD(params, lr=1e-3)

    def backward(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cast):
            y = self.model(self.x)
        loss = torch.nn.functional.mse_loss(y.float(), self.y)
        loss.backward()
        return loss

    def step(self):
        loss = self.backward()
        self.optimizer.step()
        return loss

    def flat(self, gradients=False):
        """A copy of all weights, or of their gradients, one after the other."""
        return torch.cat([(p.grad if gradients else p.detach()).float().flatten() for p in self.model.parameters()])

    def compare(self, n, folder):
        """The first loss of n steps, and how far Cairn is in the first gradients and in what the steps do to the
        weights, relative to the lengths of these as vectors."""
        before = self.flat()
        loss = self.backward().item()
        gradients = distance(self.flat(gradients=True), read(folder, "gradients"))
        self.optimizer.step()
        for _ in range(1, n):
            self.step()
        after = self.flat()
        moved = distance(after - before, read(folder, "weights") - before) if self.has_masters else 0
        return f"ok {loss:.9g} {gradients:.3g} {moved:.3g}"

    def time(self, n):
        self.step()
        begin = time.perf_counter()
        for _ in range(n):
            loss = self.step()
        us = 1e6 * (time.perf_counter() - begin) / n
        weights = [float(p.detach().double().abs().sum()) for p in self.model.parameters()]
        return f"ok {us:.3f} {loss.item():.9g} {hash(tuple(weights)) & (1 << 64) - 1:016x}"


def main(path, file, form):
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=size)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    bench, training = connection.makefile("rw"), None
    bench.write(f"hello torch {rank} PyTorch {torch.__version__}, gloo\n")
    bench.flush()
    for line in bench:
        words = line.split()
        if words[0] == "end":
            break
        try:
            if words[0] == "start":
                training = Training(words[1], words[2], int(words[3]), form)
                reply = training.compare(int(words[4]), line.rstrip("\n").split(" ", 5)[5])
            else:
                reply = training.time(int(words[1]))
        except (RuntimeError, OSError) as why:
            reply = "failed " + " ".join(str(why).split())
        bench.write(reply + "\n")
        bench.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
