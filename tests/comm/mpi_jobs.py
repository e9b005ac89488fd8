"""Jobs of Open MPI's mpirun over the mpi backend: every collective, the quick start, programs that use MPI themselves,
and the error messages where MPI cannot be used.

usage: mpi_jobs.py CAIRN_RUN QUICKSTART COLLECTIVES_RANK MPI_USER FORK_TEST

Skipped without Open MPI. With CAIRN_TEST_SHORT in the environment collectives run on 1, 2 and 3 ranks, without it on
1 to 8, and three kinds of calls that differ are tried instead of all. How jobs end whose ranks fail is
mpi_faults.py's."""
import os
import signal
import subprocess
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir), os.path.join(HERE, os.pardir, "train")]
from mpi import find_open_mpi  # noqa: E402
from quickstart import PATIENCE, Quickstart, clean_env, free_port, run  # noqa: E402

CAIRN_RUN, PROGRAM, COLLECTIVES, USER, FORK = sys.argv[1:6]
QUICKSTART = Quickstart(CAIRN_RUN, PROGRAM)
MPIRUN = find_open_mpi()
IS_SHORT = bool(os.environ.get("CAIRN_TEST_SHORT"))
MISMATCHES = run([COLLECTIVES, "mismatch"]).stdout.split()
SKIP = 77  # meson's exit code for a skipped test


def job(ranks, *command, **more):
    """Runs command under mpirun, in a session of its own: what mpirun leaves is ended with it."""
    started = subprocess.Popen([*MPIRUN, str(ranks), *command], env=clean_env(**{"CAIRN_BACKEND": "mpi", **more}),
                               text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    try:
        out, err = started.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(started.args, started.returncode, out, err)
    finally:
        if started.returncode is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()


class Jobs(unittest.TestCase):
    def holds(self, ranks, **more):
        got = job(ranks, COLLECTIVES, "suite", CAIRN_TEST_SEEDS="1", **more)
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        self.assertEqual(sorted(got.stdout.split("\n")[:-1]), [f"rank {r} of {ranks}: mpi" for r in range(ranks)])

    def test_every_collective_gives_its_definition_on_any_number_of_ranks(self):
        for ranks in range(1, 4 if IS_SHORT else 9):
            with self.subTest(ranks=ranks):
                self.holds(ranks)

    def test_every_collective_gives_its_definition_where_calls_are_checked(self):
        self.holds(3, CAIRN_CHECK="1")

    def test_the_children_of_ranks_disturb_none(self):
        got = job(2, FORK, "mpi", "rank", CAIRN_TIMEOUT="20")
        self.assertEqual((got.returncode, got.stderr), (0, ""))

    def test_ranks_that_disagree_are_named_and_the_job_fails(self):
        self.assertTrue(MISMATCHES)
        for name in MISMATCHES[::4 if IS_SHORT else 1]:
            with self.subTest(name):
                got = job(3, COLLECTIVES, "mismatch", name, CAIRN_CHECK="1")
                self.assertNotIn("collectives.c:", got.stderr)  # the test's own sentence
                self.assertRegex(got.stdout, rf"rank \d was told of another {name}\n")  # at least who ended first
                self.assertNotEqual(got.returncode, 0)  # the group died, so MPI_Finalize is not called

    def test_ranks_train_with_the_digits_of_shm(self):
        for ranks in 1, 2, 4:
            QUICKSTART.trains(self, ranks, job(ranks, *QUICKSTART.command()))


class Users(unittest.TestCase):
    """Programs that know MPI."""

    def succeeds(self, ranks, what, **more):
        got = job(ranks, USER, what, **more)
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        return got

    def test_messages_of_the_programs_own_do_not_disturb_the_group(self):
        self.succeeds(3, "beside")

    def test_a_group_is_aborted_from_any_thread(self):
        for level in "single", "serialized":
            with self.subTest(level):
                got = job(3, USER, level)
                self.assertIn("rank 0: the group was aborted", got.stderr)
                for rank in 1, 2:
                    self.assertRegex(got.stderr, f"rank {rank}: .*rank 0 failed or aborted the group")

    def test_ranks_may_be_ordered_differently_than_mpis(self):
        self.succeeds(3, "turned", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())

    def test_environments_may_follow_each_other(self):
        self.succeeds(2, "twice")

    def test_a_world_size_that_differs_from_mpis_is_an_error(self):
        got = job(3, USER, "other-size", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
        sentence = "MPI_COMM_WORLD has 3 processes, but the environment 2 ranks; start as many with mpirun -np"
        self.assertIn(sentence, got.stderr)

    def test_after_mpi_finalize_there_is_no_group(self):
        got = job(2, USER, "after-finalize")
        self.assertIn("this process has called MPI_Finalize; make groups before it", got.stderr)

    def test_a_program_need_not_end_its_environment(self):
        self.succeeds(2, "forgets")

    def test_a_program_that_ends_during_a_call_fails_its_job_with_a_warning(self):
        got = job(2, USER, "forgets-work")
        self.assertNotEqual(got.returncode, 0)
        self.assertIn("MPI_Finalize is not called, since a group died or ended during a call", got.stderr)

    def test_a_rank_that_others_wait_for_in_the_end_is_named_and_waited_for(self):
        for rank in 0, 1:
            with self.subTest(rank=rank):
                self.waits_for(rank)

    def waits_for(self, rank):
        job = subprocess.Popen([*MPIRUN, "3", USER, f"stops-{rank}"], text=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=clean_env(CAIRN_BACKEND="mpi", CAIRN_TIMEOUT="10"))
        stopped = int(job.stdout.readline())
        try:
            watch = threading.Timer(PATIENCE, os.kill, [stopped, signal.SIGKILL])  # mpirun ends the job then
            watch.start()
            sentence = f"rank {1 - rank} has waited 10 s to end MPI, and rank {rank} has not left the environment"
            lines = []
            while not lines or (lines[-1] and sentence not in lines[-1]):
                lines.append(job.stderr.readline())
            self.assertIn(sentence, lines[-1], lines)
        finally:
            watch.cancel()
            os.kill(stopped, signal.SIGCONT)
            out, err = job.communicate(timeout=PATIENCE)
        self.assertEqual(job.returncode, 0, out + err)

    def test_a_rank_that_leaves_is_named(self):
        self.assertIn("rank 1 left the group", job(2, USER, "leaves").stderr)


class Elsewhere(unittest.TestCase):
    def test_a_program_that_calls_mpi_init_runs_without_mpirun_too(self):
        for backend, of in ("auto", "self"), ("mpi", "mpi"):
            with self.subTest(backend):
                got = run([USER, "singleton"], clean_env(CAIRN_BACKEND=backend))
                self.assertEqual((got.returncode, got.stdout), (0, f"rank 0 of 1: {of}\n"), got.stderr)

    def test_it_runs_under_cairn_run_too_but_not_over_mpi(self):
        ranks = [CAIRN_RUN, "--nproc-per-node", "2", USER, "singleton"]
        got = run(ranks, clean_env())
        self.assertEqual((got.returncode, sorted(got.stdout.split("\n"))),
                         (0, ["", "rank 0 of 2: shm", "rank 1 of 2: shm"]), got.stderr)
        got = run(ranks, clean_env(CAIRN_BACKEND="mpi"))
        self.assertIn("there are 2 ranks, but MPI counts this process alone: its launcher does not belong", got.stderr)

    def test_without_mpirun_mpi_is_refused(self):
        got = run([CAIRN_RUN, "--nproc-per-node", "2", *QUICKSTART.command()], clean_env(CAIRN_BACKEND="mpi"))
        self.assertNotEqual(got.returncode, 0)
        self.assertIn("no MPI launcher started this process; start it with mpirun, or srun --mpi=pmix", got.stderr)


if __name__ == "__main__":
    if not MPIRUN:
        print("skipped: Open MPI is not installed")
        sys.exit(SKIP)
    unittest.main(argv=sys.argv[:1] + sys.argv[6:], verbosity=2)
