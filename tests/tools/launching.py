"""Shared by the tests of cairn-run."""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from ports import free_port  # noqa: E402, F401

PATIENCE = 60 # seconds for what takes milliseconds, on a machine that is busy


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("waited in vain until " + what)
        time.sleep(0.01)


def alive(pid):
    try:
        return read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class LauncherTest(unittest.TestCase):
    """Each test has a folder, and a TMPDIR in it that must be empty in the end."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(self.folder + "/tmp")
        plain = {name: text for name, text in os.environ.items()
                 if not name.startswith(("PET_", "TORCH", "PYTHON_EXEC"))}
        self.env = {**plain, "TMPDIR": self.folder + "/tmp", "OMP_NUM_THREADS": "1"}

    def check_nothing_temporary_is_left(self):
        self.assertEqual(os.listdir(self.folder + "/tmp"), [])

    def wait_until_nothing_temporary_is_left(self):
        wait_until(lambda: os.listdir(self.folder + "/tmp") == [], "a killed launcher's temporary folder was gone")

    def spawn(self, launcher, *args, **kwargs):
        pipe = subprocess.PIPE
        job = subprocess.Popen([launcher, *map(str, args)], text=True, **{
            "env": self.env, "stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, **kwargs})
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        self.addCleanup(job.send_signal, signal.SIGCONT)
        return job

    def finish(self, job):
        """Its exit code, stdout and stderr."""
        try:
            out, err = job.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            said = self.give_up(job)
            raise AssertionError(f"{job.args} had not ended after {PATIENCE} s; it said {said!r}") from None
        return job.returncode, out, err

    def give_up(self, job):
        """What it had said, after it was killed if need be."""
        job.kill()
        return job.communicate()


def main(argv):
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP: # a job in the background, or nohup, has ignored some
        signal.signal(number, signal.SIG_DFL)
    unittest.main(argv=argv[:1], verbosity=2)
