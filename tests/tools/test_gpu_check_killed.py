"""tools/gpu-check that is killed: whenever that is, gpu-check.json is whole, lists what had finished, and nothing that
gpu-check started goes on. Its programs are short ones, in a folder made up for it.

usage: test_gpu_check_killed.py SOURCE_ROOT [MOMENTS]

20 moments, or 5 with CAIRN_TEST_SHORT in the environment."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
MOMENTS = int(sys.argv[2]) if len(sys.argv) > 2 else 5 if os.environ.get("CAIRN_TEST_SHORT") else 20
PROGRAMS = "python3 sh sleep echo".split()
FINISHED = re.compile(r"^  (passed|FAILED|skipped) +(.*?)  [0-9.]+ s", re.M)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def meson_test(name, suite, command):
    return {"name": name, "suite": ["cairn:gpu", "cairn:" + suite], "cmd": ["sh", "-c", command], "env": {},
            "timeout": 30, "workdir": None}


class Killed(unittest.TestCase):
    def setUp(self):
        top = tempfile.TemporaryDirectory()
        self.addCleanup(top.cleanup)
        self.top, self.tree = top.name, os.path.join(top.name, "cairn")
        self.mark = f"CAIRN_TEST_MARK={os.getpid()}-{random.getrandbits(64)}"
        build = os.path.join(self.tree, "build-gpu")
        os.makedirs(os.path.join(self.top, "bin"))
        for name in PROGRAMS:
            os.symlink(sys.executable if name == "python3" else shutil.which(name),
                       os.path.join(self.top, "bin", name))
        os.makedirs(os.path.join(self.tree, "tools"))
        shutil.copy(os.path.join(ROOT, "tools/gpu-check"), os.path.join(self.tree, "tools/gpu-check"))
        write(build + "/meson-info/meson-info.json", json.dumps({"directories": {"build": build, "source": self.tree}}))
        tests = [meson_test(f"one {i}", "device", "sleep 0.1 & wait; echo words") for i in range(4)]
        tests += [meson_test("it fails", "device", "echo bad; exit 3")]
        tests += [meson_test(f"two {i}", "train", "sleep 0.1 & wait") for i in range(3)]
        write(build + "/meson-info/intro-tests.json", json.dumps(tests))
        for bench in "device/cuda-bench", "train/gpu-bench":
            path = os.path.join(build, "tests", bench)
            write(path, "#!/bin/sh\necho copy = 5.0 GB/s\nsleep 0.1\n")
            os.chmod(path, 0o755)

    def start(self, said):
        name, _, value = self.mark.partition("=")
        env = {"PATH": os.path.join(self.top, "bin"), "HOME": self.top, "OUT": self.top, name: value}
        return subprocess.Popen([sys.executable, "tools/gpu-check", "--as-built", "--stand-in"], cwd=self.tree, env=env,
                                stdout=said, stderr=subprocess.STDOUT)

    def alive(self):
        """Processes that gpu-check has started and left."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    marked = self.mark.encode() in f.read().split(b"\0")
                with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                    state = f.read().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if marked and state != "Z":
                found.append(int(pid))
        return found

    def report(self, path):
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as f:
            return [test["name"] for test in json.load(f)["tests"]]

    def whole(self):
        """Seconds that a run takes which is let go on, and its report."""
        begin = time.monotonic()
        with open(os.path.join(self.top, "said"), "w+", encoding="utf-8") as said:
            code = self.start(said).wait(120)
            said.seek(0)
            text = said.read()
        self.assertEqual(code, 1, text)
        self.assertIn("passed, 1 failed, 1 skipped", text)
        names = self.report(os.path.join(self.tree, "gpu-check.json"))
        self.assertEqual(names, [name for _, name in FINISHED.findall(text)])
        self.assertEqual(len(names), 12)
        return time.monotonic() - begin

    def test_json_is_whole_at_every_moment(self):
        seconds, listed = self.whole(), []
        for _ in range(MOMENTS):
            for name in "cairn/gpu-check.json", "gpu-check.json":
                if os.path.exists(os.path.join(self.top, name)):
                    os.remove(os.path.join(self.top, name))
            with open(os.path.join(self.top, "said"), "w+", encoding="utf-8") as said:
                child = self.start(said)
                time.sleep(random.uniform(0, seconds))
                child.send_signal(signal.SIGKILL)
                child.wait()
                said.seek(0)
                printed = [name for _, name in FINISHED.findall(said.read())]
            for path in os.path.join(self.tree, "gpu-check.json"), os.path.join(self.top, "gpu-check.json"):
                names = self.report(path)
                self.assertEqual(names, printed[:len(names)])
                self.assertLessEqual(len(printed) - len(names), 1) # it was about to be written
            listed.append(len(names))
            for _ in range(100):
                if not self.alive():
                    break
                time.sleep(0.1)
            self.assertEqual(self.alive(), [])
        print(f"killed with {sorted(listed)} of 12 programs done, in runs of {seconds:.1f} s")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
