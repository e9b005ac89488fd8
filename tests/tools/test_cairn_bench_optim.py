"""tools/cairn-bench optim with few parameters: lines, and figures that are not printed.

usage: test_cairn_bench_optim.py path/to/source path/to/build"""
import argparse
import os
import subprocess
import sys
import unittest
from unittest import mock

SOURCE, BUILD = sys.argv[1:3]
sys.path.insert(0, os.path.join(SOURCE, "tools/bench"))
import optimizers  # noqa: E402

PATIENCE = 120


def bench(*args):
    """Exit code, lines, stderr."""
    done = subprocess.run([sys.executable, SOURCE + "/tools/cairn-bench", "optim", "--build", BUILD, "--n=10000",
                           "--rounds=1", "--python=/bin/false", *args], capture_output=True, text=True,
                          timeout=PATIENCE, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def options(**more):
    parser = argparse.ArgumentParser()
    optimizers.add_options(parser)
    return parser.parse_args(["--build", BUILD, "--n=10000", "--rounds=1"], argparse.Namespace(**more))


class Bench(unittest.TestCase):
    def test_every_optimizer_and_type_has_a_line_without_pytorch(self):
        code, lines, errors = bench()
        self.assertEqual((code, errors), (0, ""), lines)
        found = [line[:23].split() for line in lines if line.endswith("-       -")]
        self.assertEqual(found, [name.split() + [dtype] for name, _ in optimizers.entries(options())
                                 for dtype in optimizers.TYPES], lines)

    def test_weights_unlike_those_of_the_scalar_kernels_have_no_figure(self):
        class Planted(optimizers.Cairn):
            def __init__(self, args, name, dtype, level=None):
                super().__init__(args, name, dtype, level)
                self.hash += level or ""

        with mock.patch.object(optimizers, "Cairn", Planted):
            got = optimizers.measure(options(), "Adam", "-", "f16", False)
        self.assertEqual(got, "the weights are not those of the scalar kernels")

    def test_weights_unlike_pytorchs_have_no_figure(self):
        class Planted:
            def __init__(self, args, make, dtype):
                cairn = optimizers.Cairn(args, "Adam", dtype)
                cairn.end()
                self.told = [w + 1e-5 for w in cairn.weights]

            def weights(self, _):
                return self.told

        with mock.patch.object(optimizers, "Torch", Planted):
            got = optimizers.measure(options(), "Adam", "some", "f32", True)
        self.assertRegex(got, r"^the weights are 2\.0e-05 of the largest apart from PyTorch's$")

    def test_what_cannot_be_timed_is_said(self):
        for wrong, why in (("--tensors=3", "--n 10000 is not a multiple of --tensors 3, or below 1000"),
                           ("--types=f64", "--types f64: there are f32,f16,bf16"),
                           ("--only=Adamant", "no optimizer has Adamant in its name")):
            code, _, errors = bench(wrong)
            self.assertEqual((code, errors), (1, f"cairn-bench: {why}\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
