#!/usr/bin/env python3
"""Averages of weights against torch.optim.swa_utils, which gets the same weights step by step.

usage: test_averages.py SOURCE_ROOT PROGRAM     PROGRAM: what tests/optim/averaged.c became

Skipped (77) where there is no torch."""
import array
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../rendezvous"))
import torches

N, STEPS = 257, 120
CASES = [("ema", 0.999, 0, 1), ("ema", 0.5, 0, 1), ("ema", 0.9, 10, 7), ("swa", 0, 0, 1), ("swa", 0, 40, 5)]

THEIRS = f"""
import sys, torch
from torch.optim import swa_utils
kind, decay, start, every = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
told = torch.frombuffer(bytearray(sys.stdin.buffer.read()), dtype=torch.float32).reshape({STEPS}, {N})
model = torch.nn.Module()
model.w = torch.nn.Parameter(torch.zeros({N}))
ways = {{}}
if kind == "swa":
    ways["avg_fn"] = None
elif hasattr(swa_utils, "get_ema_multi_avg_fn"):
    ways["multi_avg_fn"] = swa_utils.get_ema_multi_avg_fn(decay)
else:
    ways["avg_fn"] = lambda a, p, n: decay * a + (1 - decay) * p
averages = swa_utils.AveragedModel(model, **ways)
for t in range(1, {STEPS} + 1):
    model.w.data.copy_(told[t - 1])
    if t > start and (t - start) % every == 0:
        averages.update_parameters(model)
sys.stdout.buffer.write(averages.module.w.detach().numpy().tobytes())
"""


def main():
    found, program = torches.find_or_skip(sys.argv[1]), sys.argv[2]
    for torch in found:
        worst = 0
        for kind, *numbers in CASES:
            arguments = [str(x) for x in numbers]
            ours = subprocess.run([program, str(["ema", "swa"].index(kind) + 1), *arguments], capture_output=True,
                                  check=True, timeout=60).stdout
            assert len(ours) == (STEPS + 1) * N * 4, len(ours)
            theirs = subprocess.run([torch.python, "-c", THEIRS, kind, *arguments], input=ours[:STEPS * N * 4],
                                    capture_output=True, check=True, timeout=300).stdout
            got, want = array.array("f", ours[STEPS * N * 4:]), array.array("f", theirs)
            assert len(got) == len(want) == N
            greatest = max(abs(x) for x in want)
            off = max(abs(a - b) for a, b in zip(got, want)) / greatest
            assert greatest > 0.01 and off <= 1e-6, f"{torch}: {kind} {numbers}: off by {off} of the greatest"
            worst = max(worst, off)
        print(f"{torch}: {len(CASES)} averages, within {worst:.1e} of the greatest")


if __name__ == "__main__":
    main()
