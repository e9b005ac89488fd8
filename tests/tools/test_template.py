"""Compares cairn-run's ${local_rank} with Python's string.Template, which torchrun uses, on many random texts.

usage: test_template.py path/to/template"""
import random
import string
import subprocess
import sys
import unittest

TEMPLATE = sys.argv[1]
NAMES = {"local_rank": "13", "rank": "$local_rank", "_x1": ""}
PIECES = ["$", "$$", "{", "}", "${", "local_rank", "LOCAL_RANK", "rank", "_x1", "_", "x", "9", " ", "-", ".", "=", "\n",
          "\t", "${local_rank}", "$local_rank", "${rank}", "${ local_rank }", "é", "ı", "ſ", "K", "\udcff", "€"]


def texts(seed, n):
    pick = random.Random(seed)
    for _ in range(n):
        yield "".join(pick.choice(PIECES) for _ in range(pick.randrange(12)))


class Template(unittest.TestCase):
    def test_random_texts_become_what_python_makes_of_them(self):
        seed = random.randrange(1 << 32)
        given = list(texts(seed, 50000))
        sent = "".join(text + "\0" for text in given).encode("utf-8", "surrogateescape")
        got = subprocess.run([TEMPLATE], input=sent, stdout=subprocess.PIPE, check=True, timeout=60).stdout
        made = got.decode("utf-8", "surrogateescape").split("\0")[:-1]
        self.assertEqual(len(made), len(given))
        for text, out in zip(given, made):
            self.assertEqual(out, string.Template(text).safe_substitute(NAMES), f"seed {seed}, of {text!r}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
