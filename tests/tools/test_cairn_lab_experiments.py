"""cairn-lab's experiments, shortened: what each expects holds, and a seed gives the same bytes twice. With
CAIRN_TEST_SHORT in the environment they take fewer steps.

usage: test_cairn_lab_experiments.py path/to/cairn-lab"""
import csv
import json
import os
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

import cases

LAB = os.path.abspath(sys.argv[1])
PATIENCE = 240
SHORT = {
    "accumulate": ["--terms", "131072", "--runs", "256"],
    "allreduce-error": ["--ranks", "64", "--elements", "1024"],
    "gradients": ["--model", "mlp", "--steps", "20"],
    "scale-sweep": ["--model", "conv", "--steps", "8"],
    "scalers": ["--steps", "160", "--interval", "16"],
    "masters": ["--steps", "150", "--rates", "8"],
    "levels": ["--model", "mlp", "--steps", "200"],
    "overflow": ["--ranks", "3", "--steps", "4", "--step", "2"],
    "overlap": ["--repeats", "3", "--width", "64"],
}
if os.environ.get("CAIRN_TEST_SHORT"):
    SHORT["scale-sweep"] = ["--model", "conv", "--steps", "4"]
    SHORT["scalers"] = ["--steps", "80", "--interval", "8"]
    SHORT["masters"] = ["--steps", "100", "--rates", "6"]
    SHORT["levels"] = ["--model", "mlp", "--steps", "100"]


class Experiments(cases.InFolder):
    def run_short(self, name, out, *more):
        """What it says; every sentence about what was expected must hold."""
        done = subprocess.run([LAB, "run", name, *SHORT[name], *more, "--out", out], capture_output=True, text=True,
                              timeout=PATIENCE, check=False, cwd=self.folder.name)
        self.assertEqual(done.returncode, 0, f"{name}: {done.stdout}{done.stderr}")
        self.check_report(out)
        return done.stdout

    def check_report(self, out):
        """Every picture of every result is legible."""
        subprocess.run([LAB, "report", out], capture_output=True, timeout=PATIENCE, check=True, cwd=self.folder.name)
        with open(self.path(f"{out}/report.html"), encoding="utf-8") as file:
            page = ElementTree.fromstring(file.read().replace("<!DOCTYPE html>", ""))
        pictures = [svg for svg in page.iter(cases.SVG + "svg") if svg.get("class") != "swatch"]
        self.assertTrue(pictures)
        for svg in pictures:
            self.check_labels(svg)

    def description(self, name, out="a"):
        with open(self.path(f"{out}/{name}/result.json"), encoding="utf-8") as file:
            return json.load(file)

    def rows(self, name, table, out="a"):
        with open(self.path(f"{out}/{name}/{table}.csv"), encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def files(self, name, out):
        found = {}
        for entry in sorted(os.listdir(self.path(f"{out}/{name}"))):
            with open(self.path(f"{out}/{name}/{entry}"), "rb") as file:
                found[entry] = file.read()
        return found

    def repeats(self, name):
        for out in "a", "b":
            self.run_short(name, out)
        self.assertEqual(self.files(name, "a"), self.files(name, "b"))
        self.assertGreater(len(self.files(name, "a")), 1)
        self.assertTrue(self.description(name)["findings"])

    def test_accumulate_repeats_and_its_closed_forms_hold(self):
        self.repeats("accumulate")
        last = {(r["sum in"], r["data"]): float(r["sum"]) for r in self.rows("accumulate", "errors")
                if r["terms"] == "131072"}
        self.assertEqual(last["f16", "0.1"], 256)
        self.assertEqual(last["bf16", "0.1"], 32)
        self.assertEqual(last["f16", "uniform in [0, 1)"], 2048)
        self.assertAlmostEqual(last["f16 array in f32 blocks", "0.1"], 131072 * 0.0999755859375, delta=0.01)

    def test_allreduce_error_repeats(self):
        self.repeats("allreduce-error")

    def test_gradients_repeat_and_histograms_are_whole(self):
        self.repeats("gradients")
        shares = {}
        for row in self.rows("gradients", "histograms"):
            key = row["step"], row["gradients of"]
            shares[key] = shares.get(key, 0) + float(row["share (%)"])
        self.assertEqual(len(shares), 5 * 2)
        for key, share in shares.items():
            self.assertTrue(90 < share < 100.001, (key, share))  # the rest is zeros
        for row in self.rows("gradients", "lost"):
            self.assertAlmostEqual(float(row["predicted (%)"]), float(row["become 0 (%)"]), places=6)

    def test_scale_sweep_repeats_and_finds_the_predicted_cliff_and_another_seed_is_another_sweep(self):
        self.repeats("scale-sweep")
        cliffs = [f for f in self.description("scale-sweep")["findings"] if "was predicted" in f["text"]]
        self.assertEqual([f["verdict"] for f in cliffs], ["holds"])
        self.run_short("scale-sweep", "c", "--seed", "5")
        self.assertNotEqual(self.rows("scale-sweep", "trainings-conv"), self.rows("scale-sweep", "trainings-conv", "c"))

    def test_scalers_repeat_and_skip_what_is_over_the_limit(self):
        self.repeats("scalers")
        for row in self.rows("scalers", "traces"):
            scale, limit = float(row["scale"]), float(row["limit"])  # as exponents
            if scale.is_integer() or abs(scale - limit) > 0.002:  # others round gradients anew
                self.assertEqual(scale >= limit, row["skipped"] == "1", row)

    def test_fewest_steps_hold_too(self):
        self.run_short("scale-sweep", "a", "--steps", "2")
        self.run_short("scalers", "a", "--steps", "64")

    def test_masters_repeat(self):
        self.repeats("masters")

    def test_overflow_repeats_and_every_rank_skips_the_step(self):
        self.repeats("overflow")
        seen = self.rows("overflow", "seen")
        self.assertEqual(len(seen), 4 * 3 * 3)
        for row in seen:
            self.assertEqual((row["skipped step"], row["skipped steps"]), ("2", "1"))
            self.assertEqual(row["rank named"], row["planted at rank"])

    def test_overflow_that_never_comes_skips_nothing(self):
        self.run_short("overflow", "a", "--step", "9")
        for row in self.rows("overflow", "seen"):
            self.assertEqual((row["skipped steps"], row["parameters named"]), ("0", "0"))

    def test_levels_and_overlap_measure_what_they_say(self):
        self.run_short("levels", "a")
        self.assertEqual(len(self.rows("levels", "levels")), 7)
        self.run_short("overlap", "a")
        self.assertEqual(len(self.rows("overlap", "forms")), 4 * 6)
        for row in self.rows("levels", "levels") + self.rows("overlap", "steps"):
            self.assertGreater(float(row["step (ms)"]), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
