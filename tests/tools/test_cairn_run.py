"""cairn-run as a program: the arguments and environment of ranks, how ranks end, and that nothing is left behind.

usage: test_cairn_run.py path/to/cairn-run path/to/join path/to/libearly_term.so"""
import contextlib
import fcntl
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time

import launching
from launching import PATIENCE, alive, free_port, read, wait_until

CAIRN_RUN, JOIN, EARLY_TERM = sys.argv[1:4]
CAIRN_LAUNCH = os.path.join(os.path.dirname(CAIRN_RUN), "cairn-launch")


class CairnRun(launching.LauncherTest):
    def run_it(self, *args, program=CAIRN_RUN, **kwargs):
        got = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE, check=False,
                             **{"env": self.env, **kwargs})
        self.check_nothing_temporary_is_left()
        return got

    def start(self, ranks, script, *options):
        """Starts ranks of a shell script whose `ready` writes its pid to a file; returns when all have. `together`
        waits for that in the script."""
        ready = f"{{ echo $$$$ > {self.folder}/new$RANK; mv {self.folder}/new$RANK {self.folder}/pid$RANK; }}"
        together = f"for r in $(seq 0 {ranks - 1}); do while [ ! -e {self.folder}/pid$r ]; do sleep 0.01; done; done"
        script = script.replace("ready", ready).replace("together", together)
        job = self.spawn(CAIRN_RUN, "--nproc-per-node", ranks, *options, "sh", "-c", script)
        files = [f"{self.folder}/pid{r}" for r in range(ranks)]
        wait_until(lambda: all(map(os.path.exists, files)), "all ranks had started")
        return job, [int(read(f)) for f in files]

    def write(self, name, text):
        with open(f"{self.folder}/{name}", "w", encoding="utf-8") as f:
            f.write(text)
        return f"{self.folder}/{name}"

    def until(self, name):
        return f"while [ ! -e {self.folder}/{name} ]; do sleep 0.01; done; "

    def environment(self, ranks, *options, env=None, errors=""):
        got = self.run_it("--nproc-per-node", ranks, *options, "sh", "-c", f"env > {self.folder}/$RANK",
                          env=env or self.env)
        self.assertEqual((got.returncode, got.stderr), (0, errors))
        facts = []
        for r in range(ranks):
            lines = read(f"{self.folder}/{r}").splitlines()
            facts.append(dict(line.split("=", 1) for line in lines if "=" in line))
        return facts

    def test_every_rank_gets_its_variables(self):
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

    def test_run_id_is_none_or_given_or_a_standalone_runs_own(self):
        def run_id(*options):
            return self.environment(1, *options)[0]["TORCHELASTIC_RUN_ID"]
        self.assertEqual(run_id(), "none")
        self.assertEqual(run_id("--rdzv-id=job7"), "job7")
        self.assertEqual(len({run_id("--standalone") for _ in range(2)} | {"none"}), 3)

    def test_variables_of_an_outer_launcher_are_replaced(self):
        told = self.environment(1, env={**self.env, "RANK": "3", "WORLD_SIZE": "9", "OTHER": "kept"})[0]
        self.assertEqual((told["RANK"], told["WORLD_SIZE"], told["OTHER"]), ("0", "1", "kept"))

    def test_omp_threads_are_one_for_several_ranks_unless_set(self):
        bare = {k: v for k, v in self.env.items() if k != "OMP_NUM_THREADS"}
        notice = ("cairn-run: each rank gets OMP_NUM_THREADS=1; choose with --omp-num-threads N, or auto for "
                  "processors / ranks\n")
        self.assertNotIn("OMP_NUM_THREADS", self.environment(1, env=bare)[0])
        self.assertEqual(self.environment(2, env=bare, errors=notice)[1]["OMP_NUM_THREADS"], "1")
        self.assertEqual(self.environment(2, env={**bare, "OMP_NUM_THREADS": "3"})[1]["OMP_NUM_THREADS"], "3")

    def test_arguments_get_the_local_rank_as_torchrun_gives_it(self):
        args = ["${local_rank}", "a-$local_rank.b", "$local_ranks", "$$x", "$other", "", "--nnodes=9"]
        got = self.run_it("--nproc-per-node", 2, "sh", "-c", f'for a; do echo "[$a]"; done > {self.folder}/$RANK', "sh",
                          *args)
        self.assertEqual(got.returncode, 0, got.stderr)
        for r in range(2):
            expected = [str(r), f"a-{r}.b", "$local_ranks", "$x", "$other", "", "--nnodes=9"]
            self.assertEqual(read(f"{self.folder}/{r}").split("\n")[:-1], [f"[{a}]" for a in expected])

    def test_every_spelling_of_an_option_works(self):
        for options in (["--nproc_per_node=2"], ["--nproc-per-node=2"], ["--nproc_per_node", "2"],
                        ["--nproc-per-node", "2", "--no_python", "--no-python", "--use_env", "--standalone"],
                        ["--nnodes", "1", "--nnodes=1:1", "--node_rank=0", "--max-restarts=0", "--nproc_per_node=2"]):
            got = self.run_it(*options, "sh", "-c", "echo $WORLD_SIZE")
            self.assertEqual((got.returncode, got.stdout, got.stderr), (0, "2\n2\n", ""), options)

    def test_a_wrong_option_is_refused_with_a_message(self):
        for options, sentence in ((["--bogus", "true"], "there is no option --bogus"),
                                  (["-n", "2", "true"], "there is no option -n"),
                                  (["--nproc-per-node", "0", "true"], "from 1 to"),
                                  (["--nproc-per-node=two", "true"], "not 'two'"),
                                  (["--nproc-per-node"], "needs a value"),
                                  (["--master-port=70000", "true"], "from 0 to 65535"),
                                  (["--shutdown-timeout=soon", "true"], "number of seconds"),
                                  (["--nnodes", "0", "true"], "a number of nodes, or MIN:MAX"),
                                  (["--node-rank", "1", "true"], "--nnodes sets how many"),
                                  (["--max-restarts", "-3", "true"], "a number of restarts"),
                                  (["--standalone", "--nnodes=2", "true"], "--standalone is for one node"),
                                  (["--standalone=yes", "true"], "takes no value"),
                                  ([], "there is no program to run")):
            got = self.run_it(*options)
            self.assertEqual(got.returncode, 2, options)
            self.assertIn(sentence, got.stderr)
            self.assertEqual(got.stderr.count("\n"), 1)

    def test_help_names_every_option(self):
        got = self.run_it("--help")
        self.assertEqual(got.returncode, 0)
        for name in "nproc-per-node", "master-port", "master-addr", "shutdown-timeout", "nnodes", "no-python":
            self.assertIn("--" + name, got.stdout)

    def test_the_first_failing_rank_gives_the_exit_code(self):
        got = self.run_it("--nproc-per-node", 3, "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 600")
        self.assertEqual(got.returncode, 7)
        first, *others = [line for line in got.stderr.splitlines() if line.startswith("cairn-run: rank")]
        self.assertRegex(first, r"^cairn-run: rank 1 \(local_rank 1, pid \d+\) of sh failed first: exit code 7$")
        self.assertEqual([line.split()[2] for line in others], ["0", "2"])
        for line in others:
            self.assertIn("ended: killed by signal 15 (SIGTERM)", line)

    def test_a_rank_killed_by_a_signal_is_reported_as_such(self):
        got = self.run_it("--nproc-per-node", 2, "sh", "-c", "ulimit -c 0; [ $RANK = 1 ] && kill -SEGV $$$$; sleep 600")
        self.assertEqual(got.returncode, 128 + signal.SIGSEGV)
        self.assertIn("rank 1 ", got.stderr.splitlines()[0])
        self.assertIn("failed first: killed by signal 11 (SIGSEGV)", got.stderr.splitlines()[0])

    def test_a_rank_that_leaves_early_with_0_is_fine(self):
        got = self.run_it("--nproc-per-node", 2, "sh", "-c",
                          f"[ $RANK = 0 ] && exit 0; sleep 0.2; echo > {self.folder}/done")
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        self.assertTrue(os.path.exists(self.folder + "/done"))

    def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(self):
        job, pids = self.start(2, "trap '' TERM; ready; together; [ $RANK = 1 ] && exit 3; "
                                  "while :; do sleep 0.05; done", "--shutdown-timeout", "0.3")
        self.assertEqual(job.wait(PATIENCE), 3)
        errors = job.stderr.read()
        self.assertIn("1 of 2 ranks still run; sending SIGKILL", errors)
        self.assertIn("killed by signal 9 (SIGKILL)", errors)
        self.assertFalse(any(map(alive, pids)))

    def test_a_rank_that_cannot_be_killed_is_given_up(self):
        if os.geteuid() != 0 or os.statvfs(self.folder).f_flag & os.ST_NOSUID:
            self.skipTest("no rank can be made here that cairn-run may not end")
        os.chmod(self.folder, 0o777)
        launcher, become_root = shutil.copy(CAIRN_RUN, self.folder), shutil.copy(sys.executable, self.folder + "/root")
        os.chmod(become_root, 0o4755)
        become_root += " -c 'import os, time; os.setresuid(0, 0, 0); open(\"up\", \"w\"); time.sleep(60)'"
        with open(self.folder + "/errors", "w", encoding="utf-8") as errors: # a pipe would be held open by what is left
            job = self.spawn(launcher, "--log-dir=/dev/null", "--nproc-per-node=2", "--shutdown-timeout=0.1", "sh",
                             "-c", f"[ $RANK = 0 ] && exec {become_root}; {self.until('up')} exit 3",
                             cwd=self.folder, env={**self.env, "PYTHONHOME": sys.base_prefix}, user=65534,
                             group=65534, extra_groups=[], stdout=subprocess.DEVNULL, stderr=errors)
        code = job.wait(PATIENCE)
        said = read(self.folder + "/errors")
        left = re.findall(r"local rank 0 \(pid (\d+)\) did not end after SIGKILL; cairn-run leaves it running\n", said)
        for pid in left:
            os.kill(int(pid), signal.SIGKILL)
        self.assertEqual((code, len(left)), (3, 1), said)

    def test_a_program_that_does_not_exist_is_127(self):
        for program in "./no-such-program", "no-such-program":
            got = self.run_it("--nproc-per-node", 3, program)
            self.assertEqual(got.returncode, 127)
            self.assertIn(f"cairn-run: {program} cannot be started: No such file or directory", got.stderr)
            self.assertEqual(got.stderr.count("\n"), 1)

    def test_a_missing_interpreter_is_named(self):
        script = self.write("no-shell", "#!/no/such/shell\n")
        os.chmod(script, 0o755)
        for program, said in (("no-shell", "No such file or directory in PATH; write ./ before it for the one in this "
                                          "folder"),
                              (script, "No such file or directory (the file exists; the interpreter or loader "
                                       "that it names does not)")):
            got = self.run_it(program, program=os.path.abspath(CAIRN_RUN), cwd=self.folder)
            self.assertEqual((got.returncode, got.stderr), (127, f"cairn-run: {program} cannot be started: {said}\n"))

    def test_a_file_that_cannot_run_is_126(self):
        path = self.folder + "/plain"
        with open(path, "w", encoding="ascii") as f:
            f.write("text\n")
        got = self.run_it(path)
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

    def test_sigusr1_is_passed_on_to_ranks_which_go_on(self):
        job, pids = self.start(2, f"trap 'echo > {self.folder}/saved$RANK' USR1; trap 'exit 0' TERM; ready; "
                                  "while :; do sleep 0.05; done")
        for _ in range(2):
            job.send_signal(signal.SIGUSR1)
            wait_until(lambda: all(os.path.exists(f"{self.folder}/saved{r}") for r in range(2)), "ranks had SIGUSR1")
            for r in range(2):
                os.remove(f"{self.folder}/saved{r}")
        self.assertTrue(all(map(alive, pids)))
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGTERM)

    def test_a_second_control_c_ends_ranks_that_outlive_the_first(self):
        keyboard, terminal = os.openpty()
        self.addCleanup(os.close, keyboard)
        job = self.spawn(CAIRN_RUN, "--nproc-per-node", 2, "--shutdown-timeout", 2 * PATIENCE, "sh", "-c",
                         f"trap 'echo > {self.folder}/told$RANK' INT; echo > {self.folder}/up$RANK; "
                         "while :; do sleep 0.05; done", stdin=terminal, start_new_session=True,
                         preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(terminal)
        for mark in "up", "told":
            wait_until(lambda: all(os.path.exists(f"{self.folder}/{mark}{r}") for r in range(2)), f"ranks were {mark}")
            os.write(keyboard, b"\x03")
        code, _, errors = self.finish(job)
        self.assertEqual(code, 128 + signal.SIGINT)
        self.assertIn("2 of 2 ranks still run; sending SIGKILL", errors)

    def test_a_reminder_says_how_to_end_ranks_at_once(self):
        job, pids = self.start(2, "trap '' TERM; ready; while :; do sleep 0.05; done", "--shutdown-timeout", 3)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGTERM)
        errors = job.stderr.read()
        self.assertIn("2 of 2 ranks still run; cairn-run kills them 3 s after the signal, or at once if it is sent "
                      "again", errors)
        self.assertIn("2 of 2 ranks still run; sending SIGKILL", errors)
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
        self.wait_until_nothing_temporary_is_left()

    def test_a_killed_launcher_leaves_requested_output(self):
        job, _ = self.start(1, "echo here; ready; sleep 600", "-r1")
        job.kill()
        job.wait(PATIENCE)
        time.sleep(0.1) # for the keeper to do it all the same
        found = [read(f"{folder}/{name}") for folder, _, names in os.walk(self.folder + "/tmp") for name in names]
        self.assertEqual(found, ["here\n"])

    def kill_with_keeper(self, job):
        """As `pkill -9 cairn-run` does: the process that cleans up after cairn-run dies with it."""
        with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="ascii") as f:
            children = list(map(int, f.read().split()))
        keeper = [pid for pid in children if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(CAIRN_RUN)]
        self.assertEqual(len(keeper), 1)
        os.kill(keeper[0], signal.SIGSTOP)
        job.kill()
        os.kill(keeper[0], signal.SIGKILL)
        job.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while self.holds_files(keeper[0]) and time.monotonic() < deadline: # the folder's lock among them
            time.sleep(0.01)

    @staticmethod
    def holds_files(pid):
        try:
            return bool(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            return False

    def test_the_next_launcher_removes_what_a_launcher_killed_with_its_keeper_left(self):
        living, _ = self.start(1, "ready; exec sleep 600")
        other = set(os.listdir(self.folder + "/tmp"))
        os.remove(self.folder + "/pid0")
        killed, _ = self.start(1, "ready; exec sleep 600")
        self.kill_with_keeper(killed)
        self.assertEqual(len(os.listdir(self.folder + "/tmp")), 2)
        got = subprocess.run([CAIRN_RUN, "true"], env=self.env, timeout=PATIENCE, check=False)
        self.assertEqual((got.returncode, set(os.listdir(self.folder + "/tmp"))), (0, other))
        living.kill()
        living.wait(PATIENCE)
        self.wait_until_nothing_temporary_is_left()

    def test_the_next_launcher_leaves_output_of_a_killed_one(self):
        job, _ = self.start(1, "echo here; ready; exec sleep 600", "-r1")
        self.kill_with_keeper(job)
        subprocess.run([CAIRN_RUN, "true"], env=self.env, timeout=PATIENCE, check=False)
        found = [read(f"{folder}/{name}") for folder, _, names in os.walk(self.folder + "/tmp") for name in names]
        self.assertEqual(found, ["here\n"])

    def test_sigterm_before_anything_else_ends_with_a_sentence(self):
        if "CAIRN_TEST_SLOW_BUILD" in os.environ:
            self.skipTest("a sanitizer wants to be loaded first")
        got = self.run_it("--nproc-per-node", 2, "sleep", "600",
                          env={**self.env, "LD_PRELOAD": os.path.abspath(EARLY_TERM), "EARLY_TERM": "1"})
        self.assertEqual(got.returncode, 128 + signal.SIGTERM, got.stderr)
        self.assertIn("cairn-run: SIGTERM: stopped all 2 ranks of sleep", got.stderr)

    def test_what_a_rank_started_ends_with_it(self):
        job, _ = self.start(2, f"sleep 600 & echo $! > {self.folder}/child$RANK; ready; exit 0")
        self.assertEqual(job.wait(PATIENCE), 0)
        children = [int(read(f"{self.folder}/child{r}")) for r in range(2)]
        self.assertFalse(any(map(alive, children)))

    def take_number(self, pid):
        """Makes a process, and its group, with a number that was another's."""
        for _ in range(100):
            try:
                with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as f:
                    f.write(str(pid - 1))
            except OSError as e:
                self.skipTest(f"no process's number can be chosen here: {e}")
            child = subprocess.Popen(["sleep", "600"], preexec_fn=os.setpgrp)
            self.addCleanup(child.wait)
            self.addCleanup(child.kill)
            if child.pid == pid:
                return child
        self.skipTest("others took the number first")

    def test_a_reused_process_number_is_not_signalled(self):
        job, pids = self.start(2, f"ready; together; [ $RANK = 0 ] && exit 0; {self.until('go')}")
        wait_until(lambda: not os.path.exists(f"/proc/{pids[0]}"), "rank 0 was reaped")
        other = self.take_number(pids[0])
        self.write("go", "")
        self.assertEqual(self.finish(job)[0], 0)
        self.assertIsNone(other.poll())

    def test_a_stopped_rank_ends_too(self):
        job, pids = self.start(2, "ready; together; [ $RANK = 0 ] && kill -STOP $$$$; sleep 0.3; exit $RANK",
                               "--shutdown-timeout", "50")
        self.assertEqual(job.wait(PATIENCE), 1)
        self.assertFalse(any(map(alive, pids)))

    def test_a_stopped_rank_is_named_when_another_fails(self):
        job, pids = self.start(3, "ready; together; [ $RANK = 1 ] && kill -STOP $$$$; "
                                  f"while [ ! -e {self.folder}/go ]; do sleep 0.01; done; "
                                  "[ $RANK = 2 ] && exit 4; sleep 600")
        wait_until(lambda: read(f"/proc/{pids[1]}/stat").rpartition(")")[2].split()[0] == "T", "rank 1 was stopped")
        time.sleep(0.05) # cairn-run looks at its SIGCHLD before that of rank 2
        self.write("go", "")
        code, _, errors = self.finish(job)
        self.assertEqual(code, 4)
        self.assertRegex(errors, r"rank 1 \(local_rank 1, pid \d+\) of sh was stopped \(SIGSTOP\) when rank 2 failed\n")
        self.assertEqual(errors.count("was stopped"), 1)
        self.assertFalse(any(map(alive, pids)))

    # ---- restarts ----

    def test_the_third_attempt_succeeds_and_the_restart_count_says_so(self):
        got = self.run_it("--max_restarts", 2, "--nproc-per-node", 2, "sh", "-c",
                          "echo $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS >> $$F$RANK; "
                          "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; [ $RANK = 0 ] && exec sleep 600; "
                          "until grep -qs ^$TORCHELASTIC_RESTART_COUNT $$F'0'; do sleep 0.01; done; exit 3",
                          env={**self.env, "F": self.folder + "/"})
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(read(f"{self.folder}/1"), "0/2\n1/2\n2/2\n")
        self.assertEqual(read(f"{self.folder}/0").split()[-1], "2/2") # it may end before it says anything
        self.assertIn("cairn-run: starting all ranks again: restart 1 of 2\n", got.stderr)
        self.assertIn("cairn-run: starting all ranks again: restart 2 of 2\n", got.stderr)
        self.assertNotIn("report of failed ranks", got.stderr)

    def processes_with(self, mark):
        """Live processes that have mark in their environment."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as f:
                if mark.encode() in f.read() and alive(pid):
                    found.append(pid)
        return found

    def pid_of(self, rank, attempt):
        name = f"{self.folder}/{rank}.{attempt}"
        wait_until(lambda: os.path.exists(name), f"rank {rank} ran in attempt {attempt}")
        return int(read(name))

    def strike(self, how, attempt, moment):
        """Ends rank 1 at its moment; a stopped one only once another fails."""
        pid = self.pid_of(1, attempt)
        time.sleep(moment)
        os.kill(pid, how)
        if how == signal.SIGSTOP:
            os.kill(self.pid_of(0, attempt), signal.SIGKILL)

    def test_third_attempt_succeeds_whenever_ranks_end(self):
        seed = random.randrange(1 << 30)
        draw = random.Random(seed)
        for n in range(int(os.environ.get("CAIRN_TEST_MOMENTS", "10"))):
            how = draw.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGUSR1])
            mark, moment = f"{self.folder}#{n}", draw.random() * 0.05
            job = self.spawn(CAIRN_RUN, "--nproc-per-node=3", "--max-restarts=2", "sh", "-c",
                             "sleep 600 & [ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; "
                             "me=$FOLDER/$RANK.$TORCHELASTIC_RESTART_COUNT; echo $$$$ > $me.new; mv $me.new $me; wait",
                             env={**self.env, "MARK": mark, "FOLDER": self.folder})
            for attempt in range(2):
                self.strike(how, attempt, moment)
            code, _, errors = self.finish(job)
            self.assertEqual(code, 0, f"{how.name} after {moment} s (seed {seed}): {errors}")
            self.assertEqual(self.processes_with(mark), [], f"{how.name} after {moment} s (seed {seed})")
            for name in filter(lambda name: name[0].isdigit(), os.listdir(self.folder)):
                os.remove(f"{self.folder}/{name}")

    def test_restarts_are_used_up(self):
        got = self.run_it("--max_restarts", 1, "sh", "-c", f"echo >> {self.folder}/n; exit $((5 + RESTARTS_))",
                          env={**self.env, "RESTARTS_": "2"})
        self.assertEqual((got.returncode, read(self.folder + "/n")), (7, "\n\n"))
        self.assertEqual(got.stderr.count("report of failed ranks"), 1)

    def test_keys_of_an_attempt_are_deleted_before_the_next(self):
        got = self.run_it("--max_restarts", 1, "--nproc-per-node", 2, "sh", "-c",
                          f"{JOIN} || exit 9; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3")
        self.assertEqual(got.returncode, 0, got.stderr)

    def test_what_cannot_be_started_is_not_started_again(self):
        got = self.run_it("--max_restarts", 3, "./no-such-program")
        self.assertEqual((got.returncode, got.stderr.count("\n")), (127, 1), got.stderr)

    def test_nothing_is_started_again_after_a_signal(self):
        job, _ = self.start(2, "trap 'exit 3' TERM; ready; while :; do sleep 0.05; done", "--max_restarts", "3")
        job.send_signal(signal.SIGTERM)
        code, _, errors = self.finish(job)
        self.assertEqual(code, 128 + signal.SIGTERM)
        self.assertNotIn("again", errors)

    def test_every_attempt_has_its_own_log_folder(self):
        logs = self.folder + "/logs"
        got = self.run_it("--max_restarts=1", "--nproc-per-node=2", "--log-dir", logs, "-r3", "--rdzv-id=job7",
                          "sh", "-c", "echo out$RANK; echo err$RANK >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3")
        self.assertEqual((got.returncode, got.stdout), (0, ""), got.stderr)
        run_folder, = os.listdir(logs)
        self.assertRegex(run_folder, "^job7_")
        for r in range(2):
            top = f"{logs}/{run_folder}/attempt_1/{r}"
            self.assertEqual((read(top + "/stdout.log"), read(top + "/stderr.log")), (f"out{r}\n", f"err{r}\n"))
        first = [read(f"{logs}/{run_folder}/attempt_0/{r}/stdout.log") for r in range(2)]
        self.assertIn(f"out{0 if first[0] else 1}\n", first)

    # ---- the report ----

    def block(self, errors):
        """The report's block without what changes from run to run."""
        block = errors[errors.index("cairn-run: report"):]
        block = re.sub(r"time      : \d{4}-\d\d-\d\d_\d\d:\d\d:\d\d\n", "time      : T\n", block)
        block = re.sub(r"pid: \d+", "pid: P", re.sub(r"by PID \d+", "by PID P", block))
        return block.replace(f"host      : {socket.gethostname()}\n", "host      : H\n")

    def test_the_report_has_torchs_form(self):
        got = self.run_it("--nproc-per-node", 2, "sh", "-c", "ulimit -c 0; [ $RANK = 1 ] && kill -SEGV $$$$; sleep 600")
        self.assertEqual(self.block(got.stderr), """\
cairn-run: report of failed ranks, the first at the end:
====================================================
sh FAILED
----------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
----------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : T
  host      : H
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: P)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID P
====================================================
""".replace("=" * 52, self.border(got.stderr, "=")).replace("-" * 52, self.border(got.stderr, "-")))

    def border(self, errors, c):
        """As wide as the longest line, 60 at most."""
        block = [line for line in errors[errors.index("cairn-run: report"):].splitlines()[1:] if line.strip("=-")]
        return c * min(60, max(map(len, block)))

    def fail_with(self, texts, *options, env=None):
        """Ranks that write texts into their error files, all of them before any exits with 10 + its rank."""
        for r, text in enumerate(texts):
            with open(f"{self.folder}/text{r}", "w", encoding="utf-8") as f:
                f.write(text)
        together = (f"for r in $(seq 0 {len(texts) - 1}); do "
                    f"while [ ! -e {self.folder}/done$r ]; do sleep 0.01; done; done")
        return self.run_it("--nproc-per-node", len(texts), *options, "sh", "-c",
                           f"trap '' TERM; cp {self.folder}/text$RANK $TORCHELASTIC_ERROR_FILE; "
                           f"touch {self.folder}/done$RANK; {together}; exit $((10 + RANK))", env=env or self.env)

    def test_the_earliest_error_file_is_the_root_cause(self):
        def text(message, stack, seconds):
            return json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": stack,
                                                                             "timestamp": str(seconds)}}})
        got = self.fail_with([text("a", "late\nline", 2000000), text("b", "early\nline", 1000000),
                              json.dumps({"message": "plain", "timestamp": 3000000})])
        self.assertEqual(got.returncode, 11, got.stderr)
        block = self.block(got.stderr)
        others, root = block.split("Root Cause")
        self.assertIn("  rank      : 1 (local_rank: 1)\n  exitcode  : 11 (pid: P)\n", root)
        self.assertRegex(root, r"  error_file: /.*/1/error.json \(removed; --log-dir keeps it\)\n"
                               r"  traceback : early\n  line\n=")
        self.assertRegex(others, r"(?s)\[0\]:\n.* rank      : 0 .* traceback : late\n  line\n\[2\]:\n.*"
                                 r"traceback : plain\n---")
        self.assertRegex(got.stderr, r"cairn-run: rank 1 \(local_rank 1, pid \d+\) of sh failed first: exit code 11\n")

    def test_an_error_file_in_log_dir_stays(self):
        text = json.dumps({"message": "kept"})
        got = self.fail_with([text], "--log-dir", self.folder + "/logs")
        path = re.search("error_file: (.*)\n", got.stderr)[1]
        self.assertEqual(read(path), text)

    def test_a_malformed_error_file_is_no_error(self):
        for text in "", "{", "[]", '{"message": 3}', "\0\0", '{"message": {}}', '{"message": {"extraInfo": 3}}':
            got = self.fail_with([text])
            self.assertEqual(got.returncode, 10, text)
            self.assertIn("report of failed ranks", got.stderr)
            self.assertIn("traceback : ", got.stderr)
            os.remove(self.folder + "/done0")

    def test_the_first_failures_error_file_becomes_cairn_runs_own(self):
        own = self.folder + "/own.json"
        message = {"message": "lost", "extraInfo": {"py_callstack": "stack", "timestamp": "1000"}}
        got = self.fail_with([json.dumps({"message": message})], env={**self.env, "TORCHELASTIC_ERROR_FILE": own})
        self.assertEqual(got.returncode, 10)
        self.assertEqual(json.loads(read(own)), {"message": {**message, "errorCode": 10}})

    # ---- other kinds of programs, other names ----

    def test_python_programs_are_started_by_python(self):
        script = self.write("hello.py", "import os, sys\nprint(__name__, os.environ['LOCAL_RANK'], sys.argv[1:])\n")
        env = {**self.env, "PYTHON_EXEC": sys.executable, "PYTHONPATH": self.folder}
        for options in [script], ["-m", "hello"], ["--run-path", script]:
            got = self.run_it(*options, "a", "--b", env=env)
            self.assertEqual((got.returncode, got.stdout, got.stderr), (0, "__main__ 0 ['a', '--b']\n", ""))

    def test_cairn_launch_passes_the_local_rank_unless_told_not_to(self):
        script = self.write("arguments.py", "import sys\nprint(sys.argv[1:])\n")
        env = {**self.env, "PYTHON_EXEC": sys.executable}
        got = self.run_it(script, "a", program=CAIRN_LAUNCH, env=env)
        self.assertEqual((got.returncode, got.stdout), (0, "['--local_rank=0', 'a']\n"), got.stderr)
        got = self.run_it("--use_env", script, "a", program=CAIRN_LAUNCH, env=env)
        self.assertEqual((got.returncode, got.stdout), (0, "['a']\n"), got.stderr)
        got = self.run_it("--use_env", "--no_python", "echo", "a", program=CAIRN_LAUNCH)
        self.assertEqual((got.returncode, got.stdout), (0, "a\n"), got.stderr)

    def test_a_signal_that_the_parent_ignores_stays_ignored(self):
        job, pids = self.start_ignoring_sighup(f"ready; while [ ! -e {self.folder}/go ]; do sleep 0.01; done; exit 0")
        job.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        self.assertTrue(all(map(alive, pids)))
        self.write("go", "")
        code, _, errors = self.finish(job)
        self.assertEqual((code, errors), (0, ""))

    def start_ignoring_sighup(self, script):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            return self.start(2, script)
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def test_output_is_teed_with_prefixes(self):
        got = self.run_it("--nproc-per-node=2", "--log-dir", self.folder + "/logs", "-t3", "sh", "-c",
                          "echo out$RANK; echo err$RANK >&2")
        self.assertEqual(got.returncode, 0)
        self.assertEqual(sorted(got.stdout.splitlines()), ["[default0]:out0", "[default1]:out1"])
        self.assertEqual(sorted(got.stderr.splitlines()), ["[default0]:err0", "[default1]:err1"])

    def test_a_process_forked_after_the_signal_is_signalled_too(self):
        job, _ = self.start(1, f"trap 'sleep 600 & echo $! > {self.folder}/child; exit 0' TERM; ready; "
                               "while :; do sleep 0.05; done", "--shutdown-timeout", str(2 * PATIENCE))
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGTERM)
        self.assertFalse(alive(int(read(f"{self.folder}/child"))))

    def test_rank_0_has_the_standard_input(self):
        got = self.run_it("--nproc-per-node", 2, "sh", "-c", f"cat > {self.folder}/$RANK", input="hello")
        self.assertEqual(got.returncode, 0)
        self.assertEqual([read(f"{self.folder}/{r}") for r in range(2)], ["hello", ""])

    def test_a_rank_that_reads_the_terminal_is_named(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(CAIRN_RUN, [CAIRN_RUN, "--nproc-per-node=2", "sh", "-c",
                                  "[ $RANK = 0 ] && exit 0; read word < /dev/tty"], self.env)
        self.addCleanup(os.close, terminal)
        said = b""
        while b"(SIGTTIN)" not in said and select.select([terminal], [], [], PATIENCE)[0]:
            said += os.read(terminal, 4096)
        self.assertRegex(said, rb"cairn-run: local rank 1 \(pid \d+\) tried to read the terminal, which ranks cannot, ")
        os.write(terminal, b"\3") # Ctrl-C
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 128 + signal.SIGINT)

    def test_a_port_in_use_is_named(self):
        with socket.socket(socket.AF_INET6) as taken:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            taken.bind(("::", 0))
            taken.listen()
            port = taken.getsockname()[1]
            got = self.run_it("--master-port", port, "touch", self.folder + "/started")
        self.assertEqual(got.returncode, 1)
        self.assertIn(str(port), got.stderr)
        self.assertIn("in use", got.stderr)
        self.assertFalse(os.path.exists(self.folder + "/started"))

    def test_the_port_asked_for_is_the_one_served(self):
        port = free_port()
        got = self.run_it("--master_port", port, "sh", "-c", f"{JOIN} && echo $MASTER_ADDR:$MASTER_PORT")
        self.assertEqual((got.returncode, got.stdout), (0, f"127.0.0.1:{port}\n"), got.stderr)

    def test_two_ranks_start_and_join_quickly(self):
        times = []
        for _ in range(10):
            begin = time.monotonic()
            got = self.run_it("--nproc-per-node", 2, JOIN)
            times.append(time.monotonic() - begin)
            self.assertEqual((got.returncode, got.stderr), (0, ""))
        print(f"two ranks start, join and end in {1e3 * min(times):.1f} ms at best, {1e3 * max(times):.1f} at worst")
        limit = 5 if os.environ.get("CAIRN_TEST_SLOW_BUILD") else 0.1
        self.assertLess(min(times), limit)


if __name__ == "__main__":
    launching.main(sys.argv)
