"""cairn-plan pipeline: closed forms of schedules, costs and links, memory, the suggestion beside trying everything, the
picture, and what people get wrong.

usage: test_cairn_plan_pipeline.py path/to/cairn-plan"""
import json
import random
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

import cases
from cases import SVG

PLAN = sys.argv[1]
PATIENCE = 60
US = 1000


def cut(rows, split):
    return [min(split, rows - first) for first in range(0, rows, split)]


def order(schedule, rank, ranks, count):
    """(is backward, micro-batch) of one rank, as the papers have them."""
    ahead = count if schedule == "gpipe" else min(ranks - rank - 1, count)
    forwards, backwards = [(False, m) for m in range(count)], [(True, m) for m in range(count)]
    both = [turn for pair in zip(forwards[ahead:], backwards) for turn in pair]
    return forwards[:ahead] + both + backwards[count - ahead:]


def step(schedule, stages, rows, split, message=lambda nbytes: 0):
    """The step's ns: each turn after the rank's one before, and after what it needs."""
    sizes, ends, p = cut(rows, split), {}, len(stages)
    orders = [order(schedule, s, p, len(sizes)) for s in range(p)]

    def end(s, i):
        if (s, i) not in ends:
            backward, m = orders[s][i]
            since = end(s, i - 1) if i else 0
            source = s + 1 if backward else s - 1
            if 0 <= source < p:
                output = stages[min(s, source)]["output_bytes"] * sizes[m]
                since = max(since, end(source, orders[source].index((backward, m))) + message(output))
            fixed, row = stages[s]["backward" if backward else "forward"]
            ends[s, i] = since + fixed + row * sizes[m]
        return ends[s, i]

    return max(end(s, 2 * len(sizes) - 1) for s in range(p))


def stage(forward, backward, output=0, held=0):
    return {"forward": forward, "backward": backward, "output_bytes": output, "held_bytes": held}


def file_of(stages, rows):
    def points(cost):
        return [{"rows": n, "ns": cost[0] + cost[1] * n} for n in (1, 2, 8)]

    return {"format": "cairn-stages", "version": 1, "model": "test", "rows": rows,
            "stages": [{**s, "forward": points(s["forward"]), "backward": points(s["backward"])} for s in stages]}


class Pipeline(cases.InFolder):
    def setUp(self):
        super().setUp()
        sys.setrecursionlimit(20000)

    def call(self, *args):
        """Exit code, stdout, stderr."""
        done = subprocess.run([PLAN, "pipeline", *map(str, args)], capture_output=True, text=True, timeout=PATIENCE,
                              check=False)
        return done.returncode, done.stdout, done.stderr

    def plan(self, *args):
        code, out, errors = self.call(*args, "--json")
        self.assertEqual(code, 0, errors)
        return json.loads(out)

    def one(self, *args):
        return self.plan(*args)["steps"][0]

    def equal(self, stages, rows, *args, forward="0,1000", backward="0,2000", link="free"):
        return self.plan("--stages", stages, "--rows", rows, "--forward", forward, "--backward", backward, "--link",
                         link, *args)

    # ---- closed forms ----

    def test_equal_stages_take_m_plus_p_less_one_turns(self):
        for schedule in ("gpipe", "1f1b"):
            for p in (1, 2, 3, 4, 8):
                for m in (1, 2, 4, 8, 16):
                    found = self.equal(p, 16, "--micro-batches", m, "--schedule", schedule)["steps"][0]
                    self.assertAlmostEqual(found["step_ns"], 16 * 3000 * US * (m + p - 1) / m, delta=1)
                    self.assertAlmostEqual(found["idle"], (p - 1) / (m + p - 1), places=9)

    def test_two_equal_stages_are_faster_by_2m_by_m_plus_1(self):
        for m in (1, 2, 4, 8, 16):
            found = self.equal(2, 16, "--micro-batches", m, "--schedule", "gpipe")["steps"][0]
            self.assertAlmostEqual(found["times"], 2 * m / (m + 1), places=9)

    def test_interleaved_has_a_part_of_the_idle_time(self):
        p, v, m = 2, 2, 8
        found = self.equal(p * v, m, "--modules", v, "--micro-batches", m)["steps"][0]
        self.assertEqual(len(found["ranks"]), p)
        self.assertAlmostEqual(found["idle"], (p - 1) / (v * m + p - 1), places=9)

    def test_one_rank_of_all_modules_is_never_idle(self):
        found = self.equal(3, 6, "--modules", 3, "--micro-batches", 2, link="ethernet-10")["steps"][0]
        self.assertAlmostEqual(found["step_ns"], 3 * 6 * 3000 * US, delta=1)
        self.assertAlmostEqual(found["idle"], 0, places=9)

    def test_a_fixed_cost_counts_once_a_micro_batch(self):
        for m in (1, 2, 4):
            found = self.equal(2, 8, "--micro-batches", m, forward="100,1000", backward="500,2000")["steps"][0]
            self.assertAlmostEqual(found["step_ns"], (m + 1) * (600 + 3000 * 8 / m) * US, delta=1)

    def test_the_slowest_stage_decides(self):
        stages = [stage((0, 1000), (0, 2000)), stage((0, 3000), (0, 5000))]
        found = self.one(self.write("s.json", file_of(stages, 8)), "--link=free", "--split-size=1")
        self.assertAlmostEqual(found["step_ns"], 1000 + 8 * 8000 + 2000, delta=1)

    def test_a_message_over_a_card_arrives_later_and_costs_no_processor(self):
        wire = self.write("wire.json", {"format": "cairn-link", "name": "wire", "alpha_us": 1, "gbytes_per_s": 1,
                                        "share": 0})
        found = self.equal(2, 4, "--micro-batches", 1, "--output", 1000, link=wire)["steps"][0]
        self.assertAlmostEqual(found["step_ns"], (2 * 4 * 3000 + 2 * (1 + 4)) * US, delta=1)
        (first, _), (second, back) = found["ranks"]
        self.assertAlmostEqual(second["begin_ns"] - first["end_ns"], 5 * US, delta=1)
        self.assertAlmostEqual(back["begin_ns"], second["end_ns"], delta=1)

    def test_messages_of_one_way_follow_each_other(self):
        wire = self.write("wire.json", {"format": "cairn-link", "name": "wire", "alpha_us": 0, "gbytes_per_s": 1,
                                        "share": 0})
        turns = self.equal(2, 4, "--schedule=gpipe", "--split-size", 1, "--output", 1000, link=wire, forward="0,0.25",
                           backward="0,1")["steps"][0]["ranks"][1]
        begins = [t["begin_ns"] for t in turns if t["turn"] == "forward"]
        self.assertEqual([round(b) for b in begins], [1250, 2250, 3250, 4250])

    def test_a_processor_that_copies_computes_later(self):
        wire = self.write("wire.json", {"format": "cairn-link", "name": "wire", "alpha_us": 10, "gbytes_per_s": 1,
                                        "share": 1})
        first = self.equal(2, 4, "--schedule=gpipe", "--split-size", 2, link=wire)["steps"][0]["ranks"][0]
        self.assertAlmostEqual(first[1]["begin_ns"] - first[0]["end_ns"], 10 * US, delta=1)

    # ---- memory ----

    def test_1f1b_holds_at_most_the_stages_behind(self):
        for p in (2, 3, 4, 8):
            for m in (1, 2, 4, 16):
                found = self.equal(p, 16, "--micro-batches", m, "--held", 1000)["steps"][0]
                self.assertEqual(found["in_flight"], [min(p - s, m) for s in range(p)])
                self.assertEqual(found["held_bytes"], min(p, m) * 1000 * 16 / m)
                gpipe = self.equal(p, 16, "--micro-batches", m, "--held", 1000, "--schedule=gpipe")["steps"][0]
                self.assertEqual(gpipe["in_flight"], [m] * p)
                self.assertEqual(gpipe["held_bytes"], 1000 * 16)

    # ---- the suggestion ----

    def test_any_stages_take_what_their_dependencies_say(self):
        rng = random.Random(3)
        for _ in range(20):
            stages = [stage((rng.randint(0, 3000), rng.randint(100, 3000)),
                            (rng.randint(0, 9000), rng.randint(100, 5000))) for _ in range(rng.randint(2, 4))]
            rows, split = rng.randint(1, 40), rng.randint(1, 12)
            for schedule in ("gpipe", "1f1b"):
                found = self.one(self.write("s.json", file_of(stages, rows)), "--link=free", "--split-size", split,
                                 "--schedule", schedule)
                self.assertAlmostEqual(found["step_ns"] / step(schedule, stages, rows, split), 1, places=6)

    def test_the_suggestion_is_the_smallest_of_the_best_split_sizes(self):
        rng = random.Random(7)
        wire = self.write("wire.json", {"format": "cairn-link", "name": "wire", "alpha_us": 2, "gbytes_per_s": 1e6,
                                        "share": 0})
        for _ in range(12):
            stages = [stage((rng.randint(1, 90000), rng.randint(1000, 30000)),
                            (rng.randint(1, 90000), rng.randint(1000, 50000)), output=4) for _ in range(2)]
            rows = rng.randint(8, 120)
            for schedule in ("gpipe", "1f1b"):
                plan = self.plan(self.write("s.json", file_of(stages, rows)), "--link", wire, "--schedule", schedule)
                tried = sorted({-(-rows // m) for m in range(1, rows + 1)}, reverse=True)
                self.assertEqual([s["split_size"] for s in plan["steps"]], tried)
                times = [step(schedule, stages, rows, split, lambda nbytes: 2000) for split in tried]
                flat = [i for i, t in enumerate(times) if t <= 1.01 * min(times)]
                few = [i for i in flat if schedule == "1f1b" and -(-rows // tried[i]) > 2]
                best = max(few) if few else times.index(min(times))
                self.assertLessEqual(abs(plan["best"] - best), 1, f"{rows} rows: {tried}, {times}")
                self.assertLessEqual(times[plan["best"]], 1.0101 * min(times))

    def test_a_large_fixed_cost_leaves_the_batch_whole(self):
        plan = self.equal(2, 64, forward="1000000,1", backward="1000000,1")
        self.assertEqual(plan["steps"][plan["best"]]["micro_batches"], 1)

    def test_without_one_the_smallest_micro_batches_are_best(self):
        plan = self.equal(2, 64)
        self.assertEqual(plan["steps"][plan["best"]]["split_size"], 1)

    def test_many_rows_and_stages_are_planned_in_time(self):
        plan = self.equal(64, 1 << 20, forward="10,1", backward="10,1", link="ib-ndr")
        self.assertGreater(len(plan["steps"]), 300)

    # ---- what is measured ----

    def test_lines_go_through_measured_points_and_say_by_what_they_miss(self):
        model = file_of([stage((5000, 100), (9000, 300))] * 2, 16)
        plan = self.plan(self.write("s.json", model), "--split-size=4", "--link=free")
        self.assertLess(plan["worst_fit"], 1e-9)
        self.assertAlmostEqual(plan["steps"][0]["step_ns"], 5 * (14000 + 4 * 400), delta=1)
        model["stages"][0]["forward"] = [{"rows": 1, "ns": 1000}, {"rows": 2, "ns": 2100}, {"rows": 4, "ns": 3900}]
        found = self.plan(self.write("s.json", model), "--split-size=4")["worst_fit"]
        self.assertTrue(0.01 < found < 0.1, found)

    def test_a_line_never_goes_below_zero(self):
        model = file_of([stage((0, 100), (0, 300))] * 2, 16)
        model["stages"][0]["forward"] = [{"rows": 1, "ns": 100}, {"rows": 10, "ns": 3000}]  # the fixed part is < 0
        model["stages"][1]["backward"] = [{"rows": 1, "ns": 900}, {"rows": 10, "ns": 800}]  # that of a row is < 0
        for found in self.one(self.write("s.json", model), "--split-size=1")["ranks"]:
            self.assertTrue(all(t["end_ns"] >= t["begin_ns"] for t in found))

    # ---- the picture ----

    def picture(self, *args, stages=4, rows=32):
        self.equal(stages, rows, "--svg", self.path("out.svg"), *args, forward="900,1000", backward="3000,2000")
        return ElementTree.parse(self.path("out.svg")).getroot()

    def trace_of(self, *args, by=1.1, stages=4, rows=32):
        ranks = self.equal(stages, rows, *args, forward="900,1000", backward="3000,2000")["steps"][0]["ranks"]
        for turn in (t for turns in ranks for t in turns):
            turn["begin_ns"] *= by
            turn["end_ns"] *= by
        split = int(args[args.index("--split-size") + 1])
        return {"format": "cairn-timeline", "version": 1, "split_size": split, "ranks": ranks}

    def test_the_picture_has_rows_units_a_key_and_a_title(self):
        root = self.picture("--split-size", 4)
        texts = [t.text for t in root.iter(SVG + "text")]
        for wanted in ("4 equal stages", "stage 0", "stage 3", "time from the begin of the step, ms", "forward, model",
                       "backward, model", "idle"):
            self.assertIn(wanted, texts)
        titles = [t.text for t in root.iter(SVG + "title")]
        self.assertEqual(len(titles), 4 * 2 * 8)
        self.assertIn("forward of micro-batch 0, stage 0, model: 4.90 ms", titles)

    def test_labels_of_pictures_do_not_overlap(self):
        for stages, rows, args in ((1, 1, ["--split-size", 1]), (2, 120, ["--split-size", 1]),
                                   (4, 32, ["--split-size", 4]), (8, 64, ["--split-size", 3, "--modules", 2]),
                                   (2, 100000, ["--split-size", 5000]), (3, 7, [])):
            with self.subTest(stages=stages, args=args):
                self.check_labels(self.picture(*args, stages=stages, rows=rows))

    def test_a_trace_is_drawn_beside_the_prediction(self):
        trace = self.trace_of("--split-size", 4)
        root = self.picture("--split-size", 4, "--trace", self.write("trace.json", trace))
        self.check_labels(root)
        titles = [t.text for t in root.iter(SVG + "title")]
        self.assertEqual(len(titles), 2 * 4 * 2 * 8)
        self.assertIn("forward of micro-batch 0, stage 0, measured: 5.39 ms", titles)
        fills = {kind: {r.get("fill") for g in root.iter(SVG + "g") for r in g.iter(SVG + "rect")
                        if kind in g.find(SVG + "title").text} for kind in ("model", "measured")}
        self.assertFalse(fills["model"] & fills["measured"])

    def test_names_are_escaped_and_cut(self):
        model = file_of([stage((1, 1), (1, 1))] * 2, 4)
        model["model"] = '<a & "b">\u0001' + "\u00e9" * 100
        self.plan(self.write("s.json", model), "--svg", self.path("out.svg"))
        root = ElementTree.parse(self.path("out.svg")).getroot()
        self.assertEqual(next(root.iter(SVG + "text")).text, '<a & "b">?' + "\u00e9" * 50 + "...")
        self.check_labels(root)

    # ---- what people get wrong ----

    def refused(self, sentence, *args, code=1):
        found = self.call(*args)
        self.assertEqual((found[0], found[1], found[2]), (code, "", f"cairn-plan: {sentence}\n"))

    def test_wrong_options_are_refused_with_a_message(self):
        s = self.write("s.json", file_of([stage((1, 1), (1, 1))] * 2, 4))
        equal = ["--stages=2", "--rows=4", "--forward=1,1", "--backward=1,1"]
        help_ = "cairn-plan pipeline --help lists the options"
        for sentence, args in [
                ("a file of stages is missing, or --stages with --forward and --backward; see cairn-plan pipeline "
                 "--help", []),
                ("there are 2 files of stages; one is expected", [s, s]),
                ("--stages stands in place of a file; give one of them", [s, "--stages=2"]),
                ("--forward, --backward, --output and --held go with --stages; the file has its own",
                 [s, "--held=4"]),
                ("--stages goes with --forward and --backward", ["--stages=2", "--rows=4"]),
                ("--stages goes with --rows", ["--stages=2", "--forward=1,1", "--backward=1,1"]),
                ("--stages takes a number from 1 to 256, not '0'", ["--stages=0"]),
                ("--modules takes a number from 1 to 256, not '257'", [s, "--modules=257"]),
                ("--rows takes a number from 1 to 1048576, not 'x'", [s, "--rows=x"]),
                ("--forward takes two numbers of microseconds with a comma between them, such as 120,3.5, not '5'",
                 ["--forward=5"]),
                ("--backward takes two numbers of microseconds with a comma between them, such as 120,3.5, not '5,-1'",
                 ["--backward=5,-1"]),
                ("--output takes bytes of a row such as 512 or 64K, not '4X'", ["--output=4X"]),
                ("--schedule takes gpipe, 1f1b or interleaved, not 'zb'", [s, "--schedule=zb"]),
                ("--split-size takes numbers from 1 on with commas between them, 64 at most, not '4,'",
                 [s, "--split-size=4,"]),
                ("--micro-batches takes numbers from 1 on with commas between them, 64 at most, not '0'",
                 [s, "--micro-batches=0"]),
                ("--split-size and --micro-batches say the same in two ways; give one of them",
                 [s, "--split-size=4", "--micro-batches=2"]),
                ("ranks of several --modules run the schedule interleaved; leave out --schedule",
                 [*equal, "--modules=2", "--schedule=gpipe"]),
                ("--trace is drawn; it goes with --svg", [s, "--trace=x"]),
                ("--svg draws one step; give one size of micro-batches, or none", [s, "--svg=x", "--split-size=1,2"]),
                (f"--svg needs a value; {help_}", [s, "--svg"]),
                (f"--nope is not an option, is ambiguous, or has a value and takes none; {help_}", [s, "--nope"])]:
            with self.subTest(args=args):
                self.refused(sentence, *args, code=2)

    def test_what_does_not_go_together_is_refused(self):
        s = self.write("s.json", file_of([stage((1, 1), (1, 1))] * 3, 4))
        table = self.write("l.json", {"format": "cairn-link", "name": "t", "ranks": 2, "share": 0,
                                      "points": [{"bytes": 8, "us": 1}, {"bytes": 80, "us": 2}]})
        for sentence, args in [
                ("3 stages cannot be spread over ranks of 2 modules each; give --modules that divides them",
                 [s, "--modules=2"]),
                ("--schedule interleaved goes with --modules from 2 on", [s, "--schedule=interleaved"]),
                ("the link t has times of all-reduces; stages send messages, so give it alpha_us and gbytes_per_s",
                 [s, "--link", table]),
                ("--split-size 1 cuts 5000 rows into more than 4096 micro-batches, which are not planned; give a "
                 "larger one", [s, "--rows=5000", "--split-size=1"]),
                (f"{self.path('no/out.svg')} cannot be written: No such file or directory",
                 [s, "--svg", self.path("no/out.svg")])]:
            with self.subTest(args=args):
                self.refused(sentence, *args)

    def test_wrong_files_are_refused_with_the_place_in_them(self):
        def changed(**more):
            return {**file_of([stage((1, 1), (1, 1))] * 2, 4), **more}

        one = file_of([stage((1, 1), (1, 1))], 4)["stages"][0]
        for sentence, value in [
                ("format is \"x\"; it must be \"cairn-stages\"", changed(format="x")),
                ("version is 2; it must be 1, which is what this cairn-plan reads", changed(version=2)),
                ("rows is 0; it must be a whole number from 1 to 2^53", changed(rows=0)),
                ("stages is an empty array; it must be an array of at least one element", changed(stages=[])),
                ("stages[0] must be an object", changed(stages=[7])),
                ("stages[0].forward is missing; it must be an array of at least one element", changed(stages=[{}])),
                ("stages[0].forward is an array; it must be 2 to 256 points",
                 changed(stages=[{**one, "forward": [{"rows": 1, "ns": 1}]}])),
                ("stages[0].backward[1].ns is -1; it must be a number from 1 to 2^53",
                 changed(stages=[{**one, "backward": [{"rows": 1, "ns": 1}, {"rows": 2, "ns": -1}]}])),
                ("stages[0].forward[1] and an earlier point are of 1 rows; give each number of rows once",
                 changed(stages=[{**one, "forward": [{"rows": 1, "ns": 1}, {"rows": 1, "ns": 2}]}]))]:
            with self.subTest(sentence=sentence):
                path = self.write("s.json", value)
                self.refused(f"{path}: {sentence}", path)
        path = self.write("s.json", {k: v for k, v in changed().items() if k != "rows"})
        self.refused(f"{path} has no rows; give --rows", path)

    def test_a_trace_of_something_else_is_refused(self):
        args = ["--stages=4", "--rows=32", "--forward=1,1", "--backward=1,1", "--svg", self.path("out.svg")]
        trace = self.trace_of("--split-size", 4)
        path = self.write("t.json", trace)
        self.refused(f"{path}: it is of micro-batches of 4 rows, and the prediction of 8; give --split-size 4", *args,
                     "--split-size=8", "--trace", path)
        path = self.write("t.json", {**trace, "ranks": trace["ranks"][:2]})
        self.refused(f"{path}: it is of 2 ranks, and the prediction of 4", *args, "--split-size=4", "--trace", path)
        trace["ranks"][1][2]["turn"] = "sideways"
        path = self.write("t.json", trace)
        self.refused(f"{path}: ranks[1][2].turn is \"sideways\"; it must be \"forward\" or \"backward\"", *args,
                     "--split-size=4", "--trace", path)

    def test_the_table_names_the_best(self):
        code, out, errors = self.call("--stages=2", "--rows=64", "--forward=900,1000", "--backward=4000,2000")
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(out.count("<- best"), 1)
        best = next(line for line in out.splitlines() if "<- best" in line).split()[0]
        self.assertTrue(out.endswith(f"\nsuggested: cairn_pipeline_options(.split_size = {best})\n"), out)

    def test_help_is_printed(self):
        code, out, errors = self.call("--help")
        self.assertEqual((code, errors), (0, ""))
        self.assertTrue(out.startswith("usage: cairn-plan pipeline"))
        self.assertTrue(all(len(line) <= 120 for line in out.splitlines()))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
