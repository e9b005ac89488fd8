"""tools/bench-split on a small ResNet: its tables, what cairn-plan makes of its stages, its pictures, its refusals; and
charts of made-up numbers.

usage: test_bench_split.py source-root build-root"""
import csv
import json
import os
import subprocess
import sys
import unittest

import cases
from cases import SVG

ROOT, BUILD = sys.argv[1:3]
sys.path.insert(0, os.path.join(ROOT, "tools/bench"))
import chart  # noqa: E402

PATIENCE = 200


def run(*args):
    return subprocess.run([os.path.join(ROOT, "tools/bench-split"), "--build", BUILD, *args], capture_output=True,
                          text=True, timeout=PATIENCE, check=False)


class Split(cases.InFolder):
    def test_a_sweep_leaves_tables_and_pictures(self):
        for schedule in ("1f1b", "gpipe"):
            done = run("--out", self.path("out"), "--width", "8", "--batch", "8", "--splits", "1,2,3,8", "--rounds",
                       "2", "--schedule", schedule)
            self.assertEqual(done.returncode, 0, done.stderr)
            for wanted in ("one device ", "two plain stages ", "split size 3 ", "\nbest: split size ",
                           "\ncairn-plan suggests "):
                self.assertIn(wanted, done.stdout)
            with open(self.path("out/split.csv"), encoding="utf-8", newline="") as table:
                rows = list(csv.DictReader(table))
            self.assertEqual([(row["kind"], row["split_size"]) for row in rows],
                             [("one", "8"), ("plain", "8"), ("split", "1"), ("split", "2"), ("split", "3"),
                              ("split", "8")])
            for row in rows:
                self.assertTrue(0 < float(row["min_ms"]) <= float(row["mean_ms"]), row)
                self.assertEqual(row["predicted_ms"] != "", row["kind"] == "split")
            with open(self.path("out/rounds.csv"), encoding="utf-8") as table:
                self.assertEqual(len(table.readlines()), 1 + 2 * len(rows))

            _, texts = self.check_picture(self.path("out/split.svg"))
            for wanted in ("ResNet-50 of width 8 cut after block 8, 64x64", "split size: pictures of a micro-batch",
                           "ms a step", "one device, measured", "pipelined, cairn-plan's model"):
                self.assertIn(wanted, texts)
            root, texts = self.check_picture(self.path("out/timeline.svg"))
            self.assertIn("stage 1 measured", texts)
            with open(self.path("out/trace.json"), encoding="utf-8") as file:
                split = json.load(file)["split_size"]
            self.assertEqual(len(list(root.iter(SVG + "title"))), 2 * 2 * 2 * -(-8 // split))

    def test_turns_of_a_trace_do_not_overlap_and_wait_for_each_other(self):
        done = run("--out", self.path("out"), "--width", "8", "--batch", "8", "--splits", "2", "--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("out/trace.json"), encoding="utf-8") as file:
            first, last = json.load(file)["ranks"]
        order = [(t["turn"][0], t["micro_batch"]) for t in first]
        self.assertEqual(order, [("f", 0), ("f", 1), ("b", 0), ("f", 2), ("b", 1), ("f", 3), ("b", 2), ("b", 3)])
        for turns in (first, last):
            for one, other in zip(turns, turns[1:]):
                self.assertTrue(one["begin_ns"] < one["end_ns"] <= other["begin_ns"])
        begins = [{(t["turn"], t["micro_batch"]): t["begin_ns"] for t in turns} for turns in (first, last)]
        for m in range(4):
            self.assertLess(begins[0]["forward", m], begins[1]["forward", m])
            self.assertLess(begins[1]["backward", m], begins[0]["backward", m])

    def test_what_cannot_be_is_refused_with_a_sentence(self):
        for args, sentence in ((["--splits", "2,x"], "bench-split: --splits takes numbers with commas between them, "
                                "not '2,x'"),
                               (["--splits", "0"], "a split size is from 1 to the batch's rows"),
                               (["--depth", "51"], "the depth is a ResNet's, and both parts have a block"),
                               (["--cut", "16"], "the depth is a ResNet's, and both parts have a block"),
                               (["--size", "32"], "the batch is 2 to 1000 pictures larger than 32x32"),
                               (["--build", self.path("none")], "run tools/quickstart")):
            with self.subTest(args=args):
                done = run("--out", self.path("out"), *args)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(sentence, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
                self.assertFalse(os.path.exists(self.path("out")))

    def test_a_chart_of_many_sizes_can_be_read(self):
        for sizes, highest in ((range(1, 121), 4000), ([1], 0.02), ([7, 9000], 123456), ([1, 2], 1)):
            picture = chart.Chart("title", ["a", "b"], "x", "y", list(sizes), highest)
            picture.level(highest, "one", 0)
            picture.level(highest / 2, "two", 1)
            picture.model({s: highest * 0.7 for s in sizes}, "model")
            picture.measured({s: (highest * 0.8, highest) for s in sizes}, "measured")
            picture.write(self.path("chart.svg"))
            root, _ = self.check_picture(self.path("chart.svg"))
            for disc in root.iter(SVG + "circle"):
                self.assertTrue(chart.LEFT <= float(disc.get("cx")) <= chart.WIDTH or
                                float(disc.get("cy")) > chart.TOP + chart.PLOT)
            for line in root.iter(SVG + "line"):
                self.assertTrue(0 <= float(line.get("y1")) <= float(root.get("height")))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
