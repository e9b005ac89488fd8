#!/usr/bin/env python3
"""examples/04_graph learns on DEVICE; where that is not the CPU, it is recorded, and its losses are the CPU's.

usage: graph_example.py CAIRN_RUN PROGRAM DEVICE [required]     exits 77 where DEVICE is not, unless it is required

A recording that missed a new batch or a new learning rate would be elsewhere by more than the bound of 1 %. On the CPU
the program runs with 1, 2 and 4 ranks, with CAIRN_TEST_SHORT in the environment 1 and 2. A loss ends below 0.02; the
mean square of what is to be learnt is 1/3.
"""
import os
import re
import subprocess
import sys

END = 0.02


def train(launcher, program, ranks, device):
    command = [program] if ranks == 1 else [launcher, "--nproc_per_node", str(ranks), program]
    env = {**os.environ, "CAIRN_DEVICE": device}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


def losses_of(run, recorded):
    if run.returncode:
        sys.exit(f"exited with {run.returncode}:\n{run.stderr}")
    if f"recorded = {recorded}\n" not in run.stdout:
        sys.exit(f"it should be recorded: {recorded}\n{run.stdout}")
    losses = [float(x) for x in re.findall(r"^step \d+  lr \S+  loss (\S+)$", run.stdout, re.M)]
    if len(losses) != 10 or not losses[-1] < END or not losses[0] > 4 * losses[-1]:
        sys.exit(f"it should learn:\n{run.stdout}")
    return losses


def main():
    launcher, program, device, *required = sys.argv[1:]
    cpu = losses_of(train(launcher, program, 1, "cpu"), "no")
    if device == "cpu":
        for ranks in (2,) if "CAIRN_TEST_SHORT" in os.environ else (2, 4):
            losses_of(train(launcher, program, ranks, "cpu"), "no")
    else:
        run = train(launcher, program, 1, device)
        if run.returncode and not required:
            print(run.stderr.strip())
            sys.exit(77)
        for mine, other in zip(losses_of(run, "yes"), cpu):
            if not abs(mine - other) <= 0.01 * other:
                sys.exit(f"{mine} on {device}, {other} on the CPU:\n{run.stdout}")
    print(f"{device}: every loss is where it should be")


if __name__ == "__main__":
    main()
