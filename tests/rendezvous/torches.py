"""The PyTorches on this machine, for tests that have one as their peer: Debian's python3-torch, and one of PyPI where
tools/install-peers put it, or those whose pythons CAIRN_TEST_TORCH2 names, with : between them."""
import os
import subprocess
import sys

# Debian's launcher reads -r and -t by a way of enum that its Python 3.11 no longer has.
DEBIAN_LAUNCHER = """
import sys, runpy, torch.distributed.elastic.multiprocessing.api as api
def streams(cls, text):
    if ":" not in text:
        return api.Std(int(text))
    return {int(rank): api.Std(int(bits)) for rank, bits in (part.split(":") for part in text.split(","))}
api.Std.from_str = classmethod(streams)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


class Torch:
    def __init__(self, python, version):
        self.python, self.version = python, version
        self.release = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
        self.has_new_dialect = self.release >= (2, 2)

    def __str__(self):
        return f"torch {self.version}"

    def module(self, name):
        """The command that runs a module of torch's."""
        if self.release < (2, 0):
            return [self.python, "-c", DEBIAN_LAUNCHER, name]
        return [self.python, "-m", name]


def find(source_root):
    own = os.path.join(source_root, "build-check/peers/torch2/bin/python")
    found, seen = [], set()
    for python in ["/usr/bin/python3"] + os.environ.get("CAIRN_TEST_TORCH2", own).split(":"):
        if not os.path.exists(python):
            continue
        probe = subprocess.run([python, "-c", "import torch, torch.distributed\n"
                                "print(torch.__version__)"], capture_output=True, text=True, timeout=120, check=False)
        version = probe.stdout.strip()
        if probe.returncode == 0 and version not in seen:
            seen.add(version)
            found.append(Torch(python, version))
    return found


def environment(facts, **more):
    """This process's, without what a launcher may have told it, and with those facts."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    kept = {name: value for name, value in os.environ.items()
            if name not in names and not name.startswith("TORCHELASTIC")}
    return {**kept, "TORCH_CPP_LOG_LEVEL": "ERROR", **facts, **more}


def find_or_skip(source_root):
    found = find(source_root)
    if not found:
        print("skipped: no PyTorch can be imported here; tools/install-peers installs two")
        sys.exit(77)
    print("with " + ", ".join(f"{torch} ({torch.python})" for torch in found), flush=True)
    return found
