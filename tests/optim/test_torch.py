#!/usr/bin/env python3
"""Optimizers against PyTorch's in f64: 100 steps of each, with every option that PyTorch also has, in every type. The
largest difference of weights and its norm stay within 1e-6, those of states within 3e-6, and neither exceeds twice the
error of PyTorch in f32.

usage: test_torch.py SOURCE_ROOT PROGRAM     PROGRAM: what tests/optim/stepped.c became

Gradients are multiples of 1/64 below 2, which halves hold exactly, so that all types step alike. Skipped (77) where
there is no torch."""
import array
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../rendezvous"))
import torches

N, STEPS = 257, 100
TYPES = ["f32", "f16", "bf16"]
BOUND, STATES_BOUND = 1e-6, 3e-6
NAMES = {"initial_accumulator": "initial_accumulator_value"}  # where PyTorch's differ

# A kind, PyTorch's optimizer, and what options are combined of: of each tuple one.
OPTIONS = [
    ("sgd", "SGD", {"lr": 0.01}, [({}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5},
                                   {"momentum": 0.5, "dampening": 1}, {"momentum": 0.9, "nesterov": True}),
                                  ({}, {"weight_decay": 0.01}), ({}, {"maximize": True})]),
    *((kind, torch, {}, [({}, {"lr": 0.01, "beta1": 0.8, "beta2": 0.5}, {"eps": 1e-3, "beta1": 0.0}),
                         ({"weight_decay": 0.0}, {"weight_decay": 0.1}), ({}, {"amsgrad": True}),
                         ({}, {"maximize": True})]) for kind, torch in (("adam", "Adam"), ("adamw", "AdamW"))),
    ("adagrad", "Adagrad", {}, [({}, {"lr": 0.1, "eps": 1e-3}), ({}, {"lr_decay": 0.1}),
                                ({}, {"initial_accumulator": 0.25}), ({}, {"weight_decay": 0.01}),
                                ({}, {"maximize": True})]),
    *((kind, "Muon", {}, [({}, {"lr": 0.02, "momentum": 0.5}), ({"weight_decay": 0.0}, {"weight_decay": 0.1})])
      for kind in ("muon_wide", "muon_tall")),
]

PEER = r"""
import array, json, sys, torch
n, steps, path = json.loads(sys.stdin.readline())
numbers = array.array("f")
with open(path, "rb") as file:
    numbers.fromfile(file, (steps + 1) * n)
numbers = torch.tensor(numbers).reshape(steps + 1, n)
STATES = ["momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "sum"]

# Muon's products are bf16 in PyTorch: here of the run's type. Its momentum is 1 - momentum times ours.
def run(name, kind, options, dtype):
    shape = {"muon_wide": (8, 32), "muon_tall": (32, 8)}.get(kind, (n,))
    torch.bfloat16 = dtype
    p = numbers[0][:torch.Size(shape).numel()].reshape(shape).to(dtype, copy=True).requires_grad_()
    optimizer = getattr(torch.optim, name)([p], **options)
    for t in range(1, steps + 1):
        p.grad = numbers[t][:p.numel()].reshape(shape).to(dtype, copy=True)
        optimizer.step()
    state = optimizer.state[p]
    if name == "Muon":
        state["momentum_buffer"] = state["momentum_buffer"].double() / (1 - options.get("momentum", 0.95))
    found = [p.detach()] + [state[s] for s in STATES if state.get(s) is not None]
    return [x.double().flatten().tolist() for x in found]

for line in sys.stdin:
    name, kind, options = json.loads(line)
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    print(json.dumps([run(name, kind, options, torch.float64), run(name, kind, options, torch.float32)]), flush=True)
"""


def cases():
    for kind, torch, base, parts in OPTIONS:
        for chosen in itertools.product(*parts):
            options = dict(base)
            for part in chosen:
                options.update(part)
            yield kind, torch, options


def of_torch(options):
    named = {NAMES.get(name, name): value for name, value in options.items() if not name.startswith("beta")}
    if "beta1" in options:
        named["betas"] = [options["beta1"], options.get("beta2", 0.999)]
    return named


def write_numbers(file):
    random.seed(27)
    weights = [random.uniform(-1, 1) for _ in range(N)]
    gradients = [random.randint(-127, 127) / 64 for _ in range(STEPS * N)]
    array.array("f", weights + gradients).tofile(file)
    file.flush()


def drive(program, path, lines):
    """Of each line its rows of numbers: weights, then states."""
    done = subprocess.run([program, path], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=240,
                          check=False)
    assert done.returncode == 0, done.stderr
    runs, rows = [], []
    for line in done.stdout.splitlines():
        if line == "end":
            runs.append(rows)
            rows = []
        else:
            rows.append([float(word) for word in line.split()])
    return runs


def ask_peer(torch, path, found):
    asked = [json.dumps([N, STEPS, path])] + [json.dumps([name, kind, of_torch(options)])
                                                 for kind, name, options in found]
    done = subprocess.run([torch.python, "-c", PEER], input="\n".join(asked) + "\n", capture_output=True, text=True,
                          timeout=300, check=False, env=torches.environment({}))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def apart(ours, theirs):
    """The greatest difference and the differences' norm, of theirs."""
    greatest = max(abs(a - b) for a, b in zip(ours, theirs)) / max(map(abs, theirs))
    return greatest, math.dist(ours, theirs) / math.hypot(*theirs)


def compare(what, ours, exact, single):
    """The worst of the weights, and PyTorch's own in f32."""
    assert len(ours) == len(exact), f"{what}: {len(ours) - 1} states, and PyTorch has {len(exact) - 1}"
    for i, rows in enumerate(zip(ours, exact, single)):
        bound = STATES_BOUND if i else BOUND
        got, theirs = apart(rows[0], rows[1]), apart(rows[2], rows[1])
        assert max(got) <= bound, f"{what}: row {i} is {got[0]:.1e} of the greatest and {got[1]:.1e} of the norm apart"
        assert all(a <= 2 * b + 1e-7 for a, b in zip(got, theirs)), f"{what}: row {i} {got}, PyTorch in f32 {theirs}"
    return apart(ours[0], exact[0])[0], apart(single[0], exact[0])[0]


def main():
    source, program = sys.argv[1:3]
    found = torches.find_or_skip(source)
    with tempfile.NamedTemporaryFile() as file:
        write_numbers(file)
        all_cases = list(cases())
        lines = [" ".join([kind, dtype] + [f"{name} {value}" for name, value in options.items()])
                 for kind, _, options in all_cases for dtype in TYPES]
        ours = drive(program, file.name, lines)
        assert len(ours) == len(lines)
        for torch in found:
            worst = (0, 0)
            for i, (exact, single) in enumerate(ask_peer(torch, file.name, all_cases)):
                for k, dtype in enumerate(TYPES):
                    at = len(TYPES) * i + k
                    worst = max(worst, compare(f"{torch}: {lines[at]}", ours[at], exact, single))
            print(f"{torch}: {len(all_cases)} optimizers in {len(TYPES)} types, weights within {worst[0]:.1e} of the "
                  f"greatest in f64, where PyTorch's f32 are within {worst[1]:.1e}")


if __name__ == "__main__":
    main()
