"""Environments and groups that are repeatedly created and destroyed leave nothing behind: no memory, open file, key in
a store that stays open, or file in /dev/shm and /tmp.

usage: cycles.py CAIRN_RUN CYCLES BACKEND COUNT

Ranks under cairn-run meet in its store, those of mpirun in one that rank 0 serves. Skipped without Open MPI. With
CAIRN_TEST_SHORT in the environment there are 30 cycles at most."""
import os
import re
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir), os.path.join(HERE, os.pardir, "train")]
from mpi import find_open_mpi, shared_memory  # noqa: E402
from quickstart import clean_env, free_port, run  # noqa: E402

CAIRN_RUN, PROGRAM, BACKEND, COUNT = sys.argv[1:5]
if os.environ.get("CAIRN_TEST_SHORT"):
    COUNT = str(min(int(COUNT), 30))
RANKS = 2
PATIENCE, SOON = 3000, 60
MAX_BYTES, MAX_KIB = 32 << 10, 1024  # MPI's and gloo's pools
SKIP = 77
LINE = re.compile(r"rank (\d+) after (\d+): (\d+) bytes, (\d+) KiB, (\d+) files, (\d+) keys")


class Cycles(unittest.TestCase):
    def run_ranks(self, count, **more):
        env = clean_env(CAIRN_BACKEND=BACKEND, **more)
        if BACKEND == "mpi":
            return run([*find_open_mpi(), str(RANKS), PROGRAM, count, str(free_port())], env, timeout=PATIENCE)
        return run([CAIRN_RUN, "--nproc-per-node", str(RANKS), PROGRAM, count], env, timeout=PATIENCE)

    def test_nothing_grows(self):
        got = self.run_ranks(COUNT)
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        told = {}
        for line in LINE.findall(got.stdout):
            told.setdefault(int(line[0]), []).append([int(n) for n in line[1:]])
        self.assertEqual(sorted(told), list(range(RANKS)), got.stdout)
        for rank, (_, half, end) in told.items():
            with self.subTest(rank=rank):
                print(f"rank {rank}: from {half} to {end}")
                self.assertLess(end[1] - half[1], MAX_BYTES, "allocated bytes")
                self.assertLess(end[2] - half[2], MAX_KIB, "KiB of address space")
                self.assertEqual(end[3], half[3], "open files")
                self.assertEqual(end[4], half[4], "keys in the store")

    def test_no_file_is_left(self):
        before = shared_memory()
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.run_ranks("3", TMPDIR=folder).returncode, 0)
            self.assertEqual(os.listdir(folder), [])
        left, end = shared_memory() - before, time.monotonic() + SOON
        while left & shared_memory() and time.monotonic() < end:  # of other jobs, perhaps
            time.sleep(0.1)
        self.assertEqual(left & shared_memory(), set())


if __name__ == "__main__":
    if BACKEND == "mpi" and not find_open_mpi():
        print("skipped: Open MPI is not installed")
        sys.exit(SKIP)
    unittest.main(argv=sys.argv[:1], verbosity=2)
