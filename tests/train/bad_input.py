#!/usr/bin/env python3
"""Bad input causes an error message and a non-zero exit code within seconds, never a hang or a crash.

usage: bad_input.py CAIRN_RUN PROGRAM
"""
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

from quickstart import free_port

LAUNCHER, PROGRAM = sys.argv[1], sys.argv[2]
SECONDS = 20  # generous: a sanitizer build on a busy machine


def clean_env(**more):
    torch = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return dict({k: v for k, v in os.environ.items() if k not in torch}, **more)


class BadInput(unittest.TestCase):
    def refused(self, command, *words, **env):
        begin = time.monotonic()
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=clean_env(**env))
        self.assertGreater(run.returncode, 0, run.stdout + run.stderr)
        self.assertLess(run.returncode, 128, "died of a signal: " + run.stderr)
        for word in words:
            self.assertIn(word, run.stderr)
        self.assertLess(time.monotonic() - begin, SECONDS)
        return run

    def test_unknown_level(self):
        self.refused([PROGRAM, "--opt-level", "O4"], "unexpected optimization level 'O4'")
        self.refused([PROGRAM, "--opt-level", "01"], "the letter O")

    def test_unknown_half_type(self):
        self.refused([PROGRAM, "--half", "f8"], "unknown half type 'f8'")

    def test_loss_scale_that_is_none(self):
        for scale in ("0", "-1", "nan", "inf", "much"):
            self.refused([PROGRAM, "--loss-scale", scale], "loss")

    def test_unknown_option_and_missing_value(self):
        self.refused([PROGRAM, "--level", "O1"], "the options are")
        self.refused([PROGRAM, "--steps"], "--steps")
        self.refused([PROGRAM, "--steps", "-3"], "--steps")

    def test_rank_without_world_size(self):
        self.refused([PROGRAM], "WORLD_SIZE", RANK="0")

    def test_rank_out_of_range(self):
        self.refused([PROGRAM], "RANK", RANK="2", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29501")

    def test_world_size_without_address(self):
        self.refused([PROGRAM], "MASTER_ADDR", RANK="0", WORLD_SIZE="2")

    def test_port_in_use(self):
        with socket.socket() as s:
            s.bind(("0.0.0.0", 0))
            s.listen()
            port = str(s.getsockname()[1])
            self.refused([PROGRAM], "in use", RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            self.refused([LAUNCHER, "--nproc_per_node", "2", "--master_port", port, PROGRAM], "in use")

    def test_program_that_does_not_exist(self):
        self.refused([LAUNCHER, "--nproc_per_node", "2", "./no_such_program"], "no_such_program")

    def test_bad_option_on_two_ranks(self):
        self.refused([LAUNCHER, "--nproc_per_node", "2", PROGRAM, "--opt-level", "O9"], "O9", "failed first")

    def test_rank_that_exits_before_the_rendezvous_under_the_launcher(self):
        script = 'if [ "$RANK" = 1 ]; then exit 3; fi; exec "$0"'
        run = self.refused([LAUNCHER, "--nproc_per_node", "3", "sh", "-c", script, PROGRAM], "rank 1")
        self.assertEqual(run.returncode, 3)

    def test_rank_that_never_comes_is_named(self):
        port = free_port()
        env = dict(WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, CAIRN_TIMEOUT="2")
        other = subprocess.Popen([PROGRAM], stderr=subprocess.PIPE, text=True, env=clean_env(RANK="2", **env))
        self.refused([PROGRAM], "rank 1", RANK="0", **env)
        _, text = other.communicate(timeout=SECONDS)
        self.assertGreater(other.returncode, 0)
        self.assertIn("rank 1", text)

    def test_rank_killed_in_training_ends_all_and_is_named(self):
        script = 'if [ "$RANK" = 1 ]; then "$0" --steps 100000000 & echo $! > "$1"; wait $!; exit $?; fi; ' \
                 'exec "$0" --steps 100000000'
        path = f"/tmp/cairn-test-{os.getpid()}.pid"
        run = subprocess.Popen([LAUNCHER, "--nproc_per_node", "3", "sh", "-c", script, PROGRAM, path],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_env())
        deadline = time.monotonic() + SECONDS
        line = ""
        while "step 50" not in line and time.monotonic() < deadline:
            line = run.stdout.readline()
        with open(path) as f:
            os.kill(int(f.read()), signal.SIGKILL)
        os.unlink(path)
        _, text = run.communicate(timeout=SECONDS)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("rank 1", text)

    def test_rank_killed_in_training_is_named_by_each_of_the_others(self):
        env = dict(WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
        ranks = []
        for rank in range(3):  # no launcher, so that nobody but the ranks themselves ends them
            ranks.append(subprocess.Popen([PROGRAM, "--steps", "100000000"], text=True, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, env=clean_env(RANK=str(rank), **env)))
            self.addCleanup(ranks[rank].kill)
        deadline = time.monotonic() + SECONDS
        line = " "
        while line and "step 50" not in line and time.monotonic() < deadline:
            line = ranks[0].stdout.readline()
        self.assertIn("step 50", line)
        self.assertEqual([rank.poll() for rank in ranks], [None] * 3)
        ranks[1].kill()
        begin = time.monotonic()
        for rank in (0, 2):
            _, text = ranks[rank].communicate(timeout=SECONDS)
            self.assertGreater(ranks[rank].returncode, 0, text)
            self.assertRegex(text, rf"rank 1 .*\(pid {ranks[1].pid}\) ended while rank")
        self.assertLess(time.monotonic() - begin, SECONDS / 2)
        ranks[1].communicate()

    def test_skipped_steps_are_reported_once_by_rank_0(self):
        run = subprocess.run([LAUNCHER, "--nproc_per_node", "3", PROGRAM, "--opt-level", "O1", "--half", "f16",
                              "--loss-scale", "1e30", "--steps", "4"],
                             capture_output=True, text=True, timeout=SECONDS, env=clean_env())
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("skipped steps = 4\n", run.stdout)
        reports = [line for line in run.stderr.splitlines() if "Gradient overflow" in line]
        self.assertEqual(len(reports), 4, run.stderr)
        for line in reports:
            self.assertRegex(line, r"^cairn: Gradient overflow.*\bweight\b")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
