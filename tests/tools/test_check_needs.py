"""tools/check_needs.py names exactly the targets that tests outside the given suites depend on.

usage: test_check_needs.py TOOLS"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

TOOLS = sys.argv.pop(1)
TARGETS = {"a": ["liba.so"], "b": ["tests/b_test"], "slow": ["tests/slow_test"], "pages": ["man/one.1", "man/two.1"],
           "unused": ["tests/unused"]}
TESTS = [("b", ["cairn:amp"], ["a", "b"]), ("b twice", ["cairn:amp", "cairn:rest"], ["b"]),
         ("slow", ["cairn:amp", "cairn:slow"], ["slow", "a"]), ("pages", ["cairn:tools"], ["pages"]),
         ("a script", ["cairn:slow-start"], [])]


class CheckNeeds(unittest.TestCase):
    def needs(self, *left_out, tests=TESTS):
        with tempfile.TemporaryDirectory() as build:
            os.mkdir(f"{build}/meson-info")
            said = {"targets": [{"id": name, "filename": [f"{build}/{file}" for file in files]}
                                for name, files in TARGETS.items()],
                    "tests": [{"name": name, "suite": suites, "depends": depends} for name, suites, depends in tests]}
            for name, what in said.items():
                with open(f"{build}/meson-info/intro-{name}.json", "w", encoding="utf-8") as f:
                    json.dump(what, f)
            run = subprocess.run([sys.executable, f"{TOOLS}/check_needs.py", build, *left_out], check=True,
                                 capture_output=True, text=True)
            return run.stdout.splitlines()

    def test_every_file_of_a_needed_target_is_named_once(self):
        self.assertEqual(self.needs(), ["liba.so", "man/one.1", "man/two.1", "tests/b_test", "tests/slow_test"])

    def test_what_only_tests_of_a_left_out_suite_need_is_not_named(self):
        self.assertEqual(self.needs("slow"), ["liba.so", "man/one.1", "man/two.1", "tests/b_test"])
        self.assertEqual(self.needs("slow", "tools"), ["liba.so", "tests/b_test"])
        self.assertEqual(self.needs("amp", "tools"), [])

    def test_what_another_test_needs_too_is_named(self):
        self.assertEqual(self.needs("rest", "slow", "tools"), ["liba.so", "tests/b_test"])

    def test_a_suite_of_a_longer_name_stays(self):
        other = [("pages", ["cairn:slow-start"], ["pages"])]
        self.assertEqual(self.needs("slow", tests=other), ["man/one.1", "man/two.1"])


if __name__ == "__main__":
    unittest.main()
