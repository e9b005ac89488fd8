"""The quick start under Open MPI's mpirun and MPICH's mpiexec, which host no store and name no place to meet.

usage: launchers_mpi.py CAIRN_RUN PROGRAM

Skipped where there is neither."""
import contextlib
import sys
import tempfile
import unittest

from quickstart import Quickstart, clean_env, run, run_together
from mpi import find_mpich, find_open_mpi # quickstart has put tests/ into the path

QUICKSTART = Quickstart(*sys.argv[1:3])
FOREVER = 10**8  # steps
SKIP = 77  # meson's exit code for a skipped test


class Launcher:
    """The tests; a launcher is a class with how it starts n ranks and how they tell their number."""
    start, rank, ends_the_others = None, None, False

    def setUp(self):
        if not self.start:
            self.skipTest("it is not installed")

    def command(self, ranks, *command):
        return [*self.start, str(ranks), *command]

    def test_ranks_train_as_under_cairn_run(self):
        for ranks in 1, 2, 4:
            QUICKSTART.trains(self, ranks, run(self.command(ranks, *QUICKSTART.command())))

    def test_jobs_side_by_side_do_not_meet(self):
        commands = [self.command(2, *QUICKSTART.command(seed)) for seed in range(4)]
        # One folder each: two mpiruns of Open MPI that make its session folder in /tmp at one moment fail.
        with contextlib.ExitStack() as folders:
            envs = [clean_env(TMPDIR=folders.enter_context(tempfile.TemporaryDirectory())) for _ in commands]
            done = run_together(commands, envs)
        for seed, got in enumerate(done):
            QUICKSTART.trains(self, 2, got, seed)

    def test_ranks_in_a_shell_script_find_each_other(self):
        QUICKSTART.trains(self, 2, run(self.command(2, "sh", "-c", '"$@"; exit $?', "sh", *QUICKSTART.command())))

    def test_a_place_that_the_user_names_is_where_they_meet(self):
        got = run(self.command(2, *QUICKSTART.command()), clean_env(MASTER_ADDR="localhost", CAIRN_LOG="info"))
        QUICKSTART.trains(self, 2, got)
        self.assertIn("localhost", got.stderr)

    def test_cairn_run_in_it_says_who_its_ranks_are(self):
        QUICKSTART.trains(self, 2, run(self.command(1, QUICKSTART.cairn_run, "--nproc-per-node", "2",
                                                    *QUICKSTART.command())))

    def test_a_rank_that_fails_ends_the_job(self):
        script = f'[ ${self.rank} != 1 ] || exit 7; exec "$@"'
        got = run(self.command(3, "sh", "-c", script, "sh", *QUICKSTART.command(steps=FOREVER)),
                  clean_env(CAIRN_TIMEOUT="2"))  # MPICH polls all the while
        if self.ends_the_others:
            self.assertEqual(got.returncode, 7, got.stderr)
        else:
            self.assertNotEqual(got.returncode, 0)
            self.assertIn("for rank 1, which did not join", got.stderr)

    def test_a_rank_that_is_killed_in_training_ends_the_job(self):
        with tempfile.TemporaryDirectory() as folder:  # its first line is what rank 1 waits for before it ends itself
            script = (f'case ${self.rank} in 0) "$@" | sed -u "w {folder}/said";; 1) "$@" & '
                      f'until [ -s {folder}/said ]; do sleep 0.05; done; kill -KILL $!; wait $!;; *) exec "$@";; esac')
            got = run(self.command(3, "sh", "-c", script, "sh", *QUICKSTART.command(steps=FOREVER)))
        self.assertNotEqual(got.returncode, 0, got.stderr)


class OpenMPI(Launcher, unittest.TestCase):
    rank, ends_the_others = "OMPI_COMM_WORLD_RANK", True

    @classmethod
    def setUpClass(cls):
        cls.start = find_open_mpi()


class MPICH(Launcher, unittest.TestCase):
    rank = "PMI_RANK"

    @classmethod
    def setUpClass(cls):
        cls.start = find_mpich()


def main():
    if not find_open_mpi() and not find_mpich():
        print("there is neither Open MPI (Debian's openmpi-bin) nor MPICH (mpich)")
        sys.exit(SKIP)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)


if __name__ == "__main__":
    main()
