"""Environments and groups that are made and ended again and again leave nothing: no memory, open file, key in a store
that stays, or file in /dev/shm and /tmp.

usage: cycles.py CAIRN_RUN CYCLES BACKEND COUNT

Ranks under cairn-run meet in its store, those of mpirun in one that rank 0 serves. Skipped without Open MPI."""
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir), os.path.join(HERE, os.pardir, "train")]
from mpi import find_open_mpi  # noqa: E402
from quickstart import clean_env, free_port, run  # noqa: E402

CAIRN_RUN, PROGRAM, BACKEND, COUNT = sys.argv[1:5]
RANKS = 2
PATIENCE = 3000
MOST_BYTES, MOST_KIB = 32 << 10, 1024  # MPI's and gloo's pools
SKIP = 77
LINE = re.compile(r"rank (\d+) after (\d+): (\d+) bytes, (\d+) KiB, (\d+) files, (\d+) keys")


def files():
    """Of this user."""
    mine = [os.path.join(folder, name) for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder)]
    return {path for path in mine if os.path.lexists(path) and os.lstat(path).st_uid == os.geteuid()}


class Cycles(unittest.TestCase):
    def run_ranks(self):
        env = clean_env(CAIRN_BACKEND=BACKEND)
        if BACKEND == "mpi":
            return run([*find_open_mpi(), str(RANKS), PROGRAM, COUNT, str(free_port())], env, timeout=PATIENCE)
        return run([CAIRN_RUN, "--nproc-per-node", str(RANKS), PROGRAM, COUNT], env, timeout=PATIENCE)

    def test_nothing_grows(self):
        before = files()
        got = self.run_ranks()
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        told = {}
        for line in LINE.findall(got.stdout):
            told.setdefault(int(line[0]), []).append([int(n) for n in line[1:]])
        self.assertEqual(sorted(told), list(range(RANKS)), got.stdout)
        for rank, (_, half, end) in told.items():
            with self.subTest(rank=rank):
                print(f"rank {rank}: from {half} to {end}")
                self.assertLess(end[1] - half[1], MOST_BYTES, "allocated bytes")
                self.assertLess(end[2] - half[2], MOST_KIB, "KiB of address space")
                self.assertEqual(end[3], half[3], "open files")
                self.assertEqual(end[4], half[4], "keys in the store")
        left = {path for path in files() - before if "cairn" in path or "ompi" in path or "vader" in path}
        self.assertEqual(left, set())


if __name__ == "__main__":
    if BACKEND == "mpi" and not find_open_mpi():
        print("skipped: Open MPI is not installed")
        sys.exit(SKIP)
    unittest.main(argv=sys.argv[:1], verbosity=2)
