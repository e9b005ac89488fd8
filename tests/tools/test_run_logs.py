"""cairn-run from outside: options, how programs are started, and where the ranks' output goes.

usage: test_run_logs.py path/to/cairn-run"""
import glob
import os
import signal
import subprocess
import sys

import launching
from launching import PATIENCE, read, wait_until

CAIRN_RUN = os.path.abspath(sys.argv[1])
PYTHON = sys.executable


class Run(launching.LauncherTest):
    def run_it(self, *args, program=CAIRN_RUN, env=None, **kwargs):
        return subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE,
                              env={**self.env, **(env or {})}, check=False, **kwargs)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def launch_link(self):
        link = os.path.join(self.folder, "cairn-launch")
        os.symlink(CAIRN_RUN, link)
        return link


class Options(Run):
    def test_help_and_version_go_to_stdout(self):
        got = self.run_it("--help")
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        for name in ("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "standalone",
                     "max-restarts", "monitor-interval", "start-method", "role", "module", "no-python", "run-path",
                     "log-dir", "redirects", "tee", "node-rank", "master-addr", "master-port", "local-addr",
                     "local-ranks-filter", "event-log-handler", "logs-specs", "numa-binding", "signals-to-handle",
                     "use-env", "shutdown-timeout", "omp-num-threads", "version"):
            self.assertIn("--" + name + " ", got.stdout)
        self.assertLess(max(map(len, got.stdout.splitlines())), 121)
        self.assertEqual(self.run_it("-h", "--bogus").stdout, got.stdout)
        version = self.run_it("--version")
        self.assertEqual((version.returncode, version.stderr), (0, ""))
        self.assertRegex(version.stdout, r"^cairn-run \d+\.\d+\.\d+\n$")

    def test_help_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            self.assertEqual(subprocess.run([CAIRN_RUN, "--help"], stdout=full, check=False).returncode, 1)

    def test_variables_stand_in_for_options(self):
        got = self.run_it("sh", "-c", "echo $LOCAL_WORLD_SIZE $ROLE_NAME", env={"PET_NPROC_PER_NODE": "2",
                                                                                "PET_ROLE": "x"})
        self.assertEqual((got.returncode, got.stdout, got.stderr), (0, "2 x\n2 x\n", ""))

    def test_a_wrong_variable_is_named(self):
        got = self.run_it("true", env={"PET_NPROC_PER_NODE": "two"})
        self.assertEqual(got.returncode, 2)
        self.assertIn("PET_NPROC_PER_NODE takes a number", got.stderr)

    def test_omp_num_threads_is_logged_once(self):
        del self.env["OMP_NUM_THREADS"]
        got = self.run_it("--nproc-per-node", 2, "--max-restarts", 1, "sh", "-c",
                          'test "$OMP_NUM_THREADS" = 1 && test $TORCHELASTIC_RESTART_COUNT = 1')
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(got.stderr.count("OMP_NUM_THREADS"), 1, got.stderr)
        got = self.run_it("--nproc-per-node", 2, "--omp-num-threads", "3", "sh", "-c", "echo $OMP_NUM_THREADS")
        self.assertEqual((got.stdout, got.stderr), ("3\n3\n", ""))


class Programs(Run):
    def test_a_python_script_is_run_unbuffered_and_a_program_directly(self):
        script = self.write("s.py", "import sys\nprint(sys.argv[1:], sys.stdout.write_through, __name__)\n")
        got = self.run_it(script, "${local_rank}", "b c", env={"PYTHON_EXEC": PYTHON})
        self.assertEqual((got.returncode, got.stdout), (0, "['0', 'b c'] True __main__\n"), got.stderr)
        got = self.run_it("--no-python", script)
        self.assertEqual(got.returncode, 126)
        os.chmod(script, 0o755)
        os.rename(script, self.folder + "/plain")
        self.write("plain", "#!/bin/sh\necho \"$@\"\n")
        got = self.run_it(self.folder + "/plain", "x")
        self.assertEqual((got.returncode, got.stdout), (0, "x\n"), got.stderr)

    def test_modules_and_paths_are_run_by_python(self):
        self.write("mod.py", "import sys\nprint(sys.argv[1:], sys.stdout.write_through, __name__)\n")
        for options, name in (["-m"], "mod"), (["--run-path"], os.path.join(self.folder, "mod.py")):
            got = self.run_it(*options, name, "a", cwd=self.folder, env={"PYTHON_EXEC": PYTHON})
            self.assertEqual((got.returncode, got.stdout), (0, "['a'] True __main__\n"), got.stderr)

    def test_cairn_launch_passes_the_local_rank(self):
        link = self.launch_link()
        show = self.write("show", '#!/bin/sh\necho "$*" > "$OUT/$LOCAL_RANK"\n')
        os.chmod(show, 0o755)
        out = {"OUT": self.folder}
        got = self.run_it("--nproc_per_node=2", show, "--x", "${local_rank}", program=link, env=out)
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        for r in 0, 1:
            self.assertEqual(read(f"{self.folder}/{r}"), f"--local_rank={r} --x {r}\n")
        got = self.run_it("--use_env", "--no_python", "--nproc_per_node=2", show, "--x", program=link, env=out)
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        self.assertEqual(read(f"{self.folder}/1"), "--x\n")
        got = self.run_it("--no_python", show, program=link)
        self.assertEqual(got.returncode, 2)
        self.assertIn("needs --use-env too", got.stderr)


class Logs(Run):
    def files(self, pattern):
        """Paths below the folder of --log-dir, as they are below <id>_<random>/, with their texts."""
        found = {}
        for path in glob.glob(f"{self.folder}/logs/*/{pattern}"):
            found[os.path.relpath(path, f"{self.folder}/logs").split("/", 1)[1]] = read(path)
        return found

    def test_teed_output_has_prefixes_on_stdout_and_stderr(self):
        got = self.run_it("--nproc-per-node", 2, "-t", "3", "--role", "r", "sh", "-c",
                          "for i in 1 2 3; do echo out $i; echo err $i >&2; done; printf end")
        self.assertEqual(got.returncode, 0, got.stderr)
        for r in 0, 1:
            for stream, text, end in (got.stdout, "out", ["end"]), (got.stderr, "err", []):
                mine = [line.split(":", 1)[1] for line in stream.splitlines() if line.startswith(f"[r{r}]:")]
                self.assertEqual(mine, [f"{text} {i}" for i in (1, 2, 3)] + end)
        self.assertEqual(len(got.stdout.splitlines()), 8)
        self.check_nothing_temporary_is_left()

    def test_the_prefix_can_be_chosen(self):
        got = self.run_it("--nproc-per-node", 2, "-t", "1:1", "sh", "-c", "echo x$LOCAL_RANK",
                          env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}/$role_name> "})
        self.assertEqual(sorted(got.stdout.splitlines()), ["<1/default> x1", "x0"])

    def test_redirected_output_is_in_files_only(self):
        logs = self.folder + "/logs"
        got = self.run_it("--nproc-per-node", 2, "--log-dir", logs, "--rdzv-id", "job/7", "-r", "0:3,1:2", "sh", "-c",
                          "echo out$RANK; echo err$RANK >&2")
        self.assertEqual((got.returncode, got.stdout, got.stderr), (0, "out1\n", ""))
        self.assertEqual(self.files("*/*/*"), {"attempt_0/0/stdout.log": "out0\n", "attempt_0/0/stderr.log": "err0\n",
                                               "attempt_0/1/stderr.log": "err1\n"})
        run, = os.listdir(logs)
        self.assertTrue(run.startswith("job_7_"))
        self.check_nothing_temporary_is_left()

    def test_an_own_folder_with_redirected_output_is_named(self):
        got = self.run_it("-r", "1", "echo", "x")
        self.assertEqual((got.returncode, got.stdout), (0, ""))
        self.assertIn(f"the ranks' output is in {self.folder}/tmp/", got.stderr)
        self.assertEqual(read(got.stderr.split()[-1] + "/attempt_0/0/stdout.log"), "x\n")

    def test_a_filtered_rank_is_silent(self):
        got = self.run_it("--nproc-per-node", 3, "--local-ranks-filter", "1", "sh", "-c", "echo $RANK; echo $RANK >&2")
        self.assertEqual((got.returncode, got.stdout, got.stderr), (0, "1\n", "1\n"))

    def test_dev_null_as_folder_leaves_no_files(self):
        got = self.run_it("--log-dir=/dev/null", "-r", "1", "sh", "-c",
                          'echo out; echo "[$TORCHELASTIC_ERROR_FILE]" >&2')
        self.assertEqual((got.returncode, got.stdout, got.stderr), (0, "", "[]\n"))
        self.check_nothing_temporary_is_left()

    def test_every_attempt_has_its_folder(self):
        got = self.run_it("--max-restarts", 2, "--log-dir", self.folder + "/logs", "-t", "1", "sh", "-c",
                          "echo attempt $TORCHELASTIC_RESTART_COUNT; test $TORCHELASTIC_RESTART_COUNT = 2")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(got.stdout, "".join(f"[default0]:attempt {i}\n" for i in range(3)))
        self.assertEqual(self.files("*/*/*"), {f"attempt_{i}/0/stdout.log": f"attempt {i}\n" for i in range(3)})

    def test_ranks_can_write_their_error_files(self):
        got = self.run_it("--nproc-per-node", 2, "--log-dir", self.folder + "/logs", "sh", "-c",
                          "echo > $TORCHELASTIC_ERROR_FILE")
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        self.assertEqual(sorted(self.files("*/*/*")), ["attempt_0/0/error.json", "attempt_0/1/error.json"])

    def test_no_folder_is_left_after_a_failure_or_a_signal(self):
        got = self.run_it("-t", "3", "sh", "-c", "echo last words; echo > $TORCHELASTIC_ERROR_FILE; kill -KILL $$$$")
        self.assertEqual(got.returncode, 128 + signal.SIGKILL)
        self.assertEqual(got.stdout, "[default0]:last words\n")
        self.check_nothing_temporary_is_left()
        job = subprocess.Popen([CAIRN_RUN, "-t", "3", "sh", "-c", "echo up; exec sleep 600"], env=self.env,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        self.assertEqual(job.stdout.readline(), "[default0]:up\n")  # while the rank runs
        job.terminate()
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGTERM)
        self.check_nothing_temporary_is_left()

    def test_much_teed_output_arrives_whole(self):
        got = self.run_it("--nproc-per-node", 2, "-t", "1", "sh", "-c", "seq 50000")
        self.assertEqual(got.returncode, 0, got.stderr)
        lines = got.stdout.splitlines()
        for r in 0, 1:
            head = f"[default{r}]:"
            mine = [line[len(head):] for line in lines if line.startswith(head)]
            self.assertEqual(mine, [str(i + 1) for i in range(50000)])
        self.assertEqual(len(lines), 100000)

    def test_a_console_that_is_closed_stops_no_rank(self):
        job = subprocess.Popen([CAIRN_RUN, "--nproc-per-node", "2", "-t", "1", "sh", "-c",
                                f"yes | head -n 20000; sleep 0.3; echo more; echo > {self.folder}/done$RANK"],
                               env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.kill)
        job.stdout.readline()
        job.stdout.close()
        self.assertEqual(job.wait(PATIENCE), 0)
        self.assertEqual(job.stderr.read(), "")
        job.stderr.close()
        for r in 0, 1:
            self.assertTrue(os.path.exists(f"{self.folder}/done{r}"))
        self.check_nothing_temporary_is_left()

    def test_an_unread_console_delays_no_rank(self):
        ends = os.pipe()
        job = subprocess.Popen([CAIRN_RUN, "--nproc-per-node", "2", "-t", "1", "sh", "-c",
                                f"yes | head -n 200000; echo > {self.folder}/done$RANK; exec sleep 600"],
                               env=self.env, stdout=ends[1], stderr=subprocess.DEVNULL)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        os.close(ends[1])
        wait_until(lambda: all(os.path.exists(f"{self.folder}/done{r}") for r in (0, 1)), "both ranks had written")
        job.terminate()
        with open(ends[0], encoding="ascii") as console:
            self.assertEqual(len(console.readlines()), 400000)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGTERM)

    def test_closed_standard_streams_do_no_harm(self):
        script = f'exec "$0" --nproc-per-node 2 "$@" sh -c "echo x; echo x >&2; echo > {self.folder}/done\\$RANK"'
        for closed in ">&-", "2>&-", "<&-", "<&- >&- 2>&-":
            for options in [], ["-t", "3"]:
                subprocess.run(["sh", "-c", f"{script} {closed}", CAIRN_RUN, *options], env=self.env, timeout=PATIENCE,
                               check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for r in 0, 1:
                    os.remove(f"{self.folder}/done{r}")


if __name__ == "__main__":
    launching.main(sys.argv)
