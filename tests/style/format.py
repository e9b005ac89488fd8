"""Checks every tracked C file with clang-format against .clang-format.

usage: format.py source-root"""
import os
import shutil
import subprocess
import sys

import sources


def said(root, *args, text=None):
    got = subprocess.run(["clang-format", "--dry-run", "-Werror", "--style=file", *args], cwd=root, input=text,
                         capture_output=True, text=True, check=False)
    return got.stderr if got.returncode else ""


def check_the_check(root):
    assert said(root, "--assume-filename=src/x.c", text="int  x;\n")
    assert not said(root, "--assume-filename=src/x.c", text="int x;\n")


if __name__ == "__main__":
    if not shutil.which("clang-format"):
        print("there is no clang-format")
        sys.exit(sources.SKIP)
    top = os.path.abspath(sys.argv[1])
    check_the_check(top)
    files = [p for p in sources.tracked(top) if p.endswith((".c", ".h", ".cc", ".cu", ".cuh"))]
    sources.finish([line for line in said(top, *files).splitlines() if "error:" in line], "format")
