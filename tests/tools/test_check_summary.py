"""What tools/check counts: a summary that miscounts would let a failure through.

usage: test_check_summary.py path/to/tools"""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import check_summary  # noqa: E402

CMOCKA_OUT = """[==========] Running 4 test(s).
[ RUN      ] sums_in_rank_order
[       OK ] sums_in_rank_order
[ RUN      ] keeps_nan
[  FAILED  ] keeps_nan
[ RUN      ] uses_avx512
needs AVX-512, which this processor lacks
[  SKIPPED ] uses_avx512
[ RUN      ] silent
[  SKIPPED ] silent
[==========] 4 test(s) run.
"""
CMOCKA_ERR = """[  ERROR   ] --- 0x1 != 0x2
[  PASSED  ] 1 test(s).
[  SKIPPED ] 2 test(s), listed below:
[  SKIPPED ] uses_avx512
[  SKIPPED ] silent
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] keeps_nan
"""


def test(result="OK", stdout="", stderr="", returncode=0):
    return {"name": "core / x", "result": result, "stdout": stdout, "stderr": stderr, "returncode": returncode}


class Count(unittest.TestCase):
    def test_a_cmocka_program_counts_by_its_tests(self):
        passed, failed, skipped = check_summary.count(test("FAIL", CMOCKA_OUT, CMOCKA_ERR, 1))
        self.assertEqual((passed, failed), (1, ["keeps_nan"]))
        self.assertEqual(skipped, {"uses_avx512": "needs AVX-512, which this processor lacks",
                                   "silent": "no reason given"})

    def test_a_crash_is_a_failure_beside_what_passed(self):
        for result in "FAIL", "TIMEOUT", "ERROR", "INTERRUPT", "UNEXPECTEDPASS":
            passed, failed, _ = check_summary.count(test(result, "[       OK ] a\n[ RUN      ] b\n", "", -11))
            self.assertEqual((passed, len(failed)), (1, 1), result)

    def test_another_program_is_one_test(self):
        self.assertEqual(check_summary.count(test()), (1, [], {}))
        self.assertEqual(check_summary.count(test("FAIL"))[0], 0)
        self.assertEqual(len(check_summary.count(test("FAIL"))[1]), 1)

    def test_a_failing_unittest_program_is_one_failure(self):
        passed, failed, _ = check_summary.count(test("FAIL", "", "Ran 22 tests in 1.0s\n\nFAILED (failures=3)\n", 1))
        self.assertEqual((passed, len(failed)), (0, 1))

    def test_a_unittest_program_counts_by_its_tests(self):
        passed, failed, skipped = check_summary.count(test("OK", "", "Ran 22 tests in 1.6s\n\nOK (skipped=2)\n"))
        self.assertEqual((passed, failed, len(skipped)), (20, [], 2))

    def test_a_skipped_program_gives_its_last_line_as_reason(self):
        self.assertEqual(check_summary.count(test("SKIP", "one\nno clang-format\n\n", "", 77)),
                         (0, [], {"core / x": "no clang-format"}))


class Main(unittest.TestCase):
    def summary(self, *tests):
        with tempfile.TemporaryDirectory() as folder:
            log, tally = os.path.join(folder, "log.json"), os.path.join(folder, "tally")
            if tests:
                with open(log, "w", encoding="utf-8") as f:
                    f.writelines(json.dumps(t) + "\n" for t in tests)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                check_summary.main("gcc", log, tally)
            with open(tally, encoding="ascii") as f:
                return f.read(), out.getvalue()

    def test_the_tally_adds_up_and_failures_show_their_output(self):
        tally, printed = self.summary(test(), test("FAIL", CMOCKA_OUT, CMOCKA_ERR, 1))
        self.assertEqual(tally, "2 1 2\n")
        self.assertIn("FAILED: gcc: core / x: keeps_nan", printed)
        self.assertIn("    [  ERROR   ] --- 0x1 != 0x2", printed)
        self.assertIn("skipped: gcc: uses_avx512: needs AVX-512, which this processor lacks", printed)

    def test_a_run_without_tests_is_a_failure(self):
        tally, printed = self.summary()
        self.assertEqual(tally, "0 1 0\n")
        self.assertIn("no test ran", printed)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
