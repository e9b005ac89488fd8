"""Runs examples/11_data_parallel with one to three replicas, at every level, with the loss inside and outside: the same
lines.

usage: replicas_example.py 11_data_parallel"""
import subprocess
import sys


def lines(program, arguments):
    done = subprocess.run([program] + arguments, stdout=subprocess.PIPE, check=True, text=True, timeout=60)
    found = done.stdout.splitlines()
    assert len(found) == 3, done.stdout
    return found[:2], found[2]


def main(program):
    for level in ("O0", "O1", "O2", "O3"):
        for half in ("f16", "bf16"):
            arguments = ["--opt-level", level, "--half", half, "--steps", "20", "--replicas"]
            alone, _ = lines(program, arguments + ["1"])
            for replicas, where in ((2, "outside"), (3, "inside")):
                found, last = lines(program, arguments + [str(replicas), "--loss", where])
                assert last == f"{replicas} replicas", last
                for a, b in zip(found, alone):
                    x, y = float(a.split()[3]), float(b.split()[3])
                    bound = 1e-4 if level == "O0" else 0.02 * y
                    assert abs(x - y) <= bound, f"{level} {half}, {replicas} replicas: {a}, alone {b}"
            first, end = (float(line.split()[3]) for line in alone)
            assert end < 0.4 * first, f"{level} {half}: the loss goes from {first} to {end}"
    wrong = subprocess.run([program, "--loss", "beside"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 1 and "--loss is inside or outside" in wrong.stderr, wrong


if __name__ == "__main__":
    main(*sys.argv[1:])
