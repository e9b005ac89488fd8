"""Programs with a low limit of open files: at any limit they run, or end at once with a message that says so.

usage: few_files.py CAIRN_RUN COLLECTIVES_RANK BACKENDS

BACKENDS: "shm gloo mpi", those that are built. mpi's ranks are skipped without Open MPI. With CAIRN_TEST_SHORT in the
environment every other limit is left out."""
import os
import resource
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir), os.path.join(HERE, os.pardir, "train")]
from mpi import find_open_mpi  # noqa: E402
from quickstart import PATIENCE, as_one, clean_env, free_port, run  # noqa: E402

CAIRN_RUN, PROGRAM, BACKENDS = sys.argv[1:4]
TASK = [PROGRAM, "suite", "two_channels"]  # makes a second group
TIMEOUT = "60"   # CAIRN_TIMEOUT: what ends before has not waited for it
SAYS = r"may be open at a time; raise that to \d+ or more \(ulimit -n \d+\)"


def some(limits):
    """The last of them always."""
    return limits[::-2][::-1] if os.environ.get("CAIRN_TEST_SHORT") else limits


def limit(files):
    """For a child between fork and exec."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def limited(files, command):
    return ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *command]


def together(commands, envs):
    """As a launcher does: once rank 0 has failed, the other is ended."""
    started = [subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for command, env in zip(commands, envs)]
    ended = []
    try:
        for rank in started:
            out, err = rank.communicate(timeout=PATIENCE)
            ended.append(subprocess.CompletedProcess(rank.args, rank.returncode, out, err))
            if rank.returncode != 0:
                started[-1].terminate()
        return ended
    finally:
        for rank in started:
            if rank.poll() is None:
                rank.kill()
                rank.communicate()


class FewFiles(unittest.TestCase):
    def ends_well(self, begin, got, pattern):
        """True where it ran."""
        said = got.stdout + got.stderr
        self.assertLess(time.monotonic() - begin, float(TIMEOUT), said)
        if got.returncode != 0:
            self.assertRegex(said, pattern)
        return got.returncode == 0

    def test_cairn_run(self):
        ran = []
        for files in some([6, 7, 8, 10, 12, 13, 14, 15, 16, 17, 20]):
            with self.subTest(files=files):
                begin = time.monotonic()
                got = run([CAIRN_RUN, "--nproc-per-node", "2", *TASK], clean_env(CAIRN_TIMEOUT=TIMEOUT),
                          preexec_fn=limit(files))
                ran.append(self.ends_well(begin, got, rf"cairn-run with 2 ranks opens \d+ files.*{SAYS}|Too many open"))
        self.assertEqual(ran, sorted(ran), "a larger limit is no worse")
        self.assertTrue(ran[-1])

    def test_cairn_spawn(self):
        ran = []
        for files in some([5, 6, 8, 9, 10, 11, 12, 16]):
            with self.subTest(files=files):
                begin = time.monotonic()
                got = run([PROGRAM, "--spawn", "2", *TASK[1:]], clean_env(CAIRN_TIMEOUT=TIMEOUT, CAIRN_BACKEND="shm"),
                          preexec_fn=limit(files))
                ran.append(self.ends_well(begin, got, rf"cairn_spawn of 2 ranks opens \d+ files.*{SAYS}"))
        self.assertEqual(ran, sorted(ran), "a larger limit is no worse")
        self.assertTrue(ran[-1])

    def test_ranks_by_hand(self):
        for backend in sorted({"shm", "gloo"} & set(BACKENDS.split())):
            ran = []
            for files in some([6, 8, 10, 12, 13, 14, 15, 16, 18, 24]):
                with self.subTest(backend=backend, files=files):
                    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
                    envs = [clean_env(CAIRN_BACKEND=backend, CAIRN_TIMEOUT=TIMEOUT, RANK=str(r), **where)
                            for r in range(2)]
                    begin = time.monotonic()
                    ranks = together([limited(files, TASK), TASK], envs)  # rank 1 has enough
                    pattern = rf"(rank 0 of 2|the group) opens \d+ files.*{SAYS}|Too many open"
                    ran.append(self.ends_well(begin, as_one(ranks), pattern))
            self.assertTrue(ran[-1])

    def test_ranks_of_mpirun(self):
        mpirun = find_open_mpi()
        if not mpirun or "mpi" not in BACKENDS.split():
            self.skipTest("no Open MPI")
        ran = []
        for files in some([8, 14, 18, 22, 26, 40]):
            with self.subTest(files=files):
                begin = time.monotonic()
                got = run([*mpirun, "2", *limited(files, TASK)], clean_env(CAIRN_BACKEND="mpi", CAIRN_TIMEOUT=TIMEOUT))
                ran.append(self.ends_well(begin, got, rf"(rank \d of 2|Open MPI) opens \d+ files.*{SAYS}"))
        self.assertTrue(ran[-1])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
