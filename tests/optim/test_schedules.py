#!/usr/bin/env python3
"""Schedules against PyTorch's and Hugging Face's: a Cairn optimizer takes 2000 steps, with random steps skipped, called
and as replays of a graph, and every learning rate must equal theirs within 1e-12 of the base rate. Their closed forms
are used where they exist, since torch's recursive forms drift.

usage: test_schedules.py SOURCE_ROOT PROGRAM     PROGRAM: what tests/optim/schedules.c became

Skipped (77) where there is no torch. Hugging Face's are compared in those torches that have transformers beside them:
pip install transformers."""
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../rendezvous"))
import torches

STEPS, BASE = 2000, 0.3
KINDS = ["constant", "linear", "cosine", "restarts", "polynomial", "step", "multi_step", "exponential", "one_cycle",
         "inverse_sqrt", "wsd", "sequence", "product"]

# What Cairn is given, and what torch is: an expression of `opt` and s = torch.optim.lr_scheduler.
TORCH = [
    ("constant", "total_steps 700 start_factor 0.4", "s.ConstantLR(opt, 0.4, 700)"),
    ("linear", "total_steps 300 start_factor 0.25 end_factor 1", "s.LinearLR(opt, 0.25, 1.0, 300)"),
    ("linear", "total_steps 1999 start_factor 1 end_factor 0.1", "s.LinearLR(opt, 1.0, 0.1, 1999)"),
    ("cosine", "total_steps 2000", "s.CosineAnnealingLR(opt, 2000)"),
    ("cosine", "total_steps 777 end_lr 0.01", "s.CosineAnnealingLR(opt, 777, 0.01)"),
    ("restarts", "cycle_steps 130", "s.CosineAnnealingWarmRestarts(opt, 130)"),
    ("restarts", "cycle_steps 7 cycle_growth 3 end_lr 1e-5", "s.CosineAnnealingWarmRestarts(opt, 7, 3, 1e-5)"),
    ("restarts", "cycle_steps 1 cycle_growth 2", "s.CosineAnnealingWarmRestarts(opt, 1, 2)"),
    ("polynomial", "total_steps 1500 power 1", "s.PolynomialLR(opt, 1500, 1.0)"),
    ("polynomial", "total_steps 2000 power 0.9", "s.PolynomialLR(opt, 2000, 0.9)"),
    ("polynomial", "total_steps 1999 power 2.5", "s.PolynomialLR(opt, 1999, 2.5)"),
    ("step", "step_size 30 gamma 0.9", "s.StepLR(opt, 30, 0.9)"),
    ("step", "step_size 500", "s.StepLR(opt, 500)"),
    ("multi_step", "milestones 0,30,30,800,1999", "s.MultiStepLR(opt, [0, 30, 30, 800, 1999])"),
    ("multi_step", "milestones 100,1000 gamma 0.5", "s.MultiStepLR(opt, [100, 1000], 0.5)"),
    ("exponential", "gamma 0.999", "s.ExponentialLR(opt, 0.999)"),
    ("exponential", "gamma 0.5", "s.ExponentialLR(opt, 0.5)"),
    ("one_cycle", "total_steps 2000", "s.OneCycleLR(opt, BASE, 2000)"),
    ("one_cycle", "total_steps 2000 decay_curve 1 pct_start 0.45 div_factor 10 final_div_factor 100",
     "s.OneCycleLR(opt, BASE, 2000, pct_start=0.45, anneal_strategy='linear', div_factor=10, final_div_factor=100)"),
    ("one_cycle", "total_steps 2003 three_phase 1 pct_start 0.2 base_momentum 0.5 max_momentum 0.8",
     "s.OneCycleLR(opt, BASE, 2003, three_phase=True, pct_start=0.2, base_momentum=0.5, max_momentum=0.8)"),
    ("one_cycle", "total_steps 2000 cycle_momentum 2", "s.OneCycleLR(opt, BASE, 2000, cycle_momentum=False)"),
    ("sequence", "milestones 100 | kind 2 total_steps 100 start_factor 0.01 end_factor 1 | kind 3 total_steps 1900",
     "s.SequentialLR(opt, [s.LinearLR(opt, 0.01, 1.0, 100), s.CosineAnnealingLR(opt, 1900)], [100])"),
    ("sequence", "milestones 20,60 | kind 1 total_steps 20 start_factor 0.1 | kind 8 gamma 0.99 | kind 6 step_size 400",
     "s.SequentialLR(opt, [s.ConstantLR(opt, 0.1, 20), s.ExponentialLR(opt, 0.99), s.StepLR(opt, 400)], [20, 60])"),
    ("product", "| kind 1 total_steps 50 start_factor 0.1 | kind 8 gamma 0.998",
     "s.ChainedScheduler([s.ConstantLR(opt, 0.1, 50), s.ExponentialLR(opt, 0.998)])"),
    ("product", "| kind 2 total_steps 64 start_factor 0.125 end_factor 1 | kind 7 milestones 500,900 gamma 0.3",
     "s.ChainedScheduler([s.LinearLR(opt, 0.125, 1.0, 64), s.MultiStepLR(opt, [500, 900], 0.3)])"),
]

# And get_scheduler's name, warm-up, total and further arguments.
HUGGING_FACE = [
    ("constant", "", "('constant',)"),
    ("constant", "warmup_steps 250", "('constant_with_warmup', 250)"),
    ("linear", "total_steps 2000", "('linear', 0, 2000)"),
    ("linear", "warmup_steps 100 total_steps 1500", "('linear', 100, 1500)"),
    ("cosine", "warmup_steps 100 total_steps 2000", "('cosine', 100, 2000)"),
    ("cosine", "warmup_steps 33 total_steps 900 cycles 2.3", "('cosine', 33, 900, {'num_cycles': 2.3})"),
    ("cosine", "warmup_steps 100 total_steps 2000 end_factor 0.1",
     "('cosine_with_min_lr', 100, 2000, {'min_lr_rate': 0.1})"),
    ("cosine", "warmup_steps 100 total_steps 2000 end_lr 0.007",
     "('cosine_with_min_lr', 100, 2000, {'min_lr': 0.007})"),
    ("restarts", "warmup_steps 100 total_steps 1900", "('cosine_with_restarts', 100, 1900)"),
    ("restarts", "warmup_steps 10 total_steps 1990 cycles 4", "('cosine_with_restarts', 10, 1990, {'num_cycles': 4})"),
    ("polynomial", "warmup_steps 100 total_steps 1800 end_lr 1e-7", "('polynomial', 100, 1800)"),
    ("polynomial", "warmup_steps 9 total_steps 1999 end_lr 0.01 power 1.37",
     "('polynomial', 9, 1999, {'lr_end': 0.01, 'power': 1.37})"),
    ("inverse_sqrt", "warmup_steps 400", "('inverse_sqrt', 400)"),
    ("inverse_sqrt", "", "('inverse_sqrt', 0)"),
    ("inverse_sqrt", "warmup_steps 40 timescale 777", "('inverse_sqrt', 40, None, {'timescale': 777})"),
    ("wsd", "warmup_steps 100 total_steps 1600 decay_steps 500",
     "('warmup_stable_decay', 100, 1600, {'num_decay_steps': 500})"),
    ("wsd", "warmup_steps 100 total_steps 2000 decay_steps 400 end_factor 0.1 warmup_start 0.1 decay_curve 2",
     "('warmup_stable_decay', 100, 2000, {'num_decay_steps': 400, 'min_lr_ratio': 0.1, 'decay_type': 'cosine'})"),
    ("wsd", "warmup_steps 200 total_steps 1999 decay_steps 999 warmup_curve 2 decay_curve 3",
     "('warmup_stable_decay', 200, 1999, {'num_decay_steps': 999, 'warmup_type': 'cosine', 'decay_type': '1-sqrt'})"),
    ("wsd", "warmup_steps 200 total_steps 1999 decay_steps 999 warmup_curve 3 decay_curve 1",
     "('warmup_stable_decay', 200, 1999, {'num_decay_steps': 999, 'warmup_type': '1-sqrt', 'decay_type': 'linear'})"),
]

PLATEAU = [
    ("", {}),
    ("patience 0 factor 0.5", {"patience": 0, "factor": 0.5}),
    ("patience 3 cooldown 4 threshold 0.01", {"patience": 3, "cooldown": 4, "threshold": 0.01}),
    ("patience 2 maximize 1 is_absolute 1 threshold 0.05 min_lr 0.001",
     {"patience": 2, "mode": "max", "threshold_mode": "abs", "threshold": 0.05, "min_lr": 0.001}),
    ("patience 1 is_absolute 1 threshold 0 eps 0.01",
     {"patience": 1, "threshold_mode": "abs", "threshold": 0, "eps": 0.01}),
]

PEER = r"""
import json, math, sys, warnings
warnings.filterwarnings("ignore")
import torch
from torch.optim import lr_scheduler as s
BASE, STEPS = json.loads(sys.stdin.readline())

def make():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=BASE, momentum=0.9)

def follow(opt, scheduler):
    closed = getattr(scheduler, "_get_closed_form_lr", None)
    for t in range(STEPS):
        if isinstance(scheduler, (s.LambdaLR, s.OneCycleLR)):
            scheduler.last_epoch = t
            opt.param_groups[0]["lr"] = scheduler.get_lr()[0]
        elif closed:
            scheduler.last_epoch = t
            opt.param_groups[0]["lr"] = closed()[0]
        elif t:
            opt.step()
            scheduler.step()
        yield opt.param_groups[0]["lr"]
        yield opt.param_groups[0]["momentum"]

for line in sys.stdin:
    what, rest = json.loads(line)
    opt = make()
    try:
        if what == "torch":
            scheduler = eval(rest)
        elif what == "transformers":
            from transformers import get_scheduler
            name, *given = eval(rest)
            given += [None] * (3 - len(given))
            scheduler = get_scheduler(name, opt, given[0], given[1], given[2])
        else:
            scheduler = s.ReduceLROnPlateau(opt, **rest[0])
            rates = []
            for metric in rest[1]:
                scheduler.step(float(metric))
                rates.append(opt.param_groups[0]["lr"])
            print(json.dumps(rates), flush=True)
            continue
        print(json.dumps([float(x) for x in follow(opt, scheduler)]), flush=True)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
"""


def ask_peer(torch, questions):
    import json
    text = "\n".join(map(json.dumps, [[BASE, STEPS]] + questions))
    answer = subprocess.run([torch.python, "-c", PEER], input=text, stdout=subprocess.PIPE, text=True, check=True,
                            env=torches.environment({"OMP_NUM_THREADS": "1"}))
    return [json.loads(line) for line in answer.stdout.splitlines()]


def drive(program, lines):
    run = subprocess.run([program], input="\n".join(lines) + "\n", stdout=subprocess.PIPE, text=True, check=True)
    return [line.split() for line in run.stdout.splitlines()]


def compare(case, ours, theirs):
    """The largest distance, in base rates."""
    rates, (_, skipped, _, recorded) = list(map(float, ours[:-4])), ours[-4:]
    assert len(rates) == len(theirs) == 2 * STEPS, case
    assert int(skipped) > STEPS // 10, f"{case}: {skipped} skipped steps"
    worst = 0
    for i, (got, want) in enumerate(zip(rates, theirs)):
        worst = max(worst, abs(got - want) / (BASE if i % 2 == 0 else 1))
        assert worst <= 1e-12, f"{case}: step {i // 2}: {'momentum' if i % 2 else 'rate'} {got!r}, theirs {want!r}"
    return worst


def metrics():
    pick = random.Random(11)
    value, out = 1.0, []
    for i in range(300):
        value *= 1 + pick.uniform(-0.03, 0.028)
        out.append("nan" if i % 97 == 50 else repr(value))
    return out


def main():
    found = torches.find_or_skip(sys.argv[1])
    program, told = sys.argv[2], metrics()
    cases = [("torch", *case) for case in TORCH] + [("transformers", *case) for case in HUGGING_FACE]
    on_gpu = os.environ.get("CAIRN_DEVICE", "cpu") != "cpu"
    ways = ["graph "] if on_gpu else ["graph ", ""]  # the stand-in of a GPU is slow
    lines = [f"sgd {how}{STEPS} {BASE} kind {KINDS.index(kind) + 1} {fields}" for how in ways
             for _, kind, fields, _ in cases]
    lines += [f"sgd plateau {BASE} {fields} | {' '.join(told)}" for fields, _ in PLATEAU]
    ours = drive(program, lines)
    recorded = {line[-1] for line in ours[:len(cases)]}
    assert recorded == ({"1"} if on_gpu else {"0"}), recorded
    for torch in found:
        theirs = ask_peer(torch, [[peer, expression] for peer, _, _, expression in cases] +
                          [["plateau", [arguments, told]] for _, arguments in PLATEAU])
        compared, missing, worst = 0, set(), 0
        for i, (peer, kind, fields, _) in enumerate(cases):
            if isinstance(theirs[i], str):
                assert peer == "transformers" or torch.release < (2, 0), f"{kind} {fields}: {theirs[i]}"
                missing.add(theirs[i])
                continue
            for way in range(len(ways)):
                run = ours[way * len(cases) + i]
                worst = max(worst, compare(f"{torch}: {ways[way]}{kind} {fields}", run, theirs[i]))
            compared += 1
        for i, (fields, _) in enumerate(PLATEAU):
            got = list(map(float, ours[len(ways) * len(cases) + i][::2]))
            assert max(abs(a - b) for a, b in zip(got, theirs[len(cases) + i])) <= 1e-12 * BASE, f"plateau {fields}"
            assert len(got) == len(told) and len(set(got)) > 1, f"plateau {fields}: nothing was reduced"
        print(f"{torch}: {compared} schedules and {len(PLATEAU)} plateaus, within {worst:.1e} of the base rate"
              + "".join(f"; not compared: {why}" for why in sorted(missing)))


if __name__ == "__main__":
    main()
