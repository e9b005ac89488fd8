"""Strangers at gloo's ports: a program of another user, on both of a job's machines, repeatedly connects to every
listening port while four ranks train. The run ends with the same losses as an undisturbed run.

usage: gloo_strangers.py CAIRN_RUN EXCHANGE QUICKSTART gloo|none

Skipped where namespaces cannot be made."""
import os
import select
import sys
import tempfile
import unittest

import two_machines as net
from quickstart import Quickstart, digits

CAIRN_RUN, _, QUICKSTART, GLOO = sys.argv[1:5]
PYTHON = "/usr/bin/python3"  # that nobody may run
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
PORT = 29514
STEPS = 20
MAX_RUNS = 40

STRAY = r'''
import re, socket, sys
print("ready", flush=True)
except_port, how = int(sys.argv[1]), sys.argv[2]
kept, count = [], 0
hello = b"\xc3airn-1\n" + bytes(32)
while True:
    with open("/proc/net/tcp") as f:
        listening = re.findall(r"^ *\d+: (\w{8}):(\w{4}) 0{8}:0{4} 0A", f.read(), re.M)
    for address, port in listening:
        if int(port, 16) == except_port: continue
        s = socket.socket(); s.setblocking(False)
        s.connect_ex((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
        count += 1
        if count == 1: print("came", flush=True)
        try:
            if how == "garbage": s.send(b"GET / HTTP/1.1\r\n" * 20)
            if how == "hello": s.send(hello)
        except OSError: pass
        if how != "close": kept.append(s)
    del kept[:-300]
'''


class Strangers(net.Test):
    def train(self):
        quickstart = Quickstart(CAIRN_RUN, QUICKSTART)
        ends = self.ends([machine.start(CAIRN_RUN, "--nnodes", 2, "--nproc-per-node", 2, "--node-rank", node,
                                        "--master-addr", net.MACHINES[0].address, "--master-port", PORT,
                                        "--secret-file", SECRET, *quickstart.command(steps=STEPS), CAIRN_TIMEOUT="20")
                          for node, machine in enumerate(net.MACHINES)])
        for code, _, err in ends:
            self.assertEqual(code, 0, err)
        self.assertEqual(digits("".join(out for _, out, _ in ends)), quickstart.expected(4))

    def strays(self, how):
        strays = [machine.start(*AS_NOBODY, PYTHON, "-c", STRAY, PORT, how) for machine in net.MACHINES]
        for stray in strays:
            self.assertEqual(stray.stdout.readline(), "ready\n")
        return strays

    def train_until_they_came(self, how):
        """gloo's ports are there for some ms alone, and a stranger may miss them all: that those who come there are
        named is a matter of tests/comm/links_test.c."""
        strays, came = self.strays(how), []
        for _ in range(MAX_RUNS):
            self.train()
            came = came or select.select([stray.stdout for stray in strays], [], [], 0)[0]
            if came:
                break
        for stray in strays:
            stray.kill()
            self.assertEqual(stray.communicate()[1], "")
        self.assertTrue(came)

    def test_who_closes_at_once_changes_nothing(self):
        self.train_until_they_came("close")

    def test_who_sends_garbage_changes_nothing(self):
        self.train_until_they_came("garbage")

    def test_who_stays_silent_changes_nothing(self):
        self.train_until_they_came("silent")

    def test_who_begins_a_proof_changes_nothing(self):
        self.train_until_they_came("hello")


if __name__ == "__main__":
    refused = net.apart.move()
    if refused or GLOO != "gloo":
        print(refused or "this build has no gloo (meson option 'gloo')")
        sys.exit(net.SKIP)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TMPDIR"] = scratch
        SECRET = os.path.join(scratch, "secret")
        net.subprocess.run([CAIRN_RUN, "--new-secret", SECRET], check=True)
        net.MACHINES = [net.Machine(0), net.Machine(1)]
        net.connect(net.MACHINES)
        unittest.main(argv=sys.argv[:1] + sys.argv[5:], verbosity=2)
