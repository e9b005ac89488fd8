"""tools/gpu-check from an empty folder, on a machine that has nvcc, gcc, python3 and ninja and nothing else: a PATH of
links to those, no environment, no network. It gets as far as the GPU. Takes minutes: suite slow.

usage: test_bare_machine.py SOURCE_ROOT        (needs bundle/, which tools/bundle-deps makes)"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
SKIP = 77

sys.path.insert(0, os.path.join(ROOT, "tests/style"))
import sources  # pylint: disable=wrong-import-position

# No git, pkg-config, meson, clang or cmake. nm, readelf and the like come with ld.
COMPILERS = "nvcc gcc g++ cc c++ as ld ar nm ranlib strip objcopy objdump readelf python3 ninja".split()
SHELL = ("bash sh sed grep awk find xargs env cat cp mv rm mkdir rmdir ln ls chmod touch head tail cut tr sort uniq "
         "wc tee dirname basename mktemp date sleep uname nproc true false test expr printf echo pwd readlink "
         "realpath stat sha256sum du id timeout kill").split()


def missing():
    if not os.path.exists(os.path.join(ROOT, "bundle/meson")):
        return "there is no bundle/; run tools/bundle-deps"
    return next((f"there is no {name}" for name in COMPILERS if not shutil.which(name)), None)


def without_network():
    """What to put before a command so that it reaches no network; nothing where this user may not."""
    unshare = shutil.which("unshare")
    for how in ([unshare, "--net"], [unshare, "--net", "--map-root-user"]):
        if unshare and subprocess.run(how + ["true"], capture_output=True, check=False).returncode == 0:
            return how
    return []


class BareMachine(unittest.TestCase):
    def setUp(self):
        top = tempfile.TemporaryDirectory()
        self.addCleanup(top.cleanup)
        self.top, self.tree = top.name, os.path.join(top.name, "cairn")
        for path in sources.tracked(ROOT):
            os.makedirs(os.path.dirname(os.path.join(self.tree, path)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, path), os.path.join(self.tree, path))
        shutil.copytree(os.path.join(ROOT, "bundle"), os.path.join(self.tree, "bundle"), symlinks=True)
        os.makedirs(os.path.join(self.top, "bin"))
        os.makedirs(os.path.join(self.top, "out"))
        for name in COMPILERS + SHELL:
            if shutil.which(name):
                os.symlink(os.path.realpath(shutil.which(name)) if name == "nvcc" else shutil.which(name),
                           os.path.join(self.top, "bin", name))

    def run_it(self):
        env = {"PATH": os.path.join(self.top, "bin"), "HOME": self.top, "OUT": os.path.join(self.top, "out")}
        return subprocess.run(without_network() + ["tools/gpu-check", "build"], cwd=self.tree, env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=1800)

    def check_links(self, program, *libraries):
        """That they are found in bundle/."""
        linked = subprocess.run(["ldd", os.path.join(self.tree, "build-gpu", program)], capture_output=True, text=True,
                                check=True).stdout
        for library in libraries:
            self.assertRegex(linked, f"{library}.* => {self.tree}/bundle/")

    def test_builds_everything_and_says_that_there_is_no_gpu(self):
        run = self.run_it()
        gpu = glob.glob("/dev/nvidia[0-9]*")
        self.assertEqual(run.returncode, 0 if gpu else SKIP, run.stdout)
        self.assertTrue(gpu or "no GPU: there is no /dev/nvidia*" in run.stdout, run.stdout)
        self.assertTrue(glob.glob(os.path.join(self.tree, "build-gpu/**/libcairn_cuda.so"), recursive=True))
        self.check_links("tests/device/device_test", "libcmocka", "libdnnl", "libgomp", "libOpenCL")
        self.check_links("tools/cairn-run", "libjansson")
        with open(os.path.join(self.top, "out/gpu-check.json"), encoding="utf-8") as f:
            self.assertEqual([test["result"] for test in json.load(f)["tests"]], ["passed", "passed"])


if __name__ == "__main__":
    if missing():
        print(missing())
        sys.exit(SKIP)
    unittest.main(argv=sys.argv[:1])
