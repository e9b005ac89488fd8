#!/usr/bin/env python3
"""Cairn reads the records that Python's json and plain tables write, in MNLI's form and GLUE's: every character of
Unicode's planes, escaped or not, line ends of both kinds, and labels that are dropped.

usage: test_text.py PROGRAM     what tests/data/text_show.c became"""
import json
import random
import subprocess
import sys
import tempfile

LABELS = ["entailment", "neutral", "contradiction"]
RANGES = [(0x20, 0x7e), (0xa0, 0x24f), (0x300, 0x36f), (0x600, 0x6ff), (0x2000, 0x206f), (0x3040, 0x9fff),
          (0xfb00, 0xfdff), (0x10000, 0x1ffff), (0xe0000, 0x10ffff)]
CONTROLS = [0, 1, 7, 8, 9, 10, 12, 13, 0x1f, 0x22, 0x5c, 0x7f, 0x85, 0x2028, 0xfeff, 0xfffd, 0xffff]


def text(rng, without=""):
    """Up to 60 characters."""
    chosen = [rng.choice(CONTROLS) if rng.random() < 0.1 else rng.randint(*rng.choice(RANGES))
              for _ in range(rng.choice((0, 1, 5, 60)))]
    return "".join(chr(c) for c in chosen if chr(c) not in without)


def records(rng, count, without=""):
    return [{"gold_label": rng.choice(LABELS + ["-"]), "sentence1_parse": text(rng, without), "pairID": "1n",
             "sentence1": text(rng, without), "sentence2": text(rng, without)} for _ in range(count)]


def expected(made):
    return [f"{r['sentence1'].encode().hex()} {r['sentence2'].encode().hex()} {LABELS.index(r['gold_label'])}"
            for r in made if r["gold_label"] != "-"]


def compare(program, path, lines, made):
    with open(path, "wb") as f:
        f.write("".join(lines).encode())
    for _ in range(2):  # with the index that the first has made
        shown = subprocess.run([program, path], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        assert shown == expected(made), f"{path}: " + next(
            (f"{a} and not {b}" for a, b in zip(shown, expected(made)) if a != b), f"{len(shown)} records")
    return len(made)


def main():
    rng, count = random.Random(24), 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(8):
            made = records(rng, 500)
            end = ("\n", "\r\n", "\n\n")[i % 3]
            lines = [json.dumps(r, ensure_ascii=i % 2 == 0) + end for r in made]
            count += compare(sys.argv[1], f"{folder}/{i}.jsonl", lines, made)
            made = records(rng, 500, without="\t\n\r")
            names = list(made[0])
            rng.shuffle(names)
            rows = [names] + [[r[n] for n in names] for r in made]
            count += compare(sys.argv[1], f"{folder}/{i}.tsv", ["\t".join(row) + end for row in rows], made)
    print(f"{count} records of Python's")


main()
