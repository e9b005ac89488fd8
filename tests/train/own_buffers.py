#!/usr/bin/env python3
"""A trainer with its own buffers, before and after: what Cairn changed is short, shown in the guide, and right.

usage: own_buffers.py ROOT PLAIN WITH_CAIRN

The two files differ in fewer than 30 lines, added and removed, and docs/from-apex.md shows exactly these. The plain
program and Cairn's at O0 print the same losses, every digit; so do they at O1, where the scale is a power of two and the
user's own arithmetic stays f32. At O2 weights and gradients have f16 values: losses are within 0.02 of the plain ones
(0.006 were seen), and so learning ends as low.
"""
import difflib
import os
import re
import subprocess
import sys

FILES = "examples/02_own_buffers_plain.c", "examples/02_own_buffers.c"
MOST = 29
NEAR = 0.02


def difference(root):
    texts = []
    for name in FILES:
        with open(os.path.join(root, name), encoding="utf-8") as f:
            texts.append(f.read().splitlines())
    return list(difflib.unified_diff(*texts, *FILES, lineterm="", n=1))


def check_difference(root):
    lines = difference(root)
    changed = sum(line[0] in "+-" for line in lines[2:])
    if changed > MOST:
        sys.exit(f"{changed} lines differ; {MOST} may:\n" + "\n".join(lines))
    with open(os.path.join(root, "docs", "from-apex.md"), encoding="utf-8") as f:
        shown = re.search(r"^```diff\n(.*?)\n```$", f.read(), re.M | re.S)
    if not shown or shown.group(1) != "\n".join(lines):
        sys.exit("docs/from-apex.md shows another difference; it is:\n```diff\n" + "\n".join(lines) + "\n```")


def losses_of(*command):
    env = {name: value for name, value in os.environ.items() if name != "CAIRN_DEVICE"}  # its buffers are the host's
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    losses = re.findall(r"^step \d+  loss (\S+)$", run.stdout, re.M)
    if run.returncode or len(losses) != 11:
        sys.exit(f"{' '.join(command)} exited with {run.returncode}:\n{run.stdout}{run.stderr}")
    return losses


def main():
    root, plain, cairn = sys.argv[1:]
    check_difference(root)
    expected = losses_of(plain)
    if not sum(map(float, expected[-5:])) < 0.12 * 5 * float(expected[0]):
        sys.exit(f"the plain program does not learn: {expected}")
    for level in "O0", "O1":
        losses = losses_of(cairn, "--opt-level", level)
        if losses != expected:
            sys.exit(f"{level} prints\n{losses}, but the plain program\n{expected}")
    losses = losses_of(cairn)
    apart = max(abs(float(a) - float(b)) for a, b in zip(losses, expected))
    if not 0 < apart < NEAR:
        sys.exit(f"O2 prints\n{losses}, {apart} apart from\n{expected}")
    print(f"29 lines at most; O0 and O1 as the plain program, O2 within {apart:.4f}")


if __name__ == "__main__":
    main()
