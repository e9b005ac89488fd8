"""Ranks of mpirun that are killed, stopped or end by themselves at random moments of collectives over MPI: the job ends
with a code other than 0 in time, none of its processes is left, and a rank that was stopped is named.

usage: mpi_faults.py COLLECTIVES_RANK MOMENTS [SEED]

CAIRN_TEST_FAULTS overrides the number of moments. Skipped without Open MPI, and where Cairn was built without it."""
import contextlib
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir), os.path.join(HERE, os.pardir, "train")]
from mpi import find_open_mpi, marked, shared_memory  # noqa: E402
from quickstart import PATIENCE, clean_env, run  # noqa: E402

PROGRAM = sys.argv[1]
MOMENTS = int(os.environ.get("CAIRN_TEST_FAULTS") or sys.argv[2])
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
MPIRUN = find_open_mpi()
TIMEOUT = 3   # CAIRN_TIMEOUT: a stopped rank is noticed then
AT_ONCE = 20  # seconds within which a death ends the job on a busy machine
FAULTS = {signal.SIGKILL: 0, signal.SIGUSR1: 0, signal.SIGSTOP: TIMEOUT}  # SIGUSR1: the rank exits with 9
SKIP = 77     # meson's exit code for a skipped test


class Moment:
    """A job, and what happens to one of its ranks."""

    def __init__(self, number):
        choice = random.Random(f"{SEED} {number}")
        self.fault = list(FAULTS)[number % len(FAULTS)]
        self.ranks = choice.randint(2, 4)
        self.victim = choice.randrange(self.ranks)
        self.delay = 0.001 * math.exp(choice.random() * math.log(400))
        self.story = (f"moment {number} of seed {SEED}: {self.fault.name} for rank {self.victim} of {self.ranks} after "
                      f"{self.delay * 1e3:.0f} ms")
        self.mark = uuid.uuid4().hex

    def strike(self, job):
        """When all ranks have said who they are, and a moment later; the time it was."""
        pids = {}
        while len(pids) < self.ranks:
            line = job.stdout.readline()
            if not line:
                raise AssertionError(f"{self.story}: the job ended before: {job.stderr.read()}")
            if found := re.match(r"rank (\d+), pid (\d+)$", line):
                pids[int(found[1])] = int(found[2])
        time.sleep(self.delay)
        os.kill(pids[self.victim], self.fault)
        return time.monotonic()

    def run(self, test):
        env = clean_env(CAIRN_BACKEND="mpi", CAIRN_TIMEOUT=str(TIMEOUT), CAIRN_TEST_MARK=self.mark)
        job = subprocess.Popen([*MPIRUN, str(self.ranks), PROGRAM, "loop", str(PATIENCE)], env=env, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            struck = self.strike(job)
            _, err = job.communicate(timeout=PATIENCE)
            took = time.monotonic() - struck
            test.assertNotEqual(job.returncode, 0, self.story)
            test.assertLess(took, FAULTS[self.fault] + AT_ONCE, f"{self.story}\n{err}")
            if self.fault == signal.SIGSTOP:
                test.assertIn("CAIRN_ETIMEOUT", err, self.story)
                test.assertRegex(err, rf"rank (?!{self.victim}:)\d+: CAIRN_E\w+: .*\brank {self.victim}\b", self.story)
            end = time.monotonic() + AT_ONCE # mpirun may return while the last one it has killed still dies
            while marked(self.mark) and time.monotonic() < end:
                time.sleep(0.05)
            test.assertEqual(marked(self.mark), [], f"{self.story}: processes are left")
        finally:
            job.kill()
            job.communicate()
            for pid in marked(self.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class Faults(unittest.TestCase):
    def test_job_ends_when_a_rank_fails_at_a_random_moment(self):
        before = shared_memory()
        for number in range(MOMENTS):
            Moment(number).run(self)
        left = shared_memory() - before
        end = time.monotonic() + PATIENCE
        while left & shared_memory() and time.monotonic() < end: # of other jobs, perhaps
            time.sleep(0.1)
        self.assertEqual(left & shared_memory(), set())


def why_not():
    if not MPIRUN:
        return "Open MPI is not installed"
    tried = run([*MPIRUN, "1", PROGRAM, "suite", "nothing"], clean_env(CAIRN_BACKEND="mpi"))
    return "this build has no mpi" if "meson option 'mpi'" in tried.stderr else None


if __name__ == "__main__":
    if why_not():
        print(f"skipped: {why_not()}")
        sys.exit(SKIP)
    unittest.main(argv=sys.argv[:1], verbosity=2)
