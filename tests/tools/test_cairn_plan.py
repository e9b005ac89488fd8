"""cairn-plan: closed forms of the step, links, algorithms, the search for a cap, the picture, and what people get
wrong.

usage: test_cairn_plan.py path/to/cairn-plan path/to/01_linear_regression"""
import json
import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

import cases

PLAN, EXAMPLE = sys.argv[1:3]
ALGORITHMS = ("ring", "tree", "halving-doubling", "all-to-all")
MILLISECOND = 1000000
PATIENCE = 60


def profile(sizes, ready=None, **more):
    """Of f32 parameters with so many elements; they become ready from the last to the first, evenly."""
    count = len(sizes)
    ready = ready or [10 * MILLISECOND * (count - i) // count for i in range(count)]
    return {"format": "cairn-profile", "version": 1, "model": "test", "forward_ns": 5 * MILLISECOND,
            "backward_ns": 10 * MILLISECOND, "optimizer_ns": 2 * MILLISECOND,
            "parameters": [{"name": f"p{i}", "elements": n, "dtype": "f32", "ready_ns": r}
                           for i, (n, r) in enumerate(zip(sizes, ready))], **more}


def link(**more):
    """A message takes 1 us, and a GB 1 s."""
    return {"format": "cairn-link", "name": "wire", "alpha_us": 1, "gbytes_per_s": 1, **more}


ONE = profile([1 << 18])  # 1 MiB, ready when backward ends
MANY = profile([1 << 16] * 64)  # 16 MiB


class Plan(cases.InFolder):
    def call(self, *args):
        """Exit code, stdout, stderr."""
        done = subprocess.run([PLAN, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE, check=False)
        return done.returncode, done.stdout, done.stderr

    def plan(self, model, *args, wire=None):
        """The JSON of a profile, over the link `wire` where one is given."""
        over = ["--link", self.write("link.json", wire)] if wire else []
        code, out, errors = self.call(self.write("profile.json", model), "--json", *over, *args)
        self.assertEqual((code, errors), (0, ""))
        return json.loads(out)

    def steps(self, model, *args, wire=None):
        return self.plan(model, *args, wire=wire)["steps"]

    # ---- closed forms ----

    def test_with_one_bucket_a_step_is_the_sum_of_its_parts(self):
        nbytes = 1 << 20
        for share in 0, 1:
            for ranks, expected in ((2, 2 * 1000 + nbytes), (4, 6 * 1000 + 1.5 * nbytes)):
                step, = self.steps(ONE, "--ranks", ranks, wire=link(share=share))
                self.assertEqual(len(step["buckets"]), 1)
                self.assertEqual(step["communication_ns"], expected)
                self.assertEqual(step["exposed_ns"], expected)
                self.assertEqual(step["step_ns"], 17 * MILLISECOND + expected)

    def test_a_link_that_costs_nothing_leaves_the_compute_time(self):
        for algorithm in ALGORITHMS:
            for step in self.steps(MANY, "--cap", "64K,1M,1G", "--ranks", "2,16384", "--algorithm", algorithm,
                                   "--link", "free"):
                self.assertEqual((step["step_ns"], step["exposed_ns"]), (17 * MILLISECOND, 0))

    def test_one_rank_communicates_nothing(self):
        step, = self.steps(MANY, "--ranks", 1)
        self.assertEqual((step["step_ns"], step["communication_ns"]), (17 * MILLISECOND, 0))

    def test_more_ranks_are_never_faster(self):
        ranks = [*range(1, 34), 63, 64, 65, 100, 1000, 1023, 1024, 1025, 8191, 8192, 16384]
        table = link(ranks=3, points=[{"bytes": 1024, "us": 4}, {"bytes": 65536, "us": 5},
                                      {"bytes": 1 << 20, "us": 900}])
        for wire in link(), link(share=1), link(overhead_us=0.1), table:
            for algorithm in ALGORITHMS:
                for more in [], ["--node-ranks", 8, "--node-link", "nvlink4"]:
                    steps = self.steps(MANY, "--ranks", ",".join(map(str, ranks)), "--cap", "1M", "--algorithm",
                                       algorithm, *more, wire=wire)
                    times = [step["step_ns"] for step in steps]
                    self.assertEqual(times, sorted(times), (wire, algorithm, more))

    def test_more_bytes_are_never_faster(self):
        table = link(ranks=2, points=[{"bytes": 1024, "us": 9}, {"bytes": 4096, "us": 7}, {"bytes": 65536, "us": 70}])
        for wire in link(), table:
            times = [self.steps(profile([n]), wire=wire)[0]["step_ns"]
                     for n in (0, 1, 100, 256, 700, 1024, 9000, 1 << 20)]
            self.assertEqual(times, sorted(times))

    def test_algorithms_cost_what_their_papers_say(self):
        n = 1 << 20
        expected = {"ring": (14000 + 1.75 * n), "tree": (6000 + 6 * n), "halving-doubling": (6000 + 1.75 * n),
                    "all-to-all": (14000 + 1.75 * n)}
        for algorithm, ns in expected.items():
            step, = self.steps(ONE, "--ranks", 8, "--algorithm", algorithm, wire=link())
            self.assertEqual(step["communication_ns"], ns, algorithm)
        step, = self.steps(ONE, "--ranks", 8, "--algorithm", "all-to-all", wire=link(overhead_us=0.25))
        self.assertEqual(step["communication_ns"], 2 * (1000 + 6 * 250) + 1.75 * n)

    def test_nodes_add_up_what_is_within_and_between_them(self):
        inner = self.write("inner.json", link(gbytes_per_s=4))
        step, = self.steps(ONE, "--ranks", 8, "--node-ranks", 4, "--node-link", inner, wire=link())
        self.assertEqual(step["communication_ns"], (6000 + 1.5 * 2**20 / 4) + (2000 + 2**20))
        step, = self.steps(ONE, "--ranks", 3, "--node-ranks", 4, "--node-link", inner, wire=link())
        self.assertAlmostEqual(step["communication_ns"], 4000 + 4 / 3 * 2**20 / 4, places=6)

    def test_between_nodes_the_exchange_sends_f32_sums_of_halves(self):
        for wire_type, width, times in ("f32", 4, 1), ("f16", 2, 1.5), ("bf16", 2, 1.5):
            args = "--ranks", 8, "--node-ranks", 4, "--node-link", "free", "--wire", wire_type
            step, = self.steps(ONE, *args, "--algorithm", "all-to-all", wire=link())
            self.assertEqual(step["communication_ns"], 2000 + times * width * 2**18)
            step, = self.steps(ONE, *args, "--algorithm", "ring", wire=link())
            self.assertEqual(step["communication_ns"], 2000 + width * 2**18)

    # ---- overlap ----

    def test_a_link_with_an_engine_hides_what_backward_covers(self):
        model = profile([1 << 18, 1 << 18], ready=[10 * MILLISECOND, 5 * MILLISECOND])
        step, = self.steps(model, "--cap", "1M", wire=link())
        each = 2000 + 2**20
        self.assertEqual([b["begin_ns"] for b in step["buckets"]], [10 * MILLISECOND, 15 * MILLISECOND])
        self.assertEqual([b["exposed_ns"] for b in step["buckets"]], [0, each])
        self.assertEqual((step["exposed_ns"], step["step_ns"]), (each, 17 * MILLISECOND + each))

    def test_a_link_without_an_engine_hides_nothing(self):
        for cap in "64K", "1M", "1G":
            step, = self.steps(MANY, "--cap", cap, wire=link(share=1))
            self.assertAlmostEqual(step["step_ns"], 17 * MILLISECOND + step["communication_ns"], places=3)
            self.assertAlmostEqual(step["exposed_ns"], step["communication_ns"], places=3)

    def test_with_a_partial_share_backward_goes_on_at_the_remaining_rate(self):
        model = profile([1 << 18, 1 << 18], ready=[10 * MILLISECOND, 5 * MILLISECOND])
        step, = self.steps(model, "--cap", "1M", "--share", 0.25, wire=link())
        each = 2000 + 2**20
        self.assertEqual([b["exposed_ns"] for b in step["buckets"]], [each / 4, each])
        self.assertEqual(step["buckets"][1]["begin_ns"], 15 * MILLISECOND + each / 4)

    def test_a_bucket_that_outlasts_backward_counts_from_its_end(self):
        model = profile([1 << 20], ready=[9 * MILLISECOND])
        step, = self.steps(model, "--cap", "1G", wire=link())
        self.assertEqual(step["backward_end_ns"], 15 * MILLISECOND)
        self.assertEqual(step["step_ns"], 14 * MILLISECOND + 2000 + 2**22 + 2 * MILLISECOND)
        self.assertEqual(step["exposed_ns"], 2000 + 2**22 - MILLISECOND)

    def test_buckets_go_one_after_the_other_in_order(self):
        for share in 0, 0.5, 1:
            step, = self.steps(MANY, "--cap", "256K", "--share", share, wire=link(gbytes_per_s=0.5))
            self.assertEqual(len(step["buckets"]), 64)
            end = 0
            for b in step["buckets"]:
                self.assertGreaterEqual(b["begin_ns"] + 1e-3, max(end, b["ready_ns"]))
                self.assertGreater(b["end_ns"], b["begin_ns"])
                end = b["end_ns"]
            self.assertAlmostEqual(step["settled_ns"], max(end, step["backward_end_ns"]), places=3)
            self.assertAlmostEqual(step["step_ns"] - 17 * MILLISECOND, step["exposed_ns"], places=3)

    def test_an_absent_gradient_is_sent_after_backward(self):
        model = profile([1 << 18, 1 << 18])
        model["parameters"][1]["ready_ns"] = None
        step, = self.steps(model, "--cap", "64K")
        self.assertEqual(max(b["ready_ns"] for b in step["buckets"]), 15 * MILLISECOND)

    def test_a_half_type_is_sent_in_half_the_bytes(self):
        step, = self.steps(ONE, "--wire", "bf16", wire=link())
        self.assertEqual(step["communication_ns"], 2000 + 2**19)
        model = profile([1 << 18])
        model["parameters"][0]["wire"] = "f16"
        self.assertEqual(self.steps(model, wire=link())[0]["communication_ns"], 2000 + 2**19)

    # ---- tables ----

    POINTS = [{"bytes": 1 << 12, "us": 3}, {"bytes": 1 << 16, "us": 12}, {"bytes": 1 << 20, "us": 480}]

    def all_reduce(self, nbytes, wire, ranks=2):
        return self.steps(profile([nbytes // 4]), "--ranks", ranks, wire=wire)[0]["communication_ns"]

    def test_a_table_gives_its_points_and_is_straight_between_them_in_logarithms(self):
        wire = link(ranks=2, points=self.POINTS)
        for point in self.POINTS:
            self.assertEqual(self.all_reduce(point["bytes"], wire), 1000 * point["us"])
        self.assertAlmostEqual(self.all_reduce(1 << 14, wire), 6000, places=6)  # the middle of 2^12 and 2^16
        self.assertEqual(self.all_reduce(64, wire), 3000)
        self.assertAlmostEqual(self.all_reduce(1 << 21, wire), 480000 + 477000, places=6)

    def test_a_table_for_other_ranks_keeps_its_latency_and_rate(self):
        wire = link(ranks=2, points=self.POINTS)
        self.assertAlmostEqual(self.all_reduce(1 << 20, wire, ranks=4), 3 * 3000 + 1.5 * 477000, places=6)

    def test_points_in_any_order_that_fall_are_averaged(self):
        points = [{"bytes": 4096, "us": 4}, {"bytes": 1024, "us": 6}, {"bytes": 16384, "us": 50}]
        wire = link(ranks=2, points=points)
        self.assertEqual([self.all_reduce(n, wire) for n in (1024, 2048, 4096, 16384)], [5000, 5000, 5000, 50000])

    def bench(self, **more):
        def row(size, us, **changes):
            return {"side": "cairn", "memory": "group", "size": size, "in_place": {"time_us": us, "wrong": 0},
                    **changes}
        return {"collective": "allreduce", "backend": "shm", "ranks": 2,
                "rows": [row(4096, 3), row(4096, 9, side="mpi", memory="ordinary"), row(1 << 20, 480)], **more}

    def test_the_figures_of_cairn_bench_are_a_table(self):
        self.assertEqual(self.all_reduce(1 << 20, self.bench()), 480000)
        model = profile([1 << 18, 1 << 18], ready=[10 * MILLISECOND, 5 * MILLISECOND])
        for backend, exposed in (("shm", 960000), ("mpi", 960000), ("gloo", 480000)):
            step, = self.steps(model, "--cap", "1M", wire=self.bench(backend=backend))
            self.assertEqual(step["exposed_ns"], exposed)

    def test_every_preset_is_a_link(self):
        code, out, _ = self.call("--help")
        names = [line.split()[0] for line in out.partition("presets:")[2].splitlines()[1:]]
        self.assertEqual(code, 0)
        self.assertLessEqual({"shm", "pcie4", "pcie5", "nvlink4", "ib-hdr", "ib-ndr", "ethernet-10"}, set(names))
        for name in names:
            plan = self.plan(MANY, "--link", name)
            self.assertEqual(plan["steps"][0]["communication_ns"] > 0, name != "free")
            self.assertEqual(plan["network"], f"ring over {name}")

    # ---- searching ----

    def test_the_suggestion_is_the_shortest_of_what_is_printed(self):
        for ranks in 2, 64, 16384:
            plan = self.plan(MANY, "--suggest", "--ranks", ranks, wire=link(alpha_us=20))
            times = [step["step_ns"] for step in plan["steps"]]
            self.assertEqual(times[plan["best"]], min(times))
            self.assertEqual(plan["steps"][0]["cap"], 65536)
            self.assertEqual(len(plan["steps"][-1]["buckets"]), 2)  # 1 MiB first, and the others
            plans = [[b["bytes"] for b in step["buckets"]] for step in plan["steps"]]
            self.assertEqual(len(plans), len(set(map(tuple, plans))))
            lines = self.call(self.path("profile.json"), "--suggest", "--ranks", ranks, "--link",
                              self.path("link.json"))[1]
            best, = [line for line in lines.splitlines() if line.endswith("<- best")]
            self.assertEqual(int(best.split()[3]), len(plan["steps"][plan["best"]]["buckets"]))
            self.assertIn(f".bucket_nbytes = {plan['steps'][plan['best']]['cap']})", lines)

    def test_of_equal_steps_that_with_the_fewest_buckets_is_suggested(self):
        plan = self.plan(MANY, "--suggest", "--ranks", 1)
        self.assertEqual(plan["best"], len(plan["steps"]) - 1)

    def test_sixteen_thousand_ranks_take_no_time(self):
        model = profile([1 << 14] * 3000)
        begin = os.times().children_user
        self.plan(model, "--suggest", "--ranks", 16384, "--node-ranks", 8, "--node-link", "nvlink4", "--link", "ib-ndr")
        self.assertLess(os.times().children_user - begin, 10)  # of processor time, where a sanitizer may look on

    # ---- the picture ----

    def picture(self, model, *args, wire=None):
        self.plan(model, "--svg", self.path("out.svg"), *args, wire=wire)
        return ElementTree.parse(self.path("out.svg")).getroot()

    def test_the_picture_has_a_block_for_each_part_and_units(self):
        root = self.picture(MANY, "--cap", "4M", wire=link())
        texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
        titles = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
        for part in "forward: 5.00 ms", "backward: 10.0 ms", "optimizer: 2.00 ms":
            self.assertIn(part, titles)
        self.assertEqual(sum(t.startswith("bucket 0: 1 MiB") for t in titles), 1)
        self.assertTrue(any("makes the step longer by" in t for t in titles))
        self.assertIn("time, ms", texts)

    def test_the_picture_stays_within_its_frame(self):
        for wire in link(), link(share=1), link(gbytes_per_s=1e-3):
            root = self.picture(MANY, "--cap", "256K", wire=wire)
            width = float(root.get("width"))
            for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
                if rect.get("x"):
                    self.assertGreaterEqual(float(rect.get("x")), 0)
                    self.assertLessEqual(float(rect.get("x")) + float(rect.get("width")), width)

    def test_names_are_escaped(self):
        name = '<a & "b">\u0001\uffff\u00e9</svg>'
        root = self.picture({**ONE, "model": name})
        self.assertEqual(next(root.iter("{http://www.w3.org/2000/svg}text")).text, '<a & "b">????\u00e9</svg>')

    def test_a_step_of_no_time_can_be_drawn(self):
        for least in 0, 5e-324, 1e-310, 1e-9:
            model = profile([0], ready=[0], forward_ns=least, backward_ns=0, optimizer_ns=0)
            self.picture(model, "--ranks", 1)

    # ---- profiles ----

    def test_a_training_leaves_a_profile(self):
        file = self.path("trained.json")
        env = {**os.environ, "CAIRN_DDP_LOG": file}
        done = subprocess.run([EXAMPLE, "--steps", "40", "--opt-level", "O2"], env=env, capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        code, out, errors = self.call(file, "--json", "--ranks", "1,2")
        self.assertEqual((code, errors), (0, ""))
        plan = json.loads(out)
        alone, both = plan["steps"]
        self.assertEqual(plan["model"], "Linear")
        self.assertEqual([b["bytes"] for b in both["buckets"]], [2 * (1024 * 16 + 32)])  # a cache line for the bias
        self.assertGreater(alone["backward_end_ns"], alone["forward_end_ns"])
        self.assertAlmostEqual(both["step_ns"] - alone["step_ns"], both["communication_ns"], places=3)

    # ---- for people ----

    def test_one_step_is_printed_with_its_buckets(self):
        code, out, _ = self.call(self.write("profile.json", MANY), "--link", "ethernet-100", "--ranks", 8)
        self.assertEqual(code, 0)
        self.assertIn("test: 64 parameters, 16 MiB a rank to reduce", out)
        self.assertIn("one rank: forward 5.00 ms, backward 10.0 ms, optimizer 2.00 ms, step 17.0 ms", out)
        self.assertRegex(out, r"\n +8 +25 MiB +2 +\S+ ms +\S+ ms +\S+ ms +\d+\.\d %\n")
        self.assertRegex(out, r"\n +0 +1 MiB +4 ")

    def test_the_default_cap_is_ddp_creates(self):
        file = self.write("profile.json", MANY)
        for link, cap in ("shm", 4 << 20), ("ethernet-100", 25 << 20):
            code, out, _ = self.call(file, "--json", "--link", link)
            self.assertEqual(code, 0)
            self.assertEqual([step["cap"] for step in json.loads(out)["steps"]], [cap])

    # ---- what people get wrong ----

    def refused(self, sentence, *args, code=1):
        got, out, errors = self.call(*args)
        self.assertEqual((got, out, errors), (code, "", f"cairn-plan: {sentence}\n"))

    def test_wrong_options_are_refused_with_a_message(self):
        p = self.write("profile.json", ONE)
        bytes_list = "bytes such as 64K, 25M or 1G with commas between them, 64 at most"
        ranks_list = "numbers from 1 to 16384 with commas between them, 64 at most"
        for sentence, args in [
                ("a profile is missing: cairn-plan [options] PROFILE; see --help", []),
                ("there are 2 profiles; one is expected", [p, p]),
                ("--speed is not an option, is ambiguous, or has a value and takes none; --help lists "
                 "the options", [p, "--speed"]),
                ("--cap needs a value; --help lists the options", [p, "--cap"]),
                (f"--ranks takes {ranks_list}, not '0'", [p, "--ranks=0"]),
                (f"--ranks takes {ranks_list}, not '16385'", [p, "--ranks=16385"]),
                (f"--ranks takes {ranks_list}, not '2,'", [p, "--ranks=2,"]),
                (f"--ranks takes {ranks_list}, not '-2'", [p, "--ranks=-2"]),
                (f"--cap takes {bytes_list}, not '25MB'", [p, "--cap=25MB"]),
                (f"--cap takes {bytes_list}, not '0'", [p, "--cap=0"]),
                (f"--cap takes {bytes_list}, not '99999999999G'", [p, "--cap=99999999999G"]),
                ("--first-cap takes bytes such as 64K or 1M, not ''", [p, "--first-cap="]),
                ("--wire takes f32, f16 or bf16, not 'f64'", [p, "--wire=f64"]),
                ("--algorithm takes ring, tree, halving-doubling or all-to-all, not 'star'", [p, "--algorithm=star"]),
                ("--node-ranks takes a number from 1 to 16384, not 'two'", [p, "--node-ranks=two"]),
                ("--node-link goes with --node-ranks from 2 on", [p, "--node-link=shm"]),
                ("--share takes a number from 0 to 1, not '1.5'", [p, "--share=1.5"]),
                ("--share takes a number from 0 to 1, not 'nan'", [p, "--share=nan"]),
                ("--suggest chooses the caps; leave out --cap", [p, "--suggest", "--cap=1M"]),
                ("--suggest takes one number of --ranks", [p, "--suggest", "--ranks=2,4"]),
                ("--svg draws one step; give one number of --ranks and one --cap, or --suggest",
                 [p, "--svg=x.svg", "--ranks=2,4"])]:
            with self.subTest(sentence):
                self.refused(sentence, *args, code=2)

    def test_a_wrong_profile_is_refused_with_the_place_in_it(self):
        def changed(**more):
            return {**profile([4, 4]), **more}
        number = "it must be a number from 0 to 2^53"
        whole = "it must be a whole number from 0 to 2^53"
        for sentence, value in [
                ("not JSON, at line 1, column 5: '[' or '{' expected near 'hello'", "hello"),
                ("not a JSON object, which begins with {", []),
                ("format is missing; it must be a text", {}),
                ('format is "x"; it must be "cairn-profile"', changed(format="x")),
                ("version is 2; it must be 1, which is what this cairn-plan reads", changed(version=2)),
                (f"forward_ns is missing; {number}", {k: v for k, v in ONE.items() if k != "forward_ns"}),
                (f"backward_ns is -1; {number}", changed(backward_ns=-1)),
                (f'optimizer_ns is "4"; {number}', changed(optimizer_ns="4")),
                ("parameters is an empty array; it must be an array of at least one element", changed(parameters=[])),
                ("parameters is an object; it must be an array of at least one element", changed(parameters={})),
                ("parameters[0] must be an object", changed(parameters=[7])),
                (f"parameters[1].elements is 1.5; {whole}",
                 changed(parameters=[ONE["parameters"][0], {"elements": 1.5, "dtype": "f32"}])),
                ("parameters[0].dtype is \"int4\"; it must be f32, f16, bf16 or f64",
                 changed(parameters=[{"elements": 1, "dtype": "int4"}])),
                (f"parameters[0].ready_ns is true; {number}",
                 changed(parameters=[{"elements": 1, "dtype": "f32", "ready_ns": True}])),
                ("parameters has more than a PiB of gradients", profile([1 << 50]))]:
            with self.subTest(sentence):
                file = self.write("wrong.json", value)
                self.refused(f"{file}: {sentence}", file)

    def test_a_wrong_link_is_refused_with_the_place_in_it(self):
        p = self.write("profile.json", ONE)
        points = [{"bytes": 8, "us": 1}]
        for sentence, value in [
                ("alpha_us is missing; it must be a number from 0 to 2^53", {"format": "cairn-link"}),
                ("gbytes_per_s is 0; it must be a number from 1e-06 to 2^53", link(gbytes_per_s=0)),
                ("share is 2; it must be at most 1", link(share=2)),
                ("overhead_us is 3; it must be at most alpha_us", link(overhead_us=3)),
                ("ranks is missing; it must be a whole number from 2 to 2^53", link(points=points)),
                ("ranks is 20000; it must be at most 16384", link(points=points, ranks=20000)),
                ("points[0].us is 0; it must be a number from 1e-06 to 2^53",
                 link(points=[{"bytes": 8, "us": 0}], ranks=2)),
                ("points[0] must be an object of bytes and us", link(points=[[8, 1]], ranks=2)),
                ("has two times for 8 bytes; one is expected", link(points=points * 2, ranks=2)),
                ("has a time for one size only, from which no rate follows; give two sizes or more",
                 link(points=points, ranks=2)),
                ('collective is "reduce"; it must be "allreduce"', self.bench(collective="reduce")),
                ("rows has no entry of Cairn's in group memory",
                 self.bench(rows=[{"side": "mpi", "memory": "ordinary"}])),
                ("rows[0].in_place.time_us is missing; it must be a number from 1e-06 to 2^53",
                 self.bench(rows=[{"side": "cairn", "memory": "group", "size": 8, "in_place": {"why": "it died"}}]))]:
            with self.subTest(sentence):
                file = self.write("wrong.json", value)
                self.refused(f"{file}: {sentence}", p, "--link", file)
        self.refused("--link and --node-link take a file, or a preset that --help lists, not 'carrier-pigeon'", p,
                     "--link", "carrier-pigeon")

    def test_a_link_may_be_a_file_without_a_dot_in_its_name(self):
        self.write("measured", link())
        command = [os.path.abspath(PLAN), self.write("profile.json", ONE), "--link", "measured"]
        done = subprocess.run(command, cwd=self.folder.name, capture_output=True, text=True, timeout=PATIENCE,
                              check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_missing_files_are_named(self):
        p = self.write("profile.json", ONE)
        self.refused(f"{self.path('gone.json')}: No such file or directory", self.path("gone.json"))
        self.refused(f"{self.path('gone.json')}: No such file or directory", p, "--link", self.path("gone.json"))
        self.refused(f"{self.path('no/out.svg')} cannot be written: No such file or directory", p, "--svg",
                     self.path("no/out.svg"))

    def test_a_full_disk_is_an_error(self):
        p = self.write("profile.json", ONE)
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([PLAN, p], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
                                  check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "cairn-plan: the result cannot be written to standard output\n"))

    def test_too_many_buckets_are_refused_or_not_tried(self):
        huge = self.write("huge.json", profile([1 << 30] * 1024))  # 4 TiB
        self.refused("a cap of 64 KiB cuts 4 TiB into more than 65536 buckets, which are not planned; give a larger "
                     "--cap", huge, "--cap=1G,64K")
        self.assertEqual(self.plan(profile([1 << 30] * 1024), "--suggest")["steps"][0]["cap"], 1 << 30)

    def test_version_and_help_are_printed(self):
        self.assertRegex(self.call("--version")[1], r"^cairn-plan \d+\.\d+\.\d+\n$")
        told = self.call("--help")[1]
        self.assertIn("--suggest", told)
        self.assertEqual(re.findall(r"\S*cairn-bench", told), ["tools/cairn-bench"]) # as it is not on the PATH
        self.assertIn("not installed", told)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
