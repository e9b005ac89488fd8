"""tools/cairn-bench ddp, for moments: lines, JSON, and figures that are not printed.

usage: test_cairn_bench_ddp.py path/to/source path/to/build"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]
sys.path.insert(0, os.path.join(SOURCE, "tools/bench"))
import data_parallel  # noqa: E402
import machine  # noqa: E402
from collectives import SideFailed  # noqa: E402

PEER = """#!{python}
import os, socket, sys
if sys.argv[1] == "-c": # asked for its torch
    print('{{"version": "9", "prefix": "", "config": "", "files": []}}')
else:
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[2])
    bench = s.makefile("rw")
    print("hello torch", os.environ["RANK"], "a peer that has other losses", file=bench, flush=True)
    for line in bench:
        if line == "end\\n": break
        print("ok 1 0 0" if line.startswith("start") else "ok 10.0 1.5 abc", file=bench, flush=True)
"""
# The PyTorch of the bench, but a rank is the program beside this file.
PLANTED = """#!/bin/sh
case $1 in */ddp_torch.py) shift && exec {python} "$0.py" "$@" ;; esac
exec {python} "$@"
"""
FAULTS = {"a learning rate": ("lr=1e-3", "lr=1.1e-3", "2 steps move rank 0's weights and Cairn's 9"),
          "sums without average": ("loss.backward()\n", "loss.backward()\n        for p in self.model.parameters(): "
                                   "p.grad.mul_(2)\n", "rank 0's first gradients and Cairn's are 5")}
PATIENCE = 120
ARGS = argparse.Namespace(round=1, bucket=0)


def bench(*args):
    """Exit code, lines, stderr."""
    done = subprocess.run([sys.executable, SOURCE + "/tools/cairn-bench", "ddp", "--build", BUILD, "--round=0.01",
                           "--rounds=1", *args], capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


class FakeSide:
    """Answers what it is told to."""

    def __init__(self, name, *answers):
        self.name, self.answers, self.broken = name, list(answers), None

    def start_training(self, model, dtype, bucket, folder):
        return [[1.0]]

    def steps(self, n):
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise SideFailed(answer)
        return answer

    def kill(self):
        pass


class Bench(unittest.TestCase):
    def test_every_line_is_there_without_pytorch(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            code, lines, errors = bench("--beside=alone,noop,lockstep", "--json", out.name)
            self.assertEqual((code, errors), (0, ""), lines)
            told = json.load(out)
        self.assertEqual([(row["model"], row["type"]) for row in told["rows"]], list(data_parallel.GOALS))
        for row in told["rows"]:
            self.assertGreater(row["cairn"]["us"], 0, row)
            self.assertGreater(row["alone"]["us"], 0, row)
            self.assertGreater(row["noop"]["us"], 0, row)
            self.assertGreater(row["lockstep"]["us"], 0, row)
            self.assertIsNotNone(row["cost_percent"])
            self.assertIsNotNone(row["lockstep_percent"])
            self.assertGreater(row["head_room"], 0)
            self.assertTrue(any(line.startswith(f"{row['model']} {row['type']} ") for line in lines), lines)

    def test_pytorch_is_left_out_where_no_python_has_it(self):
        code, lines, errors = bench("--beside=torch", "--only=quick", "--python", "/bin/false")
        self.assertEqual((code, errors), (0, ""), lines)
        self.assertIn("# PyTorch: left out, /bin/false cannot import torch and numpy", lines)

    def test_a_peer_with_other_losses_has_no_figure(self):
        with tempfile.TemporaryDirectory() as folder:
            python = folder + "/python"
            with open(python, "w", encoding="utf-8") as program:
                program.write(PEER.format(python=sys.executable))
            os.chmod(python, 0o755)
            code, lines, errors = bench("--beside=torch", "--only=quick", "--python", python)
        self.assertEqual((code, errors), (0, ""), lines)
        self.assertTrue(any("rank 0's first loss is 1.0, and Cairn's is 139." in line for line in lines), lines)

    def planted(self, torch, before, after):
        """What the bench says of a PyTorch whose program is changed."""
        with open(os.path.join(SOURCE, "tools/bench/ddp_torch.py"), encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(text.count(before), 1, before)
        with tempfile.TemporaryDirectory() as folder:
            python = folder + "/python"
            with open(python, "w", encoding="utf-8") as program:
                program.write(PLANTED.format(python=torch))
            with open(python + ".py", "w", encoding="utf-8") as program:
                program.write(text.replace(before, after))
            os.chmod(python, 0o755)
            code, lines, errors = bench("--beside=torch", "--only=quick", "--python", python)
        self.assertEqual((code, errors), (0, ""), lines)
        return "\n".join(lines)

    def test_pytorch_with_a_planted_fault_has_no_figure(self):
        try:
            torch = machine.find_torch(None).python
        except machine.Missing as why:
            self.skipTest(str(why))
        self.assertNotIn("no figure", self.planted(torch, "lr=1e-3", "lr=1e-3"))
        for name, (before, after, told) in FAULTS.items():
            with self.subTest(name):
                self.assertIn("# PyTorch: no figure, " + told, self.planted(torch, before, after))

    def test_bounds_allow_an_ulp_and_no_fault(self):
        ulp = {("mlp", "f32"): (4e-7, 2.5e-3, 0.046), ("mlp", "bf16"): (1e-4, 2.7e-2, 0.15),
               ("quickstart", "f32"): (1e-7, 6.6e-8, 2.6e-7)}
        for line, (loss, gradients, moved) in ulp.items():
            cairn, torch = (data_parallel.Task(FakeSide(name, 1.0), *line, ARGS) for name in ("cairn", "torch"))
            cairn.first = [[1.0], [1.0]]
            for rank, difference, told in ((0, (loss, gradients, moved), None),
                                           (1, (0.01, 0, 0), "rank 1's first loss"),  # other data
                                           (1, (0, 0.5, 0), "rank 1's first gradients"),  # a sum where the mean is due
                                           (0, (0, 0, 0.5), "move rank 0's weights"),  # half the learning rate
                                           (1, (float("nan"), 0, 0), "rank 1's first loss"),
                                           (0, (0, float("nan"), 0), "first gradients"),
                                           (0, (0, 0, float("nan")), "weights")):
                torch.first, torch.why = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], None
                torch.first[rank] = [1 + difference[0], *difference[1:]]
                torch.compare(cairn, data_parallel.BOUNDS[line])
                self.assertEqual(torch.why is None, told is None, (line, difference, torch.why))
                self.assertIn(told or "", torch.why or "")

    def test_ranks_whose_weights_differ_have_no_figure(self):
        side = data_parallel.Side.__new__(data_parallel.Side)
        side.name, side.ask = "cairn", lambda *words: [["5", "1.0", "aa"], ["7", "1.0", "ab"]]
        with self.assertRaisesRegex(SideFailed, "weights differ"):
            side.steps(1)
        side.name = "alone"
        self.assertEqual(side.steps(1), 7.0)  # the slowest rank's
        side.ask = lambda *words: [["5", "nan", "aa"]]
        with self.assertRaisesRegex(SideFailed, "a loss is nan"):
            side.steps(1)

    def test_ratios_are_of_what_ran_in_the_same_round(self):
        cairn = data_parallel.Task(FakeSide("cairn", 10.0, 10.0, 20.0, 10.0), "mlp", "f32", ARGS)
        torch = data_parallel.Task(FakeSide("torch", 20.0, 20.0, 60.0, 20.0), "mlp", "f32", ARGS)
        for _ in range(3):
            cairn.go_on()
            torch.go_on()
        self.assertEqual(data_parallel.median_ratio(torch, cairn), 2.0)

    def test_a_failing_peer_is_left_out_and_a_failure_of_cairn_ends_the_run(self):
        torch = data_parallel.Task(FakeSide("torch", 20.0, "no luck"), "mlp", "f32", ARGS)
        torch.go_on()
        self.assertEqual((torch.why, torch.side.broken), ("no luck", "no luck"))
        cairn = data_parallel.Task(FakeSide("cairn", 10.0), "mlp", "f32", ARGS)
        self.assertIsNone(data_parallel.median_ratio(torch, cairn))
        self.assertIsNone(data_parallel.median_ratio(cairn, torch))
        with self.assertRaisesRegex(SideFailed, "no luck"):
            data_parallel.Task(FakeSide("cairn", "no luck"), "mlp", "f32", ARGS)

    def test_a_folder_without_the_program_is_an_error(self):
        with tempfile.TemporaryDirectory() as empty:
            code, _, errors = bench("--build", empty)
        self.assertEqual((code, errors),
                         (1, f"cairn-bench: there is no {empty}/tools/bench-ddp: run tools/quickstart, which installs "
                             "what is missing and builds in build/, or give --build FOLDER\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
