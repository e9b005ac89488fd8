"""Prints the ninja targets that the tests need, except tests in the given suites.

usage: check_needs.py BUILD [SUITE_LEFT_OUT...]"""
import json
import os
import sys


def load(name):
    with open(os.path.join(BUILD, "meson-info", name), encoding="utf-8") as f:
        return json.load(f)


BUILD, left_out = sys.argv[1], set(sys.argv[2:])
files = {target["id"]: target["filename"] for target in load("intro-targets.json")}
needed = set()
for test in load("intro-tests.json"):
    if not left_out & {suite.split(":")[-1] for suite in test["suite"]}:
        needed.update(path for target in test["depends"] for path in files[target])
for path in sorted(needed):
    print(os.path.relpath(path, BUILD))
