#!/usr/bin/env python3
"""Cairn reads the .npy files that this machine's NumPy writes, and refuses unsupported ones with a message.

usage: test_npy.py PROGRAM     what tests/data/npy_sum.c became; skipped where Python has no NumPy"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from with_numpy import import_numpy

np = import_numpy()

NAMES = {"float64": "f64", "float32": "f32", "float16": "f16", "int64": "i64", "int32": "i32", "uint8": "u8",
         "bool": "bool"}


def arrays():
    """(array, what the program prints, or a part of it)"""
    for name in NAMES:
        for shape in ((), (1,), (7, 5), (3, 0), (2, 3, 4, 5), (70000,)):
            x = (np.arange(np.prod(shape, dtype=int)).reshape(shape) * 37 % 101).astype(name)
            total = sum(b * (i % 251 + 1) for i, b in enumerate(x.tobytes()))
            yield x, f"{NAMES[name]} [{', '.join(map(str, shape))}] {total}"
    x = np.arange(12, dtype="f4").reshape(3, 4)
    yield x[:, ::2], "f32 [3, 2]"  # save makes it dense
    yield np.asfortranarray(x), "Fortran order"
    yield x.astype(">f4"), "big-endian"
    yield x.astype("c8"), "type '<c8'"
    yield x.astype("i2"), "type '<i2'"
    yield np.array([1, "a", None], dtype=object), "Python objects"
    yield np.array(["text"]), "type '<U4'"
    yield np.zeros(3, dtype=[("a", "f4"), ("b", "i4")]), "a structured array"
    yield np.zeros(3, dtype="M8[s]"), "type '<M8[s]'"


def main():
    cases = list(arrays())
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{i}.npy" for i in range(len(cases))]
        for path, (x, _) in zip(paths, cases):
            np.save(path, x, allow_pickle=True)
        for version in ((2, 0), (3, 0)):
            paths.append(f"{folder}/version{version[0]}.npy")
            cases.append((None, "f32 [3, 4]"))
            with open(paths[-1], "wb") as f:
                np.lib.format.write_array(f, np.ones((3, 4), "f4"), version=version)
        out = subprocess.run([sys.argv[1], *paths], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert len(out) == len(cases), out
    for line, (x, expected) in zip(out, cases):
        assert expected in line, f"{line!r} has no {expected!r}"
    print(f"{len(cases)} files of NumPy {np.__version__}")


main()
