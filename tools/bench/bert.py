"""Times training of BERT against PyTorch, alternating in one run, one thread each.

The model is BERT-base's with --layers encoder layers: width 768, 12 heads, inner width 3072, 28996 words, a pooler and
a classifier of 3 classes. Batch 8 of 128 words on each rank, dropout 0.1; a step is forward, backward, clipping to norm
1 and AdamW.

    f32          O0
    bf16 O1, O2  PyTorch: autocast
    f16 O1, O2   against Cairn's own f32, since PyTorch has no scaler for f16 on the CPU

"PyTorch" runs eagerly (scaled_dot_product_attention, fused AdamW; over several ranks DistributedDataParallel over
gloo), "compiled" by torch.compile. "products" times only the matrix products of the same step, without those that
backward recomputes; "above" is by how much the whole step takes longer. Times of one rank are processor time, which
other programs hardly affect; times of several ranks are wall-clock time of the slowest rank. A round runs each side for
about --round seconds; printed are medians over rounds, of times and of each round's ratios. "MiB" is rank 0's peak
resident memory (VmHWM), including libraries.

Starting from equal weights and data and without dropout, each rank's first loss, the first averaged gradients, and the
change of the weights in two steps are compared with PyTorch's. There is no figure unless they are within the bounds of
the model's Kind; Adam's first steps depend on the signs of gradients, however small, so the last bound is wide. After
each round all ranks must have the same weights.
"""
import argparse
import json
import math
import os
import signal
import statistics
import sys
import time

import collectives
import data_parallel
import machine
from collectives import SideFailed
from data_parallel import CHECKED, Task, median_ratio, percent_text, us_text


class Kind:
    """What is trained: the programs of both sides, and what is asked of them."""

    def __init__(self, name, bounds, goals, above):
        self.name, self.program, self.script = name, f"bench-{name}", f"{name}_torch.py"
        # Relative: of the first loss, of the first gradients and of what CHECKED steps add to the weights, as vectors.
        self.bounds = bounds
        self.goals = goals  # by ranks
        self.above = above  # percent over the products alone; {} = these are not timed


BERT = Kind("bert", {"f32": (1e-5, 1e-4, 0.05), "bf16 O1": (1e-2, 0.1, 0.6), "bf16 O2": (1e-2, 0.1, 0.6)},
            {1: {"f32": 1.25, "bf16 O1": 1.3, "bf16 O2": 1.3}, 2: {"f32": 1.25, "bf16 O1": 1.4, "bf16 O2": 1.4}},
            {"f32": 8, "bf16 O1": 20, "bf16 O2": 20})
OF_F32 = 1.1  # f16's time, at most
LINES = ("f32", "bf16 O1", "bf16 O2", "f16 O1", "f16 O2")
NAMES = {"cairn": "Cairn", "f32": "Cairn in f32", "torch": "PyTorch", "compile": "compiled", "products": "products"}
PEERS = ("torch", "compile")


class Side(data_parallel.Side):
    def start_training(self, model, dtype, bucket, folder):
        words = ["f32", "O0"] if "f32" in (self.name, dtype) else dtype.split()
        answers = self.ask("start", self.layers, *words, self.dropout, CHECKED, folder)
        return [[float(word) for word in answer] for answer in answers]

    @staticmethod
    def time(answers):
        """us by the clock, of the slowest rank; of one rank alone, of its processor."""
        return max(float(answer[len(answers) == 1]) for answer in answers)

    def steps(self, n):
        answers = self.ask("steps", n)
        if not all(math.isfinite(float(answer[2])) for answer in answers):
            raise SideFailed(f"a loss is {', '.join(answer[2] for answer in answers)}")
        if len({answer[3] for answer in answers}) > 1:
            raise SideFailed("the ranks' weights differ")
        return self.time(answers)

    def peak_mib(self):
        return int(self.ask("peak")[0][0]) / 1024


class Products:
    """The products alone, by the ranks of Cairn."""

    def __init__(self, side):
        self.name, self.side, self.broken = "products", side, None

    def start_training(self, model, dtype, bucket, folder):
        return []

    def steps(self, n):
        return self.side.time(self.side.ask("products", n))

    def kill(self):
        pass


class Sides(data_parallel.Sides):
    side_type = Side

    def add(self, name):
        side = super().add(name)
        side.layers, side.dropout = self.args.layers, self.args.dropout
        return side

    def start_cairn(self, side):
        for rank in range(self.args.ranks):
            side.start([self.program(self.args.kind.program), self.path, side.name,
                        os.path.join(self.folder.name, side.name)],
                       self.env(rank if self.args.ranks > 1 else None), self.processor(rank))

    start_f32 = start_cairn

    def start_torch(self, side):
        python = collectives.torch_python(self.args)
        for rank in range(self.args.ranks):
            side.start([python, os.path.join(collectives.HERE, self.args.kind.script), self.path, side.name,
                        os.path.join(self.folder.name, side.name)],
                       self.env(rank), self.processor(rank) if self.args.bind_torch else None)

    start_compile = start_torch


# ---- measuring ----

def gather(sides, args, dtype):
    """Cairn, its peers of a line, and why others are left out."""
    sides.add("cairn")
    missing = {}
    for name in ("f32",) if dtype.startswith("f16") else PEERS:
        if name not in args.beside:
            continue
        try:
            sides.add(name)
        except SideFailed as why:
            missing[name] = str(why)
    return missing


def make_tasks(sides, args, dtype):
    """Cairn's training first, which writes what PyTorch compares with."""
    folder = sides.folder.name if dtype in args.kind.bounds and any(side.name in PEERS for side in sides.all) else "-"
    tasks = {side.name: Task(side, args.kind.name, dtype, args, folder) for side in sides.all}
    for name in PEERS:
        if name in tasks:
            tasks[name].compare(tasks["cairn"], args.kind.bounds[dtype])
    if dtype in args.kind.above:
        tasks["products"] = Task(Products(tasks["cairn"].side), args.kind.name, dtype, args)
    return tasks


def measure(sides, args, dtype):
    tasks = make_tasks(sides, args, dtype)
    cairn = tasks["cairn"]
    for _ in range(args.rounds):
        for task in tasks.values():
            task.go_on()
    row = {"type": dtype, "rounds": args.rounds, "losses": [first[0] for first in cairn.first],
           "goal": args.kind.goals.get(args.ranks, {}).get(dtype),
           "goal_above_percent": args.kind.above.get(dtype)}
    for name, task in tasks.items():
        row[name] = {"why": task.why} if task.why else {"us": statistics.median(task.us), "all_us": task.us,
                                                        "steps": task.n}
        if name != "products" and not task.why:
            row[name]["peak_mib"] = task.side.peak_mib()
    for name in PEERS:
        if name in tasks and not tasks[name].why:
            row[name]["times"] = median_ratio(tasks[name], cairn)
            row[name]["apart"] = {"gradients": tasks[name].first[0][1], "moved": tasks[name].first[0][2]}
    if "products" in tasks:
        row["above_percent"] = 100 * (median_ratio(cairn, tasks["products"]) - 1)
    if "f32" in tasks:
        row["of_f32"] = median_ratio(cairn, tasks["f32"])
    return row


# ---- printing ----

def print_heads(args):
    kind = "us of processor time a step" if args.ranks == 1 else "us a step"
    what = f"{args.layers} layers" + (f", dropout {args.dropout:g}" if args.dropout else "")
    print(f"# {machine.cpu_name()}, {machine.num_processors()} processors; {args.ranks} "
          f"{'rank' if args.ranks == 1 else 'ranks'}, a thread each; {what}")
    print("# " + " ".join(["tools/cairn-bench"] + sys.argv[1:]) + f": medians of {args.rounds} rounds, {kind}")
    print(f"{'':8} {'Cairn':>10} {'PyTorch':>10} {'times':>6} {'goal':>5} {'compiled':>10} {'times':>6} "
          f"{'products':>10} {'above':>8} {'goal':>5} {'MiB':>6} {'PyTorch':>8} {'compiled':>8}")


def times_text(row, name):
    return f"{row[name]['times']:.2f}" if row.get(name, {}).get("times") else "-"


def mib_text(row, name):
    return f"{row[name]['peak_mib']:.0f}" if "peak_mib" in row.get(name, {}) else "-"


def row_text(row):
    goal = f"{row['goal']:.2f}" if row["goal"] else ""
    above = f"{row['goal_above_percent']} %" if row["goal_above_percent"] else ""
    text = (f"{row['type']:8} {us_text(row, 'cairn'):>10} {us_text(row, 'torch'):>10} {times_text(row, 'torch'):>6} "
            f"{goal:>5} {us_text(row, 'compile'):>10} {times_text(row, 'compile'):>6} {us_text(row, 'products'):>10} "
            f"{percent_text(row.get('above_percent')):>8} {above:>5} {mib_text(row, 'cairn'):>6} "
            f"{mib_text(row, 'torch'):>8} {mib_text(row, 'compile'):>8}")
    if row.get("of_f32"):
        text += f"   {row['of_f32']:.2f} of f32's {us_text(row, 'f32')}, goal {OF_F32}"
    return text.rstrip()


def print_notes(rows, sides, missing):
    for name, what in sides.items():
        print(f"# {NAMES[name]}: {what}")
    for name, why in missing.items():
        print(f"# {NAMES[name]}: left out, {why}")
    for name in NAMES:
        for why in sorted({row[name]["why"] for row in rows if "why" in row.get(name, {})}):
            print(f"# {NAMES[name]}: no figure, {why}")


# ---- the whole ----

def run(args):
    begin, rows, about, missing = time.monotonic(), [], {}, {}
    print_heads(args)
    for dtype in LINES:
        if args.only and args.only not in dtype:
            continue
        with Sides(args) as sides:  # new processes, so that each line's memory is its own
            missing.update(gather(sides, args, dtype))
            rows.append(measure(sides, args, dtype))
            about.update({side.name: side.what for side in sides.all})
        print(row_text(rows[-1]), flush=True)
    print_notes(rows, about, missing)
    print(f"# {time.monotonic() - begin:.0f} s")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine.cpu_name(), "processors": machine.num_processors(), "command": sys.argv[1:],
                       "ranks": args.ranks, "layers": args.layers, "dropout": args.dropout, "sides": about,
                       "left_out": missing, "rows": rows}, file, indent=1)
            file.write("\n")
    return 0


def beside(text):
    names = [] if text == "none" else text.split(",")
    if not set(names) <= {"torch", "compile", "f32"}:
        raise ValueError
    return names


def probability(text):
    if not 0 <= float(text) < 1:
        raise ValueError
    return float(text)


def add_options(parser):
    parser.add_argument("--layers", type=collectives.at_least(1, 24), default=4, help="4; BERT-base has 12")
    parser.add_argument("--dropout", type=probability, default=0.1, help="of the steps that are timed; 0.1")
    parser.set_defaults(kind=BERT)
    add_common_options(parser)


def add_common_options(parser):
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", type=collectives.at_least(1, 64), default=1, help="1")
    parser.add_argument("--rounds", type=collectives.at_least(1, 1000), default=5, help="5")
    parser.add_argument("--round", type=collectives.positive, default=2, help="seconds of a side in a round; 2")
    parser.add_argument("--only", help="only lines whose name has this in it: f32, bf16 O1, ...")
    parser.add_argument("--beside", type=beside, default=["torch", "compile", "f32"], metavar="LIST",
                        help="some of torch,compile,f32, or none; all")
    parser.add_argument("--bind", action=argparse.BooleanOptionalAction,
                        help="each rank of Cairn to a processor; where there are as many processors")
    parser.add_argument("--bind-torch", action="store_true", help="PyTorch's too, with the threads of gloo")
    parser.add_argument("--timeout", type=collectives.positive, default=600,
                        help="seconds without an answer of a side; 600")
    parser.add_argument("--python", help="the Python that has PyTorch")
    parser.add_argument("--json", metavar="FILE", help="the same figures, each round's too")
    parser.set_defaults(bucket=0)


def main(args):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # sides are ended on the way out
    try:
        return run(args)
    except (SideFailed, OSError) as why:
        print(f"cairn-bench: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
