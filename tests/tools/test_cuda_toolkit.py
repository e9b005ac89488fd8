"""tools/cuda-toolkit with fake toolkits made of scripts: which ones it accepts, and its messages about the others.

usage: test_cuda_toolkit.py SOURCE_ROOT"""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")

NVCC = """#!/bin/sh
case $1 in
--version) echo "Cuda compilation tools, release {release}, V{release}.1" ;;
*) {compile} ;;
esac
"""
REFUSES = """echo "In file included from host_config.h:1:" >&2
    echo "host_config.h:143:2: error: #error -- unsupported GNU version!" >&2
    exit 1"""


class CudaToolkit(unittest.TestCase):
    def setUp(self):
        top = tempfile.TemporaryDirectory()
        self.addCleanup(top.cleanup)
        self.top = os.path.realpath(top.name)
        for name in ("include/cublasLt.h", "lib64/libcublasLt.so", "lib64/libcudart.so"):
            self.write(name, "")

    def write(self, name, text):
        path = os.path.join(self.top, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as f:
            f.write(text)
        os.chmod(path, 0o755)

    def found(self, release="12.4", compiles="exit 0", **env):
        self.write("bin/nvcc", NVCC.format(release=release, compile=compiles))
        env = {**os.environ, "PATH": f"{self.top}/bin:{os.environ['PATH']}", **env}
        return subprocess.run([f"{ROOT}/tools/cuda-toolkit"], env=env, text=True, capture_output=True, check=False)

    def assert_missing(self, result, *words):
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_a_toolkit_that_compiles_is_found(self):
        result = self.found()
        self.assertEqual(result.returncode, 0, result.stderr)
        folders = [f"{self.top}/{name}" for name in ("bin/nvcc", "include", "lib64")]
        self.assertEqual(result.stdout.splitlines(), [folders[0], "12.4", *folders[1:]])

    def test_warnings_do_not_hide_it(self):
        result = self.found(LC_ALL="xx_XX.UTF-8")
        self.assertEqual((result.returncode, len(result.stdout.splitlines())), (0, 4))

    def test_a_compiler_that_nvcc_refuses_is_named(self):
        self.assert_missing(self.found(compiles=REFUSES), "compiles nothing here", "unsupported GNU version")
        self.assert_missing(self.found(compiles="exit 1"), "it does not say why")

    def test_an_old_or_incomplete_toolkit_is_refused(self):
        self.assert_missing(self.found(release="11.8"), "11.8", "12 is the oldest")
        os.remove(f"{self.top}/lib64/libcudart.so")
        self.assert_missing(self.found(), "libcudart.so")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
