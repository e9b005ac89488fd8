"""Times data-parallel training on two ranks against PyTorch's DistributedDataParallel, alternating in one run, one
thread each.

    mlp f32         6 layers 1024x1024 with relu between them, batch 128 on each rank, AdamW; O0
    mlp bf16        the same at O2 in bf16: half weights and gradients, f32 masters. PyTorch: f32 weights and gradients
                    under autocast, or bf16 weights without masters, which is less (--torch-bf16); the faster one is the
                    default
    quickstart f32  Linear 1024 to 16, batch 64 on each rank, SGD; O0

Both are compared with two independent trainings of Cairn at the same time, which show the machine's speed without
communication. A round runs each side for about --round seconds, and its figure is the slowest rank's time per step;
printed are medians over rounds, of times and of each round's ratios. Starting from equal weights and data, each rank's
first loss, the first averaged gradients, and the change of the weights in two steps are compared with PyTorch's. BOUNDS
has the allowed differences, and next to them the effect of one ulp more in half of the weights. For the MLP's gradients
and steps the bounds are two to four times that effect, which is large there: relu is open or closed, and Adam's first
steps depend on signs. For losses and for all of the quick start they are ten to 150 times that effect. After each round
all ranks must have the same weights. Otherwise there is no figure.

--beside noop,... also shows the head-room: a step with ddp_noop_hook, which sends nothing, so that the ranks' weights
diverge, and how many times as fast it is. --beside lockstep,... does the same with a barrier before each update: the
cost of waiting for each other, and of updates that compete for memory bandwidth at the same time.
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
import machine
from collectives import SideFailed

CHECKED = 2  # steps
# Relative: of the first loss, of the first gradients and of what CHECKED steps add to the weights, as vectors. Beside
# them what one ulp of the weights does, in PyTorch 2.15.
BOUNDS = {("mlp", "f32"): (1e-5, 1e-2, 0.1),  # 4e-7, 3e-3, 0.05
          ("mlp", "bf16"): (1e-3, 8e-2, 0.4),  # 1e-4, 3e-2, 0.15
          ("quickstart", "f32"): (1e-5, 1e-5, 1e-5)}  # 1e-7, 7e-8, 3e-7
GOALS = {("mlp", "f32"): 1.7, ("mlp", "bf16"): 2.2, ("quickstart", "f32"): 20.0}  # times as fast as PyTorch
COSTS = {("mlp", "f32"): 8.0, ("mlp", "bf16"): 8.0}  # percent over unconnected trainings
FIRST_STEPS = {"mlp": 3, "quickstart": 30, "bert": 1, "resnet": 1}
NAMES = {"cairn": "Cairn", "alone": "unconnected", "noop": "nothing sent", "lockstep": "in lockstep",
         "torch": "PyTorch"}


class Side(collectives.Side):
    def ask(self, *words):
        """Every rank's answer."""
        try:
            for stream in self.streams.values():
                stream.write(" ".join(map(str, words)) + "\n")
                stream.flush()
            answers = [self.streams[rank].readline().split() for rank in sorted(self.streams)]
        except OSError:
            what = " ".join(map(str, words))
            raise SideFailed(f"{what} was not over after {self.timeout} s; {self.said()}") from None
        for answer in answers:
            if not answer or answer[0] != "ok":
                raise SideFailed(" ".join(answer[1:]) or self.last_words())
        return [answer[1:] for answer in answers]

    def start_training(self, model, dtype, bucket, folder):
        """Of each rank the first loss, and of PyTorch's two differences from Cairn."""
        return [[float(word) for word in answer] for answer in self.ask("start", model, dtype, bucket, CHECKED, folder)]

    def steps(self, n):
        """us of a step, by the slowest rank."""
        answers = self.ask("steps", n)
        us, losses, hashes = zip(*answers)
        if not all(math.isfinite(float(loss)) for loss in losses):
            raise SideFailed(f"a loss is {', '.join(losses)}")
        if self.name in ("cairn", "torch") and len(set(hashes)) > 1:
            raise SideFailed("the ranks' weights differ")
        return max(map(float, us))


class Sides(collectives.Sides):
    side_type = Side

    def start_cairn(self, side):
        for rank in range(self.args.ranks):
            side.start([self.program("bench-ddp"), self.path, side.name, os.path.join(self.folder.name, side.name)],
                       self.env(rank), self.processor(rank))

    start_noop = start_lockstep = start_cairn

    def start_alone(self, side):
        for rank in range(self.args.ranks):
            side.start([self.program("bench-ddp"), self.path, "alone", str(rank)], self.env(), self.processor(rank))

    def start_torch(self, side):
        python = collectives.torch_python(self.args)
        for rank in range(self.args.ranks):
            side.start([python, os.path.join(collectives.HERE, "ddp_torch.py"), self.path,
                        os.path.join(self.folder.name, "torch"), self.args.torch_bf16],
                       self.env(rank), self.processor(rank) if self.args.bind_torch else None)


class Task:
    """One side's part of a line."""

    def __init__(self, side, model, dtype, args, folder="-"):
        self.side, self.us, self.why, self.n = side, [], None, 0
        try:
            self.first = side.start_training(model, dtype, args.bucket, folder)
            us = side.steps(FIRST_STEPS[model])
            self.n = max(2, int(args.round * 1e6 / us))
        except SideFailed as why:
            self.fail(why)

    def fail(self, why):
        if self.side.name == "cairn":
            raise why
        self.why = str(why)
        self.side.broken = self.why
        self.side.kill()

    def compare(self, cairn, bounds):
        """PyTorch's ranks with Cairn's."""
        if self.why:
            return
        for rank, ((ours,), (theirs, gradients, moved)) in enumerate(zip(cairn.first, self.first)):
            if not abs(ours - theirs) <= bounds[0] * abs(theirs):
                self.why = f"rank {rank}'s first loss is {theirs}, and Cairn's is {ours}"
            elif not gradients <= bounds[1]:
                self.why = f"rank {rank}'s first gradients and Cairn's are {gradients:.1e} apart, more than {bounds[1]}"
            elif not moved <= bounds[2]:
                self.why = (f"{CHECKED} steps move rank {rank}'s weights and Cairn's {moved:.1e} apart, more than "
                            f"{bounds[2]}")
            if self.why:
                return

    def go_on(self):
        if not self.why:
            try:
                self.us.append(self.side.steps(self.n))
            except SideFailed as why:
                self.fail(why)


def median_ratio(above, below):
    """Of what was measured one after the other in each round."""
    if above.why or below.why:
        return None
    return statistics.median(a / b for a, b in zip(above.us, below.us))


def cost_percent(tasks, name):
    """Above what unconnected trainings take."""
    ratio = median_ratio(tasks["alone"], tasks[name]) if "alone" in tasks else None
    return 100 * (1 / ratio - 1) if ratio else None


def measure(sides, args, model, dtype):
    there = [side for side in sides.all if not side.broken]
    folder = sides.folder.name if any(side.name == "torch" for side in there) else "-"
    tasks = {side.name: Task(side, model, dtype, args, folder) for side in there}
    cairn = tasks["cairn"]
    if "torch" in tasks:
        tasks["torch"].compare(cairn, BOUNDS[model, dtype])
    for _ in range(args.rounds):
        for task in tasks.values():
            task.go_on()
    row = {"model": model, "type": dtype, "rounds": args.rounds, "goal": GOALS[model, dtype],
           "goal_cost_percent": COSTS.get((model, dtype)), "losses": [first[0] for first in cairn.first]}
    if "torch" in tasks and not tasks["torch"].why:
        row["apart"] = {"gradients": tasks["torch"].first[0][1], "moved": tasks["torch"].first[0][2]}
    for name, task in tasks.items():
        row[name] = {"why": task.why} if task.why else {"us": statistics.median(task.us), "all_us": task.us,
                                                        "steps": task.n}
    if "torch" in tasks:
        row["speedup"] = median_ratio(tasks["torch"], cairn)
    if "noop" in tasks:
        row["head_room"] = median_ratio(cairn, tasks["noop"])
    row["cost_percent"] = cost_percent(tasks, "cairn")
    if "lockstep" in tasks:
        row["lockstep_percent"] = cost_percent(tasks, "lockstep")
    return row


# ---- printing ----

def print_heads(args, sides, missing):
    but = "" if args.bind_torch else " but PyTorch"
    bound = f", each on a processor of its own{but}" if collectives.binds(args) else ""
    print(f"# {machine.cpu_name()}, {machine.num_processors()} processors; {args.ranks} ranks, a thread each{bound}")
    print("# " + " ".join(["tools/cairn-bench"] + sys.argv[1:]) + f": medians of {args.rounds} rounds, us a step")
    for side in sides:
        print(f"# {NAMES[side.name]}: {side.what}" + (f", bf16 by {args.torch_bf16}" if side.name == "torch" else ""))
    for name, why in missing.items():
        print(f"# {NAMES[name]}: left out, {why}")
    print(f"{'':16} {'Cairn':>10} {'PyTorch':>10} {'times as fast':>14} {'goal':>6} {'unconnected':>12} "
          f"{'DDP costs':>10} {'goal':>6}"
          + (f" {'nothing sent':>12} {'head-room':>10}" if "noop" in args.beside else "")
          + (f" {'in lockstep':>12} {'costs':>10}" if "lockstep" in args.beside else ""))


def us_text(row, name):
    return f"{row[name]['us']:.1f}" if name in row and "us" in row[name] else "-"


def percent_text(percent):
    return f"{percent:.1f} %" if percent is not None else "-"


def row_text(row):
    speedup = f"{row['speedup']:.2f}" if row.get("speedup") else "-"
    least = f"{row['goal_cost_percent']:.0f} %" if row["goal_cost_percent"] else ""
    room = f" {us_text(row, 'noop'):>12} {row['head_room'] or math.nan:>10.2f}" if "noop" in row else ""
    step = f" {us_text(row, 'lockstep'):>12} {percent_text(row['lockstep_percent']):>10}" if "lockstep" in row else ""
    return (f"{row['model'] + ' ' + row['type']:16} {us_text(row, 'cairn'):>10} {us_text(row, 'torch'):>10} "
            f"{speedup:>14} {row['goal']:>6.1f} {us_text(row, 'alone'):>12} {percent_text(row['cost_percent']):>10} "
            f"{least:>6}{room}{step}").rstrip()


def print_reasons(rows):
    for name in NAMES:
        for why in sorted({row[name]["why"] for row in rows if name in row and "why" in row[name]}):
            print(f"# {NAMES[name]}: no figure, {why}")


# ---- the whole ----

def gather(sides, args):
    sides.add("cairn")
    missing = {}
    for name in args.beside:
        try:
            sides.add(name)
        except SideFailed as why:
            missing[name] = str(why)
    return missing


def run(args):
    begin, rows = time.monotonic(), []
    with Sides(args) as sides:
        missing = gather(sides, args)
        print_heads(args, sides.all, missing)
        for model, dtype in GOALS:
            if args.only and args.only not in f"{model} {dtype}":
                continue
            rows.append(measure(sides, args, model, dtype))
            print(row_text(rows[-1]), flush=True)
        print_reasons(rows)
        about = {side.name: side.what for side in sides.all}
    print(f"# {time.monotonic() - begin:.0f} s")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine.cpu_name(), "processors": machine.num_processors(), "command": sys.argv[1:],
                       "ranks": args.ranks, "sides": about, "left_out": missing, "torch_bf16": args.torch_bf16,
                       "rows": rows}, file, indent=1)
            file.write("\n")
    return 0


def beside(text):
    names = [] if text == "none" else text.split(",")
    if not set(names) <= {"alone", "noop", "lockstep", "torch"}:
        raise ValueError
    return names


def add_options(parser):
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", type=collectives.at_least(1, 64), default=2, help="2")
    parser.add_argument("--rounds", type=collectives.at_least(1, 1000), default=9, help="9")
    parser.add_argument("--round", type=collectives.positive, default=0.5, help="seconds of a side in a round; 0.5")
    parser.add_argument("--only", help="only lines whose name has this in it")
    parser.add_argument("--bucket", type=collectives.nbytes, default=0, metavar="BYTES",
                        help="such as 4M, of both; each one's default")
    parser.add_argument("--beside", type=beside, default=["alone", "torch"], metavar="LIST",
                        help="some of alone,noop,lockstep,torch, or none; alone,torch")
    parser.add_argument("--bind", action=argparse.BooleanOptionalAction,
                        help="each rank of Cairn to a processor; where there are as many processors")
    parser.add_argument("--bind-torch", action="store_true", help="PyTorch's too, with the threads of gloo")
    parser.add_argument("--torch-bf16", default="autocast", choices=["autocast", "weights"], help="autocast")
    parser.add_argument("--timeout", type=collectives.positive, default=120,
                        help="seconds without an answer of a side; 120")
    parser.add_argument("--python", help="the Python that has PyTorch")
    parser.add_argument("--json", metavar="FILE", help="the same figures, each round's too")


def main(args):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # sides are ended on the way out
    try:
        return run(args)
    except (SideFailed, OSError) as why:
        print(f"cairn-bench: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
