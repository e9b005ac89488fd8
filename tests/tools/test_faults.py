"""Ranks of the quick start that end, die or stop at random moments: cairn-run ends the others, reports which rank
failed first and with which code, and nothing is left behind.

usage: test_faults.py cairn-run faulty_quickstart moments [seed]

CAIRN_TEST_FAULTS overrides the number of moments. What failed is said with what it takes to run it again."""
import concurrent.futures
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

CAIRN_RUN, PROGRAM = map(os.path.abspath, sys.argv[1:3])
MOMENTS = int(os.environ.get("CAIRN_TEST_FAULTS") or sys.argv[3])
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 1
RANKS = 3
PATIENCE = 90      # seconds for what takes milliseconds, on a machine that is busy
STOP_TIMEOUT = "2" # CAIRN_TIMEOUT: a stopped rank is noticed then
AT_ONCE = 3        # jobs: the moments of one come while others keep the processors busy

# What happens to a rank: the signal it is sent, what cairn-run's exit code and its sentence then are.
EXIT = (signal.SIGUSR1, 9, "exit code 9")
KILL = (signal.SIGKILL, 137, r"killed by signal 9 \(SIGKILL\)")
TERM = (signal.SIGTERM, 143, r"killed by signal 15 \(SIGTERM\)")
SEGV = (signal.SIGSEGV, 139, r"killed by signal 11 \(SIGSEGV\)")
STOP = (signal.SIGSTOP, 1, "exit code 1")
FAULTS = (EXIT, KILL, TERM, SEGV, STOP)

# SIGUSR1 before the program has its handler.
TOO_EARLY = (signal.SIGUSR1, 138, r"killed by signal 10 \(SIGUSR1\)")


def environments(mark):
    """The processes with the mark in their environment, and what is in it."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                lines = f.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if f"CAIRN_TEST_MARK={mark}" in lines:
            found[int(pid)] = dict(line.partition("=")[::2] for line in lines if line)
    return found


class Moment:
    """A job, and one fault in each of its attempts but the last."""

    def __init__(self, number, faulty_attempts=1):
        self.random = random.Random(f"{SEED} {number} {faulty_attempts}")
        self.number, self.faulty_attempts = number, faulty_attempts
        self.mark = uuid.uuid4().hex
        self.story, self.problems, self.faults = [], [], []
        self.slowest = 0

    def check(self, condition, problem):
        if not condition:
            self.problems.append(problem)

    def find_rank(self, job, rank, attempt):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and job.poll() is None:
            for pid, env in environments(self.mark).items():
                if (env.get("RANK"), env.get("TORCHELASTIC_RESTART_COUNT")) == (str(rank), str(attempt)):
                    return pid
        return None

    def disturb(self, job, attempt):
        """Short waits are as likely as long ones, so that launch and meeting are hit as well as training."""
        fault, rank = FAULTS[(self.number + attempt) % len(FAULTS)], self.random.randrange(RANKS)
        delay = 0.001 * math.exp(self.random.random() * math.log(600))
        self.story.append(f"attempt {attempt}: {fault[0].name} for rank {rank} after {delay * 1e3:.0f} ms")
        pid = self.find_rank(job, rank, attempt)
        if pid is None:
            self.problems.append(f"rank {rank} of attempt {attempt} did not come")
            return
        time.sleep(delay)
        os.kill(pid, fault[0])
        self.faults.append((fault, rank, pid, time.monotonic()))

    def start(self, folder):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCH", "CAIRN", "MASTER_"))}
        env.update(CAIRN_TEST_MARK=self.mark, TMPDIR=folder, FAULTY_ATTEMPTS=str(self.faulty_attempts),
                   CAIRN_TIMEOUT=STOP_TIMEOUT, OMP_NUM_THREADS="1")
        for name in "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS": # or SIGSEGV ends a rank with a code of theirs
            env[name] = env.get(name, "") + ":handle_segv=0"
        options = ["--max_restarts", str(self.faulty_attempts)] if self.faulty_attempts > 1 else []
        return subprocess.Popen([CAIRN_RUN, "--nproc_per_node", str(RANKS), *options, PROGRAM, "--steps", "50"],
                                env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def check_attempt(self, fault, rank, pid, report):
        """Its first failure is in the report: the victim's end, or what another said of a victim that was stopped."""
        who = rf"rank (\d) \(local_rank \d, pid (\d+)\) of \S+ failed first: ({fault[2]})\n"
        said = re.search(who, report)
        early = said or fault is not EXIT or not re.search(who.replace(fault[2], TOO_EARLY[2]), report)
        if not early:
            return TOO_EARLY
        self.check(said, f"'{fault[2]}' is not in the report")
        if said and fault is STOP:
            self.check(int(said[1]) != rank, "the stopped rank is called the first to fail")
            self.check(f"rank {rank} (local_rank {rank}, pid {pid}) of {PROGRAM} was stopped (SIGSTOP)" in report,
                       "the report does not say that a rank was stopped")
        elif said:
            self.check((int(said[1]), int(said[2])) == (rank, pid), f"rank {said[1]} is called the first to fail")
        return fault

    def check_end(self, code, out, err, folder):
        parts = re.split(r"cairn-run: starting all ranks again: restart \d of \d\n", err)
        self.check(len(parts) == (self.faulty_attempts + 1 if self.faulty_attempts > 1 else 1),
                   f"there were {len(parts)} attempts")
        for (fault, rank, pid, _), report in zip(self.faults, parts):
            expected = self.check_attempt(fault, rank, pid, report)[1]
        if self.faulty_attempts > 1:
            expected = 0
            self.check(f"attempt {self.faulty_attempts} trained\n" in out, "the last attempt did not say so")
        self.check(code == expected, f"exit code {code}, not {expected}")
        left = environments(self.mark)
        self.check(not left, f"processes are left: {left}")
        self.check(os.listdir(folder) == [], f"files are left: {os.listdir(folder)}")

    def run(self):
        """What was wrong, as a text; None where nothing was."""
        with tempfile.TemporaryDirectory() as folder:
            job = self.start(folder)
            try:
                for attempt in range(self.faulty_attempts):
                    self.disturb(job, attempt)
                out, err = job.communicate(timeout=PATIENCE)
                if self.faults:
                    self.slowest = time.monotonic() - self.faults[-1][3]
                    self.check_end(job.returncode, out, err, folder)
            except subprocess.TimeoutExpired:
                self.problems.append(f"cairn-run did not end within {PATIENCE} s")
                job.kill()
                out, err = job.communicate()
            for pid in environments(self.mark) if self.problems else ():
                os.kill(pid, signal.SIGKILL)
        if not self.problems:
            return None
        name = f"moment {self.number} of seed {SEED}, {self.faulty_attempts} attempts:"
        return "\n".join([name, *self.story, *self.problems, err])


def run_shell(ranks, script):
    """cairn-run's exit code and stderr, of ranks that are shells."""
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCH", "CAIRN"))}
        done = subprocess.run([CAIRN_RUN, "--nproc_per_node", str(ranks), "sh", "-c", script],
                              env=dict(env, TMPDIR=folder), capture_output=True, text=True, timeout=PATIENCE,
                              check=False)
    return done.returncode, done.stderr


class Order(unittest.TestCase):
    """Where a rank that noticed another's end is seen to fail before that one is."""

    NOTICE = """echo '{"message": {"message": "CAIRN_EPEER: rank 1 ended", "extraInfo": {"timestamp": "1"}}}' \
        > $TORCHELASTIC_ERROR_FILE; exit 1"""

    def test_rank_that_only_noticed_an_end_is_not_called_the_first(self):
        for end, code, said in (("exit 9", *EXIT[1:]), ("kill -TERM $$$$", *TERM[1:])):
            result, err = run_shell(3, f"""case $RANK in
                0) {self.NOTICE};;
                1) sleep 0.2; {end};;
                2) sleep 1000;;
            esac""")
            self.assertEqual(result, code, err)
            self.assertRegex(err, rf"rank 1 .*failed first: {said}\n(.*\n)*.*rank 0 .*failed too: exit code 1\n")

    def test_end_that_no_failure_explains_is_reported_as_it_was_noticed(self):
        begin = time.monotonic()
        result, err = run_shell(3, f"case $RANK in 0) {self.NOTICE};; 1) exit 0;; 2) sleep 1000;; esac")
        self.assertEqual(result, 1, err)
        self.assertRegex(err, "rank 0 .*failed first: exit code 1\n")
        self.assertGreater(time.monotonic() - begin, 1)

    def test_last_rank_is_not_waited_for(self):
        result, err = run_shell(1, self.NOTICE)
        self.assertEqual(result, 1, err)
        self.assertRegex(err, "rank 0 .*failed first: exit code 1\n")


class Faults(unittest.TestCase):
    def survive(self, moments):
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            problems = [text for text in pool.map(Moment.run, moments) if text]
        print(f"{len(moments)} moments, {len(problems)} with problems, the slowest end took "
              f"{max(m.slowest for m in moments):.1f} s")
        self.assertFalse(problems, "\n\n".join(problems))

    def test_rank_fails_at_a_random_moment(self):
        self.survive([Moment(n) for n in range(MOMENTS)])

    def test_third_attempt_succeeds_where_two_failed(self):
        self.survive([Moment(n, faulty_attempts=2) for n in range(max(2, MOMENTS // 10))])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
