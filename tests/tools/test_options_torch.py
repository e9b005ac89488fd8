"""Gives random command lines to cairn-run's options and to torch's own launcher, and compares what they understood.

usage: test_options_torch.py path/to/options (a program that prints what cairn-run reads)"""
import os
import random
import re
import subprocess
import sys
import tempfile

OPTIONS = os.path.abspath(sys.argv[1])
SKIP = 77
LINES = 400
PYTHONS = [sys.executable, "/usr/bin/python3"]

# What torch 1.13 to 2.x have alike. Each name with some right and some wrong values; None = a flag.
CHOICES = {
    "nnodes": ["1", "2", "1:1", "1:3", "0", "3:2", "x", "1:2:3", ""],
    "nproc_per_node": ["1", "2", "3", "cpus", "x"],
    "node_rank": ["0", "1", "x", "1.5"],
    "master_addr": ["localhost", "10.0.0.1", "a-b.c"],
    "master_port": ["29501", "1", "x", ""],
    "standalone": None,
    "rdzv_backend": ["static", "c10d"],
    "rdzv_endpoint": ["", "h:123", "localhost:29401", "h:x", "h", "[::1]:5"],
    "rdzv_id": ["none", "job"],
    "rdzv_conf": ["", "join_timeout=3", "read_timeout=3, last_call_timeout=4", "join_timeout", "=3"],
    "max_restarts": ["0", "3", "x", "2.5"],
    "monitor_interval": ["1", "0.5", "1e-1", ".5", "x", "0x1"],
    "start_method": ["spawn", "fork", "thread"],
    "role": ["r", "a b", ""],
    "module": None,
    "no_python": None,
    "run_path": None,
    "log_dir": ["/tmp/l", ""],
    "redirects": ["0", "3", "4", "0:1", "0:3,1:2", "0:3,", "x"],
    "tee": ["1", "2", "1:3", "0:0,1:1,2:2", "1:4"],
    "use_env": None,
}
PROGRAMS = [["p.py"], ["p.py", "--x", "${local_rank}"], ["p.py", "--nnodes", "9"], ["p.py", "-x", "$$", "--"], []]


def random_word(pick, name, abbreviate):
    shown = name if pick.random() < 0.8 or not abbreviate else name[:pick.randrange(2, len(name) + 1)]
    return "--" + shown


def random_line(pick, abbreviate):
    line = []
    for name in pick.sample(sorted(CHOICES), pick.choice([0, 1, 1, 2, 2, 3, 4])):
        values, word = CHOICES[name], random_word(pick, name, abbreviate)
        if values is None:
            line.append(word)
        elif pick.random() < 0.5:
            line += [word, pick.choice(values)]
        else:
            line.append(word + "=" + pick.choice(values))
    return line + pick.choice(PROGRAMS + PROGRAMS[:1] * 3)


# ---- torch, in a process that has it ----

def streams(text, ranks):
    """Of 1.13's Std.from_str, which Debian's Python has broken, what it means."""
    if re.fullmatch(r"[0123]", text):
        return [int(text)] * ranks
    if not re.match(r"^(\d:[0123],)*(\d:[0123])$", text):
        raise ValueError(text)
    named = {int(word.split(":")[0]): int(word.split(":")[1]) for word in text.split(",")}
    return [named.get(r, 0) for r in range(ranks)]


def torch_reads(launcher, run, parse_endpoint, line):
    """The fields that `options` prints; raises where torch would."""
    from torch.distributed.elastic.utils.api import macros
    args = launcher.parse_args(line)
    if args.no_python and not args.use_env:
        raise ValueError("no_python without use_env")
    if args.standalone:
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", "random"
    args.master_port = 29500 if args.master_port is None else args.master_port  # 2.15 does it later
    redirects, tee = args.redirects, args.tee
    args.redirects = args.tee = "0"
    run.Std.from_str = classmethod(lambda cls, text: cls(int(text)))
    config, command, words = run.config_from_args(args)
    ranks = config.nproc_per_node
    host, port = parse_endpoint(config.rdzv_endpoint, 29400 if config.rdzv_backend == "c10d" else args.master_port)
    fields = [f"nodes {config.min_nodes} {config.max_nodes}", f"ranks {ranks}", f"backend {config.rdzv_backend}",
              f"endpoint {host} {port}", f"id {config.run_id}", f"node_rank {args.node_rank}",
              f"max_restarts {config.max_restarts}",
              "monitor_interval %g" % config.monitor_interval, f"role {config.role}",
              f"log_dir {args.log_dir or ''}",
              "redirects" + "".join(f" {s}" for s in streams(redirects, ranks)),
              "tee" + "".join(f" {s}" for s in streams(tee, ranks))]
    first = [] if callable(command) else [command]
    words = first + macros.substitute(words, "3")
    return fields + ["word " + word.replace("--local-rank=", "--local_rank=") for word in words]  # as 1.13 spells it


def serve():
    """Answers each line (words that NUL separates) on stdin: fields, or "refused"; NUL after each."""
    import contextlib
    import io
    import logging
    logging.disable(logging.CRITICAL)
    from torch.distributed import launch, run
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
    for line in sys.stdin.read().split("\0\n")[:-1]:
        words = line.split("\0") if line else []
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                out = torch_reads(launch, run, parse_rendezvous_endpoint, words)
        except (SystemExit, ValueError, AssertionError, RuntimeError):
            out = ["refused"]
        print("\n".join(out), end="\0")


def find_torch():
    """A Python, and whether its torch has each name once: 2.x calls a beginning of two spellings ambiguous."""
    ask = "import importlib.metadata; print(importlib.metadata.version('torch'))"
    for python in PYTHONS:
        if not os.path.exists(python):
            continue
        told = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        if told.returncode == 0:
            return python, told.stdout.startswith("1.")
    print("no Python here has torch")
    sys.exit(SKIP)


# ---- both ----

# What cairn-run refuses on purpose. (It also leaves "--" right after the program's name to the program, which argparse
# of some Pythons takes out.)
PURPOSE = ["can be any of",  # it has more options, so fewer beginnings are a name
           "--standalone is for one node", "it is a number from", "cannot meet at a port"]


def differences(ours, theirs):
    """Pairs of fields, apart from what cairn-run chooses otherwise on purpose."""
    found = []
    for our, their in zip(ours, theirs):
        free_port = our.startswith("endpoint ") and our == " ".join(their.split()[:2] + ["0"])
        all_nodes = our.startswith("nodes ") and our.split()[1:] == their.split()[2:] * 2
        interval = (our, their) == ("monitor_interval 0.1", "monitor_interval 5")  # the default of 1.13 to 2.1
        if our != their and not (free_port or all_nodes or interval):
            found.append((our, their))
    return found if len(ours) == len(theirs) else [(ours, theirs)]


def main():
    python, abbreviate = find_torch()
    seed = random.randrange(1 << 32)
    pick = random.Random(seed)
    lines = [random_line(pick, abbreviate) for _ in range(LINES)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PET_")}
    env.update(OMP_NUM_THREADS="1", PYTHON_EXEC="python", PYTHONWARNINGS="ignore")
    text = "".join("\0".join(line) + "\0\n" for line in lines)
    served = subprocess.run([python, __file__, OPTIONS, "--serve"], input=text, stdout=subprocess.PIPE, text=True,
                            env=env, check=True, timeout=300).stdout.split("\0")[:-1]
    assert len(served) == len(lines), (len(served), len(lines))
    wrong = taken = 0
    with tempfile.TemporaryDirectory() as folder:
        launch = os.path.join(folder, "cairn-launch")
        os.symlink(OPTIONS, launch)
        for line, theirs in zip(lines, served):
            got = subprocess.run([launch, *line], capture_output=True, text=True, env=env, check=False, timeout=60)
            refused = got.returncode != 0
            if refused and any(part in got.stderr for part in PURPOSE):
                continue
            if refused != (theirs == "refused"):
                print(f"{line}: cairn {got.stderr.strip() or 'takes it'}; torch: {theirs}")
                wrong += 1
            elif not refused:
                taken += 1
                found = differences(got.stdout.splitlines(), theirs.splitlines())
                for our, their in found:
                    print(f"{line}: cairn {our}; torch {their}")
                wrong += bool(found)
    print(f"seed {seed}: {LINES} lines, {taken} taken by both, {wrong} understood differently")
    return 1 if wrong or taken < LINES / 10 else 0


if __name__ == "__main__":
    if sys.argv[2:] == ["--serve"]:
        serve()
    else:
        sys.exit(main())
