"""tools/bench-hierarchy on small arrays: in two levels a byte passes the cable once each way, not once for each rank.

usage: test_bench_hierarchy.py source-root build-root"""
import json
import os
import subprocess
import sys
import unittest

import cases

ROOT, BUILD = sys.argv[1:3]
PATIENCE = 100
SIZE = 8 << 20
SKIP = 77


def run(*args):
    return subprocess.run([os.path.join(ROOT, "tools/bench-hierarchy"), "--build", BUILD, *args], capture_output=True,
                          text=True, timeout=PATIENCE, check=False)


class Hierarchy(cases.InFolder):
    def test_levels_take_less_of_the_cable(self):
        done = run("--size", str(SIZE), "--rounds", "1", "--json", self.path("out.json"))
        if done.returncode == SKIP:
            self.skipTest(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.path("out.json"), encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        self.assertEqual([row["type"] for row in rows], ["f32", "f16", "bf16"])
        for row in rows:
            passes = 1 if row["type"] == "f32" else 1.5  # f32 sums of halves come in, and halves
            self.assertAlmostEqual(row["flat_bytes"] / SIZE, 2, delta=0.1)
            self.assertAlmostEqual(row["levels_bytes"] / SIZE, passes, delta=0.1)
            self.assertAlmostEqual(row["plan_ms"], SIZE * passes * 1e-6, delta=1)
            self.assertIn(f"\n{row['type']:5} ", done.stdout)

    def test_what_it_cannot_time_is_refused(self):
        for words, said in (["--types", "f64"], "'f64'; it takes f32, f16, bf16"), (["--rate", "0"], "0 GB/s"):
            done = run(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
