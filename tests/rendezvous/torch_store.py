#!/usr/bin/env python3
"""PyTorch's clients at Cairn's store, and Cairn's client at PyTorch's, with every PyTorch that is found (torches.py).

usage: torch_store.py SOURCE_ROOT STORE_TOOL"""
import os
import subprocess
import sys
import unittest

import torches

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from ports import free_port  # noqa: E402

SOURCE_ROOT, STORE_TOOL = sys.argv[1:3]
PATIENCE = 300  # seconds for what takes one or two, on a machine that is busy

# ---- what torch's side does; PORT and more are put in front ----

BEGIN = """
import concurrent.futures, sys
from datetime import timedelta
import torch, torch.distributed as dist

def store(port=None, seconds=60, wait_for_workers=False, world_size=None, **options):
    return dist.TCPStore("127.0.0.1", PORT if port is None else port, world_size, timeout=timedelta(seconds=seconds),
                         wait_for_workers=wait_for_workers, **options)

def equal(got, wanted):
    assert got == wanted, f"{got!r} is not {wanted!r}"

def at_once(*calls):
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(call) for call in calls]: future.result()

def times_out(call):
    try:
        call()
    except RuntimeError as e:
        assert "imeout" in str(e), e
    else:
        raise AssertionError("it did not time out")
"""

EVERY_CALL = BEGIN + """
one, two, three = store(), store(), store()
keys = one.num_keys()
one.set("k", "v")
equal(two.get("k"), b"v")
two.set("k", ""); two.num_keys()  # a set has no answer, and order is kept on one connection only
equal(one.get("k"), b"")
equal(one.add("c", 5), 5)
equal(two.add("c", -7), -2)
equal(three.get("c"), b"-2")
equal(one.compare_set("k", "other", "w"), b"")
equal(one.compare_set("k", "", "w"), b"w")
equal(one.compare_set("missing", "w", "x"), b"w")
equal(one.compare_set("new", "", "x"), b"x")
equal(one.num_keys(), keys + 3)
equal(one.delete_key("k"), True)
equal(two.delete_key("k"), False)
large = bytes(range(256)) * 4096
one.set("large", large.decode("latin-1")); one.num_keys()
equal(two.get("large"), large.decode("latin-1").encode())
equal(one.delete_key("large"), True)
one.set("many", "1"); one.wait(["many", "c", "new"])
if hasattr(one, "check"):
    equal(one.check(["c", "new"]), True)
    equal(one.check(["c", "k"]), False)
if hasattr(one, "append"):
    one.append("a", "ab"); two.append("a", "cd"); one.num_keys(); two.num_keys()
    assert one.get("a") in (b"abcd", b"cdab")
    one.multi_set(["m", "n"], ["1", ""])
    equal(one.multi_get(["m", "n", "c"]), [b"1", b"", b"-2"])
if hasattr(one, "list_keys"):
    assert {"m", "n", "a", "c"} <= {key.lstrip("/") for key in one.list_keys()}, one.list_keys()
if hasattr(one, "barrier"):
    at_once(lambda: one.barrier("b", 3), lambda: two.barrier("b", 3), lambda: three.barrier("b", 3))
    times_out(lambda: one.barrier("b2", 2, timedelta(seconds=0.2)))

got = []
at_once(lambda: got.append(one.get("soon")), lambda: got.append(two.get("soon")), lambda: three.set("soon", "now"))
equal(got, [b"now", b"now"])
prefixed = dist.PrefixStore("p", one)
prefixed.set("k", "1"); one.num_keys()
equal(two.get("p/k"), b"1")

times_out(lambda: two.wait(["never"], timedelta(seconds=0.3)))
one.set("never", "1")
if EXTENDED:  # those before 2.1 are out of step after a timeout, at any server
    equal(two.get("never"), b"1")
equal(one.get("never"), b"1")
one.set_timeout(timedelta(seconds=0.3))
times_out(lambda: one.get("nothing"))
equal(three.add("c", 1), -1)
"""

RANK = BEGIN + """
dist.init_process_group("gloo", init_method="env://")
x = torch.arange(4.0) * (dist.get_rank() + 1)
dist.all_reduce(x)
equal(x.tolist(), [0.0, 3.0, 6.0, 9.0])
group = dist.new_group([0, 1])
dist.barrier(group=group)
dist.destroy_process_group()
"""

# Serves with each kind of server it has, prints their ports, and ends with its input.
SERVE = BEGIN + """
kinds = [{}] if "use_libuv" not in dist.TCPStore.__init__.__doc__ else [{"use_libuv": False}, {"use_libuv": True}]
servers = []
for kind in kinds:
    try:
        servers.append(store(0, is_master=True, **kind))
    except RuntimeError as e:  # 2.1 has the option and no libuv
        assert "ibuv" in str(e), e
print(*[server.port for server in servers], flush=True)
for server in servers:
    server.set("theirs", "from torch")
sys.stdin.read()
"""

# One of three ranks; who makes a store with torch 1.13 lets no other thread do so meanwhile.
WORLD = BEGIN + """
kind = {} if LIBUV is None else {"use_libuv": LIBUV}
equal(store(wait_for_workers=True, world_size=3, is_master=HOSTS, **kind).get("done"), b"1")
print("all came")
"""

JOIN = BEGIN + """
store(wait_for_workers=True, world_size=2).set("from", "torch")
print("joined")
"""


class TorchStore(unittest.TestCase):
    def start(self, command, **kwargs):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, **kwargs)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def python(self, torch, script, env=None, **values):
        values["EXTENDED"] = torch.release >= (2, 1)
        script = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + script
        return self.start([torch.python, "-c", script], env=env)

    def expect_success(self, *processes):
        outputs = []
        for process in processes:
            output, errors = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 0, errors[-3000:])
            outputs.append(output)
        return outputs

    @classmethod
    def setUpClass(cls):
        """A process of each torch serves all the while, since importing one takes seconds."""
        cls.servers = {torch: subprocess.Popen([torch.python, "-c", SERVE], stdin=subprocess.PIPE, text=True,
                                               stdout=subprocess.PIPE) for torch in TORCHES}
        cls.ports = {torch: server.stdout.readline().split() for torch, server in cls.servers.items()}

    @classmethod
    def tearDownClass(cls):
        for server in cls.servers.values():
            server.communicate()

    def serve(self):
        return int(self.start([STORE_TOOL, "serve"]).stdout.readline())

    def ask(self, port, *calls, timeout=60):
        command = [STORE_TOOL, str(port), str(timeout)]
        for words in calls:
            command += words.split(" ") + ["+"]
        return self.expect_success(self.start(command))[0].splitlines()

    def test_every_call_of_torchs_clients_at_our_server(self):
        for torch in TORCHES:
            with self.subTest(str(torch)):
                self.expect_success(self.python(torch, EVERY_CALL, PORT=self.serve()))

    def test_torchs_ranks_meet_at_our_server(self):
        for torch in TORCHES:
            with self.subTest(str(torch)):
                port = self.serve()
                facts = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                         "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
                self.expect_success(*[self.python(torch, RANK, torches.environment(facts, RANK=str(rank)))
                                      for rank in (0, 1)])

    def test_our_client_at_torchs_servers(self):
        for torch in TORCHES:
            with self.subTest(str(torch)):
                self.assertEqual(len(self.ports[torch]), 1 if torch.release < (2, 2) else 2)
                for port in self.ports[torch]:
                    keys = int(self.ask(port, "get theirs", "num_keys")[1])
                    calls = [("set k v", "0"), ("get k", "v"), ("set k ", "0"), ("get k", ""), ("add c 5", "5"),
                             ("add c -7", "-2"), ("get c", "-2"), ("get theirs", "from torch"), ("check k c", "1"),
                             ("check k missing", "0"), ("wait k c", "0"), ("compare_set k other w", ""),
                             ("compare_set k  w", "w"), ("compare_set missing w x", "w"), ("compare_set new  x", "x"),
                             ("num_keys", str(keys + 3))]
                    calls += [("delete k", "1"), ("delete k", "0"), ("append a ab", "0"), ("append a cd", "0"),
                              ("get a", "abcd")]
                    self.assertEqual(self.ask(port, *[call for call, _ in calls]), [wanted for _, wanted in calls],
                                     port)

    def test_our_client_waits_at_torchs_servers(self):
        for torch in TORCHES:
            with self.subTest(str(torch)):
                for port in self.ports[torch]:
                    late = self.ask(port, "wait late", "set k 1", "get k", "get late", "add d 1", timeout=0.3)
                    sentence = r"^error key 'late' did not appear in the store at 127.0.0.1:\d+ within 0.3 s$"
                    self.assertRegex(late[0], sentence)
                    self.assertRegex(late[3], sentence)
                    self.assertEqual((late[1:3], late[4]), (["0", "1"], "1"))
                    waiting = self.start([STORE_TOOL, port, "60", "get", "woken"])
                    other = self.start([STORE_TOOL, port, "60", "wait", "k", "made"])
                    self.ask(port, "sleep 50", "set woken now", "compare_set made  x")
                    self.assertEqual(self.expect_success(waiting, other), ["now\n", "0\n"])

    def test_torch_hosts_a_world_with_one_of_our_clients(self):
        for torch in TORCHES:
            for libuv in [None] if torch.release < (2, 2) else [False, True]:
                with self.subTest(f"{torch}, libuv {libuv}"):
                    port = free_port()
                    world = [self.python(torch, WORLD, PORT=port, LIBUV=libuv, HOSTS=hosts) for hosts in (True, False)]
                    self.ask(port, "set done 1", timeout=PATIENCE)
                    self.assertEqual(self.expect_success(*world), ["all came\n"] * 2)

    def test_we_host_a_world_with_one_of_torchs_clients(self):
        for torch in TORCHES:
            with self.subTest(str(torch)):
                port = free_port()
                host = self.start([STORE_TOOL, "host", str(port), "2"])
                self.assertEqual(self.expect_success(self.python(torch, JOIN, PORT=port)), ["joined\n"])
                self.assertEqual(host.stdout.readline(), "joined\n")
                self.assertEqual(self.ask(port, "get from"), ["torch"])


if __name__ == "__main__":
    TORCHES = torches.find_or_skip(SOURCE_ROOT)
    unittest.main(argv=sys.argv[:1], verbosity=2)
