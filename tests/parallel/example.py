"""Runs examples/10_pipeline on two ranks, at every level and in both schedules, and on one: the same lines. In
replicas, whose ranks are processes or threads, the numbers are those of one rank on the whole batch, but for rounding.

usage: example.py cairn-run 10_pipeline [threads]    (threads: the two ranks are threads, as those of the stand-in for
NCCL are, and there are no replicas). With CAIRN_TEST_SHORT in the environment each level runs with one half type, and
replicas in one schedule"""
import os
import subprocess
import sys


def lines(cairn_run, program, ranks, arguments):
    done = subprocess.run([cairn_run, "--nproc_per_node", str(ranks), program] + arguments, stdout=subprocess.PIPE,
                          check=True, text=True, timeout=60)
    found = [line for line in done.stdout.splitlines() if "step" in line]
    assert len(found) == 3, done.stdout
    return [line[line.index("step"):] for line in found]


def some(cases):
    """All, or when short every other one, from the first or the second on by turns."""
    if "CAIRN_TEST_SHORT" not in os.environ:
        return cases
    return [pair[i % 2] for i, pair in enumerate(zip(cases[::2], cases[1::2]))]


def main(cairn_run, program, how=""):
    for level, half in some([(level, half) for level in ("O0", "O1", "O2", "O3") for half in ("f16", "bf16")]):
        arguments = ["--opt-level", level, "--half", half, "--steps", "20"]
        alone = lines(cairn_run, program, 1, arguments)
        schedule = "gpipe" if half == "f16" else "1f1b"
        arguments += ["--schedule", schedule]
        staged = lines(cairn_run, program, 1, arguments + ["--threads", "2"]) if how == "threads" else \
            lines(cairn_run, program, 2, arguments)
        assert staged == alone, f"{level} {half}: {staged}, alone {alone}"
        first, last = (float(line.split()[3]) for line in (alone[0], alone[-1]))
        assert last < 0.7 * first, f"{level} {half}: the loss goes from {first} to {last}"
    if how != "threads":
        check_replicas(cairn_run, program)


def numbers(cairn_run, program, processes, arguments):
    """Loss and norm of each line."""
    found = lines(cairn_run, program, processes, arguments + ["--steps", "20"])
    return [[float(line.split()[3]), float(line.split()[-1])] for line in found]


def check_replicas(cairn_run, program):
    alone = numbers(cairn_run, program, 1, [])
    layouts = (2, 0, 2), (4, 0, 2), (2, 2, 2), (1, 2, 1), (1, 4, 2), (2, 2, 4), (2, 1, 1)
    cases = [(*layout, schedule) for layout in layouts for schedule in ("gpipe", "1f1b")]
    for processes, threads, replicas, schedule in some(cases):
        arguments = ["--replicas", str(replicas), "--schedule", schedule]
        arguments += ["--threads", str(threads)] if threads else []
        found = numbers(cairn_run, program, processes, arguments)
        for mine, theirs in zip(found, alone):
            assert abs(mine[0] - theirs[0]) <= 2e-6 and abs(mine[1] - theirs[1]) <= 1e-4, \
                f"{processes} processes, {threads} threads, {replicas} replicas: {found}, alone {alone}"


if __name__ == "__main__":
    main(*sys.argv[1:])
