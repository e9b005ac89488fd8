"""A rank of PyTorch that trains BERT under tools/cairn-bench bert; steps.h has the lines, bert_ranks.c the
model.

usage: bert_torch.py SOCKET SIDE FILE, with RANK and WORLD_SIZE in the environment

SIDE is "torch", which runs it eagerly, or "compile", by torch.compile. bf16 is autocast: f32 weights and gradients. The
model's parameters are in the order of Cairn's. Attention is F.scaled_dot_product_attention, with one product for q, k
and v; AdamW is fused. Several ranks are DistributedDataParallel over gloo."""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from ddp_torch import distance, read, values

BATCH, T, WIDTH, HEADS, INNER, WORDS, POSITIONS, KINDS, CLASSES = 8, 128, 768, 12, 3072, 28996, 512, 2, 3


class Attention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.in_proj, self.out_proj, self.dropout = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), dropout

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, WIDTH // HEADS).transpose(1, 2) for y in self.in_proj(x).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, WIDTH))


class Layer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.attention = Attention(dropout)
        self.dense1, self.dense2 = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.norm1(x + self.dropout(self.attention(x)))
        return self.norm2(x + self.dropout(self.dense2(F.gelu(self.dense1(x)))))


class Bert(nn.Module):
    def __init__(self, layers, dropout):
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.kinds, self.norm = nn.Embedding(KINDS, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(layers))
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids, kinds, places):
        x = self.words(ids) + self.kinds(kinds) + self.positions(places)
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))


class Training:
    """Of a model without dropout; subclasses make it, its optimizer, self.inputs and self.labels in set_up."""
    max_norm = None  # of clipping
    drops = False

    def __init__(self, side, layers, dtype, dropout):
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        model = self.set_up(rank, layers, dropout)
        self.cast = dtype == "bf16"
        self.bare = self.model = model
        if size > 1:
            self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.module = self.model
        if side == "compile":
            self.model = torch.compile(self.model)
        self.optimizer = self.make_optimizer(model.parameters())

    def backward(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cast):
            scores = self.model(*self.inputs)
        loss = F.cross_entropy(scores.float(), self.labels)
        loss.backward()
        return loss

    def update(self):
        if self.max_norm:
            nn.utils.clip_grad_norm_(self.bare.parameters(), self.max_norm)
        self.optimizer.step()

    def step(self):
        loss = self.backward()
        self.update()
        return loss

    def flat(self, gradients=False):
        """A copy of all weights, or of their gradients, one after the other."""
        return torch.cat([(p.grad if gradients else p.detach()).float().flatten() for p in self.bare.parameters()])

    def compare(self, n, folder):
        """The first loss of n steps without dropout, and how far Cairn is in the first gradients and in what the steps
        do to the weights, relative to the lengths of these as vectors."""
        self.model.train(not self.drops)
        loss = self.backward().item()
        gradients, moved = 0.0, 0.0
        if folder != "-":
            before, gradients = self.flat(), distance(self.flat(gradients=True), read(folder, "gradients"))
        self.update()
        for _ in range(1, n):
            self.step()
        if folder != "-":
            moved = distance(self.flat() - before, read(folder, "weights") - before)
        self.model.train()
        return f"ok {loss:.9g} {gradients:.3g} {moved:.3g}"

    def time(self, n):
        self.step()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for _ in range(n):
            loss = self.step()
        us, cpu = 1e6 * (time.perf_counter() - begin) / n, 1e6 * (time.process_time() - begin_cpu) / n
        weights = [float(p.detach().double().abs().sum()) for p in self.bare.parameters()]
        return f"ok {us:.3f} {cpu:.3f} {loss.item():.9g} {hash(tuple(weights)) & (1 << 64) - 1:016x}"


class BertTraining(Training):
    max_norm = 1.0
    drops = True

    def set_up(self, rank, layers, dropout):
        model = Bert(layers, dropout)
        with torch.no_grad():
            for i, (name, p) in enumerate(model.named_parameters()):
                p.copy_(values(i, p.shape) * (0.07 if p.dim() == 2 else 0.1))
                if "norm" in name and "weight" in name:
                    p.add_(1)
        rows = torch.arange(BATCH * T).reshape(BATCH, T)
        self.inputs = (((values(200 + rank, (BATCH, T)) + 0.5) * WORDS).long(), (rows % T >= T // 2).long(),
                       torch.arange(T))
        self.labels = (torch.arange(BATCH) + rank) % CLASSES
        return model

    def make_optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=5e-5, fused=True)


def peak():
    with open("/proc/self/status", encoding="utf-8") as status:
        return "ok " + next(line.split()[1] for line in status if line.startswith("VmHWM:"))


def main(path, side, file, kind=BertTraining):
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size > 1:
        dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=size)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    bench, training = connection.makefile("rw"), None
    by = ", torch.compile" if side == "compile" else ""
    bench.write(f"hello {side} {rank} PyTorch {torch.__version__}{by}{', gloo' if size > 1 else ''}\n")
    bench.flush()
    for line in bench:
        words = line.split()
        if words[0] == "end":
            break
        try:
            if words[0] == "start":
                training = kind(side, int(words[1]), words[2], float(words[4]))
                reply = training.compare(int(words[5]), line.rstrip("\n").split(" ", 6)[6])
            elif words[0] == "steps":
                reply = training.time(int(words[1]))
            else:
                reply = peak()
        except (RuntimeError, OSError) as why:
            reply = "failed " + " ".join(str(why).split())
        bench.write(reply + "\n")
        bench.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
