"""tools/cairn-bench's collectives, with tiny arrays: output lines, JSON, omitted sides, and wrong options.

usage: test_cairn_bench.py path/to/source path/to/build"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]
sys.path.insert(0, os.path.join(SOURCE, "tools/bench"))
import collectives  # noqa: E402

PEER = """#!{python}
import os, socket, sys
if sys.argv[1] == "-c": # asked for its torch
    print('{{"version": "9", "prefix": "", "config": "", "files": []}}')
else:
    bench = socket.socket(socket.AF_UNIX)
    bench.connect(sys.argv[2])
    bench.sendall(b"hello torch " + os.environ["RANK"].encode() + b" a peer that dies\\n")
    bench.recv(10)
    sys.exit("I must go")
"""
PATIENCE = 120  # for what takes a second or two


def bench(*args):
    """Exit code, lines, stderr."""
    done = subprocess.run([sys.executable, SOURCE + "/tools/cairn-bench", *map(str, args)], capture_output=True,
                          text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def figures(lines):
    """The words of the lines that are none for the eye only."""
    return [line.split() for line in lines if not line.startswith("#")]


class Bench(unittest.TestCase):
    def run_bench(self, what, *more, beside="none"):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            code, lines, errors = bench(what, "--build", BUILD, "--rounds=2", "--beside", beside, "--json", out.name,
                                        *more)
            self.assertEqual((code, errors), (0, ""), lines)
            with open(out.name, encoding="utf-8") as file:
                return lines, json.load(file)

    def check_row(self, row, what, ranks):
        for place in "out_of_place", "in_place":
            expected = ("in" if place == "in_place" else "out") in collectives.places(what)
            self.assertEqual(row[place] is not None, expected, (what, place))
            if not expected:
                continue
            self.assertEqual((row[place]["wrong"], row[place]["rounds"]), (0, 2), row)
            algbw = row["size"] / row[place]["time_us"] * 1e-3
            self.assertAlmostEqual(row[place]["algbw"], algbw)
            self.assertAlmostEqual(row[place]["busbw"], algbw * collectives.bus_factor(what, ranks))

    def test_every_collective_gives_lines_and_the_same_in_json(self):
        for what in collectives.COLLECTIVES[:-1]:
            with self.subTest(what):
                lines, told = self.run_bench(what, "--max=100", "--factor=16", "--type=bf16", "--ranks=3")
                self.assertEqual((told["collective"], told["ranks"], told["backend"]), (what, 3, "shm"))
                self.assertEqual([row["count"] for row in told["rows"]],
                                 [1, 16] if what in collectives.IN_PARTS else [4, 50])
                self.assertEqual([words[:2] for words in figures(lines)],
                                 [[str(row["size"]), str(row["count"])] for row in told["rows"]])
                for row in told["rows"]:
                    self.check_row(row, what, 3)

    def test_calls_in_a_row_are_timed_as_one(self):
        for what in "allreduce", "reduce", "allgather":
            lines, told = self.run_bench(what, "--max=100", "--factor=16", "--ranks=3", "--calls=4")
            self.assertIn(", 4 calls in a row", lines[0])
            self.assertEqual(told["calls"], 4)
            for row in told["rows"]:
                self.check_row(row, what, 3)

    def test_two_ranks_are_compared_with_more(self):
        lines, told = self.run_bench("allreduce", "--min=64K", "--max=64K", "--ranks=4", "--calls=5", beside="pair")
        cairn, pair = told["rows"]
        self.check_row(cairn, "allreduce", 4)
        self.check_row(pair, "allreduce", 2)
        self.assertEqual(cairn["pairs"], {place: cairn[place]["time_us"] / pair[place]["time_us"]
                                          for place in ("out_of_place", "in_place")})
        self.assertEqual([words[-2:] for words in figures(lines)][0], [f"{x:.1f}" for x in cairn["pairs"].values()])
        self.assertIsNone(pair["pairs"])

    def test_inexact_sums_are_refused(self):
        for options in ["--type=f16"], ["--ranks=3"], ["--ranks=64", "--calls=30"], ["--ranks=16", "--type=bf16"]:
            self.assertIn("would not stay exact", self.refused("allreduce", "--calls=20", *options))
        for what, *more in ("allreduce", "f32", 8, 40), ("allreduce", "f32", 3, 13), \
                ("allreduce", "bf16", 8, 20), ("broadcast", "bf16", 3, 1000), \
                ("reduce", "f32", 64, 1000), ("allreduce", "f16", 2, 1):
            self.assertTrue(collectives.stay_exact(what, *more), more)

    def test_barrier_is_one_line(self):
        lines, told = self.run_bench("barrier")
        self.assertRegex(lines[-2], r"^barrier cairn +\d+\.\d\d us$")
        self.assertEqual([row["side"] for row in told["rows"]], ["cairn"])

    def test_the_limit_stands_beside_all_reduce(self):
        for ranks in 2, 3:
            lines, told = self.run_bench("allreduce", "--min=512", "--max=4096", f"--ranks={ranks}", "--type=f16",
                                         beside="limit")
            for row in told["rows"]:
                limit = row["limit"]
                self.assertEqual(limit["time_us"], min(limit[loop + "_us"] for loop in collectives.LOOPS))
                self.assertEqual(limit["wrong"], 0)
            self.assertTrue(all(len(words) == 16 for words in figures(lines)), lines)

    def test_every_backend_of_this_build_is_timed(self):
        for backend in "gloo", "mpi":
            if not os.path.exists(f"{BUILD}/src/comm/{backend}/libcairn_{backend}.so") or not shutil.which("mpirun"):
                continue
            with self.subTest(backend):
                for what in "allreduce", "sendrecv":
                    _, told = self.run_bench(what, "--max=64", "--backend", backend, "--memory=both")
                    self.assertEqual([row["what"].split()[0] for row in told["rows"]], [backend] * 4)
                    for row in told["rows"]:
                        self.check_row(row, what, 2)

    def test_both_kinds_of_memory_have_a_line_each(self):
        _, told = self.run_bench("allreduce", "--max=8", "--memory=both")
        self.assertEqual([row["memory"] for row in told["rows"]], ["group", "ordinary"])

    def test_ranks_are_bound_to_processors_where_there_are_enough(self):
        for options, bound in ((["--ranks=1"], True), (["--ranks=1", "--no-bind"], False),
                               (["--ranks=2", "--bind"], True)):
            lines, told = self.run_bench("allreduce", "--max=8", *options)
            self.assertEqual((told["bound"], "bound to one each" in lines[0]), (bound, bound))

    def test_one_rank_is_a_group_too(self):
        self.run_bench("allreduce", "--max=64", "--ranks=1")

    def test_peers_are_compared_or_the_reason_is_printed(self):
        lines, told = self.run_bench("allreduce", "--max=64", beside="torch,mpi")
        for name in "torch", "mpi":
            rows = [row for row in told["rows"] if row["side"] == name]
            if name in told["left_out"]:
                self.assertIn(f"# {name}: left out, {told['left_out'][name]}", lines)
            else:
                self.assertEqual([row["in_place"]["wrong"] for row in rows], [0, 0])

    def test_what_a_peer_lacks_is_printed_once(self):
        path = BUILD + "/tools/bench-mpi"
        if not os.path.exists(path) or not shutil.which("mpirun"):
            self.skipTest("there is no MPI")
        lines, told = self.run_bench("reduce_scatter", "--max=64", beside="mpi")
        self.assertEqual(lines.count("# mpi: in place MPI puts the result elsewhere"), 1)
        self.assertEqual(told["rows"][1]["out_of_place"]["wrong"], 0)

    def test_a_peer_that_dies_is_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            python = folder + "/python"
            with open(python, "w", encoding="utf-8") as program:
                program.write(PEER.format(python=sys.executable))
            os.chmod(python, 0o755)
            lines, told = self.run_bench("allreduce", "--max=64", "--python", python, beside="torch")
        self.assertTrue(any(line.startswith("# torch: failed: ") and "I must go" in line for line in lines), lines)
        self.assertEqual([row["in_place"]["wrong"] for row in told["rows"] if row["side"] == "cairn"], [0, 0])

    # ---- wrong results ----

    def test_a_figure_with_wrong_results_has_no_time(self):
        task = collectives.Task(None)
        task.us, task.wrong = [1.0, 2.0], 3
        wrong = task.figures(64, "allreduce", 2)
        self.assertEqual(wrong, {"wrong": 3, "rounds": 2})
        self.assertEqual(collectives.show(wrong).split(), ["-", "-", "-", "3"])
        self.assertTrue(collectives.is_wrong({"out_of_place": None, "in_place": wrong, "limit": None}))
        self.assertEqual(collectives.show_limit({"time_us": 1.0, "wrong": 1}, {"time_us": 2.0}).split(), ["-", "-"])

    def test_a_figure_is_the_median_of_the_slowest_ranks(self):
        task = collectives.Task(None)
        task.us = [4.0, 1.0, 2.0]
        self.assertEqual(task.figures(2000, "allgather", 4),
                         {"time_us": 2.0, "least_us": 1.0, "algbw": 1.0, "busbw": 0.75, "wrong": 0, "rounds": 3})

    # ---- what people get wrong ----

    def refused(self, *args):
        code, _, errors = bench(*args)
        self.assertNotEqual(code, 0)
        self.assertNotIn("Traceback", errors)
        return errors

    def test_options_that_make_no_sense_are_refused(self):
        for option, part in (("--min=0", "--min"), ("--max=x", "--max"), ("--factor=1", "number from 2"),
                             ("--ranks=65", "number from 1 to 64"), ("--beside=all", "--beside"),
                             ("--seconds=0", "--seconds"), ("--type=i8", "choose from"), ("--rounds=0", "--rounds")):
            self.assertIn(part, self.refused("allreduce", option))
        self.assertIn("more than", self.refused("allreduce", "--min=2K", "--max=1K"))
        self.assertIn("invalid choice", self.refused("all-reduce"))

    def test_a_folder_without_the_program_is_an_error(self):
        with tempfile.TemporaryDirectory() as empty:
            self.assertIn(f"there is no {empty}/tools/bench-collectives: run tools/quickstart",
                          self.refused("allreduce", "--build", empty, "--beside=none"))

    def test_a_rank_that_cannot_start_is_an_error_with_its_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(folder + "/tools")
            with open(folder + "/tools/bench-collectives", "w", encoding="ascii") as program:
                program.write("#!/bin/sh\necho no luck today >&2\nexit 3\n")
            os.chmod(folder + "/tools/bench-collectives", 0o755)
            self.assertEqual(self.refused("allreduce", "--build", folder), "cairn-bench: no luck today\n")

    def test_sizes_are_read_with_their_units(self):
        self.assertEqual([collectives.nbytes(text) for text in ("8", "64K", "1m", "2G")], [8, 65536, 1 << 20, 2 << 30])
        args = argparse.Namespace(min=8, max=100, factor=4, what="allgather", type="f32", ranks=4)
        self.assertEqual(collectives.counts(args), [1, 2, 6])

    def test_a_killed_benchmark_leaves_no_process(self):
        with tempfile.TemporaryDirectory() as folder:
            job = subprocess.Popen([sys.executable, SOURCE + "/tools/cairn-bench", "allreduce", "--build", BUILD,
                                    "--beside=limit", "--seconds=1000", "--min=1M", "--max=1M", "--rounds=10000"],
                                   text=True,
                                   stdout=subprocess.PIPE, env=dict(os.environ, TMPDIR=folder, PYTHONUNBUFFERED="1"))
            for line in job.stdout:
                if re.match(r"# +size", line):
                    break
            children = self.children(job.pid)
            self.assertEqual(len(children), 4)
            job.terminate()
            job.communicate(timeout=PATIENCE)
            self.assertEqual((os.listdir(folder), [pid for pid in children if os.path.exists(f"/proc/{pid}")]),
                             ([], []))

    @staticmethod
    def children(pid):
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return file.read().split()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
