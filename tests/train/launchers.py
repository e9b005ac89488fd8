"""The quick start without a launcher and with Cairn's: by hand, from a wrapper that passes --local_rank, under
cairn-run, and spawned by a program. All print the same losses.

usage: launchers.py CAIRN_RUN PROGRAM SPAWNED"""
import contextlib
import os
import sys
import tempfile
import unittest

from quickstart import Quickstart, as_one, clean_env, free_port, run, run_together

QUICKSTART = Quickstart(*sys.argv[1:3])
SPAWNED = sys.argv[3]

# As people write them around torch.distributed.launch: it reads its own --local_rank and passes everything on.
WRAPPER = """\
import argparse, os, subprocess, sys
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int, required=True)
told, others = parser.parse_known_args()
assert os.environ["RANK"] == str(told.local_rank)
sys.exit(subprocess.call([others[0], f"--local_rank={told.local_rank}", *others[1:]]))
"""


@contextlib.contextmanager
def wrapper():
    with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
        f.write(WRAPPER)
        f.flush()
        yield f.name


def by_hand(ranks, **more):
    """The variables to set in each of so many terminals."""
    place = dict(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), **more)
    return [clean_env(RANK=str(rank), **place) for rank in range(ranks)]


class Launchers(unittest.TestCase):
    def test_cairn_run_says_the_same_every_time(self):
        for ranks in 1, 2, 3:
            again = run([QUICKSTART.cairn_run, "--nproc_per_node", str(ranks), *QUICKSTART.command()])
            QUICKSTART.trains(self, ranks, again)
        QUICKSTART.trains(self, 1, run(QUICKSTART.command()))

    def test_by_hand_in_two_terminals(self):
        got = run_together([QUICKSTART.command()] * 2, by_hand(2))
        QUICKSTART.trains(self, 2, as_one(got))
        self.assertEqual(got[1].stdout, "")

    def test_by_hand_in_any_order(self):
        QUICKSTART.trains(self, 3, as_one(run_together([QUICKSTART.command()] * 3, by_hand(3)[::-1])))

    def test_every_spelling_of_the_argument_local_rank(self):
        program, *rest = QUICKSTART.command()
        for spelling in (["--local_rank={}"], ["--local-rank={}"], ["--local_rank", "{}"], ["--local-rank", "{}"]):
            commands = [[program, *(word.format(rank) for word in spelling), *rest] for rank in range(2)]
            QUICKSTART.trains(self, 2, as_one(run_together(commands, by_hand(2))))

    def test_a_wrapper_that_passes_its_local_rank_on(self):
        with wrapper() as path:
            commands = [[sys.executable, path, f"--local_rank={rank}", *QUICKSTART.command()] for rank in range(2)]
            QUICKSTART.trains(self, 2, as_one(run_together(commands, by_hand(2))))

    def test_a_wrapper_under_cairn_launch(self):
        with wrapper() as path, tempfile.TemporaryDirectory() as folder:
            launch = os.path.join(folder, "cairn-launch")
            os.symlink(QUICKSTART.cairn_run, launch)
            QUICKSTART.trains(self, 2, run([launch, "--nproc_per_node", "2", path, *QUICKSTART.command()]))


class Spawned(unittest.TestCase):
    def test_a_program_that_spawns_its_ranks(self):
        for ranks in 1, 2, 3:
            QUICKSTART.trains(self, ranks, run([SPAWNED, str(ranks), *QUICKSTART.command()]))

    def test_a_spawned_rank_that_fails_is_reported(self):
        got = run([SPAWNED, "2", "sh", "-c", "[ $RANK = 0 ] || exit 7; exec sleep 600"])
        self.assertEqual(got.returncode, 1)
        self.assertRegex(got.stderr, r"rank 1\b.*\b7\b")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
