"""Two machines, each with two ranks: network namespaces of one host, with a cable between them that can be cut.

usage: two_machines.py CAIRN_RUN EXCHANGE QUICKSTART gloo|none    (whether the build has gloo)

Skipped where namespaces cannot be made."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir), os.path.join(HERE, os.pardir, "train")]
import apart  # noqa: E402
from quickstart import PATIENCE, Quickstart, clean_env, digits  # noqa: E402

CAIRN_RUN, EXCHANGE, QUICKSTART, GLOO = sys.argv[1:5]
SIGN_OF_LIFE = 4  # seconds after which a cairn-run is given up
STEPS = 20
FOREVER = 10**9
TIMEOUT = 3  # seconds, of ranks whose cable is cut
SLACK = 20  # seconds, on a busy machine
ENOUGH = 1 << 20  # bytes; ranks meet with some ten thousand
SKIP = 77  # meson's exit code for a skipped test


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Machine:
    """A network, a host name, and a process that keeps them."""

    def __init__(self, number):
        self.name, self.cable = f"machine-{'ab'[number]}", f"cable{number}"
        self.address, self.address6 = f"10.1.0.{1 + number}", f"fd00::{1 + number}"
        self.keeper = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c",
                                        f"hostname {self.name}; echo ready; exec sleep infinity"],
                                       stdout=subprocess.PIPE)
        self.keeper.stdout.readline()
        self.running = []

    def inside(self, *command):
        return ["nsenter", "-t", str(self.keeper.pid), "--net", "--uts", *command]

    def plug_in(self):
        ip("link", "set", self.cable, "netns", str(self.keeper.pid))
        for words in (["address", "add", self.address + "/24", "dev", self.cable],
                      ["address", "add", self.address6 + "/64", "dev", self.cable, "nodad"],
                      ["link", "set", "lo", "up"], ["link", "set", self.cable, "up"]):
            subprocess.run(self.inside("ip", *words), check=True)

    def cut(self, cut=True):
        subprocess.run(self.inside("ip", "link", "set", self.cable, "down" if cut else "up"), check=True)
        if not cut:  # a cable that was down has lost its IPv6 address
            subprocess.run(self.inside("ip", "address", "replace", self.address6 + "/64", "dev", self.cable, "nodad"),
                           check=True)

    def received(self):
        """Bytes, through the cable."""
        said = subprocess.run(self.inside("ip", "-s", "-j", "link", "show", "dev", self.cable), check=True,
                              capture_output=True)
        return json.loads(said.stdout)[0]["stats64"]["rx"]["bytes"]

    def start(self, *command, **more):
        self.running.append(subprocess.Popen(self.inside(*map(str, command)), env=clean_env(**more), text=True,
                                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return self.running[-1]

    def tidy(self):
        """Ends what a test has left."""
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.running = []


def connect(machines):
    """The cable, and names for both ends."""
    ip("link", "add", machines[0].cable, "type", "veth", "peer", "name", machines[1].cable)
    for machine in machines:
        machine.plug_in()
    with tempfile.NamedTemporaryFile("w") as hosts:
        hosts.write("127.0.0.1 localhost\n::1 localhost\n" + "".join(f"{m.address} {m.name}\n" for m in machines))
        hosts.flush()
        subprocess.run(["mount", "--bind", hosts.name, "/etc/hosts"], check=True)


class Test(unittest.TestCase):
    def setUp(self):
        for machine in MACHINES:
            self.addCleanup(machine.tidy)

    def ends(self, processes):
        """(code, stdout, stderr) of each."""
        found = []
        for process in processes:
            out, err = process.communicate(timeout=PATIENCE)
            found.append((process.returncode, out, err))
        return found

    def read_by_all(self, ends, hosts):
        """All ended well, and each rank read from every rank on which machine it is."""
        for code, _, err in ends:
            self.assertEqual(code, 0, err)
        readings = " ".join(f"{rank} {MACHINES[host].name}" for rank, host in enumerate(hosts))
        lines = sorted(line for _, out, _ in ends for line in out.splitlines())
        self.assertEqual(lines, [f"attempt 0: rank {rank} read: {readings}" for rank in range(len(hosts))])


class ByHand(Test):
    def start(self, hosts, *command, address, **more):
        return [MACHINES[host].start(*command, RANK=str(rank), WORLD_SIZE=str(len(hosts)), MASTER_ADDR=address,
                                     MASTER_PORT="29500", **more) for rank, host in enumerate(hosts)]

    def test_ranks_of_both_machines_read_each_others_data(self):
        for address in MACHINES[0].address, MACHINES[0].name, MACHINES[0].address6:
            with self.subTest(address):
                hosts = [0, 1, 0, 1]
                self.read_by_all(self.ends(self.start(hosts, EXCHANGE, "leave", address=address)), hosts)

    def test_shared_memory_for_two_machines_is_refused_with_their_names(self):
        ends = self.ends(self.start([0, 1], QUICKSTART, "--steps", "3", address=MACHINES[0].address, CAIRN_TIMEOUT="20",
                                    CAIRN_BACKEND="shm"))
        for code, _, err in ends:
            self.assertEqual(code, 1, err)
            self.assertRegex(err,
                             r"rank 0 runs on machine-a \(.*\) and rank 1 on machine-b \(.*\); shm groups join the "
                                  "ranks of one machine")

    def test_an_unreachable_store_is_an_error_with_its_address(self):
        MACHINES[1].cut()
        self.addCleanup(MACHINES[1].cut, False)
        ends = self.ends(self.start([0, 1], EXCHANGE, "leave", address=MACHINES[0].address, CAIRN_TIMEOUT="2"))
        self.assertEqual([code for code, _, _ in ends], [1, 1])
        self.assertIn("exchange/0/host/1", ends[0][2])  # what rank 0 waited for
        self.assertIn("10.1.0.1:29500", ends[1][2])


class UnderCairnRun(Test):
    """A cairn-run on each machine."""

    def start(self, options, *command, ranks=(2, 2)):
        return [machine.start(CAIRN_RUN, "--nnodes", 2, "--nproc-per-node", n, *options(node), EXCHANGE, *command)
                for node, (machine, n) in enumerate(zip(MACHINES, ranks))]

    @staticmethod
    def static(node):
        return ["--node-rank", node, "--master-addr", MACHINES[0].address, "--master-port", 29501]

    @staticmethod
    def c10d(node):
        return ["--rdzv-backend", "c10d", "--rdzv-endpoint", MACHINES[1].name + ":29502", "--rdzv-id", "a-job"]

    def test_nodes_that_know_their_numbers_meet(self):
        for ranks in (2, 2), (1, 3):
            ends = self.ends(self.start(self.static, "leave", ranks=ranks))
            self.read_by_all(ends, [0] * ranks[0] + [1] * ranks[1])

    def test_nodes_that_know_an_endpoint_meet(self):
        ends = self.ends(self.start(self.c10d, "leave"))
        first = 0 if "rank 0 read:" in ends[0][1] else 1  # the first to arrive
        self.read_by_all(ends, [first, first, 1 - first, 1 - first])

    def test_a_rank_that_fails_ends_the_ranks_of_both_machines_and_is_named_on_both(self):
        for options in self.static, self.c10d:
            for code, _, err in self.ends(self.start(options, "fail", 3)):
                self.assertEqual(code, 7, err)
                self.assertRegex(err, r"rank 3\b.*exit code 7", err)

    def test_both_machines_start_their_ranks_anew(self):
        def options(node):
            return [*self.static(node), "--max-restarts", 2]
        for node, (code, out, err) in enumerate(self.ends(self.start(options, "fail", 2))):
            self.assertEqual(code, 0, err)
            self.assertIn("starting all ranks again: restart 1 of 2", err)
            again = sorted(line.split(" read")[0] for line in out.splitlines() if line.startswith("attempt 1"))
            self.assertEqual(again, [f"attempt 1: rank {2 * node + r}" for r in range(2)], out)

    def test_nodes_find_each_other_whichever_comes_first_and_by_any_kind_of_address(self):
        for address in MACHINES[0].name, MACHINES[0].address, f"[{MACHINES[0].address6}]":
            with self.subTest(address):
                jobs = [MACHINES[node].start(CAIRN_RUN, "--nnodes", 2, "--nproc-per-node", 2, "--node-rank", node,
                                             "--rdzv-endpoint", address + ":29503", EXCHANGE) for node in (1, 0)]
                self.read_by_all(self.ends(jobs), [0, 0, 1, 1])

    def start_and_meet(self):
        def options(node):
            return [*self.static(node), "--rdzv-conf", f"keep_alive_interval=1,keep_alive_max_attempt={SIGN_OF_LIFE}"]
        jobs = self.start(options, "stay")
        for job in jobs:
            for _ in range(2):
                self.assertIn("read", job.stdout.readline())
        return jobs

    def end_soon(self, jobs, *sentences):
        """Not well, each with its sentence; and no rank is left."""
        begin = time.monotonic()
        for (code, _, err), sentence in zip(self.ends(jobs), sentences):
            self.assertNotEqual(code, 0, err)
            self.assertRegex(err, sentence)
        self.assertLess(time.monotonic() - begin, PATIENCE / 2)

    def test_a_cut_cable_ends_the_nodes_of_both_machines(self):
        jobs = self.start_and_meet()
        MACHINES[1].cut()
        self.addCleanup(MACHINES[1].cut, False)
        self.end_soon(jobs, r"node 1 \(machine-b\) sent no heartbeat", "node 0, which hosts the run, is lost")

    def test_a_cairn_run_that_is_killed_ends_the_ranks_of_the_other(self):
        for killed, sentence in (0, "node 0, which hosts the run, is lost"), (1, r"node 1 \(machine-b\)"):
            with self.subTest(killed):
                jobs = self.start_and_meet()
                jobs[killed].kill()
                self.end_soon([jobs[1 - killed]], sentence)
                self.ends([jobs[killed]])  # its pipes close when its ranks have ended


class Training(Test):
    """Ranks of both machines exchange over gloo."""
    quickstart = Quickstart(CAIRN_RUN, QUICKSTART)

    def setUp(self):
        super().setUp()
        if GLOO != "gloo":
            self.skipTest("this build has no gloo (meson option 'gloo')")

    def by_hand(self, hosts, address, *, steps, **more):
        return [MACHINES[host].start(*self.quickstart.command(steps=steps), RANK=str(rank), WORLD_SIZE=str(len(hosts)),
                                     MASTER_ADDR=address, MASTER_PORT="29504", CAIRN_LOG="info", **more)
                for rank, host in enumerate(hosts)]

    def under_cairn_run(self, address, *options, steps, **more):
        return [machine.start(CAIRN_RUN, "--nnodes", 2, "--nproc-per-node", 2, "--node-rank", node, "--master-addr",
                              address,
                              "--master-port", 29505, *options, *self.quickstart.command(steps=steps), CAIRN_LOG="info",
                              **more) for node, machine in enumerate(MACHINES)]

    def losses(self, jobs):
        ends = self.ends(jobs)
        for code, _, err in ends:
            self.assertEqual(code, 0, err)
        self.assertIn("group: gloo", "".join(err for _, _, err in ends))
        return digits("".join(out for _, out, _ in ends))

    def same_losses(self, jobs):
        self.assertEqual(self.losses(jobs), self.quickstart.expected(4))

    def test_four_ranks_come_to_the_losses_of_one_machine(self):
        self.same_losses(self.under_cairn_run(MACHINES[0].address, steps=STEPS, CAIRN_HIERARCHY="flat"))

    def test_sums_in_two_levels_repeat_and_come_close_to_those_losses(self):
        found = [self.losses(self.under_cairn_run(MACHINES[0].address, steps=STEPS)) for _ in range(2)]
        self.assertEqual(found[0], found[1])
        for (name, value), (_, flat) in zip(found[0], self.quickstart.expected(4)):
            self.assertAlmostEqual(float(value), float(flat), delta=1e-3 * abs(float(flat)), msg=name)

    def test_ranks_meet_by_any_kind_of_address_in_any_order_of_machines(self):
        for address in MACHINES[0].name, MACHINES[0].address6:
            with self.subTest(address):
                self.same_losses(self.by_hand([0, 1, 1, 0], address, steps=STEPS, CAIRN_HIERARCHY="flat"))

    def test_ranks_use_the_network_that_is_set(self):
        jobs = self.by_hand([0, 1, 0, 1], MACHINES[0].address, steps=STEPS, GLOO_SOCKET_IFNAME="cable0")
        ends = self.ends(jobs)
        self.assertEqual([code for code, _, _ in ends], [1] * 4)
        for _, _, err in ends:
            self.assertIn("GLOO_SOCKET_IFNAME is 'cable0', neither an active network interface", err)

    def train(self):
        """Waits until ranks are exchanging gradients: more than they need to meet went through the cable."""
        begin, first = time.monotonic(), MACHINES[0].received()
        while MACHINES[0].received() < first + ENOUGH:
            self.assertLess(time.monotonic(), begin + PATIENCE)
            time.sleep(0.05)

    def cut_in_the_middle(self, jobs):
        """Ends of the jobs, and the seconds that they took to notice."""
        self.train()
        MACHINES[1].cut()
        self.addCleanup(MACHINES[1].cut, False)
        begin = time.monotonic()
        ends = self.ends(jobs)
        return ends, time.monotonic() - begin

    def nobody_is_left(self):
        left = subprocess.run(["pgrep", os.path.basename(QUICKSTART)[:15]], capture_output=True, text=True, check=False)
        self.assertEqual(left.stdout, "")

    def test_a_cut_cable_is_an_error_on_every_rank_within_the_timeout(self):
        ends, seconds = self.cut_in_the_middle(self.by_hand([0, 1, 0, 1], MACHINES[0].address, steps=FOREVER,
                                                            CAIRN_TIMEOUT=str(TIMEOUT)))
        for rank, (code, _, err) in enumerate(ends):
            self.assertEqual(code, 1, err)
            self.assertRegex(err, r"nothing moved|ended, left the group or cannot be reached|gave up", f"rank {rank}")
        self.assertLess(seconds, TIMEOUT + SLACK)
        self.nobody_is_left()

    def test_a_cut_cable_ends_both_launchers(self):
        ends, seconds = self.cut_in_the_middle(self.under_cairn_run(MACHINES[0].address, steps=FOREVER,
                                                                    CAIRN_TIMEOUT=str(TIMEOUT)))
        for code, _, err in ends:
            self.assertNotEqual(code, 0, err)
        self.assertLess(seconds, PATIENCE / 2)
        self.nobody_is_left()


if __name__ == "__main__":
    refused = apart.move(without_root=True)
    if refused:
        print(refused)
        sys.exit(SKIP)
    with tempfile.TemporaryDirectory() as folder:  # where a cairn-run that is killed leaves its own
        os.environ["TMPDIR"] = folder
        MACHINES = [Machine(0), Machine(1)]
        connect(MACHINES)
        unittest.main(argv=sys.argv[:1] + sys.argv[5:], verbosity=2)
