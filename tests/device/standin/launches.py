#!/usr/bin/env python3
"""Converts a program's .cu file to C++ for the stand-in, by replacing kernel<<<blocks, threads, 0, stream>>>(...).

usage: launches.py INPUT OUTPUT

Blocks and threads are numbers, not dim3. A launch in another form, with shared memory, say, is an error.
"""
import re
import sys

LAUNCH = re.compile(r"(\w+)<<<([^<>;]+?), ([^<>,;]+), 0, ([^<>,;]+)>>>\(")


def main():
    path, output = sys.argv[1:]
    with open(path, encoding="utf-8") as f:
        text = LAUNCH.sub(r"cairn__launch(\1, \2, \3, \4, ", f.read())
    left = [number for number, line in enumerate(text.split("\n"), 1) if "<<<" in line or ">>>" in line]
    if left:
        sys.exit(f"{path}:{left[0]}: a launch must have the form kernel<<<blocks, threads, 0, stream>>>(arguments)")
    with open(output, "w", encoding="utf-8") as f:
        f.write(f'#include "standin/kernel.h"\n#line 1 "{path}"\n{text}')


if __name__ == "__main__":
    main()
