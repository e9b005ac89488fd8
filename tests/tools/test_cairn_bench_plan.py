"""tools/cairn-bench plan, for moments: lines, JSON, and what is missing.

usage: test_cairn_bench_plan.py path/to/source path/to/build"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]
PATIENCE = 200


def bench(*args):
    """Exit code, lines, stderr."""
    done = subprocess.run([sys.executable, SOURCE + "/tools/cairn-bench", "plan", *args], capture_output=True,
                          text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


class Bench(unittest.TestCase):
    def test_each_cap_has_a_line_with_prediction_and_measurement(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.json")
            code, lines, errors = bench("--build", BUILD, "--seconds=0.1", "--repeats=1", "--link-max=64K",
                                        "--only=quickstart", "--keep", folder, "--json", out)
            self.assertEqual((code, errors), (0, ""), lines)
            with open(out, encoding="utf-8") as file:
                rows = json.load(file)["rows"]
            with open(os.path.join(folder, "quickstart.json"), encoding="utf-8") as file:
                profile = json.load(file)
        self.assertEqual([(row["model"], row["cap"], row["buckets"]) for row in rows],
                         [("quickstart", 64, 2), ("quickstart", 25 << 20, 1)])
        self.assertEqual([p["elements"] for p in profile["parameters"]], [16384, 16])
        alone = 1e-3 * (profile["forward_ns"] + profile["backward_ns"] + profile["optimizer_ns"])
        for row in rows:
            self.assertAlmostEqual(row["predicted_us"], alone + row["communication_us"], delta=0.01)
            self.assertAlmostEqual(row["error_percent"], 100 * (row["predicted_us"] / row["measured_us"] - 1), places=6)
        self.assertEqual(len([line for line in lines if line.startswith("quickstart")]), 2)
        self.assertRegex(lines[-1], r"^# the worst is off by \d+\.\d %; the goal is 15 %$")

    def test_a_missing_build_is_an_error(self):
        code, _, errors = bench("--build=/nowhere", "--only=mlp")
        self.assertEqual(code, 1)
        self.assertIn("there is no /nowhere/tools/", errors)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
