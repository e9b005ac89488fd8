"""Times optimizer steps against passes with the same reads and writes and against PyTorch's steps, alternating in one
run, one thread each.

A step is one pass over weights, gradients and states, or two if the update uses norms. "pass" is the fastest of six
loops that read and write the same arrays, in as many passes, and compute nothing: with plain stores, streaming the
arrays that are only written, and streaming all, each by 64 and by 512 elements. With f16 and bf16 a step also reads
half gradients, multiplies them by the inverse of a loss scale, and writes half weights besides f32 masters. PyTorch's
optimizers (fused=True if available) have no masters: there they step f32 copies, and half gradients are copied before
and half weights after the step, as programs do by hand.

A round runs a step, the loops and PyTorch's step; figures are medians over rounds, in processor time, which other
programs hardly affect, and ratios are medians of each round's ratio. A line is only printed if after three steps all
weights have the bits of the scalar kernels (CAIRN_CPU=ref), and a thousand of them equal PyTorch's within 1e-6 of the
largest. PyTorch is taken from --python (default: the one of tools/install-peers, else python3's, else
/usr/bin/python3's) and omitted if there is none.
"""
import statistics
import sys
import time

import machine

STEPS = 3  # before weights are compared
SHOWN = 1000
BOUND = 1e-6  # of the largest weight
TYPES = ["f32", "f16", "bf16"]
GOAL, TIMES = 0.85, 1.5  # of the pass; as fast as PyTorch


class Cairn(machine.Worker):
    """Of one line. Level: an instruction set, or the machine's own."""

    def __init__(self, args, name, dtype, level=None):
        super().__init__(args.build, "tests/optim/optim-bench", {"CAIRN_CPU": level} if level else {})
        told = [line.split() for line in self.ask("start", name, dtype, args.n, args.tensors, STEPS)]
        self.bytes = int(told[0][1])
        self.hash = told[1][1]
        self.weights = [float(value) for _, value in told[2:]]

    def times(self, what):
        return [float(line.split()[1]) / 1e3 for line in self.ask(what)]


class Torch:
    def __init__(self, args, make, dtype):
        import numpy
        import torch

        torch.set_num_threads(1)
        self.np, self.torch = numpy, torch
        self.p = list(torch.from_numpy(self.values(0, args.n)).reshape(args.tensors, -1).clone().unbind())
        grads = torch.from_numpy(self.values(1, args.n)).reshape(args.tensors, -1)
        self.half = []
        if dtype != "f32":
            half = torch.float16 if dtype == "f16" else torch.bfloat16
            self.half = [(p.to(half), g.to(half)) for p, g in zip(self.p, grads)]
        for p, g in zip(self.p, grads):
            p.requires_grad_()
            p.grad = g.clone()
        self.optimizer = eval(make, {"torch": torch, "p": self.p})
        for _ in range(STEPS):
            self.step()

    def values(self, k, n):
        np = self.np
        bits = np.arange(1, n + 1, dtype=np.uint32) * np.uint32(2654435761)
        bits += np.uint32(k * 40503 * 65537 & 0xFFFFFFFF)
        return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2**-24) - np.float32(0.5)

    def step(self):
        with self.torch.no_grad():
            for p, (_, g) in zip(self.p, self.half):
                p.grad.copy_(g)
            self.optimizer.step()
            for p, (w, _) in zip(self.p, self.half):
                w.copy_(p)

    def time(self):
        begin = time.process_time()
        self.step()
        return 1e3 * (time.process_time() - begin)

    def weights(self, n):
        each = n // len(self.p)
        places = [k * n // SHOWN for k in range(SHOWN)]
        return [float(self.p[i // each].detach()[i % each]) for i in places]


def apart(ours, theirs):
    """Of the largest."""
    return max(abs(a - b) for a, b in zip(ours, theirs)) / max(map(abs, theirs))


def check(args, name, dtype, cairn, torch):
    """Why the line is not printed, or None."""
    reference = Cairn(args, name, dtype, "ref")
    reference.end()
    if reference.hash != cairn.hash:
        return "the weights are not those of the scalar kernels"
    if torch:
        difference = apart(cairn.weights, torch.weights(args.n))
        if not difference <= BOUND:
            return f"the weights are {difference:.1e} of the largest apart from PyTorch's"
    return None


def measure(args, name, make, dtype, has_torch):
    cairn = Cairn(args, name, dtype)
    torch = Torch(args, make, dtype) if has_torch and make != "-" else None
    why = check(args, name, dtype, cairn, torch)
    if why:
        cairn.end()
        return why
    steps, passes, theirs = [], [], []
    for _ in range(args.rounds + 1):  # the first one warms up
        steps += cairn.times("step")
        passes.append(cairn.times("pass"))
        if torch:
            theirs.append(torch.time())
    cairn.end()
    del steps[0], passes[0], theirs[:1]
    best = min(zip(*passes), key=statistics.median)
    return {"name": name, "type": dtype, "bytes": cairn.bytes, "cairn": statistics.median(steps),
            "pass": statistics.median(best), "of_pass": statistics.median(b / s for b, s in zip(best, steps)),
            "torch": statistics.median(theirs) if torch else None,
            "times": statistics.median(t / s for t, s in zip(theirs, steps)) if torch else None}


def print_row(label, row):
    gb = row["bytes"] * row["n"] / row["cairn"] * 1e-6
    line = f"{label} {row['bytes']:6} {row['cairn']:8.1f} {gb:6.1f} {row['pass']:8.1f} {row['of_pass']:7.2f}"
    print(line + (f" {row['torch']:8.1f} {row['times']:7.2f}" if row["torch"] else f" {'-':>8} {'-':>7}"), flush=True)


def report(rows, has_torch):
    slow = [f"{r['name']} {r['type']} ({r['of_pass']:.2f})" for r in rows if r["of_pass"] < GOAL]
    print(f"below {GOAL} of the pass: " + (", ".join(slow) or "none"))
    behind = [f"{r['name']} {r['type']} ({r['times']:.2f})" for r in rows if r["torch"] and r["times"] < TIMES]
    if has_torch:
        print(f"below {TIMES} times PyTorch: " + (", ".join(behind) or "none"))


def entries(args):
    worker = machine.Worker(args.build, "tests/optim/optim-bench")
    found = [[word.strip() for word in line.split(" | ")] for line in worker.ask("list")]
    worker.end()
    found = [entry for entry in found if not args.only or args.only in entry[0]]
    if not found:
        raise machine.Missing(f"no optimizer has {args.only} in its name")
    return found


def check_options(args):
    if args.n % args.tensors or args.n < SHOWN:
        raise machine.Missing(f"--n {args.n} is not a multiple of --tensors {args.tensors}, or below {SHOWN}")
    if not set(args.types.split(",")) <= set(TYPES):
        raise machine.Missing(f"--types {args.types}: there are {','.join(TYPES)}")


def run(args):
    machine.build(args.build, "tests/optim/optim-bench")
    check_options(args)
    lines = entries(args)
    why = machine.enter_torch(args.python)
    print(f"{machine.cpu_name()}, one thread\n{' '.join(sys.argv)}: medians of {args.rounds} rounds, ms of processor "
          f"time a step of {args.n} parameters in {args.tensors} tensors")
    if why:
        print(f"PyTorch: left out, {why}")
    else:
        print("PyTorch " + __import__("torch").__version__)
    print(f"{'':23} {'bytes':>6} {'Cairn':>8} {'GB/s':>6} {'pass':>8} {'of it':>7} {'PyTorch':>8} {'times':>7}")
    rows, refused = [], 0
    for name, make in lines:
        for dtype in args.types.split(","):
            got = measure(args, name, make, dtype, not why)
            if isinstance(got, str):
                print(f"{name:18} {dtype:4} not printed: {got}", flush=True)
                refused += 1
            else:
                rows.append(dict(got, n=args.n))
                print_row(f"{name:18} {dtype:4}", rows[-1])
    report(rows, not why)
    return 1 if refused else 0


def add_options(parser):
    parser.add_argument("--build", default="build")
    parser.add_argument("--types", default=",".join(TYPES), help="of weights and gradients")
    parser.add_argument("--n", type=int, default=50_000_000, help="parameters")
    parser.add_argument("--tensors", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="only optimizers whose name has this in it")
    parser.add_argument("--python", help="the Python that has PyTorch")


def main(args):
    try:
        return run(args)
    except machine.Missing as why:
        return f"cairn-bench: {why}"
