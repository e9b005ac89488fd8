"""Runs examples/10_pipeline on two ranks, at every level and in both schedules, and on one: the same lines.

usage: example.py cairn-run 10_pipeline"""
import subprocess
import sys


def lines(cairn_run, program, ranks, arguments):
    done = subprocess.run([cairn_run, "--nproc_per_node", str(ranks), program] + arguments, stdout=subprocess.PIPE,
                          check=True, text=True, timeout=60)
    found = [line for line in done.stdout.splitlines() if "step" in line]
    assert len(found) == 3, done.stdout
    return [line[line.index("step"):] for line in found]


def main(cairn_run, program):
    for level in ("O0", "O1", "O2", "O3"):
        for half in ("f16", "bf16"):
            arguments = ["--opt-level", level, "--half", half, "--steps", "20"]
            alone = lines(cairn_run, program, 1, arguments)
            schedule = "gpipe" if half == "f16" else "1f1b"
            staged = lines(cairn_run, program, 2, arguments + ["--schedule", schedule])
            assert staged == alone, f"{level} {half}: {staged}, alone {alone}"
            first, last = (float(line.split()[3]) for line in (alone[0], alone[-1]))
            assert last < 0.7 * first, f"{level} {half}: the loss goes from {first} to {last}"
    for ranks, replicas in ((2, 2), (4, 2)):
        found = lines(cairn_run, program, ranks, ["--replicas", str(replicas), "--steps", "20"])
        assert float(found[-1].split()[3]) < 0.7 * float(found[0].split()[3]), found


if __name__ == "__main__":
    main(*sys.argv[1:])
