"""Ranks of mpirun that are stopped or killed while MPI starts: the others end in time with a message that names them.

usage: mpi_start.py MPI_START MOMENTS [SEED]

Beside what is named below, MOMENTS random ones. Where a rank is killed, mpirun ends the job; an mpirun that hangs after
its last rank has ended is told apart, and printed. Skipped without Open MPI."""
import contextlib
import os
import random
import signal
import subprocess
import sys
import unittest
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir), os.path.join(HERE, os.pardir, "train")]
from mpi import find_open_mpi, marked  # noqa: E402
from quickstart import clean_env  # noqa: E402

PROGRAM, MOMENTS = sys.argv[1], int(sys.argv[2])
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
MPIRUN = find_open_mpi()
TIMEOUT = 4       # CAIRN_TIMEOUT
MORE = 12         # seconds for the answers of others, and for mpirun's own start and end
SKIP = 77         # meson's exit code for a skipped test


def is_rank(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) == os.path.basename(PROGRAM)
    except OSError:
        return False


class Starts(unittest.TestCase):
    def job(self, victim, fault, ms, *more, ranks=3):
        """What its ranks said, where they ended in time."""
        mark = uuid.uuid4().hex
        env = clean_env(CAIRN_BACKEND="mpi", CAIRN_TIMEOUT=str(TIMEOUT), CAIRN_TEST_MARK=mark)
        story = f"{' '.join(more)} {fault!r} for rank {victim} of {ranks} after {ms} ms"
        job = subprocess.Popen([*MPIRUN, str(ranks), PROGRAM, str(victim), str(int(fault)), str(ms), *more], env=env,
                               text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            said, _ = job.communicate(timeout=TIMEOUT + MORE)
            self.assertNotEqual(job.returncode, 0, f"{story}: {said}")
            return said
        except subprocess.TimeoutExpired:
            self.assertEqual([p for p in marked(mark) if is_rank(p)], [], f"{story}: ranks still run")
            job.kill()
            print(f"{story}: mpirun hangs without ranks")
            return job.communicate()[0]
        finally:
            for pid in marked(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if job.returncode is None:
                job.communicate()

    def names(self, victim, ms, **more):
        said = self.job(victim, signal.SIGSTOP, ms, **more)
        self.assertRegex(said, rf"CAIRN_ETIMEOUT: .*\brank {victim}\b", f"rank {victim} after {ms} ms")
        return said

    def test_a_rank_that_is_stopped_in_mpi_init_is_named(self):
        for victim, ms in (1, 0), (2, 20):
            with self.subTest(victim=victim, ms=ms):
                said = self.names(victim, ms)
                self.assertRegex(said, rf"in MPI_Init, and no answer came from rank {victim} \(pid \d+ on \S+\): ")

    def test_rank_0_is_named_though_it_hosts_the_store(self):
        for ms in 0, 30, 1000:
            with self.subTest(ms=ms):
                said = self.names(0, ms)
                self.assertRegex(said, r"rank 0( \(pid \d+ on \S+\))?,?( which)? hosts (it|the store)")

    def test_a_rank_that_is_killed_there_ends_the_job(self):
        for ms in 0, 30:
            with self.subTest(ms=ms):
                self.job(1, signal.SIGKILL, ms)

    def test_a_rank_that_goes_on_without_a_group_does_not_wait_in_mpi_finalize(self):
        said = self.job(1, signal.SIGSTOP, 0, "copy", ranks=2)
        self.assertIn("in the copying of MPI_COMM_WORLD, and no answer came from rank 1", said)
        self.assertIn("MPI_Finalize is not called", said)

    def test_mpi_that_starts_too_late_is_not_taken_for_the_programs_own(self):
        said = self.job(1, 0, (TIMEOUT + 4) * 1000, "late", ranks=2)
        self.assertIn("in MPI_Init, where all other ranks wait too", said)
        self.assertIn("MPI_Init did not return in time in this process, which cannot start MPI again", said)

    def test_mpi_that_fails_to_start_is_an_error(self):
        self.assertRegex(self.job(1, 0, 0, "fail"), r"CAIRN_EPEER: MPI_Init failed in this process with error \d+,")

    def test_random_moments(self):
        for number in range(MOMENTS):
            choice = random.Random(f"{SEED} {number}")
            ranks, ms = choice.randint(2, 4), choice.randrange(250)
            victim = choice.randrange(ranks)
            with self.subTest(number=number, victim=victim, ms=ms):
                if number % 2:
                    self.job(victim, signal.SIGKILL, ms, ranks=ranks)
                else:
                    self.names(victim, ms, ranks=ranks)


if __name__ == "__main__":
    if not MPIRUN:
        print("skipped: Open MPI is not installed")
        sys.exit(SKIP)
    unittest.main(argv=sys.argv[:1], verbosity=2)
