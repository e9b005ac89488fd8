"""Several cairn-run processes on this machine, one per node of a run: how they meet, number ranks, and end together.

usage: test_run_nodes.py path/to/cairn-run path/to/join"""
import contextlib
import os
import signal
import socket
import struct
import sys
import threading
import time

import launching
from launching import PATIENCE, alive, free_port, read, wait_until

CAIRN_RUN, JOIN = sys.argv[1:3]
CALM = "last_call_timeout=0.5"
# Where nodes die that is noticed after 0.5 * 4 seconds; a busy machine seldom takes as long between two signs of life.
QUICK = CALM + ",keep_alive_interval=0.5,keep_alive_max_attempt=4"


class RunNodes(launching.LauncherTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.conf = CALM

    def static(self, node, nodes, *args):
        return self.spawn(CAIRN_RUN, "--nnodes", nodes, "--node-rank", node, "--master-addr", "127.0.0.1",
                          "--master-port", self.port, "--rdzv-conf", self.conf, *args)

    def c10d(self, nodes, *args, more="", endpoint="localhost"):
        return self.spawn(CAIRN_RUN, "--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint",
                          f"{endpoint}:{self.port}", "--rdzv-conf", self.conf + more, *args)

    def ready(self, name):
        """Shell that says that this rank runs: its pid in a file. What reads it finds it whole."""
        return f"echo $$$$ > {self.folder}/new-{name}; mv {self.folder}/new-{name} {self.folder}/{name}; "

    def until(self, name):
        return f"while [ ! -e {self.folder}/{name} ]; do sleep 0.01; done; "

    def await_file(self, name):
        wait_until(lambda: os.path.exists(f"{self.folder}/{name}"), f"there was {name}")
        return read(f"{self.folder}/{name}")

    def finish_all(self, jobs):
        """Exit codes and stderrs, in order; and nothing is left."""
        try:
            ends = [self.finish(job) for job in jobs]
        except AssertionError as stuck:
            said = [(self.give_up(job)[1], job.returncode) for job in jobs if not job.stderr.closed]
            raise AssertionError(f"{stuck}; the others: {said}") from None
        self.wait_until_nothing_temporary_is_left()
        return [code for code, _, _ in ends], [err for _, _, err in ends]

    def facts(self, label):
        """What ranks wrote with TELL, by rank."""
        told = [read(f"{self.folder}/{name}").split() for name in os.listdir(self.folder) if name.startswith(label)]
        return sorted([int(n) if n.isdigit() else n for n in line] for line in told)

    TELL = ("echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK "
            "$ROLE_WORLD_SIZE $MASTER_PORT")

    def tell(self, label):
        return f"{JOIN} && {self.TELL} > {self.folder}/{label}$RANK"

    # ---- meeting ----

    def check_three_nodes_of_two(self, jobs):
        self.assertEqual(self.finish_all(jobs), ([0, 0, 0], ["", "", ""]))
        self.assertEqual(self.facts("fact"),
                         [[r, 6, r % 2, 2, r // 2, 3, r, 6, self.port] for r in range(6)])

    def test_three_static_nodes_of_two_ranks_meet(self):
        self.check_three_nodes_of_two([self.static(n, 3, "--nproc-per-node=2", "sh", "-c", self.tell("fact"))
                                       for n in (2, 0, 1)])

    def test_three_c10d_nodes_of_two_ranks_meet(self):
        self.check_three_nodes_of_two([self.c10d(3, "--nproc-per-node=2", "sh", "-c", self.tell("fact"))
                                       for _ in range(3)])

    def test_static_nodes_keep_their_numbers_in_any_order_of_arrival(self):
        jobs = [self.static(n, 3, "sh", "-c", f"[ $GROUP_RANK = {n} ]") for n in (1, 2, 0)]
        self.assertEqual(self.finish_all(jobs), ([0, 0, 0], ["", "", ""]))

    def test_nodes_may_have_different_numbers_of_ranks_and_roles(self):
        jobs = [self.static(n, 3, f"--nproc-per-node={ranks}", f"--role={role}", "sh", "-c", self.tell("fact"))
                for n, ranks, role in ((0, 1, "a"), (1, 3, "b"), (2, 2, "a"))]
        self.assertEqual(self.finish_all(jobs), ([0, 0, 0], ["", "", ""]))
        self.assertEqual(self.facts("fact"), [
            [0, 6, 0, 1, 0, 3, 0, 3, self.port],
            [1, 6, 0, 3, 1, 3, 0, 3, self.port], [2, 6, 1, 3, 1, 3, 1, 3, self.port],
            [3, 6, 2, 3, 1, 3, 2, 3, self.port],
            [4, 6, 0, 2, 2, 3, 1, 3, self.port], [5, 6, 1, 2, 2, 3, 2, 3, self.port]])

    def test_an_endpoint_on_this_machine_is_hosted_here(self):
        for endpoint in {"127.0.0.1", "127.0.0.2", socket.gethostname()}:
            with contextlib.suppress(socket.gaierror):
                socket.gethostbyname(endpoint)
                jobs = [self.c10d(2, "--insecure", "sh", "-c", f"{JOIN} && [ $MASTER_ADDR = {endpoint} ]",
                                  endpoint=endpoint)
                        for _ in range(2)]
                self.assertEqual(self.finish_all(jobs), ([0, 0], ["", ""]), endpoint)

    def test_an_agent_hosts_once_the_port_is_free(self):
        with socket.create_server(("", self.port)) as other:
            job = self.c10d("1:2", "sh", "-c", JOIN, endpoint="127.0.0.1")
            other.accept()[0].close() # it wanted to host, could not, and looks for the host
        self.assertEqual(self.finish_all([job]), ([0], [""]))

    def test_is_host_chooses_the_host(self):
        client = self.c10d(2, "sh", "-c", "[ $GROUP_RANK = 1 ]", more=",is_host=0")
        time.sleep(0.05)
        host = self.c10d(2, "sh", "-c", "[ $GROUP_RANK = 0 ]", more=",is_host=1", endpoint="127.0.0.1")
        self.assertEqual(self.finish_all([client, host]), ([0, 0], ["", ""]))

    def test_fewer_nodes_start_once_the_last_call_is_over(self):
        jobs = [self.c10d("2:4", "sh", "-c", self.tell("fact")) for _ in range(3)]
        self.assertEqual(self.finish_all(jobs), ([0, 0, 0], ["", "", ""]))
        self.assertEqual([line[:2] for line in self.facts("fact")], [[0, 3], [1, 3], [2, 3]])

    def test_a_node_that_comes_later_joins_and_no_restart_is_used(self):
        script = (f"echo $TORCHELASTIC_RESTART_COUNT > {self.folder}/world$WORLD_SIZE-$RANK; "
                  f"[ $WORLD_SIZE = 3 ] && {JOIN} && exit 0; sleep 600")
        jobs = [self.c10d("2:3", "sh", "-c", script) for _ in range(2)]
        self.await_file("world2-0")
        self.await_file("world2-1")
        jobs.append(self.c10d("2:3", "sh", "-c", script))
        codes, errors = self.finish_all(jobs)
        self.assertEqual(codes, [0, 0, 0], errors)
        self.assertEqual([self.await_file(f"world3-{r}") for r in range(3)], ["0\n"] * 3)
        self.assertIn("cairn-run: 1 more node waits to join: starting all ranks again\n", errors[0])

    # ---- failures ----

    def test_a_failure_on_one_node_ends_all_with_its_code_and_name(self):
        script = self.ready("pid$RANK") + self.until("pid0") + self.until("pid3") + "[ $RANK = 2 ] && exit 9; sleep 600"
        jobs = [self.static(n, 2, "--nproc-per-node=2", "sh", "-c", script) for n in range(2)]
        codes, errors = self.finish_all(jobs)
        self.assertEqual(codes, [9, 9], errors)
        self.assertRegex(errors[0], rf"cairn-run: node 1 \({socket.gethostname()}\): rank 2 \(local_rank 0, pid \d+\) "
                                    r"of sh: exit code 9\n")
        self.assertRegex(errors[0], r"rank 0 \(local_rank 0, pid \d+\) of sh ended: killed by signal 15 \(SIGTERM\)")
        self.assertNotIn("report of failed ranks", errors[0])
        self.assertIn("report of failed ranks", errors[1])
        self.assertIn("  rank      : 2 (local_rank: 0)\n", errors[1])
        self.assertFalse(any(alive(int(read(f"{self.folder}/pid{r}"))) for r in (0, 3)))

    def test_a_later_failure_than_another_nodes_is_not_called_the_first(self):
        script = self.ready("pid$RANK") + self.until("go$RANK") + "exit $((9 - 5 * RANK))"
        jobs = [self.static(n, 2, "--monitor-interval=30", "--rdzv-conf=keep_alive_interval=90", "sh", "-c", script)
                for n in range(2)]
        self.await_file("pid0")
        pid = int(self.await_file("pid1"))
        time.sleep(0.3) # its first look at node 0 is over then, and the next is not due
        jobs[1].send_signal(signal.SIGSTOP) # so that it sees its own rank's end before it hears of the other's
        for rank in range(2):
            with open(f"{self.folder}/go{rank}", "w", encoding="ascii"):
                pass
        wait_until(lambda: not alive(pid), "rank 1 had ended")
        while " failed first: exit code 9" not in jobs[0].stderr.readline():
            pass
        jobs[1].send_signal(signal.SIGCONT)
        codes, errors = self.finish_all(jobs)
        self.assertEqual(codes, [9, 9], errors)
        self.assertRegex(errors[1], r"node 0 .*: rank 0 \(local_rank 0, pid \d+\) of sh: exit code 9\n"
                                    r"cairn-run: rank 1 \(local_rank 0, pid \d+\) of sh failed too: exit code 4\n")

    def test_all_nodes_start_again_together(self):
        script = (f"{JOIN} || exit 50; echo $TORCHELASTIC_RESTART_COUNT >> {self.folder}/count$RANK; "
                  "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; [ $RANK = 1 ] && exit 3; sleep 600")
        for start in (lambda n: self.static(n, 3, "--max-restarts=2", "sh", "-c", script),
                      lambda n: self.c10d(3, "--max-restarts=2", "sh", "-c", script)):
            codes, errors = self.finish_all([start(n) for n in range(3)])
            self.assertEqual(codes, [0, 0, 0], errors)
            for r in range(3):
                self.assertEqual(read(f"{self.folder}/count{r}").split()[-1], "2")
            for text in errors:
                self.assertIn("cairn-run: starting all ranks again: restart 2 of 2\n", text)

    def test_a_program_missing_on_one_node_ends_all(self):
        jobs = [self.static(0, 2, "sleep", "600"), self.static(1, 2, "--max-restarts=0", "./no-such-program")]
        codes, errors = self.finish_all(jobs)
        self.assertEqual(codes, [127, 127])
        self.assertRegex(errors[0], r"cairn-run: node 1 \(.*\): ./no-such-program cannot be started\n")

    def start_and_kill(self, jobs, victim, ranks):
        pids = [int(self.await_file(f"pid{r}")) for r in range(ranks)]
        jobs[victim].kill()
        return pids

    def test_a_node_whose_agent_was_killed_is_noticed(self):
        self.conf = QUICK
        script = self.ready("pid$RANK") + "sleep 600"
        jobs = [self.static(n, 3, "sh", "-c", script) for n in range(3)]
        pids = self.start_and_kill(jobs, 1, 3)
        codes, errors = self.finish_all(jobs)
        self.assertEqual(codes, [1, -signal.SIGKILL, 1])
        for n in 0, 2:
            self.assertRegex(errors[n], r"cairn-run: node 1 \(.*\) sent no heartbeat for 2 s\n")
        wait_until(lambda: not any(map(alive, pids)), "all ranks were gone")

    def test_a_run_goes_on_without_a_node_that_was_lost(self):
        self.conf = QUICK
        script = f"echo > {self.folder}/size$WORLD_SIZE; "
        script += self.ready("pid$RANK") + "[ $WORLD_SIZE = 2 ] && exit 0; sleep 600"
        jobs = [self.c10d("2:3", "--max-restarts=1", "sh", "-c", script) for _ in range(3)]
        for r in range(3):
            self.await_file(f"pid{r}")
        victim = next(n for n, job in enumerate(jobs) if not self.hosts(job))
        jobs[victim].kill()
        codes, errors = self.finish_all(jobs)
        self.assertEqual(sorted(codes), [-signal.SIGKILL, 0, 0], errors)
        self.assertTrue(os.path.exists(self.folder + "/size2"))

    def hosts(self, job):
        """Whether it has the store's thread."""
        return any(read(f"/proc/{job.pid}/task/{task}/comm").strip() == "cairn-store"
                   for task in os.listdir(f"/proc/{job.pid}/task"))

    def test_a_lost_static_node_may_come_back(self):
        self.conf = QUICK
        script = self.ready("pid$RANK-$TORCHELASTIC_RESTART_COUNT") + "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 600"
        jobs = [self.static(n, 2, "--max-restarts=1", "sh", "-c", script) for n in range(2)]
        self.await_file("pid0-0")
        self.await_file("pid1-0")
        jobs[1].kill()
        wait_until(lambda: not alive(int(read(self.folder + "/pid0-0"))), "node 0's rank was stopped")
        jobs.append(self.static(1, 2, "--max-restarts=1", "sh", "-c", script))
        codes, errors = self.finish_all(jobs)
        self.assertEqual(codes, [0, -signal.SIGKILL, 0], errors)

    def test_a_node_that_was_killed_while_it_waited_may_come_back(self):
        self.conf = QUICK
        host, victim = [self.static(n, 3, "true") for n in range(2)]
        time.sleep(0.3)
        victim.kill()
        time.sleep(3) # it is lost: a world with it would end at once
        others = [self.static(2, 3, "true"), self.static(1, 3, "true")]

        def is_over():
            if others[-1].poll() == 1: # refused: its place is not free yet
                others.append(self.static(1, 3, "true"))
            return host.poll() is not None
        wait_until(is_over, "the run was over")
        codes, errors = self.finish_all([host, victim, others[0], others[-1]])
        self.assertEqual(codes, [0, -signal.SIGKILL, 0, 0], errors)

    def test_a_killed_host_ends_the_run(self):
        self.conf = QUICK
        script = self.ready("pid$RANK") + "sleep 600"
        jobs = [self.static(n, 3, "--max-restarts=2", "sh", "-c", script) for n in range(3)]
        pids = self.start_and_kill(jobs, 0, 3)
        codes, errors = self.finish_all(jobs)
        self.assertEqual(codes, [-signal.SIGKILL, 1, 1])
        for n in 1, 2:
            self.assertIn("cairn-run: node 0, which hosts the run, is lost: ", errors[n])
        wait_until(lambda: not any(map(alive, pids)), "all ranks were gone")

    def test_a_stopped_host_is_noticed(self):
        self.conf = QUICK
        script = self.ready("pid$RANK") + "sleep 600"
        jobs = [self.static(n, 2, "sh", "-c", script) for n in range(2)]
        self.await_file("pid0")
        self.await_file("pid1")
        jobs[0].send_signal(signal.SIGSTOP)
        code, _, errors = self.finish(jobs[1])
        self.assertEqual(code, 1)
        self.assertIn("node 0, which hosts the run, is lost", errors)

    def test_a_signal_to_one_node_ends_all(self):
        for victim in range(2):
            script = self.ready(f"pid{victim}-$RANK") + "exec sleep 600"
            self.port = free_port()
            jobs = [self.static(n, 2, "sh", "-c", script) for n in range(2)]
            self.await_file(f"pid{victim}-0")
            self.await_file(f"pid{victim}-1")
            jobs[victim].send_signal(signal.SIGINT)
            codes, errors = self.finish_all(jobs)
            self.assertEqual(codes, [128 + signal.SIGINT] * 2, errors)
            self.assertRegex(errors[1 - victim], rf"node {victim} \(.*\): cairn-run received SIGINT\n")
            self.assertIn("cairn-run: SIGINT: stopped all 1 ranks of sh\n", errors[victim])

    def test_a_host_stopped_between_attempts_does_not_wait(self):
        script = (self.ready("pid$RANK") + self.until("pid0") + self.until("pid1") + "[ $RANK = 0 ] && exit 3; " +
                  self.until("go"))
        jobs = [self.static(n, 2, "--max-restarts=1", "--rdzv-conf", CALM + ",close_timeout=600", "sh", "-c",
                            "trap '' TERM; " + script) for n in range(2)]
        while "starting all ranks again" not in jobs[0].stderr.readline():
            pass
        jobs[0].send_signal(signal.SIGTERM)
        code, _, errors = self.finish(jobs[0])
        self.assertEqual((code, errors), (128 + signal.SIGTERM, "cairn-run: SIGTERM while waiting for other nodes\n"))
        open(self.folder + "/go", "w", encoding="ascii").close()
        codes, errors = self.finish_all([jobs[1]])
        self.assertEqual(codes, [1])
        self.assertIn("node 0, which hosts the run, is lost", errors[0])

    def test_a_finished_node_waits_for_the_others(self):
        jobs = [self.static(n, 3, "sh", "-c", f"[ $RANK = 1 ] || exit 0; {self.ready('pid1')} {self.until('go')}")
                for n in range(3)]
        self.await_file("pid1")
        time.sleep(0.3)
        self.assertEqual([job.poll() for job in jobs], [None, None, None])
        open(self.folder + "/go", "w", encoding="ascii").close()
        self.assertEqual(self.finish_all(jobs), ([0, 0, 0], ["", "", ""]))

    def switches(self, job):
        """How often it has waited for something so far."""
        line, = [line for line in read(f"/proc/{job.pid}/status").splitlines() if line.startswith("voluntary_ctxt")]
        return int(line.split()[1])

    def check_it_seldom_looks(self, job, most):
        before = self.switches(job)
        time.sleep(1)
        self.assertLess(self.switches(job) - before, most)

    def test_no_monitor_interval_makes_an_agent_spin(self):
        self.conf = QUICK
        jobs = [self.static(n, 2, "--monitor-interval=0", "sh", "-c", self.ready("pid$RANK") + self.until("go"))
                for n in range(2)]
        self.await_file("pid1")
        self.check_it_seldom_looks(jobs[1], 1500)
        open(self.folder + "/go", "w", encoding="ascii").close()
        self.assertEqual(self.finish_all(jobs), ([0, 0], ["", ""]))

    def test_a_finished_node_polls_no_more_often_than_others(self):
        self.conf = QUICK
        jobs = [self.static(n, 2, "sh", "-c", f"[ $RANK = 1 ] && exit 0; {self.ready('pid0')} {self.until('go')}")
                for n in range(2)]
        self.await_file("pid0")
        time.sleep(0.5)
        self.check_it_seldom_looks(jobs[1], 100)
        open(self.folder + "/go", "w", encoding="ascii").close()
        self.assertEqual(self.finish_all(jobs), ([0, 0], ["", ""]))

    def test_a_long_monitor_interval_loses_no_node(self):
        self.conf = QUICK
        jobs = [self.static(n, 2, f"--monitor-interval={seconds}", "sh", "-c", "sleep 4")
                for n, seconds in ((0, 0.1), (1, 600))]
        self.assertEqual(self.finish_all(jobs), ([0, 0], ["", ""]))

    def test_a_finished_node_restarts_with_the_others(self):
        script = (f"echo >> {self.folder}/n$RANK; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
                  "[ $RANK = 0 ] && exit 0; sleep 0.3; exit 3")
        jobs = [self.static(n, 2, "--max-restarts=1", "sh", "-c", script) for n in range(2)]
        codes, errors = self.finish_all(jobs)
        self.assertEqual(codes, [0, 0], errors)
        self.assertEqual([read(f"{self.folder}/n{r}") for r in range(2)], ["\n\n", "\n\n"])

    def test_an_agent_that_died_while_joining_delays_no_other(self):
        self.conf = QUICK
        host = self.static(0, 2, "true")
        wait_until(lambda: self.hosts(host), "node 0 hosted")
        wait_until(self.answers, "the store answered")
        with socket.create_connection(("127.0.0.1", self.port)) as store:
            def add(number):
                key = b"/cairn-run/agents"
                store.sendall(b"\4" + struct.pack("<Q", len(key)) + key + struct.pack("<q", number))
                return struct.unpack("<q", store.recv(8, socket.MSG_WAITALL))[0]
            store.sendall(bytes.fromhex("00cef7853c"))
            wait_until(lambda: add(0) == 1, "node 0 was counted")
            self.assertEqual(add(1), 2)
        self.assertEqual(self.finish_all([host, self.static(1, 2, "true")]), ([0, 0], ["", ""]))

    # ---- what no cairn-run wrote into the store ----

    def forge(self, *pairs):
        """Sets keys of the agents' store, adds to its list, and waits until that is done."""
        with socket.create_connection(("127.0.0.1", self.port)) as store:
            store.sendall(bytes.fromhex("00cef7853c"))
            for key, value in pairs:
                name = b"/cairn-run/" + key.encode()
                store.sendall((b"\t" if key == "list" else b"\1") + struct.pack("<Q", len(name)) + name +
                              struct.pack("<Q", len(value)) + value)
            store.sendall(b"\7")
            store.recv(8, socket.MSG_WAITALL)

    def begin_hosting(self, *args):
        host = self.static(0, 2, *args)
        wait_until(lambda: self.hosts(host), "node 0 hosted")
        wait_until(self.answers, "the store answered")
        wait_until(lambda: self.list_of_agents() == b"+1\n", "node 0 waited for the other")
        return host

    def list_of_agents(self):
        name = b"/cairn-run/list"
        with socket.create_connection(("127.0.0.1", self.port)) as store:
            store.sendall(bytes.fromhex("00cef7853c") + b"\3" + struct.pack("<Q", len(name)) + name)
            nbytes, = struct.unpack("<Q", store.recv(8, socket.MSG_WAITALL))
            return store.recv(nbytes, socket.MSG_WAITALL) if nbytes else b""

    def test_forged_agents_cost_no_memory_and_are_ignored(self):
        host = self.begin_hosting("true")
        self.forge(("agents", b"999999999"), ("agent/999999999", b"1 1\nx\ny"), ("agent/9", b"7 1000000000\nx\ny"),
                   ("list", b"+999999999\n+9\n-999999998\n+99999999999999999999\n+-3\n9\n\n"))
        time.sleep(0.3)
        with open(f"/proc/{host.pid}/status", encoding="ascii") as status:
            resident = int(status.read().split("VmRSS:")[1].split()[0])
        self.assertLess(resident, 32 << 10)
        self.forge(("agents", b"1"))
        codes, errors = self.finish_all([host, self.static(1, 2, "true")])
        self.assertEqual(codes, [0, 0])
        self.assertIn("the store has an agent 9 that no cairn-run of this run is; it is ignored", errors[0])
        self.assertIn("agent 999999999 of this run is ignored: it can have 4098, replaced ones too", errors[0])

    def test_forged_calls_and_news_neither_end_nor_redirect_a_run(self):
        host = self.begin_hosting("sh", "-c", self.tell("fact"))
        self.forge(("call/2/1", b"1 0 5 2 1 2 1 2 192.0.2.1"), ("news/1", b"99 0 1 0\n"))
        codes, errors = self.finish_all([host, self.static(1, 2, "sh", "-c", self.tell("fact"))])
        self.assertEqual((codes, errors[0]), ([0, 0], ""))
        self.assertIn("calls this node with '1 0 5 2 1 2 1 2 192.0.2.1', which no cairn-run of this run does; it is "
                      "ignored", errors[1])
        self.assertEqual(self.facts("fact"), [[r, 2, 0, 1, r, 2, r, 2, self.port] for r in range(2)])

    def test_what_other_nodes_say_moves_no_cursor(self):
        host = self.begin_hosting("true")
        facts = "cairn-run 1\n--rdzv_backend \x1b[2J\x07\x9b\u009b\n"
        self.forge(("run", facts.encode()))
        code, _, errors = self.finish(self.static(1, 2, "true"))
        self.assertEqual(code, 1)
        self.assertIn("has --rdzv_backend \\x1b[2J\\x07\\x9b\\x9b;", errors)
        host.terminate()
        self.finish(host)

    # ---- what people get wrong ----

    def test_a_node_rank_that_is_taken_is_refused(self):
        self.conf = QUICK
        jobs = [self.static(n, 3, "true") for n in (0, 1)]
        wait_until(lambda: self.hosts(jobs[0]), "node 0 hosted")
        first = self.spawn_second(1)
        wait_until(lambda: first.poll() is not None or jobs[1].poll() is not None, "one of two was refused")
        refused, stays = (first, jobs[1]) if first.poll() is not None else (jobs[1], first)
        code, _, errors = self.finish(refused)
        self.assertEqual(code, 1)
        self.assertRegex(errors, r"^cairn-run: --node_rank 1 is taken by cairn-run \(.*, pid \d+\); give each node its "
                                 r"own number \(that of a killed node is free after 2 s\)\n$")
        self.assertEqual(self.finish_all([jobs[0], stays, self.static(2, 3, "true")]), ([0, 0, 0], ["", "", ""]))

    def spawn_second(self, node):
        return self.static(node, 3, "true")

    def test_a_second_node_0_is_refused(self):
        host = self.static(0, 2, "true")
        wait_until(lambda: self.hosts(host), "node 0 hosted")
        wait_until(self.answers, "the store answered")
        code, _, errors = self.finish(self.static(0, 2, "true"))
        self.assertEqual((code, errors), (1, f"cairn-run: another cairn-run hosts a run at port {self.port} already; "
                                             "is --node_rank 0 given twice?\n"))
        self.assertEqual(self.finish_all([host, self.static(1, 2, "true")]), ([0, 0], ["", ""]))

    def answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def test_nodes_with_different_options_are_refused(self):
        host = self.static(0, 2, "true")
        for args, own, hosts in ((["--nnodes=3"], "--nnodes 3:3", "--nnodes 2:2"),
                                 (["--rdzv-id=other"], "--rdzv_id other", "--rdzv_id none"),
                                 (["--max-restarts=4"], "--max_restarts 4", "--max_restarts 0")):
            code, _, errors = self.finish(self.static(1, 2, *args, "true"))
            self.assertEqual((code, errors), (1, f"cairn-run: this node has {own}, the node that hosts the store at "
                                                 f"127.0.0.1:{self.port} has {hosts}; all nodes of a run need the "
                                                 "same\n"))
        self.assertEqual(self.finish_all([host, self.static(1, 2, "true")]), ([0, 0], ["", ""]))

    def test_missing_nodes_are_named(self):
        for node in range(2):
            self.port = free_port()
            job = self.spawn(CAIRN_RUN, "--nnodes=3", f"--node-rank={node}", "--master-addr=127.0.0.1", "--master-port",
                             self.port, "--rdzv-conf=join_timeout=0.3", "true")
            code, _, errors = self.finish(job)
            self.assertEqual(code, 1)
            self.assertIn(("did not meet within 0.3 s: no cairn-run joined with --node_rank 1, 2",
                           f"no cairn-run hosts the run at 127.0.0.1:{self.port}: ")[node], errors)

    def test_another_program_at_the_port_is_named(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            self.port = other.getsockname()[1]
            threading.Thread(target=self.hang_up, args=[other], daemon=True).start()
            job = self.spawn(CAIRN_RUN, "--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1",
                             "--master-port", self.port, "--rdzv-conf=join_timeout=0.5", "true")
            code, _, errors = self.finish(job)
        self.assertEqual(code, 1)
        self.assertIn(f"127.0.0.1:{self.port}", errors)

    def hang_up(self, listener):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.sendall(b"HTTP/1.0 400 what?\r\n\r\n")
                connection.close()

    def test_a_signal_ends_the_wait_for_other_nodes(self):
        for node in range(2):
            job = self.static(node, 2, "true")
            time.sleep(0.2)
            job.send_signal(signal.SIGTERM)
            codes, errors = self.finish_all([job])
            self.assertEqual(codes, [128 + signal.SIGTERM])
            self.assertIn("SIGTERM while waiting for", errors[0])


if __name__ == "__main__":
    launching.main(sys.argv)
