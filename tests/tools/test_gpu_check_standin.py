"""tools/gpu-check from an empty folder, on a PATH with python3, a shell and little else, with the stand-in for CUDA in
a GPU's place: every step passes, and the report has every program and figure.

usage: test_gpu_check_standin.py SOURCE_ROOT BUILD_ROOT"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, BUILD = map(os.path.abspath, sys.argv[1:3])
PROGRAMS = "python3 sh bash env cat sleep echo".split()


def has_module(name):
    return os.path.exists(os.path.join(BUILD, f"tests/device/standin/libcairn_{name}.so"))


class StandIn(unittest.TestCase):
    def setUp(self):
        top = tempfile.TemporaryDirectory()
        self.addCleanup(top.cleanup)
        self.top, self.tree = top.name, os.path.join(top.name, "some/way/down/cairn")
        for folder in self.tree + "/tools", self.tree + "/build-gpu", self.top + "/bin", self.top + "/out":
            os.makedirs(folder)
        for name in PROGRAMS:
            os.symlink(sys.executable if name == "python3" else shutil.which(name), os.path.join(self.top, "bin", name))
        for name in "gpu-check", "bench-gpu.py":
            shutil.copy(os.path.join(ROOT, "tools", name), os.path.join(self.tree, "tools", name))
        for name in "tests", "examples":
            os.symlink(os.path.join(ROOT, name), os.path.join(self.tree, name))
        for name in os.listdir(BUILD):
            os.symlink(os.path.join(BUILD, name), os.path.join(self.tree, "build-gpu", name))
        # A build that lies elsewhere names its sources by the way there.
        with open(os.path.join(BUILD, "meson-info/meson-info.json"), encoding="utf-8") as f:
            way = os.path.relpath(json.load(f)["directories"]["source"], BUILD)
        sources = os.path.normpath(os.path.join(self.tree, "build-gpu", way))
        os.makedirs(sources, exist_ok=True)
        for name in "tests", "examples":
            if not os.path.exists(os.path.join(sources, name)):
                os.symlink(os.path.join(ROOT, name), os.path.join(sources, name))

    def test_every_step_passes_with_a_fake_gpu(self):
        env = {"PATH": os.path.join(self.top, "bin"), "HOME": self.top, "OUT": os.path.join(self.top, "out")}
        done = subprocess.run([sys.executable, "tools/gpu-check", "--as-built", "--stand-in"], cwd=self.tree, env=env,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(os.path.join(self.top, "out/gpu-check.json"), encoding="utf-8") as f:
            report = json.load(f)
        results = {test["name"]: test["result"] for test in report["tests"]}
        self.assertEqual(results.pop("convolutions by cuDNN"), "passed" if has_module("cudnn") else "skipped")
        self.assertEqual({name: result for name, result in results.items() if result != "passed"},
                         {"own operations on cuda": "skipped", "own optimizers on cuda": "skipped",
                          "a trainer with its own kernels on cuda": "skipped", "compute-sanitizer": "skipped"},
                         done.stdout)
        for name in "suite-cuda", "operations on cuda", "steps without the host, cuda", "gpu-bench, round 1":
            self.assertIn(name, results)
        self.assertTrue(report["stand_in"])
        self.assertIsNone(report["no_gpu"])
        self.assertGreater(report["passes_more"]["products"], 0)
        for figure in "copy", "product bf16 32 y bias relu", "quick start graph", "encoder graph", "resnet graph":
            self.assertIn(figure, report["figures"]["cairn"])
        self.assertEqual("mlp ddp graph" in report["figures"]["cairn"], has_module("nccl"))
        self.assertIn("products in the benchmarks a pass more took", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
