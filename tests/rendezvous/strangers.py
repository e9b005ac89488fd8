"""Strangers: another user of the ranks' machines, who knows the protocol, against two machines whose ranks prove
themselves. Each attack succeeds if the run trusts every client (CAIRN_INSECURE=1), and only then.

usage: strangers.py CAIRN_RUN EXCHANGE QUICKSTART gloo|none

Skipped where namespaces cannot be made, or nobody else can be asked (it needs root). With CAIRN_TEST_SHORT in the
environment the store's share of the processors is that among 1500 strangers instead of 4500, of 600 steps of 2000."""
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

import two_machines as net
from quickstart import PATIENCE, Quickstart, clean_env, digits

CAIRN_RUN, EXCHANGE, QUICKSTART, GLOO = sys.argv[1:5]
PYTHON = "/usr/bin/python3"  # that nobody may run
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
STEPS = 20
MANY = 4500
LONG, CROWD = (600, 1500) if "CAIRN_TEST_SHORT" in os.environ else (2000, MANY)

# Speaks the store's dialect of torch 2.2, without any proof. What it prints: one line for an attempt, "closed" or what
# it got.
STRANGER = r'''
import socket, struct, sys, time
host, port, what = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def key(k): return struct.pack("<Q", len(k) + 1) + b"/" + k.encode()
def vector(v): return struct.pack("<Q", len(v)) + v.encode()
def attempt(request):
    s = socket.create_connection((host, port), 10)
    s.settimeout(10)
    try:
        s.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE) + request)
        got = s.recv(65536)
    except ConnectionError:
        got = b""
    print("got " + repr(got) if got else "closed", flush=True)
    s.close()
if what[0] == "list": attempt(b"\x11")
if what[0] == "add": attempt(b"\x04" + key(what[1]) + struct.pack("<q", int(what[2])))
if what[0] == "set": attempt(b"\x01" + key(what[1]) + vector(what[2]) + b"\x03" + key(what[1]))
if what[0] == "hold":  # as many, each with the beginning of a proof; those that are closed anew
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(what[1]) + 64,) * 2)
    def another():
        s = socket.create_connection((host, port), 10)
        s.sendall(b"\xc3airn-1\n" + bytes(31))
        return s
    held = [another() for _ in range(int(what[1]))]
    print("held", flush=True)
    lie = bytes(100)
    while True:
        for i, s in enumerate(held[::8]):
            try:
                s.send(lie)
                s.close()
                held[8 * i] = another()
            except OSError:
                held[8 * i] = another()
        time.sleep(0.5)
if what[0] == "serve":  # as a store would that has every key
    listeners = []
    for p in range(port, port + int(what[1])):
        s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try: s.bind((host, p)); s.listen(64); listeners.append(s)
        except OSError: pass
    print("serving", len(listeners), flush=True)
    import selectors
    sel = selectors.DefaultSelector()
    for s in listeners: sel.register(s, 1)
    while True:
        for entry, _ in sel.select():
            s = entry.fileobj
            if s in listeners:
                c, _ = s.accept(); c.setblocking(False); sel.register(c, 1); continue
            try: data = s.recv(65536)
            except OSError: data = b""
            if not data: sel.unregister(s); s.close(); continue
            print("a client said", data[:8].hex(), flush=True)
            reply = struct.pack("<q", 0) * data.count(b"\x07") if data[:1] == b"\0" else b"\0"
            if data[:1] == b"\x04": reply = struct.pack("<q", 1)
            s.sendall(reply)
'''


# Returns once somebody listens there.
WAIT = r'''
import socket, sys, time
for _ in range(1000):
    try: socket.create_connection((sys.argv[1], int(sys.argv[2]))).close(); break
    except OSError: time.sleep(0.01)
else: sys.exit("nobody listens")
'''


class Strange(net.Test):
    def stranger(self, machine, host, port, *what):
        """Starts one there, as nobody."""
        return machine.start(*AS_NOBODY, PYTHON, "-c", STRANGER, host, port, *what)

    def asks(self, machine, host, port, *what):
        """The line that one attempt prints."""
        (code, out, err), = self.ends([self.stranger(machine, host, port, *what)])
        self.assertEqual(code, 0, err)
        return out.strip()

    ATTACKS = (["list"], ["add", "cairn-run/agents", "1000000"], ["set", "cairn-run/news/1", "4 1 1 0 over"],
               ["set", "cairn-run/call/1/1", "1 0 0 1 0 1 0 1 192.0.2.1"], ["add", "cairn/none/0/envs/0", "7"])

    def all_are_closed(self, machine, host, port):
        for attack in self.ATTACKS:
            self.assertEqual(self.asks(machine, host, port, *attack), "closed", attack)

    def all_get_in(self, machine, host, port):
        for attack in self.ATTACKS[:2]:
            self.assertIn("got ", self.asks(machine, host, port, *attack), attack)


class OneMachine(Strange):
    PORT = 29511

    def train(self, **more):
        return net.MACHINES[0].start(CAIRN_RUN, "--nproc-per-node", 2, "--master-port", self.PORT, EXCHANGE, "stay",
                                     **more)

    def met(self, job):
        for _ in range(2):
            self.assertIn("read", job.stdout.readline())

    def test_another_user_gets_nothing_from_the_store_and_is_named(self):
        job = self.train()
        self.met(job)
        self.all_are_closed(net.MACHINES[0], "127.0.0.1", self.PORT)
        job.terminate()
        _, err = job.communicate(timeout=PATIENCE)
        self.assertIn("it is user 65534 of this machine", err)

    def test_the_same_attacks_get_in_where_everybody_is_trusted(self):
        job = self.train(CAIRN_INSECURE="1")
        self.met(job)
        self.all_get_in(net.MACHINES[0], "127.0.0.1", self.PORT)

    def test_the_store_listens_on_loopback_alone(self):
        job = self.train()
        self.met(job)
        code = net.MACHINES[1].start("sh", "-c", f"exec 3<>/dev/tcp/{net.MACHINES[0].address}/{self.PORT}")
        self.assertNotEqual(code.wait(PATIENCE), 0)
        listening = subprocess.run(net.MACHINES[0].inside("ss", "-Hltn"), check=True, capture_output=True, text=True)
        self.assertEqual(re.findall(r"(\S+):29511\b", listening.stdout), ["127.0.0.1"])

    def test_ranks_pass_over_another_users_store_at_the_ports_of_their_job(self):
        """Sixteen ports follow from Slurm's number of the job, which everybody can see."""
        env = dict(SLURM_JOB_ID="4711", SLURM_STEP_ID="0", SLURM_NTASKS="2", SLURM_STEP_NUM_TASKS="2",
                   SLURM_STEP_TASKS_PER_NODE="2", SLURM_STEP_NODELIST="machine-a", CAIRN_LOG="info",
                   CAIRN_TIMEOUT="60")
        quickstart = Quickstart(CAIRN_RUN, QUICKSTART)

        def start(rank):
            return net.MACHINES[0].start(*quickstart.command(steps=STEPS), SLURM_PROCID=str(rank),
                                         SLURM_LOCALID=str(rank), **env)
        first = self.ends([start(0), start(1)])
        port = int(re.search(r"meeting: at \S+ port (\d+)", "".join(err for _, _, err in first)).group(1))
        squatter = self.stranger(net.MACHINES[0], "0.0.0.0", port, "serve", "1")
        self.assertEqual(squatter.stdout.readline(), "serving 1\n")
        ends = self.ends([start(1), start(0)])
        squatter.kill()
        said, _ = squatter.communicate()
        self.assertIn("a client said", said)
        for code, _, err in ends:
            self.assertEqual(code, 0, err)
        self.assertEqual(digits("".join(out for _, out, _ in ends)), quickstart.expected(2))


class TwoMachines(Strange):
    PORT = 29512

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.secret = self.make_secret(os.path.join(folder.name, "secret"))
        self.other = self.make_secret(os.path.join(folder.name, "other"))

    @staticmethod
    def make_secret(path):
        subprocess.run([CAIRN_RUN, "--new-secret", path], check=True)
        return path

    def run_nodes(self, *program, secrets=None, **more):
        secrets = secrets or [self.secret, self.secret]
        return [self.start_node(node, *program, secret=secret, **more) for node, secret in enumerate(secrets)]

    def start_node(self, node, *program, secret=None, ranks=2, **more):
        return net.MACHINES[node].start(CAIRN_RUN, "--nnodes", 2, "--nproc-per-node", ranks, "--node-rank", node,
                                        "--master-addr", net.MACHINES[0].address, "--master-port", self.PORT,
                                        *(["--secret-file", secret] if secret else []), *program, **more)

    def wait_for_store(self):
        (code, _, err), = self.ends([net.MACHINES[0].start(PYTHON, "-c", WAIT, net.MACHINES[0].address, self.PORT)])
        self.assertEqual(code, 0, err)

    def test_nodes_with_one_secret_meet_and_the_secret_is_nowhere_to_be_seen(self):
        jobs = self.run_nodes(EXCHANGE, "stay", CAIRN_LOG="debug")
        for job in jobs:
            for _ in range(2):
                self.assertIn("read", job.stdout.readline())
        with open(self.secret, encoding="ascii") as f:
            secret = f.read().strip()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for what in "cmdline", "environ":
                try:
                    with open(f"/proc/{pid}/{what}", "rb") as f:
                        self.assertNotIn(secret.encode(), f.read())
                except OSError:
                    pass  # it has ended
        for machine, host in ((net.MACHINES[1], net.MACHINES[0].address), (net.MACHINES[0], net.MACHINES[0].address)):
            self.all_are_closed(machine, host, self.PORT)
        for job in jobs:
            job.terminate()
        said = "".join(out + err for _, out, err in self.ends(jobs))
        self.assertNotIn(secret, said)
        self.assertNotIn("without proof", said)
        self.assertIn("did not prove that it knows the job's secret", said)

    def test_without_a_secret_a_notice_says_that_the_network_is_trusted_and_strangers_get_in(self):
        jobs = self.run_nodes(EXCHANGE, "stay", secrets=[None, None])
        for job in jobs:
            for _ in range(2):
                self.assertIn("read", job.stdout.readline())
        self.all_get_in(net.MACHINES[1], net.MACHINES[0].address, self.PORT)
        for job in jobs:
            job.terminate()
        for _, _, err in self.ends(jobs):
            self.assertEqual(err.count("nodes are trusted without proof"), 1, err)

    def test_insecure_is_taken_at_its_word(self):
        ends = self.ends(self.run_nodes(EXCHANGE, "leave", secrets=[None, None], CAIRN_INSECURE="1"))
        for code, _, err in ends:
            self.assertEqual(code, 0, err)
            self.assertNotIn("trusted", err)

    def test_nodes_of_different_secrets_do_not_meet(self):
        for secrets in ([self.secret, self.other], [self.secret, None], [None, self.secret]):
            with self.subTest(secrets):
                jobs = self.run_nodes("--rdzv-conf", "join_timeout=2", EXCHANGE, "leave", secrets=secrets)
                _, (code, _, err) = self.ends(jobs)
                self.assertEqual(code, 1, err)
                self.assertRegex(err, "does not know the job's secret|closes the connection")

    def test_a_training_of_both_machines_has_the_losses_of_one(self):
        if GLOO != "gloo":
            self.skipTest("this build has no gloo (meson option 'gloo')")
        quickstart = Quickstart(CAIRN_RUN, QUICKSTART)
        ends = self.ends(self.run_nodes(*quickstart.command(steps=STEPS)))
        for code, _, err in ends:
            self.assertEqual(code, 0, err)
        self.assertEqual(digits("".join(out for _, out, _ in ends)), quickstart.expected(4))

    @staticmethod
    def most_memory(job):
        """KiB that this process has had resident at most."""
        with open(f"/proc/{job.pid}/status", encoding="ascii") as status:
            return int(status.read().split("VmHWM:")[1].split()[0])

    def watched(self, jobs, get_memory):
        while jobs[0].poll() is None:
            with contextlib.suppress(OSError, IndexError):
                get_memory(self.most_memory(jobs[0]))
            time.sleep(0.02)
        return self.ends(jobs)

    def test_a_training_among_4500_strangers_has_the_losses_of_one_without(self):
        if GLOO != "gloo":
            self.skipTest("this build has no gloo (meson option 'gloo')")
        quickstart = Quickstart(CAIRN_RUN, QUICKSTART)
        memory = {"alone": 0, "among strangers": 0}
        for what in memory:
            node_0 = self.start_node(0, *quickstart.command(steps=STEPS), secret=self.secret)
            if what != "alone":
                self.wait_for_store()
                strangers = self.hold(MANY)
            jobs = [node_0, self.start_node(1, *quickstart.command(steps=STEPS), secret=self.secret)]
            ends = self.watched(jobs, lambda kib: memory.update({what: max(memory[what], kib)}))
            for code, _, err in ends:
                self.assertEqual(code, 0, err)
            self.assertEqual(digits("".join(out for _, out, _ in ends)), quickstart.expected(4))
        self.end(strangers)
        self.assertLess(memory["among strangers"] - memory["alone"], 16 << 10)
        said = ends[0][2]
        for machine in net.MACHINES:
            self.assertIn(said.count(f"from {machine.address} port"), (1, 2), said)

    @staticmethod
    def processor_seconds(job):
        with open(f"/proc/{job.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def hold(self, count):
        """Strangers that hold connections, an eighth of them new ones every half second."""
        strangers = [self.stranger(machine, net.MACHINES[0].address, self.PORT, "hold", count // 2)
                     for machine in net.MACHINES]
        for s in strangers:
            self.assertEqual(s.stdout.readline(), "held\n", s.poll() is not None and s.stderr.read())
        return strangers

    @staticmethod
    def end(strangers):
        for s in strangers:
            s.kill()
            s.communicate()

    def stores_share(self, while_held):
        """Of the time of a training, after the strangers or among them, that the store's process computes."""
        command = Quickstart(CAIRN_RUN, QUICKSTART).command(steps=LONG)
        node_0 = self.start_node(0, *command, secret=self.secret, ranks=1)
        self.wait_for_store()
        strangers = self.hold(CROWD)
        if not while_held:
            self.end(strangers)
        begin, before = time.monotonic(), self.processor_seconds(node_0)
        node_1 = self.start_node(1, *command, secret=self.secret, ranks=1)
        after = [before]
        while node_1.poll() is None:
            with contextlib.suppress(OSError, IndexError):
                after.append(self.processor_seconds(node_0))
            time.sleep(0.05)
        took, used = time.monotonic() - begin, after[-1] - before
        for code, _, err in self.ends([node_0, node_1]):
            self.assertEqual(code, 0, err)
        if while_held:
            self.end(strangers)
        print(f"{LONG} steps in {took:.2f} s, of which the store's process computed for {used:.2f} s")
        return (used - 0.2) / took

    def test_a_store_rests_after_an_attack(self):
        """Were it busy with what the strangers have left, the training would miss a processor."""
        if GLOO != "gloo":
            self.skipTest("this build has no gloo (meson option 'gloo')")
        self.assertLess(self.stores_share(False), 0.1)

    def test_a_store_under_attack_leaves_the_processors_to_the_training(self):
        """What the strangers' own processes take of this machine is theirs, and elsewhere would be no matter."""
        if GLOO != "gloo":
            self.skipTest("this build has no gloo (meson option 'gloo')")
        self.assertLess(self.stores_share(True), 0.05 * os.cpu_count())

    def by_hand(self, secrets):
        return [net.MACHINES[rank].start(QUICKSTART, "--steps", "3", RANK=str(rank),
                                         WORLD_SIZE="2", MASTER_ADDR=net.MACHINES[0].address, MASTER_PORT="29513",
                                         CAIRN_TIMEOUT="3", **({"CAIRN_JOB_SECRET_FILE": secret} if secret else {}))
                for rank, secret in enumerate(secrets)]

    def test_ranks_by_hand_prove_themselves_too(self):
        if GLOO != "gloo":
            self.skipTest("this build has no gloo (meson option 'gloo')")
        for code, _, err in self.ends(self.by_hand([self.secret, self.secret])):
            self.assertEqual(code, 0, err)
            self.assertNotIn("without proof", err)
        (_, _, zero), (code, _, one) = self.ends(self.by_hand([self.secret, self.other]))
        self.assertEqual(code, 1)
        self.assertIn("a store that does not know the job's secret", one)
        self.assertIn("rank 1, which did not join", zero)

    def test_a_secret_that_others_can_read_is_refused_by_all(self):
        os.chmod(self.secret, 0o644)
        for code, _, err in self.ends(self.run_nodes(EXCHANGE, "leave")):
            self.assertEqual(code, 2)
            self.assertIn("has mode 0644, so others may have read or changed it", err)

    def test_a_secret_that_is_inherited_reaches_the_ranks(self):
        with open(self.secret, "rb") as f:
            secret = f.read()
        jobs = []
        for node, machine in enumerate(net.MACHINES):
            words = [CAIRN_RUN, "--nnodes", 2, "--nproc-per-node", 1, "--node-rank", node, "--master-addr",
                     net.MACHINES[0].address, "--master-port", self.PORT, "--secret-fd", 0, QUICKSTART, "--steps", 3]
            job = subprocess.Popen(machine.inside(*map(str, words)), env=clean_env(CAIRN_TIMEOUT="20"), text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            job.stdin.write(secret.decode())
            job.stdin.close()
            job.stdin = None
            jobs.append(job)
        if GLOO == "gloo":
            for code, _, err in self.ends(jobs):
                self.assertEqual(code, 0, err)


if __name__ == "__main__":
    refused = net.apart.move()
    if refused:
        print(refused)
        sys.exit(net.SKIP)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TMPDIR"] = scratch
        net.MACHINES = [net.Machine(0), net.Machine(1)]
        net.connect(net.MACHINES)
        unittest.main(argv=sys.argv[:1] + sys.argv[5:], verbosity=2)
