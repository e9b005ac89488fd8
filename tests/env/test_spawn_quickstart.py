"""The quick start's training under cairn_spawn prints what it prints under cairn-run.

usage: test_spawn_quickstart.py cairn-run spawn_quickstart 01_linear_regression"""
import os
import subprocess
import sys
import unittest

CAIRN_RUN, SPAWNED, PLAIN = map(os.path.abspath, sys.argv[1:4])
TRAINING = ["--opt-level", "O2", "--steps", "100", "--seed", "3"]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def figures(output):
    return [line for line in output.splitlines() if not line.startswith("us per step")]


class Quickstart(unittest.TestCase):
    def test_losses_are_those_of_cairn_run(self):
        for ranks in ("1", "2", "5"):
            spawned = run(SPAWNED, ranks, *TRAINING)
            launched = run(CAIRN_RUN, "--nproc-per-node", ranks, PLAIN, *TRAINING)
            self.assertEqual((spawned.returncode, launched.returncode), (0, 0), spawned.stderr + launched.stderr)
            self.assertEqual(figures(spawned.stdout), figures(launched.stdout))
            self.assertIn("final loss = ", spawned.stdout)

    def test_rank_that_calls_exit_ends_the_others(self):
        done = run(SPAWNED, "3", "--steps", "0")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\nspawn_quickstart: cairn_spawn: rank \d of 3 \(process \d+\) failed first: "
                         "exit code 1, and no call of Cairn had failed\n$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
