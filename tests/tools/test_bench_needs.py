"""What benchmarks need: programs that are not built yet, and the PyTorch that they compare with.

usage: test_bench_needs.py path/to/source"""
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = sys.argv[1]
sys.path.insert(0, os.path.join(SOURCE, "tools/bench"))
import machine  # noqa: E402

PATIENCE = 120
# A torch with no operations, which maps the file that FAKE_BLAS names, as if it were linked to it.
FAKE_TORCH = """
import mmap, os
__version__ = "9.9.9+fake"
float32 = float16 = bfloat16 = None
def set_num_threads(n): pass
class __config__:
    @staticmethod
    def show(): return "PyTorch built with: BLAS_INFO=generic, USE_CUDA=OFF"
if os.environ.get("FAKE_BLAS"):
    with open(os.environ["FAKE_BLAS"], "rb") as file:
        blas = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
"""
# Says what bench-ops is asked for by "list", and then nothing.
FAKE_BENCH_OPS = """#!/bin/sh
while read -r line; do echo "no case | net | 1 | 1 g | a"; echo end; done
"""
NINJA = """rule make
  command = echo built > $out
rule fail
  command = echo the compiler is out of luck; exit 1
build tools/bench-ops: make
build tools/fails: fail
"""


class Needs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = os.path.realpath(folder.name)

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.top, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def virtual_environment(self):
        """Its python is a link to this one; torch and numpy are its own."""
        version = "python%d.%d" % sys.version_info[:2]
        self.write("venv/pyvenv.cfg", f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
        self.write(f"venv/lib/{version}/site-packages/torch.py", FAKE_TORCH)
        self.write(f"venv/lib/{version}/site-packages/numpy.py", "")
        os.makedirs(self.top + "/venv/bin")
        os.symlink(os.path.realpath(sys.executable), self.top + "/venv/bin/python")
        return self.top + "/venv/bin/python"

    def bench(self, *args, **env):
        done = subprocess.run([sys.executable, SOURCE + "/tools/cairn-bench", "ops", *args], capture_output=True,
                              text=True, timeout=PATIENCE, check=False, env={**os.environ, **env})
        self.assertNotIn("Traceback", done.stderr)
        return done.returncode, done.stdout, done.stderr

    def missing(self, call, *args):
        with self.assertRaises(machine.Missing) as told:
            call(*args)
        return str(told.exception)

    # ---- PyTorch ----

    def test_a_virtual_environment_is_a_python_of_its_own(self):
        self.write("build/tools/bench-ops", FAKE_BENCH_OPS, 0o755)
        code, out, errors = self.bench("--build", self.top + "/build", "--python", self.virtual_environment(),
                                       "--only=nothing")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("\nPyTorch 9.9.9+fake\n", out)

    def test_a_pytorch_on_the_reference_blas_is_left_out(self):
        self.write("build/tools/bench-ops", FAKE_BENCH_OPS, 0o755)
        python, blas = self.virtual_environment(), self.write("lib/blas/libblas.so.3.11.0", "plain loops")
        code, out, _ = self.bench("--build", self.top + "/build", "--python", python, "--only=nothing", FAKE_BLAS=blas)
        self.assertEqual(code, 0)
        self.assertIn("PyTorch: left out, "
                      f"PyTorch 9.9.9+fake of {python} multiplies by the reference BLAS ({blas})", out)
        self.assertIn("apt-get install libopenblas0", out)
        blas = self.write("lib/openblas-pthread/libblas.so.3", "fast")
        _, out, _ = self.bench("--build", self.top + "/build", "--python", python, "--only=nothing", FAKE_BLAS=blas)
        self.assertIn("\nPyTorch 9.9.9+fake\n", out)

    def test_a_blas_counts_where_pytorch_multiplies_by_it(self):
        plain, fast = "/usr/lib/blas/libblas.so.3.11.0", "/usr/lib/openblas-pthread/libblas.so.3"
        self.assertEqual(machine.reference_blas("BLAS_INFO=generic", ["/usr/lib/libm.so.6", plain]), plain)
        self.assertIsNone(machine.reference_blas("BLAS_INFO=generic", [fast]))
        self.assertIsNone(machine.reference_blas("BLAS_INFO=mkl", [plain])) # numpy's

    def test_a_python_without_pytorch_is_an_error(self):
        self.assertEqual(self.missing(machine.find_torch, "/bin/false"), "/bin/false cannot import torch and numpy")
        self.assertEqual(self.missing(machine.find_torch, "/no/python"), "/no/python cannot import torch and numpy")

    # ---- programs ----

    def test_what_is_not_built_is_built(self):
        self.write("build/build.ninja", NINJA)
        path = machine.program(self.top + "/build", "tools/bench-ops")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "built\n")

    def test_without_a_build_quickstart_is_named(self):
        for tool in ["cairn-bench", "ops"], ["cairn-bench", "ddp"], ["cairn-bench", "allreduce"], \
                ["cairn-bench", "optim"], ["cairn-bench", "plan"], ["bench-quickstart"], \
                ["bench-pipeline"]:
            done = subprocess.run([sys.executable, f"{SOURCE}/tools/{tool[0]}", *tool[1:], "--build",
                                   self.top + "/none"], capture_output=True, text=True, timeout=PATIENCE, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rf"^{tool[0]}: there is no {self.top}/none/\S+: run tools/quickstart, .*\n$")

    def test_a_build_without_the_program_says_so(self):
        self.write("build/build.ninja", NINJA)
        self.assertIn("was set up without tools/bench-mpi",
                      self.missing(machine.program, self.top + "/build", "tools/bench-mpi"))
        done = subprocess.run([sys.executable, SOURCE + "/tools/cairn-bench", "allreduce", "--backend=gloo", "--build",
                               self.top + "/build"], capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertIn("was set up without src/comm/gloo/libcairn_gloo.so", done.stderr)
        self.assertIn("the compiler is out of luck", self.missing(machine.program, self.top + "/build", "tools/fails"))

    def test_start_up_says_what_the_build_left_out(self):
        self.write("build/build.ninja", NINJA)
        launcher = self.write("build/tools/cairn-run", "#!/bin/sh\n", 0o755)
        done = subprocess.run([sys.executable, SOURCE + "/tools/bench-startup", launcher, launcher], text=True,
                              capture_output=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("was set up without src/device/cuda/libcairn_cuda.so", done.stderr)

    def test_start_up_is_compared_where_there_is_a_module(self):
        launcher = self.write("build/tools/cairn-run", "#!/bin/sh\n", 0o755)
        for args, told in ([launcher, self.top + "/none"], f"there is no {self.top}/none"), \
                ([launcher, launcher], "no module, libcairn_cuda.so"):
            done = subprocess.run([sys.executable, SOURCE + "/tools/bench-startup", *args], capture_output=True,
                                  text=True, timeout=PATIENCE, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rf"^bench-startup: .*{told}.*\n$")

    def test_a_program_that_failed_says_why_or_how_it_ended(self):
        for script, why in (("echo out of luck >&2; exit 3", "out of luck"),
                            ("exit 3", "it said nothing and returned 3"), ("kill -9 $$", "signal 9 ended it")):
            done = subprocess.run(["sh", "-c", script], stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
                                  check=False)
            self.assertEqual(machine.why_failed(done), why)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
