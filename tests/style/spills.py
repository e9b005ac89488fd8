"""Checks ptxas's report on every kernel: none spills registers, except those that run one block per step, and f64's
maps.

usage: spills.py report..."""
import re
import sys

import sources

KERNEL = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
# Bytes of kernels that may, by what their mangled names begin with.
ONE_BLOCK = 64  # a schedule's arithmetic, once a step for each group
PACK = 32       # sm_100 keeps a pack of halves in memory
CALLS = 512     # every formula in f64 is a function that is called: f64 is there to check by
MOST = {"11renew_rates": ONE_BLOCK, "8end_step": ONE_BLOCK, "7map_anyId": CALLS, "7map_sumId": CALLS,
        "21softmax_backward_held": PACK}
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def kernels(report):
    """(name, architecture, bytes on the stack and spilled) of each kernel in ptxas's report."""
    found = []
    for line in report.splitlines():
        begin, stack = KERNEL.search(line), STACK.search(line)
        if begin:
            found.append([*begin.groups(), None])
        elif stack and found and found[-1][2] is None:
            found[-1][2] = sum(map(int, stack.groups()))
    return found


def complaints(found):
    for name, architecture, nbytes in found:
        most = max((allowed for kernel, allowed in MOST.items() if kernel in name), default=0)
        if nbytes is None or nbytes > most:
            what = "tells nothing of its stack" if nbytes is None else f"has {nbytes} bytes on the stack or spilled"
            yield f"{name} for {architecture} {what}"


def check_the_check():
    report = """ptxas info    : Compiling entry function '_Z1av' for 'sm_80'
ptxas info    : Function properties for _Z1av
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function '_Z1bv' for 'sm_90'
ptxas info    : Function properties for _Z1bv
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Compiling entry function '_Z1cv' for 'sm_90'
"""
    assert kernels(report) == [["_Z1av", "sm_80", 0], ["_Z1bv", "sm_90", 36], ["_Z1cv", "sm_90", None]]
    assert len(list(complaints(kernels(report)))) == 2
    assert len(list(complaints([["_Z8end_step3abc", "sm_90", 65], ["_Z8end_step3abc", "sm_90", 64]]))) == 1


if __name__ == "__main__":
    check_the_check()
    if len(sys.argv) == 1:
        print("the GPU module is not in this build")
        sys.exit(sources.SKIP)
    every = [kernel for path in sys.argv[1:] for kernel in kernels(sources.read("", path))]
    problems = list(complaints(every))
    if not every:
        problems = ["there is no kernel in the reports: has ptxas another way of telling?"]
    print(f"{len(every)} kernels, each counted once for an architecture")
    sources.finish(problems, "spills")
