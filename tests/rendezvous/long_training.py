"""A long training on two machines, network namespaces of one host: no process of it grows.

usage: long_training.py CAIRN_RUN EXCHANGE QUICKSTART gloo|none SECONDS

Skipped where namespaces cannot be made, and in a build without gloo."""
import os
import signal
import statistics
import sys
import tempfile
import time
import unittest

import two_machines as net
from quickstart import PATIENCE

CAIRN_RUN, _, QUICKSTART, GLOO, SECONDS = sys.argv[1:6]
PORT = 29515
SAMPLES = 60
LONG = 600  # seconds, from which on growth is no matter of when memory is first touched
GROWTH = 256  # KiB that a process may then have more in the last third than in the second


def descendants(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        found = [int(word) for word in children.read().split()]
    return found + [more for child in found for more in descendants(child)]


class Facts:
    """Of a process: KiB of its own memory, descriptors, threads."""

    def __init__(self, pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            words = dict(line.split(":", 1) for line in status)
        self.name = words["Name"].strip()
        self.kib = int(words["RssAnon"].split()[0])
        self.threads = int(words["Threads"])
        self.files = len(os.listdir(f"/proc/{pid}/fd"))


class Long(net.Test):
    def test_a_long_training_grows_by_nothing(self):
        # Losses go nowhere: a pipe that is full, since nobody reads it, would stop the ranks.
        jobs = [machine.start("sh", "-c", 'exec "$0" "$@" >/dev/null', CAIRN_RUN, "--nnodes", 2, "--nproc-per-node", 2,
                              "--node-rank", node, "--master-addr", net.MACHINES[0].address, "--master-port", PORT,
                              "--secret-file", SECRET, QUICKSTART, "--opt-level", "O2", "--half", "f16", "--steps",
                              net.FOREVER)
                for node, machine in enumerate(net.MACHINES)]
        end = time.monotonic() + PATIENCE
        pids, before = [], None
        while len(pids) < 6 or pids != before:  # two cairn-runs, four ranks, and what stays beside them
            self.assertLess(time.monotonic(), end, "the ranks did not start")
            time.sleep(0.5)
            pids, before = [pid for job in jobs for pid in [job.pid, *descendants(job.pid)]], pids
        samples = {pid: [] for pid in pids}
        for _ in range(SAMPLES):
            time.sleep(float(SECONDS) / SAMPLES)
            for job in jobs:
                self.assertIsNone(job.poll(), job.poll() is not None and job.communicate()[1])
            for pid in pids:
                samples[pid].append(Facts(pid))
        for job in jobs:
            job.send_signal(signal.SIGTERM)
        for pid, facts in samples.items():
            second, last = facts[SAMPLES // 3:2 * SAMPLES // 3], facts[2 * SAMPLES // 3:]
            kib = [statistics.median(f.kib for f in part) for part in (second, last)]
            print(f"{facts[0].name} {pid}: {kib[0]:.0f} KiB, then {kib[1]:.0f}; {last[-1].files} files, "
                  f"{last[-1].threads} threads")
            if float(SECONDS) >= LONG:
                self.assertLess(kib[1] - kib[0], GROWTH, facts[0].name)
            self.assertEqual({f.files for f in last}, {f.files for f in second}, facts[0].name)
            self.assertEqual({f.threads for f in last}, {f.threads for f in second}, facts[0].name)


if __name__ == "__main__":
    if GLOO != "gloo":
        print("this build has no gloo (meson option 'gloo')")
        sys.exit(net.SKIP)
    refused = net.apart.move()
    if refused:
        print(refused)
        sys.exit(net.SKIP)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TMPDIR"] = scratch
        SECRET = os.path.join(scratch, "secret")
        net.subprocess.run([CAIRN_RUN, "--new-secret", SECRET], check=True)
        net.MACHINES = [net.Machine(0), net.Machine(1)]
        net.connect(net.MACHINES)
        unittest.main(argv=sys.argv[:1], verbosity=2)
