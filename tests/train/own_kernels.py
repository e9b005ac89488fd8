#!/usr/bin/env python3
"""examples/09_own_kernels on a GPU trains as examples/02_own_buffers does on the CPU.

usage: own_kernels.py PROGRAM CPU_PROGRAM [standin]     exits 77 where there is no GPU, unless it is the stand-in

Both add in the same order, so on the stand-in, whose expf and logf are the CPU's, every digit of the losses is the same
at every level. On a GPU losses are within 2e-5 of the CPU's at O0 and O1, and within 0.02 at O2, where weights and
gradients are rounded to half; at every level they end below 0.12 of the first, as own_buffers.py says of the CPU's.
"""
import os
import re
import subprocess
import sys

LEVELS = {"O0": 2e-5, "O1": 2e-5, "O2": 0.02}


def losses_of(program, level):
    env = {name: value for name, value in os.environ.items() if name != "CAIRN_DEVICE"}
    return subprocess.run([program, "--opt-level", level], env=env, capture_output=True, text=True, check=False,
                          timeout=300)


def read(run):
    losses = [float(loss) for loss in re.findall(r"^step \d+  loss (\S+)$", run.stdout, re.M)]
    if run.returncode or len(losses) != 11:
        sys.exit(f"{run.args} exited with {run.returncode}:\n{run.stdout}{run.stderr}")
    if not sum(losses[-5:]) < 0.12 * 5 * losses[0]:
        sys.exit(f"{run.args} does not learn: {losses}")
    return losses


def main():
    program, on_cpu, *standin = sys.argv[1:]
    for level, most in LEVELS.items():
        run = losses_of(program, level)
        if run.returncode and not standin and re.search(r"driver|GPU on this machine|libcairn_cuda.so", run.stderr):
            print(run.stderr.strip())
            sys.exit(77)
        apart = max(abs(a - b) for a, b in zip(read(run), read(losses_of(on_cpu, level))))
        if not apart < most or standin and apart:
            sys.exit(f"{level} is {apart} apart from the CPU's losses:\n{run.stdout}")
        print(f"{level} within {apart:.2g} of the CPU")


if __name__ == "__main__":
    main()
