"""cairn-run from outside: what ranks are told, how they end, and that nothing is left behind.

usage: test_cairn_run.py path/to/cairn-run path/to/join"""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

CAIRN_RUN, JOIN = sys.argv[1:3]
PATIENCE = 60  # seconds for what takes milliseconds, on a machine that is busy


def run(*args, timeout=PATIENCE, **kwargs):
    return subprocess.run([CAIRN_RUN, *map(str, args)], capture_output=True, text=True, timeout=timeout, **kwargs)


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
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class CairnRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, ranks, script, *options):
        """Starts ranks of a shell script whose `ready` writes its pid to a file; returns when all have. `together`
        waits for that in the script."""
        ready = f"{{ echo $$$$ > {self.folder}/new$RANK; mv {self.folder}/new$RANK {self.folder}/pid$RANK; }}"
        together = f"for r in $(seq 0 {ranks - 1}); do while [ ! -e {self.folder}/pid$r ]; do sleep 0.01; done; done"
        script = script.replace("ready", ready).replace("together", together)
        job = subprocess.Popen([CAIRN_RUN, "--nproc-per-node", str(ranks), *options, "sh", "-c", script],
                               stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        files = [f"{self.folder}/pid{r}" for r in range(ranks)]
        wait_until(lambda: all(map(os.path.exists, files)), "all ranks had started")
        return job, [int(read(f)) for f in files]

    def environment(self, ranks, env=None):
        got = run("--nproc-per-node", ranks, "sh", "-c", f"env > {self.folder}/$RANK", env=env)
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        facts = []
        for r in range(ranks):
            lines = read(f"{self.folder}/{r}").splitlines()
            facts.append(dict(line.split("=", 1) for line in lines if "=" in line))
        return facts

    def test_every_rank_is_told_who_it_is(self):
        for ranks in 1, 2, 5:
            facts = self.environment(ranks)
            for r, told in enumerate(facts):
                expected = {
                    "RANK": str(r), "LOCAL_RANK": str(r), "ROLE_RANK": str(r), "GROUP_RANK": "0",
                    "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "ROLE_WORLD_SIZE": str(ranks),
                    "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1",
                    "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
                    "TORCHELASTIC_USE_AGENT_STORE": "True"}
                self.assertEqual({name: told.get(name) for name in expected}, expected)
                self.assertGreater(int(told["MASTER_PORT"]), 0)
            for name in "MASTER_PORT", "TORCHELASTIC_RUN_ID":
                self.assertEqual(len({told[name] for told in facts}), 1)

    def test_two_jobs_have_different_run_ids(self):
        ids = {self.environment(1)[0]["TORCHELASTIC_RUN_ID"] for _ in range(2)}
        self.assertEqual(len(ids), 2)

    def test_facts_replace_what_an_outer_launcher_said(self):
        told = self.environment(1, env={**os.environ, "RANK": "3", "WORLD_SIZE": "9", "OTHER": "kept"})[0]
        self.assertEqual((told["RANK"], told["WORLD_SIZE"], told["OTHER"]), ("0", "1", "kept"))

    def test_omp_threads_are_one_for_several_ranks_unless_set(self):
        bare = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        self.assertNotIn("OMP_NUM_THREADS", self.environment(1, env=bare)[0])
        self.assertEqual(self.environment(2, env=bare)[1]["OMP_NUM_THREADS"], "1")
        self.assertEqual(self.environment(2, env={**bare, "OMP_NUM_THREADS": "3"})[1]["OMP_NUM_THREADS"], "3")

    def test_arguments_get_the_local_rank_as_torchrun_gives_it(self):
        args = ["${local_rank}", "a-$local_rank.b", "$local_ranks", "$$x", "$other", "", "--nnodes=9"]
        got = run("--nproc-per-node", 2, "sh", "-c", f'for a; do echo "[$a]"; done > {self.folder}/$RANK', "sh", *args)
        self.assertEqual(got.returncode, 0, got.stderr)
        for r in range(2):
            expected = [str(r), f"a-{r}.b", "$local_ranks", "$x", "$other", "", "--nnodes=9"]
            self.assertEqual(read(f"{self.folder}/{r}").split("\n")[:-1], [f"[{a}]" for a in expected])

    def test_every_spelling_of_an_option_works(self):
        for options in (["--nproc_per_node=2"], ["--nproc-per-node=2"], ["--nproc_per_node", "2"],
                        ["--nproc-per-node", "2", "--no_python", "--no-python", "--use_env", "--standalone"],
                        ["--nnodes", "1", "--nnodes=1:1", "--node_rank=0", "--max-restarts=0", "--nproc_per_node=2"]):
            got = run(*options, "sh", "-c", "echo $WORLD_SIZE")
            self.assertEqual((got.returncode, got.stdout, got.stderr), (0, "2\n2\n", ""), options)

    def test_a_wrong_option_is_refused_with_a_sentence(self):
        for options, sentence in ((["--bogus", "true"], "there is no option --bogus"),
                                  (["-n", "2", "true"], "there is no option -n"),
                                  (["--nproc-per-node", "0", "true"], "from 1 to"),
                                  (["--nproc-per-node=two", "true"], "not 'two'"),
                                  (["--nproc-per-node"], "needs a value"),
                                  (["--master-port=70000", "true"], "from 0 to 65535"),
                                  (["--shutdown-timeout=soon", "true"], "number of seconds"),
                                  (["--nnodes", "2", "true"], "this machine only"),
                                  (["--max-restarts", "3", "true"], "does not restart"),
                                  (["--standalone=yes", "true"], "takes no value"),
                                  ([], "which program?")):
            got = run(*options)
            self.assertEqual(got.returncode, 2, options)
            self.assertIn(sentence, got.stderr)
            self.assertEqual(got.stderr.count("\n"), 1)

    def test_help_names_every_option(self):
        got = run("--help")
        self.assertEqual(got.returncode, 0)
        for name in "nproc-per-node", "master-port", "master-addr", "shutdown-timeout", "nnodes", "no-python":
            self.assertIn("--" + name, got.stdout)

    def test_the_first_failing_rank_gives_the_exit_code(self):
        got = run("--nproc-per-node", 3, "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 600")
        self.assertEqual(got.returncode, 7)
        first, *others = got.stderr.splitlines()
        self.assertRegex(first, r"^cairn-run: rank 1 \(local_rank 1, pid \d+\) of sh failed first: exit code 7$")
        self.assertEqual([line.split()[2] for line in others], ["0", "2"])
        for line in others:
            self.assertIn("ended: killed by signal 15 (SIGTERM)", line)

    def test_a_rank_killed_by_a_signal_is_reported_as_such(self):
        got = run("--nproc-per-node", 2, "sh", "-c", "ulimit -c 0; [ $RANK = 1 ] && kill -SEGV $$$$; sleep 600")
        self.assertEqual(got.returncode, 128 + signal.SIGSEGV)
        self.assertIn("rank 1 ", got.stderr.splitlines()[0])
        self.assertIn("failed first: killed by signal 11 (SIGSEGV)", got.stderr.splitlines()[0])

    def test_a_rank_that_leaves_early_with_0_is_fine(self):
        got = run("--nproc-per-node", 2, "sh", "-c", f"[ $RANK = 0 ] && exit 0; sleep 0.2; echo > {self.folder}/done")
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        self.assertTrue(os.path.exists(self.folder + "/done"))

    def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(self):
        job, pids = self.start(2, "trap '' TERM; ready; together; [ $RANK = 1 ] && exit 3; while :; do sleep 0.05; done",
                               "--shutdown-timeout", "0.3")
        self.assertEqual(job.wait(PATIENCE), 3)
        errors = job.stderr.read()
        self.assertIn("1 of 2 ranks still run; sending SIGKILL", errors)
        self.assertIn("killed by signal 9 (SIGKILL)", errors)
        self.assertFalse(any(map(alive, pids)))

    def test_a_program_that_does_not_exist_is_127(self):
        for program in "./no-such-program", "no-such-program":
            got = run("--nproc-per-node", 3, program)
            self.assertEqual(got.returncode, 127)
            self.assertIn(f"cairn-run: {program} cannot be started: No such file or directory", got.stderr)
            self.assertEqual(got.stderr.count("\n"), 1)

    def test_a_file_that_cannot_run_is_126(self):
        path = self.folder + "/plain"
        with open(path, "w", encoding="ascii") as f:
            f.write("text\n")
        got = run(path)
        self.assertEqual(got.returncode, 126)
        self.assertIn("Permission denied", got.stderr)

    def test_signals_are_forwarded_and_nothing_is_left(self):
        for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
            word = number.name[3:]
            job, pids = self.start(2, f"trap 'echo {word} > {self.folder}/{word}$RANK; exit 0' {word}; ready; "
                                      "while :; do sleep 0.05; done", "--shutdown-timeout", str(2 * PATIENCE))
            job.send_signal(number)
            self.assertEqual(job.wait(PATIENCE), 128 + number)
            errors = job.stderr.read()
            self.assertIn(f"{number.name}: stopped all 2 ranks of sh", errors)
            self.assertNotIn("SIGKILL", errors)
            for r in range(2):
                self.assertTrue(os.path.exists(f"{self.folder}/{word}{r}"))
                os.remove(f"{self.folder}/pid{r}")
            self.assertFalse(any(map(alive, pids)))

    def test_a_killed_launcher_leaves_no_rank(self):
        job, pids = self.start(3, "ready; exec sleep 600")
        self.assertTrue(all(map(alive, pids)))
        job.kill()
        job.wait(PATIENCE)
        wait_until(lambda: not any(map(alive, pids)), "the ranks of a killed launcher were gone")

    def test_a_killed_launcher_leaves_nothing_that_a_rank_started(self):
        job, pids = self.start(2, f"sleep 600 & echo $! > {self.folder}/child$RANK; ready; wait")
        pids += [int(read(f"{self.folder}/child{r}")) for r in range(2)]
        self.assertTrue(all(map(alive, pids)))
        job.kill()
        job.wait(PATIENCE)
        wait_until(lambda: not any(map(alive, pids)), "the children of a killed launcher's ranks were gone")

    def test_what_a_rank_started_ends_with_it(self):
        job, _ = self.start(2, f"sleep 600 & echo $! > {self.folder}/child$RANK; ready; exit 0")
        self.assertEqual(job.wait(PATIENCE), 0)
        children = [int(read(f"{self.folder}/child{r}")) for r in range(2)]
        self.assertFalse(any(map(alive, children)))

    def test_a_stopped_rank_ends_too(self):
        job, pids = self.start(2, "ready; together; [ $RANK = 0 ] && kill -STOP $$$$; sleep 0.3; exit $RANK", "--shutdown-timeout", "50")
        self.assertEqual(job.wait(PATIENCE), 1)
        self.assertFalse(any(map(alive, pids)))

    def test_a_process_that_came_too_late_for_the_signal_is_told_too(self):
        job, _ = self.start(1, f"trap 'sleep 600 & echo $! > {self.folder}/child; exit 0' TERM; ready; "
                               "while :; do sleep 0.05; done", "--shutdown-timeout", str(2 * PATIENCE))
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGTERM)
        self.assertFalse(alive(int(read(f"{self.folder}/child"))))

    def test_standard_input_is_rank_0s(self):
        got = run("--nproc-per-node", 2, "sh", "-c", f"cat > {self.folder}/$RANK", input="hello")
        self.assertEqual(got.returncode, 0)
        self.assertEqual([read(f"{self.folder}/{r}") for r in range(2)], ["hello", ""])

    def test_a_port_in_use_is_named(self):
        with socket.socket(socket.AF_INET6) as taken:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            taken.bind(("::", 0))
            taken.listen()
            port = taken.getsockname()[1]
            got = run("--master-port", port, "touch", self.folder + "/started")
        self.assertEqual(got.returncode, 1)
        self.assertIn(str(port), got.stderr)
        self.assertIn("in use", got.stderr)
        self.assertFalse(os.path.exists(self.folder + "/started"))

    def test_the_port_asked_for_is_the_one_served(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        got = run("--master_port", port, "sh", "-c", f"{JOIN} && echo $MASTER_ADDR:$MASTER_PORT")
        self.assertEqual((got.returncode, got.stdout), (0, f"127.0.0.1:{port}\n"), got.stderr)

    def test_two_ranks_start_and_join_quickly(self):
        times = []
        for _ in range(10):
            begin = time.monotonic()
            got = run("--nproc-per-node", 2, JOIN)
            times.append(time.monotonic() - begin)
            self.assertEqual((got.returncode, got.stderr), (0, ""))
        print(f"two ranks start, join and end in {1e3 * min(times):.1f} ms at best, {1e3 * max(times):.1f} at worst")
        limit = 5 if os.environ.get("CAIRN_TEST_SLOW_BUILD") else 0.1
        self.assertLess(min(times), limit)


if __name__ == "__main__":
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP: # a job in the background, or nohup, has ignored some
        signal.signal(number, signal.SIG_DFL)
    unittest.main(argv=sys.argv[:1], verbosity=2)
