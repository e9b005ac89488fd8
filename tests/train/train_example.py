#!/usr/bin/env python3
"""Example 08 trains from files that NumPy wrote, to the accuracy that docs/training.md states, at O0 and O2 in both
half types, on one rank and two; and files that it cannot use end in a sentence.

usage: train_example.py CAIRN_RUN PROGRAM      skipped where Python has no NumPy

The files are made by the script that stands in docs/training.md. With CAIRN_TEST_SHORT in the environment O0 and O2 in
bf16 train on one rank, O2 in f16 on two."""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from with_numpy import import_numpy

np = import_numpy()

GUIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/training.md")
LEAST = 98.5
CASES = [("O0", "f16", 1), ("O0", "f16", 2), ("O2", "f16", 1), ("O2", "f16", 2), ("O2", "bf16", 1), ("O2", "bf16", 2)]


def make_files(folder):
    with open(GUIDE, encoding="utf-8") as f:
        script = re.search(r"```python\n(.*?)```", f.read(), re.S)[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, check=False)
    assert done.returncode == 0, "the script of docs/training.md failed"
    return os.path.join(folder, "data")


def run(command, env=None):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=300,
                          env={**os.environ, **(env or {})})


def check_accuracy(cairn_run, program, data):
    for level, half, ranks in CASES[::3] + CASES[4:5] if os.environ.get("CAIRN_TEST_SHORT") else CASES:
        launcher = [cairn_run, "--nproc_per_node", str(ranks)] if ranks > 1 else []
        done = run([*launcher, program, data, "--opt-level", level, "--half", half], {"OMP_NUM_THREADS": "1"})
        found = re.search(r"^test accuracy = (\S+) %$", done.stdout, re.M)
        assert done.returncode == 0 and found, f"{level} {half} on {ranks}:\n{done.stdout}{done.stderr}"
        print(f"{level} {half} on {ranks}: {found[1]} %")
        assert float(found[1]) >= LEAST, f"{found[1]} % is less than {LEAST}"


def check_bad_files(program, data):
    """Each of the four files in turn is what it should not be."""
    x = np.load(f"{data}/train_x.npy")
    cases = [("train_x", None, "No such file"), ("train_x", x.astype("f8"), "has f64"),
             ("train_x", x[0], "of shape [32], but the program expects f32 of shape [*, *]"),
             ("train_x", np.asfortranarray(x), "Fortran order"), ("train_x", x.astype(">f4"), "big-endian"),
             ("train_y", np.array([None] * 3, dtype=object), "Python objects"),
             ("train_y", np.zeros(7, "i8"), "train_y.npy has 7 rows, but"),
             ("test_x", x[:, :5], "the program expects f32 of shape [*, 32]"),
             ("test_x", b"\x93NUMPY", "ends at byte 6"),
             ("train_y", np.full(6000, 10), "target")]
    for name, array, words in cases:
        path = f"{data}/{name}.npy"
        with open(path, "rb") as f:
            kept = f.read()
        if array is None:
            os.unlink(path)
        elif isinstance(array, bytes):
            with open(path, "wb") as f:
                f.write(array)
        else:
            np.save(path, array, allow_pickle=True)
        done = run([program, data, "--epochs", "1"])
        assert done.returncode == 1 and words in done.stderr, f"{name}, {words!r}: {done.returncode}\n{done.stderr}"
        with open(path, "wb") as f:
            f.write(kept)
    path = f"{data}/test_x.npy"
    os.truncate(path, os.path.getsize(path) - 1)
    done = run([program, data])
    assert done.returncode == 1 and "the file may have been truncated" in done.stderr, done.stderr
    print(f"{len(cases) + 1} bad files")


def main():
    cairn_run, program = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        data = make_files(folder)
        check_accuracy(cairn_run, program, data)
        check_bad_files(program, data)


if __name__ == "__main__":
    main()
