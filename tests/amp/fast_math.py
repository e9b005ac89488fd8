#!/usr/bin/env python3
"""A program built with -Ofast gets the same results: every overflow is found, subnormal numbers are kept, and losses
and weights have the same bits. A warning reports the flags that Cairn cleared.

usage: fast_math.py PROGRAM THE_SAME_WITH_OFAST
"""
import subprocess
import sys


def run(program):
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        sys.exit(f"{program} exited with {done.returncode}: {done.stderr}")
    facts = dict(line.split() for line in done.stderr.splitlines() if len(line.split()) == 2)
    return done.stdout.splitlines(), facts


def main():
    plain, plain_facts = run(sys.argv[1])
    fast, fast_facts = run(sys.argv[2])
    if plain_facts["isinf"] != "1" or fast_facts["isinf"] != "0":
        sys.exit(f"isinf is {plain_facts['isinf']} and with -Ofast {fast_facts['isinf']}; it should be 1 and 0")
    if plain_facts.get("flushes", "0") != "0" or fast_facts.get("flushes", "1") != "1":
        sys.exit("the program with -Ofast should flush subnormals to zero, and the other should not")
    if (plain_facts["warnings"], fast_facts["warnings"]) != ("0", fast_facts.get("flushes", "0")):
        sys.exit(f"{plain_facts['warnings']} warnings, and with -Ofast {fast_facts['warnings']}")
    for a, b in zip(plain, fast):
        if a != b:
            sys.exit(f"-O2 and -Ofast differ:\n{a}\n{b}")
    if len(plain) != len(fast) or len(plain) != 44:
        sys.exit(f"{len(plain)} lines, and with -Ofast {len(fast)}, of 44")
    if plain[:22] != plain[22:]:
        sys.exit("1 and 3 threads differ")


if __name__ == "__main__":
    main()
