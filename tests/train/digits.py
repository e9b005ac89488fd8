#!/usr/bin/env python3
"""Examples 04 to 06 read handwritten digits: 97 % of those not trained on in f32, and as many, within 0.5 points, under
O1 and O2 in both half types.

usage: digits.py WHERE PROGRAM...     exits 77 where scikit-learn's file is not; WHERE: a folder for the text of it

The 360 tested digits are drawn from all 1797 by the fixed seed of examples/digits.h. With CAIRN_TEST_SEEDS set, as in
the steps of tools/check that look at builds and instruction sets, each program trains for two epochs under O1 alone,
and has to read half of the digits. More than the accuracy in f32 is no failure.
"""
import gzip
import importlib.util
import os
import re
import subprocess
import sys
import time

DEBIAN = "/usr/lib/python3/dist-packages/sklearn"
LEAST = 97.0
NEAR = 0.5
LEVELS = [("O0", "f16"), ("O1", "f16"), ("O1", "bf16"), ("O2", "f16"), ("O2", "bf16")]


def text_of_digits(where):
    """The path of the digits as text, unpacked below where."""
    spec = importlib.util.find_spec("sklearn")
    for folder in [DEBIAN, *(spec.submodule_search_locations or [] if spec else [])]:
        packed = os.path.join(folder, "datasets", "data", "digits.csv.gz")
        if os.path.exists(packed):
            break
    else:
        print("scikit-learn's digits are not on this machine (Debian: python3-sklearn), so nothing was trained")
        sys.exit(77)
    path = os.path.join(where, "digits.csv")
    with gzip.open(packed, "rt") as packed_file, open(path, "w", encoding="ascii") as f:
        f.write(packed_file.read())
    return path


def accuracy(program, *arguments):
    run = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=600)
    found = re.search(r"^test accuracy = (\S+) %$", run.stdout, re.M)
    if run.returncode or not found:
        sys.exit(f"{program} {' '.join(arguments)} exited with {run.returncode}:\n{run.stdout}{run.stderr}")
    return float(found[1])


def short(program, digits):
    got = accuracy(program, digits, "--opt-level", "O1", "--half", "bf16", "--epochs", "2")
    print(f"{os.path.basename(program)}: {got:.2f} % after two epochs of O1 bf16")
    return [] if got >= 50 else [f"{program}: {got} % after two epochs"]


def whole(program, digits):
    name = os.path.basename(program)
    begin = time.monotonic()
    got = {level: accuracy(program, digits, "--opt-level", level[0], "--half", level[1]) for level in LEVELS}
    line = "  ".join(f"{'f32' if level == 'O0' else level + ' ' + half} {a:.2f}" for (level, half), a in got.items())
    print(f"{name}: {line}  ({time.monotonic() - begin:.1f} s)")
    f32 = got[LEVELS[0]]
    bad = [f"{name}: {f32} % in f32, less than {LEAST}"] if f32 < LEAST else []
    for (level, half), a in got.items():
        if a < f32 - NEAR:
            bad.append(f"{name}: {a} % under {level} {half}, but {f32} % in f32")
    return bad


def main():
    where, *programs = sys.argv[1:]
    digits = text_of_digits(where)
    train = short if os.environ.get("CAIRN_TEST_SEEDS") else whole
    bad = [line for program in programs for line in train(program, digits)]
    sys.exit("\n".join(bad) or 0)


if __name__ == "__main__":
    main()
