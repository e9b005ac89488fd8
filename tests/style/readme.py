#!/usr/bin/env python3
"""The README's program compiles without warnings and trains, on one process and on two, and says little on stderr. It
ends without ddp_destroy, and leaves what CAIRN_DDP_LOG asks for all the same.

usage: readme.py ROOT LIBRARY CAIRN_RUN CC...
"""
import json
import os
import re
import subprocess
import sys
import tempfile


def main():
    root, library, launcher, compiler = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    with open(os.path.join(root, "README.md")) as readme:
        program = re.search(r"^```c\n(.*?)^```$", readme.read(), re.M | re.S).group(1)
    folder = os.path.dirname(os.path.abspath(library))
    with tempfile.TemporaryDirectory() as work:
        source, binary = os.path.join(work, "train.c"), os.path.join(work, "train")
        with open(source, "w") as f:
            f.write(program)
        flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", os.path.join(root, "include")]
        subprocess.run([*compiler, *flags, source, "-o", binary, library, f"-Wl,-rpath,{folder}"], check=True)
        log = os.path.join(work, "log")
        env = {**os.environ, "CAIRN_DDP_LOG": log}
        for command in ([binary], [launcher, "--nproc_per_node", "2", binary]):
            run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=env)
            out, said = run.stdout, run.stderr.splitlines()
            if len(said) != (2 if command[0] == launcher else 1):  # the level; the launcher's choice of threads
                sys.exit(f"{' '.join(command)} said {len(said)} lines:\n{run.stderr}")
            losses = [float(line) for line in out.split()]
            ranks = 2 if len(command) > 1 else 1
            if len(losses) != 5 * ranks or min(losses[-ranks:]) >= losses[0]:
                sys.exit(f"{' '.join(command)} printed {losses}")
            with open(log, encoding="utf-8") as f:
                told = json.load(f)
            if told["world_size"] != ranks or not 256 <= told["iteration"] <= 500:
                sys.exit(f"CAIRN_DDP_LOG has {told['iteration']} iterations of {told['world_size']} ranks")
            os.remove(log)
    print("README's program trains")


if __name__ == "__main__":
    main()
