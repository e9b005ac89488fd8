"""Shared by the style tests: the list of the project's files, and C text without comments."""
import os
import re
import subprocess
import sys

SKIP = 77  # meson's exit code for a skipped test


def tracked(root):
    """Paths below root, relative to it: what git tracks, or, in a tree without git, what no build made."""
    if os.path.exists(os.path.join(root, ".git")):
        listing = subprocess.run(["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z"], capture_output=True,
                                 text=True, check=False)
        if listing.returncode == 0:
            names = listing.stdout.rstrip("\0").split("\0")
            return sorted(n for n in names if os.path.isfile(os.path.join(root, n)))
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith("build") and f not in (".git", "__pycache__")]
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names]
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
        return f.read()


TOKENS = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)


def without_comments(text):
    """C text with every comment blanked, line numbers kept."""
    return TOKENS.sub(lambda m: m[0] if m[0][0] in "\"'" else re.sub(r"[^\n]", " ", m[0]), text)


def finish(violations, what):
    """Prints what was found and ends the test."""
    for line in violations:
        print(line)
    print(f"{what}: {len(violations)} violations")
    sys.exit(1 if violations else 0)
