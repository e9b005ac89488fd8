"""tools/cairn-bench bert, for moments and one layer, and resnet: lines, JSON, and figures that are not printed.

usage: test_cairn_bench_bert.py path/to/source path/to/build"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]
sys.path.insert(0, os.path.join(SOURCE, "tools/bench"))
import bert  # noqa: E402
import machine  # noqa: E402
from collectives import SideFailed  # noqa: E402

# The PyTorch of the bench, but a rank is the program beside this file.
PLANTED = """#!/bin/sh
case $1 in */bert_torch.py | */resnet_torch.py) shift && exec {python} "$0.py" "$@" ;; esac
exec {python} "$@"
"""
FAULTS = {"a learning rate": ("lr=5e-5", "lr=5.5e-5", "2 steps move rank 0's weights and Cairn's"),
          "another loss": ("    loss.backward()", "    (2 * loss).backward()",
                           "rank 0's first gradients and Cairn's are 5.0e-01"),
          "other words": ("* WORDS).long()", "* WORDS).long() // 2", "rank 0's first loss is")}
PATIENCE = 240


def bench(*args, what=("bert", "--layers=1")):
    """Exit code, lines, stderr."""
    done = subprocess.run([sys.executable, SOURCE + "/tools/cairn-bench", *what, "--build", BUILD, "--round=0.01",
                           "--rounds=1", *args], capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


class Bench(unittest.TestCase):
    def test_every_line_is_there_without_pytorch(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            code, lines, errors = bench("--beside=f32", "--json", out.name)
            self.assertEqual((code, errors), (0, ""), lines)
            told = json.load(out)
        self.assertEqual([row["type"] for row in told["rows"]], list(bert.LINES))
        for row in told["rows"]:
            self.assertGreater(row["cairn"]["us"], 0, row)
            self.assertGreater(row["cairn"]["peak_mib"], 100, row)  # three arrays of 22 million words' weights
            self.assertEqual("above_percent" in row, row["type"] in bert.BERT.above, row)
            self.assertEqual("of_f32" in row, row["type"].startswith("f16"), row)
            self.assertTrue(any(line.startswith(f"{row['type']:8} ") for line in lines), lines)
        first = [row["losses"][0] for row in told["rows"]]
        for loss in first:
            self.assertAlmostEqual(loss, first[0], delta=0.02)

    def test_two_ranks_train_alike(self):
        code, lines, errors = bench("--beside=none", "--only=O2", "--ranks=2")
        self.assertEqual((code, errors), (0, ""), lines)
        self.assertTrue(any(line.startswith("bf16 O2") for line in lines), lines)

    def test_pytorch_is_left_out_where_no_python_has_it(self):
        code, lines, errors = bench("--beside=torch", "--only=f32", "--python", "/bin/false")
        self.assertEqual((code, errors), (0, ""), lines)
        self.assertIn("# PyTorch: left out, /bin/false cannot import torch and numpy", lines)

    def find_torch(self):
        try:
            torch = machine.find_torch(os.environ.get("CAIRN_TEST_TORCH2"))
        except machine.Missing as why:
            self.skipTest(str(why))
        if torch.version.startswith("1."):
            self.skipTest(f"PyTorch {torch.version} has no fused optimizers for the CPU")
        return torch.python

    def planted(self, torch, before, after, what=("bert", "--layers=1")):
        """What the bench says of a PyTorch whose program is changed."""
        with open(os.path.join(SOURCE, f"tools/bench/{what[0]}_torch.py"), encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(text.count(before), 1, before)
        with tempfile.TemporaryDirectory() as folder:
            python = folder + "/python"
            with open(python, "w", encoding="utf-8") as program:
                program.write(PLANTED.format(python=torch))
            with open(python + ".py", "w", encoding="utf-8") as program:
                program.write(f"import sys\nsys.path.insert(0, {SOURCE + '/tools/bench'!r})\n"
                              + text.replace(before, after))
            os.chmod(python, 0o755)
            code, lines, errors = bench("--beside=torch", "--only=f32", "--python", python, what=what)
        self.assertEqual((code, errors), (0, ""), lines)
        return "\n".join(lines)

    def test_pytorch_with_a_planted_fault_has_no_figure(self):
        torch = self.find_torch()
        self.assertNotIn("no figure", self.planted(torch, "lr=5e-5", "lr=5e-5"))
        for name, (before, after, told) in FAULTS.items():
            with self.subTest(name):
                said = self.planted(torch, before, after)
                self.assertIn("# PyTorch: no figure, " + told, said)

    def test_resnet_is_checked_as_bert_is(self):
        what = ("resnet", "--layers=18")
        code, lines, errors = bench("--beside=none", "--only=O2", what=what)
        self.assertEqual((code, errors), (0, ""), lines)
        self.assertTrue(any(line.startswith("bf16 O2") for line in lines), lines)
        torch = self.find_torch()
        self.assertNotIn("no figure", self.planted(torch, "lr=1e-3", "lr=1e-3", what))
        self.assertIn("# PyTorch: no figure, 2 steps move rank 0's weights and Cairn's",
                      self.planted(torch, "lr=1e-3", "lr=1.1e-3", what))

    def test_ranks_whose_weights_differ_have_no_figure(self):
        side = bert.Side.__new__(bert.Side)
        side.name, side.ask = "cairn", lambda *words: [["5", "4", "1.0", "aa"], ["7", "4", "1.0", "ab"]]
        with self.assertRaisesRegex(SideFailed, "weights differ"):
            side.steps(1)
        side.ask = lambda *words: [["5", "4", "1.0", "aa"], ["7", "4", "1.0", "aa"]]
        self.assertEqual(side.steps(1), 7.0)  # the slowest rank's, by the clock
        side.ask = lambda *words: [["5", "4", "1.0", "aa"]]
        self.assertEqual(side.steps(1), 4.0)  # processor time
        side.ask = lambda *words: [["5", "4", "nan", "aa"]]
        with self.assertRaisesRegex(SideFailed, "a loss is nan"):
            side.steps(1)

    def test_a_folder_without_the_program_is_an_error(self):
        with tempfile.TemporaryDirectory() as empty:
            code, _, errors = bench("--build", empty)
        self.assertEqual((code, errors),
                         (1, f"cairn-bench: there is no {empty}/tools/bench-bert: run tools/quickstart, which installs "
                             "what is missing and builds in build/, or give --build FOLDER\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
