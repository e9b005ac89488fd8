"""cairn-lab: commands and wrong options, killed runs, files, the report, and recorded trainings.

usage: test_cairn_lab.py path/to/cairn-lab [path/to/cairn-run path/to/01_linear_regression]
With CAIRN_TEST_SHORT in the environment one page is shown light and the other dark, instead of each in both ways."""
import csv
import glob
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

import browser
import cases

LAB, *TRAINING = map(os.path.abspath, sys.argv[1:])
PATIENCE = 60
SLOW = ["running-sum", "--terms", "16777216"]  # seconds


class Lab(cases.InFolder):
    def call(self, *args):
        """Exit code, stdout, stderr."""
        done = subprocess.run([LAB, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE, check=False,
                              cwd=self.folder.name)
        return done.returncode, done.stdout, done.stderr

    def run_small(self, *args, out="lab"):
        code, said, errors = self.call("run", "running-sum", "--terms", 100, "--out", out, *args)
        self.assertEqual((code, errors), (0, ""))
        return said

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def report(self, folder="lab"):
        """The page as text and as a tree: it is well-formed XML, too."""
        code, said, errors = self.call("report", folder)
        self.assertEqual((code, said, errors), (0, f"{folder}/report.html\n", ""))
        text = self.read(folder + "/report.html")
        return text, ElementTree.fromstring(text.replace("<!DOCTYPE html>", ""))


class Commands(Lab):
    def refused(self, words, *args):
        code, said, errors = self.call(*args)
        self.assertEqual((code, said), (2, ""), args)
        self.assertRegex(errors, "^cairn-lab: ")
        self.assertIn(words, errors)

    def test_list_has_every_experiment_with_its_question(self):
        code, said, _ = self.call("list")
        self.assertEqual(code, 0)
        self.assertRegex(said, r"(?m)^running-sum +Where does .*\?$")
        for line in said.splitlines():
            code, shown, _ = self.call("list", line.split()[0])
            self.assertEqual(code, 0)
            for part in "method: ", "expected: ", "source: ", "options:", "--seed":
                self.assertIn(part, shown)

    def test_a_wrong_word_names_the_one_that_was_probably_meant(self):
        self.refused("did you mean 'report'?", "reprot")
        self.refused("did you mean 'running-sum'?", "run", "runing-sum")
        self.refused("did you mean 'all'?", "run", "alll")
        self.refused("did you mean --terms?", "run", "running-sum", "--term", 3)
        self.refused("did you mean --terms?", "run", "running-sum", "--tems=3")
        self.refused("did you mean --again?", "run", "running-sum", "--agian")
        self.refused("did you mean 'running-sum'?", "list", "running_sum")

    def test_what_is_like_nothing_says_where_to_look(self):
        self.refused("cairn-lab --help lists them", "paint")
        self.refused("cairn-lab list shows them", "run", "perpetual-motion")
        self.refused("cairn-lab list running-sum shows", "run", "running-sum", "--colour", "red")
        self.refused("is missing", "run")
        self.refused("takes one name", "run", "running-sum", "all")

    def test_a_wrong_value_says_what_is_taken(self):
        for value in "0", "-1", "1.5", "many", "nan", "inf", "0x10", "1e99", "17M":
            self.refused(f"whole number from 1 to 16777216, not '{value}'", "run", "running-sum", "--terms", value)
        for value in "-1", "1.5", "x", "18446744073709551616":
            self.refused(f"not '{value}'", "run", "running-sum", "--seed", value)
        for option in "--terms", "--seed", "--out":
            self.refused("value" if option == "--out" else "not ''", "run", "running-sum", option)
        self.refused("no options", "report", "--svg")

    def test_help_and_version_end_well(self):
        code, said, errors = self.call("--help")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("usage: cairn-lab list", said)
        self.assertEqual(self.call("run", "--help")[0], 0)
        self.assertRegex(self.call("--version")[1], r"^cairn-lab \d+\.\d+\.\d+\n$")
        self.assertEqual(self.call()[0], 2)


class Runs(Lab):
    def test_a_run_writes_its_table_and_a_description(self):
        said = self.run_small()
        self.assertIn("as expected: 5000 ones added in f16 are 2048", said)
        rows = list(csv.reader(io.StringIO(self.read("lab/running-sum/sums.csv"))))
        self.assertEqual(rows[0], ["terms", "sum", "type"])
        self.assertEqual(rows[1], ["1", "0.0999755859375", "f16"])  # 0.1 rounded to f16
        self.assertEqual(len(rows), 1 + 3 * 8)  # powers of two up to 64, and 100
        told = json.loads(self.read("lab/running-sum/result.json"))
        self.assertEqual(told["settings"], {"terms": "100", "seed": "1"})
        self.assertEqual(f"cairn-lab {told['cairn']}\n", self.call("--version")[1])
        self.assertEqual([f["verdict"] for f in told["findings"]], ["holds"] * 3)

    def test_the_same_seed_gives_the_same_bytes(self):
        for out in "a", "b":
            self.run_small("--seed", 7, out=out)
        for name in "sums.csv", "result.json":
            self.assertEqual(self.read(f"a/running-sum/{name}"), self.read(f"b/running-sum/{name}"))

    def test_what_is_complete_runs_again_for_other_options_or_if_wanted(self):
        self.run_small()
        at = os.stat(self.path("lab/running-sum/result.json")).st_mtime_ns

        def has_run(*args):
            nonlocal at
            self.run_small(*args)
            before, at = at, os.stat(self.path("lab/running-sum/result.json")).st_mtime_ns
            return at != before
        self.assertFalse(has_run())
        self.assertTrue(has_run("--again"))
        self.assertTrue(has_run("--seed", 2))
        self.assertFalse(has_run("--seed", 2))
        self.assertTrue(has_run())

    def test_a_killed_run_leaves_nothing_that_counts_and_goes_on(self):
        self.run_small(out="lab")
        running = subprocess.Popen([LAB, "run", *SLOW, "--out", "lab"], cwd=self.folder.name, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        running.stdout.readline()  # it has begun
        running.send_signal(signal.SIGKILL)
        running.communicate()
        self.assertEqual(running.returncode, -signal.SIGKILL)
        self.assertIn("is complete", self.run_small())  # the result before is still there

    def test_all_that_were_killed_go_on_where_they_were(self):
        def first_lines(stop):
            """What `run all` prints until a line holds `stop`; then it is killed."""
            running = subprocess.Popen([LAB, "run", "all"], cwd=self.folder.name, text=True, stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL)
            lines = []
            for line in running.stdout:
                lines.append(line)
                if stop in line:
                    break
            running.send_signal(signal.SIGKILL)
            running.communicate()
            return lines
        first_lines("lab/accumulate")
        again = first_lines("allreduce-error: ")
        self.assertEqual(again[:2], [f"{name} is complete in lab/{name}; --again runs it again\n"
                                     for name in ("running-sum", "accumulate")])

    def test_a_result_without_its_description_counts_as_none(self):
        self.run_small()
        os.remove(self.path("lab/running-sum/result.json"))
        self.assertNotIn("is complete", self.run_small())
        self.assertIn("is complete", self.run_small())

    def test_a_damaged_result_runs_again_and_is_not_reported(self):
        for name, text in (("result.json", "{"), ("result.json", "{}"), ("sums.csv", "terms,sum,type\n1,x,f16\n"),
                           ("sums.csv", "terms,sum,type\n1,2\n"), ("sums.csv", "terms,sum,type\n1,2,\"f16\n")):
            self.run_small()
            with open(self.path("lab/running-sum/" + name), "w", encoding="utf-8") as out:
                out.write(text)
            code, _, errors = self.call("report")
            self.assertEqual(code, 1)
            self.assertIn("running-sum/" + name, errors)
            self.assertNotIn("is complete", self.run_small())

    def test_a_result_that_names_no_version_is_read(self):
        self.run_small()
        told = json.loads(self.read("lab/running-sum/result.json"))
        del told["cairn"]
        self.write("lab/running-sum/result.json", told)
        self.assertEqual(self.call("report")[0], 0)
        self.assertIn("is complete", self.run_small())

    def test_a_result_under_another_name_is_refused(self):
        self.run_small()
        for name, words in (("sums", "another name"), ('"><script>', "letters, digits")):
            told = json.loads(self.read("lab/running-sum/result.json"))
            self.write("lab/running-sum/result.json", {**told, "name": name})
            code, _, errors = self.call("report")
            self.assertEqual(code, 1)
            self.assertIn(words, errors)

    def test_commands_are_words_of_a_shell_and_of_the_page(self):
        self.call("run", "running-sum", "--terms", 10, "--out", "it's here")
        _, page = self.report("it's here")
        command, = [code.text for code in page.iter("code") if code.text.startswith("cairn-lab run")]
        self.assertIn("--out 'it'\\''s here'", command)

    def test_a_folder_that_cannot_be_made_is_named(self):
        self.write("file", "")
        code, _, errors = self.call("run", "running-sum", "--terms", 10, "--out", "file/lab")
        self.assertEqual(code, 1)
        self.assertIn("'file/lab/running-sum' cannot be made: Not a directory", errors)


class Report(Lab):
    def test_the_page_needs_nothing_from_elsewhere(self):
        self.run_small()
        text, page = self.report()
        self.assertEqual(re.findall(r"<script|@import|url\(", text), [])
        for element in page.iter():
            for name in "src", "href", "action", "data":
                value = element.get(name, "#")
                self.assertTrue(value.startswith("#") or value == "data:,", f"{element.tag} refers to {value}")
            self.assertFalse([a for a in element.keys() if a.startswith("on")])

    def test_pictures_have_title_axes_legend_and_their_table(self):
        self.run_small()
        _, page = self.report()
        figure, = page.iter("figure")
        self.assertEqual(figure.find("h3").text, "A running sum of 0.1 by the type of the sum")
        keys = ["".join(key.itertext()).strip() for key in figure.iter("span") if key.get("class") == "key"]
        self.assertEqual(keys, ["f16", "bf16", "f32"])
        rows = list(figure.iter("tr"))
        with open(self.path("lab/running-sum/sums.csv"), encoding="utf-8") as file:
            self.assertEqual([[cell.text for cell in row] for row in rows], list(csv.reader(file)))
        pictures = [svg for svg in figure.iter(cases.SVG + "svg")]
        self.assertEqual([svg.get("class") for svg in pictures], ["wide", "narrow"])
        for svg in pictures:
            labels = self.check_labels(svg)
            self.assertTrue({"terms", "sum", "1", "64"} <= set(labels), labels)

    def test_an_empty_folder_says_how_to_fill_it(self):
        for folder in "nowhere", ".":
            code, _, errors = self.call("report", folder)
            self.assertEqual(code, 1)
            self.assertIn("cairn-lab run NAME --out " + folder, errors)

    def test_what_is_not_as_expected_is_said(self):
        self.run_small()
        told = json.loads(self.read("lab/running-sum/result.json"))
        told["findings"][1]["verdict"] = "fails"
        self.write("lab/running-sum/result.json", told)
        text, _ = self.report()
        self.assertIn("Not as expected:", text)
        code, said, _ = self.call("run", "running-sum", "--terms", 100)
        self.assertEqual(code, 1)
        self.assertIn("NOT AS EXPECTED", said)


def exponents(name, step, first, counts, scale=1.0, **more):
    return {"kind": "histogram", "room": "observe", "name": name, "step": step, "type": "f16", "scale": scale,
            "count": sum(counts) + sum(more.values()), "zero": 0, "inf": 0, "nan": 0, "below": 0, "above": 0,
            "first": first, "counts": counts, "seconds": 1, **more}


def scalar(name, step, value, room="optim"):
    return {"kind": "scalar", "room": room, "name": name, "step": step, "value": value, "seconds": 1.5}


class Recording(Lab):
    def record(self, *lines, rank=0, ranks=1, end=""):
        first = {"kind": "run", "format": 1, "cairn": "0.9.0", "rank": rank, "ranks": ranks, "every": 10}
        os.makedirs(self.path("run"), exist_ok=True)
        return self.write(f"run/rank{rank}.jsonl", "".join(json.dumps(x) + "\n" for x in (first, *lines)) + end)

    def table(self, name):
        with open(self.path(f"run/recorded/{name}.csv"), encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def findings(self):
        _, page = self.report("run")
        return ["".join(item.itertext()) for item in page.find("body/main/section/div/ul")]


class Recorded(Recording):
    def test_shares_and_the_cliff_follow_from_the_exponents(self):
        # of 100 elements 28 in 2^-27, 72 in 2^0; stored at a scale of 2^10
        counts = [28] + [0] * 26 + [72]
        self.record(*(exponents("grad/3.weight", step, -17, counts, 1024.0) for step in (10, 20)))
        said = self.findings()
        self.assertIn("28 % of the gradients of 3.weight are below f16's range: without a loss scale they become 0. "
                      "No other parameter has a larger share.", said)
        self.assertIn("A loss scale of 2^15 would make 0 % of the gradients 0 in f16 and skip no recorded step; at "
                      "2^16 it skips 100 % of the steps.", said)
        share = {(row["loss scale (2^k)"], row["what"]): float(row["share (%)"]) for row in self.table("scales")}
        for k in range(25):
            self.assertEqual(share[str(k), "gradients that become 0"], 28 if k < 2 else 0)
            self.assertEqual(share[str(k), "gradients that lose digits"], 28 if 2 <= k < 13 else 0)
            self.assertEqual(share[str(k), "steps that overflow"], 100 if k >= 16 else 0)
        self.assertEqual([(row["parameter"], row["step"], row["magnitude (2^k)"], row["share of elements (%)"])
                          for row in self.table("gradients")],
                         [("3.weight", step, k, share) for step in ("10", "20") for k, share in
                          (("-27", "28"), ("0", "72"))])

    def test_micro_batches_and_ranks_add_up(self):
        for rank in 0, 1:
            self.record(*(exponents("grad_before/w", 10, 0, [1 + rank]) for _ in range(2)),
                        exponents("grad/w", 10, 3, [4]), rank=rank, ranks=2)
        before, after = self.table_after_report("reduction")
        self.assertEqual((before["magnitude (2^k)"], before["share of elements (%)"]), ("0", "100"))
        self.assertEqual((after["magnitude (2^k)"], after["share of elements (%)"]), ("3", "100"))
        row, = self.table("gradients-before")
        self.assertEqual(row["share of elements (%)"], "100")

    def table_after_report(self, name):
        self.report("run")
        return self.table(name)

    def test_an_overflow_is_placed_and_counts_at_its_scale(self):
        self.record(exponents("grad/w", 10, 0, [4], 65536.0), exponents("grad/w", 20, 0, [3], 65536.0, inf=1),
                    exponents("grad/v", 20, 0, [4], 65536.0), scalar("skipped", 20, 1))
        said = self.findings()
        self.assertIn("The first recorded overflow is at step 20 on rank 0, at a loss scale of 65536: the gradient of "
                      "w has 1 infinities and 0 NaN.", said)
        self.assertIn("Until step 20 the optimizer skipped 1 step because gradients were not finite.", said)
        share = {row["loss scale (2^k)"]: row["share (%)"] for row in self.table("scales")
                 if row["what"] == "steps that overflow"}
        self.assertEqual((share["15"], share["16"]), ("0", "50"))

    def test_scalars_are_drawn_and_those_that_are_no_numbers_left_out(self):
        self.record(scalar("loss_scale", 1, 65536), scalar("loss_scale", 2, 32768), scalar("grad_norm", 1, "inf"),
                    scalar("grad_norm", 2, "nan"), scalar("grad_norm", 3, 0.5), scalar("loss", 1, 2.5, "observe"),
                    scalar("my <&> loss", 1, 1, "user"))
        said = self.findings()
        self.assertIn("The loss scale begins at 65536 and ends at 32768.", said)
        self.assertEqual([row["grad_norm"] for row in self.table("optim-grad-norm-1")], ["inf", "nan", "0.5"])
        self.assertEqual(len(glob.glob(self.path("run/recorded/*.csv"))), 4)

    def test_a_loss_that_becomes_nan_is_one_line_with_gaps(self):
        values = ["inf", 2.5, "nan", "nan", "inf", 1, 2, "nan", "nan"]
        self.record(*(scalar("loss", step, value, "observe") for step, value in enumerate(values, 1)))
        _, page = self.report("run")  # which reads the page as XML
        lines = [path.get("d") for path in page.iter(cases.SVG + "path") if path.get("class") == "s0 d0"
                 and "H" not in path.get("d")]  # which are the legend's
        self.assertTrue(lines)
        for line in lines:
            self.assertEqual([c for c in line if c.isalpha()], ["M", "M", "L"])

    def test_a_file_of_another_runs_rank_is_refused_by_name(self):
        self.record(scalar("loss", 1, 2), rank=0, ranks=2)
        self.record(scalar("loss", 1, 2), rank=7, ranks=8)
        code, _, errors = self.call("report", "run")
        self.assertEqual(code, 1)
        self.assertIn("run/rank7.jsonl is of rank 7 of 8, and the run in this folder has 2 ranks; remove", errors)

    def test_of_many_scalars_the_first_are_drawn_and_all_are_tables(self):
        self.record(*(scalar(f"mine{i}", 1, i, "user") for i in range(40)), scalar("lr", 1, 0.5))
        _, page = self.report("run")
        titles = [figure.find("h3").text for figure in page.iter("figure")]
        self.assertEqual(titles, ["lr (optim)", *(f"mine{i} (user)" for i in range(23))])
        self.assertEqual(len(list(page.iter("table"))), 41)

    def test_what_a_twin_lost_is_shown_by_its_most(self):
        self.record(*(scalar(f"lost_to_zero/{name}", step, share, "observe") for name, step, share in
                      (("a.weight", 1, 0.25), ("a.weight", 2, 0.5), ("b", 1, 0.125))),
                    scalar("lost_to_inf/b", 1, 0, "observe"))
        self.assertIn("Against an f32 twin 50 % of the elements of one gradient were lost at most: "
                      "lost_to_zero/a.weight.", self.findings())
        self.assertEqual([tuple(row.values()) for row in self.table("twin")],
                         [("a.weight", "to 0", "50"), ("b", "to 0", "12.5"), ("b", "to infinity or NaN", "0")])

    def test_a_last_line_that_does_not_end_is_left_out(self):
        self.record(scalar("loss_scale", 1, 2), end='{"kind":"scalar","ro')
        self.assertIn("The loss scale begins at 2 and ends at 2.", self.findings())

    def test_a_record_without_steps_says_so(self):
        self.record()
        self.assertEqual(self.findings(), ["Nothing was recorded: no step was taken, or the program ended before one."])

    def test_kinds_and_keys_that_are_new_are_passed_over(self):
        self.record({"kind": "poem", "lines": 3}, {**scalar("loss_scale", 1, 2), "colour": "red"},
                    {"kind": "histogram", "room": "user", "name": "mine", "step": 1, "limits": [0, 1],
                     "counts": [1, 2], "seconds": 1})
        self.assertIn("The loss scale begins at 2 and ends at 2.", self.findings())

    def test_what_is_wrong_is_named_with_file_and_line(self):
        good = exponents("grad/w", 1, 0, [1])
        for line in ("{", "[]", '{"kind":3}', '{"kind":"scalar"}', json.dumps({**good, "counts": ["a"]}),
                     json.dumps({**good, "scale": 0}), json.dumps({**good, "scale": "nan"}),
                     json.dumps({**good, "counts": [-1]}), json.dumps({**good, "first": "x"}),
                     '{"kind":"run","format":2,"rank":0,"ranks":1}'):
            self.record(scalar("loss_scale", 1, 2), end=line + "\n")
            code, _, errors = self.call("report", "run")
            self.assertEqual(code, 1, line)
            self.assertIn("run/rank0.jsonl, line 3: ", errors)

    def test_names_from_a_program_cannot_write_into_the_page(self):
        self.record(exponents("grad/<script>alert(1)</script>&\"'", 1, 0, [1]), scalar("</title><b>", 1, 1, "user"),
                    {"kind": "fact", "name": "half", "value": "<i>"})
        text, _ = self.report("run")
        self.assertNotIn("<script", text)
        self.assertNotIn("<i>", text)

    def test_many_parameters_and_steps_become_few_panels_and_columns(self):
        self.record(*(exponents(f"grad/layer{p}.weight", step, -30 + p, [5, 1, 0, 3])
                      for step in range(1, 131) for p in range(30)))
        _, page = self.report("run")
        panels = [svg for svg in page.iter(cases.SVG + "svg") if svg.get("class") == "panel"]
        self.assertEqual(len(panels), 24)
        for svg in panels:
            self.check_labels(svg)
        rows = self.table("gradients")
        self.assertEqual(len({row["step"] for row in rows}), 44)  # three steps a column
        self.assertEqual(rows[0]["parameter"], "layer0.weight")  # whose gradients are the least
        self.assertEqual(len(self.table("parameters")), 30)


@unittest.skipUnless(TRAINING, "there is no cairn-run")
class Trained(Recording):
    def test_what_two_ranks_record_is_drawn(self):
        launcher, program = TRAINING
        done = subprocess.run([launcher, "--nproc-per-node", "2", program, "--opt-level", "O2", "--steps", "25"],
                              env={**os.environ, "CAIRN_LAB": self.path("run")}, capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = self.findings()
        self.assertIn("The loss scale begins at 65536 and ends at 65536.", said)
        self.assertIn("Until step 25 the optimizer skipped no step.", said)
        for name in "gradients", "gradients-before", "activations", "activation-gradients":
            sums = {}
            for row in self.table(name):
                key = row.get("parameter", row.get("module")), row["step"]
                sums[key] = sums.get(key, 0) + float(row["share of elements (%)"])
            self.assertEqual({step for _, step in sums}, {"1", "11", "21"})
            for share in sums.values():
                self.assertAlmostEqual(share, 100)
        text, _ = self.report("run")
        self.assertIn("ranks 2, every 10", text)


@unittest.skipUnless(browser.NAME, "there is no chromium (Debian: chromium), which shows the page")
class InBrowser(Recording):
    WIDTHS = 390, 1400

    def check_page(self, page, dark):
        """Returns the colour of its paper."""
        frames, console = browser.measure(page, self.WIDTHS, dark)
        self.assertEqual((len(frames), console), (len(self.WIDTHS), []))
        for width, found in zip(self.WIDTHS, frames):
            self.assertLessEqual(found["width"], width)
            self.assertGreater(found["pictures"], 0)
            self.assertEqual((found["overlaps"], found["outside"]), ([], []), width)
            self.assertGreater(found["letters"], 11)
        paper, = {found["paper"] for found in frames}
        return paper

    def test_reports_are_whole_on_a_phone_and_on_a_desktop(self):
        self.run_small()
        self.report()
        steps = range(10, 410, 10)
        normal = [round(1e4 * math.exp(-((k - 14) / 5) ** 2)) for k in range(29)]
        self.record({"kind": "fact", "name": "opt_level", "value": "O2"},
                    *(scalar("loss", s, 2 * math.exp(-s / 200), "observe") for s in steps),
                    *(scalar("loss_scale", s, 2.0 ** (16 - s // 150)) for s in steps),
                    *(exponents(f"{kind}/encoder.layer.{p}.attention.self.query.weight", s, -28 - p + s // 100, normal)
                      for s in steps for p in range(5) for kind in ("grad", "grad_before", "activation")))
        self.report("run")
        every = [(name, dark) for name in ("lab", "run") for dark in (False, True)]
        papers = [(dark, self.check_page(self.path(f"{name}/report.html"), dark))
                  for name, dark in (every[::3] if os.environ.get("CAIRN_TEST_SHORT") else every)]
        self.assertEqual(len({paper for _, paper in papers}), 2)
        self.assertEqual(len(set(papers)), 2)  # one for light, one for dark


if __name__ == "__main__":
    if not browser.NAME:
        print("skipped: the page in a browser; there is no chromium (Debian: chromium)")
    unittest.main(argv=sys.argv[:1])
