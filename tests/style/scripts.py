"""Checks every tracked shell script with shellcheck.

usage: scripts.py source-root"""
import os
import re
import shutil
import subprocess
import sys

import sources

SHELL = re.compile(r"#!.*\b(ba)?sh\b|# shellcheck\b")  # the second begins a script that others source


def said(root, *args, text=None):
    got = subprocess.run(["shellcheck", "--external-sources", "--format=gcc", *args], cwd=root, input=text,
                         capture_output=True, text=True, check=False)
    return got.stdout + got.stderr if got.returncode else ""


def is_script(root, path):
    with open(os.path.join(root, path), "rb") as f:
        return bool(SHELL.match(f.readline(200).decode("utf-8", "replace")))


def check_the_check(root):
    assert said(root, "-", text="#!/bin/sh\nrm $1\n")
    assert said(root, "-", text="# shellcheck shell=bash and words\n")
    assert not said(root, "-", text='#!/bin/sh\nrm "$1"\n')


if __name__ == "__main__":
    if not shutil.which("shellcheck"):
        print("there is no shellcheck")
        sys.exit(sources.SKIP)
    top = os.path.abspath(sys.argv[1])
    check_the_check(top)
    scripts = [p for p in sources.tracked(top) if is_script(top, p)]
    assert "tools/common.sh" in scripts
    sources.finish(said(top, *scripts).splitlines(), "scripts")
