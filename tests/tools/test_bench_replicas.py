"""tools/bench-replicas on a small MLP: its tables, its picture, its refusals; and bars of made-up numbers.

usage: test_bench_replicas.py source-root build-root"""
import csv
import os
import subprocess
import sys
import unittest

import cases
from cases import SVG

ROOT, BUILD = sys.argv[1:3]
sys.path.insert(0, os.path.join(ROOT, "tools/bench"))
import bars  # noqa: E402

PATIENCE = 100
WAYS = ["alone", "replicas", "ddp", "independent"]


def run(*args):
    return subprocess.run([os.path.join(ROOT, "tools/bench-replicas"), "--build", BUILD, *args], capture_output=True,
                          text=True, timeout=PATIENCE, check=False)


class Replicas(cases.InFolder):
    def test_a_run_leaves_tables_and_a_picture(self):
        done = run("--out", self.path("out"), "--runs", "2", "mlp", "2", "16", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("\nddp is ", done.stdout)
        with open(self.path("out/rounds.csv"), encoding="utf-8", newline="") as table:
            rounds = list(csv.DictReader(table))
        with open(self.path("out/replicas.csv"), encoding="utf-8", newline="") as table:
            rows = list(csv.DictReader(table))
        self.assertEqual([row["way"] for row in rows], WAYS)
        for row in rows:
            of_way = [float(r["ms"]) for r in rounds if r["way"] == row["way"]]
            self.assertEqual((len(of_way), row["rounds"]), (14, "14"))
            self.assertAlmostEqual(sum(of_way) / 14, float(row["mean_ms"]), delta=0.002)
            self.assertEqual(min(of_way), float(row["min_ms"]))
            self.assertGreater(min(of_way), 0)
        _, texts = self.check_picture(self.path("out/replicas.svg"))
        for wanted in ("MLP, 2 layers of 16, 8 rows", "ms a step", "ddp, two thread ranks",
                       "measured: mean and deviation of the rounds"):
            self.assertIn(wanted, texts)

    def test_what_cannot_be_is_refused_with_a_sentence(self):
        for args, sentence in ((["gpt"], "the models are bert and mlp, not 'gpt'"),
                               (["mlp", "2", "x"], "mlp takes up to three whole numbers above 0, layers, width, rows; "
                                "not '2 x'"),
                               (["bert", "1", "2", "3", "4"], "bert takes up to three whole numbers above 0"),
                               (["mlp", "33", "8", "8"], "1 to 32 layers"),
                               (["--runs", "0"], "--runs takes a number from 1 on, not 0"),
                               (["--build", self.path("none")], "run tools/quickstart")):
            with self.subTest(args=args):
                done = run("--out", self.path("out"), *args)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertTrue(done.stderr.startswith("bench-replicas: "), done.stderr)
                self.assertIn(sentence, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
                self.assertFalse(os.path.exists(self.path("out")))

    def test_bars_are_as_long_as_their_values(self):
        for scale in (1e-3, 1, 987654):
            bars.bars(self.path("bars.svg"), "a <title>", ["one", "two"], "ms a step",
                      [("first & last", scale, scale / 2, "x", False), ("second", 4 * scale, 0, "y", True)],
                      ["measured", "limit"])
            root, texts = self.check_picture(self.path("bars.svg"))
            self.assertTrue({"a <title>", "first & last"} <= set(texts))
            widths = [float(r.get("width")) for r in root.iter(SVG + "rect") if r.get("height") == str(bars.BAR)]
            self.assertAlmostEqual(widths[1] / widths[0], 4, delta=0.01)
            fills = [r.get("fill") for r in root.iter(SVG + "rect") if r.get("height") == str(bars.BAR)]
            self.assertEqual(fills, [bars.MEASURED, bars.LIMIT])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
