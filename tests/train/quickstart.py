"""Shared by the tests of launchers: an environment without launchers' variables, and the quick start's losses, which do
not depend on the launcher."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import ports  # noqa: E402

PATIENCE = 120  # seconds for what takes one, on a busy machine or under a sanitizer
STEPS = 20

# What launchers tell their processes, and what would change Cairn's mind.
TOLD = re.compile(r"(RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE|MASTER|TORCHELASTIC|PET|OMPI|PMIX?|MPI|MPIR|HYDRA|SLURMD?)_.*|"
                  r"PRTE_.*|CAIRN_(LOG|DEVICE|TIMEOUT|HOST_ID|STORE_DIALECT))$")


def free_port():
    return str(ports.free_port())


def clean_env(**more):
    return dict({name: value for name, value in os.environ.items() if not TOLD.match(name)}, **more)


def run(command, env=None, timeout=PATIENCE, **how):
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False,
                          stdin=subprocess.DEVNULL, env=clean_env() if env is None else env, **how)


def run_together(commands, environments):
    """Runs one command in each environment, all at once; a list as of run()."""
    started = [subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for command, env in zip(commands, environments)]
    try:
        return [subprocess.CompletedProcess(s.args, s.wait(), *ends)
                for s, ends in [(s, s.communicate(timeout=PATIENCE)) for s in started]]
    finally:
        for s in started:
            if s.poll() is None:
                s.kill()
                s.communicate()


def as_one(ranks):
    """What a launcher would have made of its ranks: all they said, and a code that is not 0 if any is."""
    code = max((rank.returncode for rank in ranks), key=abs)
    return subprocess.CompletedProcess(ranks[0].args, code, "".join(r.stdout for r in ranks),
                                       "".join(r.stderr for r in ranks))


def digits(text):
    """What one rank alone prints: the losses and the count of skipped steps. Twice of one is somebody who trains
    alone."""
    return re.findall(r"^(first loss|final loss|skipped steps) = (\S+)$", text, re.M)


class Quickstart:
    """The program, and what it prints when cairn-run starts it."""

    def __init__(self, cairn_run, program):
        self.cairn_run, self.program = os.path.abspath(cairn_run), os.path.abspath(program)
        self.known = {}

    def command(self, seed=0, steps=STEPS):
        return [self.program, "--opt-level", "O2", "--half", "bf16", "--seed", str(seed), "--steps", str(steps)]

    def expected(self, ranks, seed=0):
        if (ranks, seed) not in self.known:
            got = run([self.cairn_run, "--nproc-per-node", str(ranks), *self.command(seed)])
            assert got.returncode == 0 and len(digits(got.stdout)) == 3, got.stdout + got.stderr
            self.known[ranks, seed] = digits(got.stdout)
        return self.known[ranks, seed]

    def trains(self, test, ranks, got, seed=0):
        """Asserts that `got`, of a finished process, has the digits of so many ranks."""
        test.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        test.assertEqual(digits(got.stdout), self.expected(ranks, seed), got.stdout + got.stderr)
