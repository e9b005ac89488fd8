"""tools/same-bits: what differs between two records is found and named, and trainings repeat their records.

usage: test_same_bits.py ROOT BUILD"""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import sys
import tempfile
import unittest

ROOT, BUILD = sys.argv[1:3]
sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("same_bits", os.path.join(ROOT, "tools/same-bits"))
same_bits = importlib.util.module_from_spec(importlib.util.spec_from_loader("same_bits", LOADER))
LOADER.exec_module(same_bits)

RECORD = """step 0: log 4: group: shm, met at port 4711
step 2: after cairn_step
step 2: optimizer 0: lr 0x1.1eb851eb851ecp-4, steps 2, skipped 0, last one taken
step 2: set 0, weights of part1, 3 f16: 3c00 3c01 0000
step 2: set 0, master of part1, 70 f32: hashes of 64: 5dca7f2678094032 6006f9bb79b8a768
"""


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.old, self.new = (os.path.join(folder.name, name) for name in ("old", "new"))
        os.mkdir(self.old)
        os.mkdir(self.new)

    def report(self, old, new, failed=()):
        """Of one record: whether all is well, and the lines that are printed."""
        for folder, text in (self.old, old), (self.new, new):
            if text is not None:
                with open(os.path.join(folder, "avx2.random.seed5.on2.rank1.record"), "w", encoding="utf-8") as f:
                    f.write(text)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            equal = same_bits.report(self.old, self.new, failed)
        return equal, out.getvalue().splitlines()

    def differs(self, a, b):
        """What is said where b stands in place of a."""
        self.assertIn(a, RECORD)
        equal, lines = self.report(RECORD, RECORD.replace(a, b))
        self.assertFalse(equal)
        self.assertEqual(lines[-1], "1 cases, 0 equal, 1 different")
        self.assertTrue(lines[0].startswith("avx2.random.seed5.on2.rank1.record: "), lines)
        return "\n".join(lines[:-1])

    def test_equal_records_are_equal(self):
        self.assertEqual(self.report(RECORD, RECORD), (True, ["1 cases, 1 equal, 0 different"]))

    def test_another_port_or_time_is_no_difference(self):
        self.assertTrue(self.report(RECORD, RECORD.replace("4711", "4712"))[0])
        self.assertTrue(self.report("us per step = 1130.6\n", "us per step = 7\n")[0])

    def test_a_bit_of_a_weight_is_named_by_step_parameter_and_element(self):
        self.assertIn("step 2: set 0, weights of part1, 3 f16: element 1: 3c01, 3c00", self.differs("3c01", "3c00"))

    def test_a_bit_in_a_hashed_array_is_named_by_its_piece(self):
        self.assertIn("step 2: set 0, master of part1, 70 f32: elements 64 and up",
                      self.differs("6006f9bb79b8a768", "6006f9bb79b8a769"))

    def test_a_counter_a_rate_or_a_message_differs(self):
        self.assertIn("steps 3", self.differs("steps 2", "steps 3"))
        self.assertIn("851edp", self.differs("851ecp", "851edp"))
        self.assertIn("group: gloo", self.differs("group: shm", "group: gloo"))

    def test_a_record_that_stops_differs(self):
        last = RECORD.splitlines(keepends=True)[-1]
        self.assertIn("only old goes on: " + last[:20], self.differs(last, ""))

    def test_a_record_that_is_missing_differs(self):
        equal, lines = self.report(RECORD, None)
        self.assertFalse(equal)
        self.assertIn("there is none of new", lines[0])

    def test_without_records_nothing_is_equal(self):
        self.assertFalse(self.report(None, None)[0])

    def test_a_program_that_failed_is_no_success(self):
        equal, lines = self.report(RECORD, RECORD, ["avx2.random: new: exit code 1"])
        self.assertFalse(equal)
        self.assertEqual(lines, ["avx2.random: new: exit code 1",
                                 "1 cases, 1 equal, 0 different, 1 programs failed"])


class Trainings(unittest.TestCase):
    """Of this build, on its own ranks."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.old, self.new = (same_bits.Tree(name, folder.name, None) for name in ("old", "new"))
        self.old.build = self.new.build = BUILD
        self.old.compile_recorder()
        self.old.compile_random()
        self.new.programs = self.old.programs

    def train(self, tree, first, count):
        case = same_bits.Case("random", "ref", "random", str(first), str(count), "0")
        self.assertIsNone(case.run(tree))

    def test_records_repeat_and_a_changed_bit_is_found(self):
        self.train(self.old, 12, 6)
        self.train(self.new, 12, 6)
        found, count = same_bits.compare(self.old.records, self.new.records)
        self.assertEqual(found, [])
        self.assertGreaterEqual(count, 12)
        self.addCleanup(os.environ.pop, "SAME_BITS_PLANT", None)
        os.environ["SAME_BITS_PLANT"] = "17:3"
        self.train(self.new, 12, 6)
        found, _ = same_bits.compare(self.old.records, self.new.records)
        self.assertEqual({same_bits.case_of(name) for name, _ in found}, {"ref.random.seed17.on1"})
        self.assertTrue(found[0][1].startswith("step 3: "), found)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
