"""Benchmarks' environment: a description of the machine, programs of a build, a PyTorch to compare with."""
import collections
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NEWEST = os.path.join(ROOT, "build-check/peers/torch2/bin/python")  # where tools/install-peers put it

# prefix: of a virtual environment its own, although its python may be a link to the system's.
Torch = collections.namedtuple("Torch", "python version prefix")

PROBE = """
import json, sys, torch, numpy
with open("/proc/self/maps") as maps:
    files = sorted({line.split(None, 5)[5].strip() for line in maps if "/" in line})
print(json.dumps({"version": torch.__version__, "prefix": sys.prefix, "config": torch.__config__.show(),
                  "files": files}))
"""
PATIENCE = 120  # seconds until PyTorch is imported


class Missing(Exception):
    """The sentence says what is not here, and how to get it."""


# ---- programs ----

def ninja(folder, *args):
    try:
        return subprocess.run(["ninja", "-C", folder, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as why:
        raise Missing(f"ninja cannot be started: {why.strerror} (Debian: ninja-build)") from None


def build(folder, *targets):
    """Builds those targets of a folder of meson's that are not there yet."""
    missing = [target for target in targets if not os.path.exists(os.path.join(folder, target))]
    if not missing:
        return
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        raise Missing(f"there is no {folder}/{missing[0]}: run tools/quickstart, which installs what is missing and "
                      "builds in build/, or give --build FOLDER")
    done = ninja(folder, "-n", *missing)
    if "unknown target" not in done.stdout:
        print(f"building {', '.join(missing)} in {folder} ...", file=sys.stderr, flush=True)
        done = ninja(folder, *missing)
    if "unknown target" in done.stdout: # of a folder that had to be set up anew it comes late
        raise Missing(f"{folder} was set up without {missing[0]}: 'meson setup --reconfigure {folder}' says at its end "
                      "what is left out and why")
    if done.returncode:
        raise Missing(f"ninja -C {folder} {' '.join(missing)} failed:\n{done.stdout[-2000:]}")


def program(folder, target):
    """The path of a program, which is built where it is not there."""
    build(folder, target)
    return os.path.abspath(os.path.join(folder, target))


class Worker:
    """A program of a build, on one thread, that answers a line by lines, the last of which is "end"."""

    def __init__(self, folder, target, variables=()):
        self.name = os.path.basename(target)
        self.process = subprocess.Popen([program(folder, target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **dict(variables)})

    def ask(self, *words):
        try:
            self.process.stdin.write("\t".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said before is still there
        lines = []
        for line in self.process.stdout:
            if line == "end\n":
                return lines
            lines.append(line.rstrip("\n"))
        raise Missing(f"{self.name} ended in {words[0]}; what it said is above")

    def end(self):
        self.process.communicate()


def why_failed(done):
    """What a program that failed said, or else how it ended. done: a CompletedProcess with stderr as text."""
    said = done.stderr.strip()[-1000:]
    if said:
        return said
    code = done.returncode
    return f"signal {-code} ended it" if code < 0 else f"it said nothing and returned {code}"


# ---- PyTorch ----

def reference_blas(config, files):
    """The file of the reference BLAS (netlib's plain loops) if that is what this PyTorch multiplies with."""
    if "BLAS_INFO=generic" not in config:
        return None
    return next((path for path in files if os.path.basename(path).startswith("libblas.so")
                 and not re.search("openblas|atlas|blis|flexiblas|mkl", path)), None)


def ask_torch(python):
    try:
        probe = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=PATIENCE, check=False)
        told = json.loads(probe.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None, None
    blas = reference_blas(told["config"], told["files"])
    if blas:
        return None, (f"PyTorch {told['version']} of {python} multiplies by the reference BLAS ({blas}), much slower "
                      "than what its users have; apt-get install libopenblas0")
    return Torch(python, told["version"], told["prefix"]), None


def find_torch(wanted):
    """The wanted Python's PyTorch; without a wish the newest of tools/install-peers, else python3's, else Debian's."""
    refused = None
    for python in [wanted] if wanted else [NEWEST, "python3", "/usr/bin/python3"]:
        torch, why = ask_torch(python)
        if torch:
            return torch
        refused = refused or why
    raise Missing(refused or f"{wanted} cannot import torch and numpy" if wanted else
                  refused or "no Python here can import torch and numpy (tools/install-peers installs them)")


def enter_torch(wanted):
    """This process becomes that of find_torch's Python, and starts anew, where it is not; else why there is none."""
    try:
        torch = find_torch(wanted)
    except Missing as why:
        return why
    if torch.prefix != sys.prefix:
        sys.stdout.flush()
        os.execvp(torch.python, [torch.python] + sys.argv)
    return None


# ---- the machine ----

def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0] if names else "unknown CPU"


def instruction_sets():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        text = info.read()
    return " ".join(f for f in ("avx2", "avx512f", "avx512_bf16") if re.search(rf"\b{f}\b", text))


def num_processors():
    return len(os.sched_getaffinity(0))
