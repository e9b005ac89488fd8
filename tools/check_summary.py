"""Counts what one run of `meson test` did, for tools/check.

usage: check_summary.py label testlog.json tally-file

A cmocka program counts by its tests, a Python unittest program too; anything else is one test. Prints every failure
with the end of its output and every skip with its reason; adds "passed failed skipped" to the tally. Exits 1 where
something failed or no test ran."""
import json
import re
import sys

TAIL = 40  # lines shown of a failed program

OK_LINE = re.compile(r"^\[       OK \] (.+)$", re.M)
FAILED_LINE = re.compile(r"^\[  FAILED  \] (?!\d+ test\(s\))(.+)$", re.M)
SKIPPED_LINE = re.compile(r"^(?P<before>.*)\n\[  SKIPPED \] (?!\d+ test\(s\))(?P<name>.+)$", re.M)
UNITTEST_LINE = re.compile(r"^Ran (\d+) tests? in ", re.M)
UNITTEST_SKIPS = re.compile(r"skipped=(\d+)")


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"


def cmocka_skips(text):
    """Name and reason of each skipped test; the reason is the line printed just before."""
    skips = {}
    for m in SKIPPED_LINE.finditer(text):
        before = m["before"].strip()
        skips.setdefault(m["name"], "no reason given" if before.startswith("[") or not before else before)
    return skips


def count(test):
    """Tests passed, names of those that failed, and {name: reason} of those skipped, in one meson test."""
    text = test.get("stdout", "") + "\n" + test.get("stderr", "")
    name, result = test["name"], test["result"]
    if result == "SKIP":
        return 0, [], {name: last_line(text)}
    passed = len(OK_LINE.findall(text))
    failed = sorted(set(FAILED_LINE.findall(text)))
    skipped = cmocka_skips(text)
    ran = UNITTEST_LINE.search(text)
    if ran and result == "OK":
        skips = sum(map(int, UNITTEST_SKIPS.findall(text)))
        passed += int(ran[1]) - skips
        skipped.update({f"{name} ({i + 1})": "see its log" for i in range(skips)})
    if result not in ("OK", "EXPECTEDFAIL") and not failed:
        failed = [f"{name} ({result.lower()}, exit code {test.get('returncode')})"]
    if not (passed or failed or skipped):
        passed = 1
    return passed, failed, skipped


def show(label, test, failed, skipped):
    for name, reason in skipped.items():
        print(f"skipped: {label}: {name}: {reason}")
    if not failed:
        return
    print(f"FAILED: {label}: {test['name']}: {', '.join(failed)}")
    for stream in "stdout", "stderr":
        for line in test.get(stream, "").splitlines()[-TAIL:]:
            print(f"    {line}")


def main(label, log, tally):
    passed = failed = skipped = 0
    try:
        with open(log, encoding="utf-8", errors="replace") as f:
            tests = [json.loads(line) for line in f]
    except OSError:
        tests = []
    for test in tests:
        good, bad, left = count(test)
        show(label, test, bad, left)
        passed, failed, skipped = passed + good, failed + len(bad), skipped + len(left)
    if not tests:
        print(f"FAILED: {label}: no test ran")
        failed = 1
    print(f"{label}: {passed} passed, {failed} failed, {skipped} skipped")
    with open(tally, "a", encoding="ascii") as f:
        f.write(f"{passed} {failed} {skipped}\n")
    return 1 if not tests else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
