"""tools/gpu-check without a GPU: how it runs programs, counts, compares and reports.

usage: test_gpu_check.py SOURCE_ROOT"""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import tempfile
import time
import unittest

ROOT = sys.argv[1] if len(sys.argv) > 1 else "."

sys.dont_write_bytecode = True


def load():
    loader = importlib.machinery.SourceFileLoader("gpu_check", os.path.join(ROOT, "tools/gpu-check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


def quietly(function, *args):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        value = function(*args)
    return value, said.getvalue()


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.check = load()
        self.results = self.check.Results()
        top = tempfile.TemporaryDirectory()
        self.addCleanup(top.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(top.name)
        self.check.ROOT = os.getcwd()

    def judged(self, command, limit=60):
        return quietly(self.check.judge, self.results, "suite", "x", *self.check.run("x", command, limit))[0]

    def measured(self, **figures):
        for name, value in figures.items():
            who, _, figure = name.partition("_")
            self.results.figure("PyTorch" if who == "torch" else who, figure.replace("_", " "), value, "unit")

    def line(self, name, peer):
        return next(x for x in self.check.rows(self.results) if x["name"] == name and x["peer"].startswith(peer))

    def test_mesons_error_is_shown_and_not_its_log_path(self):
        said = "Program cuda-toolkit found: YES\n\nmeson.build:15:4: ERROR: there is no nvcc\n\nA full log is at\n"
        self.assertEqual(self.check.last_line(said), "meson.build:15:4: ERROR: there is no nvcc")

    def test_a_program_that_fails_is_counted_with_its_last_line(self):
        self.assertFalse(self.judged(["sh", "-c", "echo first; echo last; exit 3"]))
        self.assertEqual(self.results.count("FAILED"), 1)
        self.assertIn("exit code 3: last", self.results.tests[0]["detail"])

    def test_a_test_that_skips_where_a_gpu_is_counts_as_failed(self):
        self.assertFalse(self.judged(["sh", "-c", "echo no cuda; exit 77"]))
        self.assertIn("no cuda", self.results.tests[0]["detail"])

    def test_a_program_that_hangs_ends_with_what_it_started(self):
        start = time.monotonic()
        self.assertFalse(self.judged(["sh", "-c", "sleep 60 & echo $!; wait"], limit=1))
        self.assertLess(time.monotonic() - start, 30)
        self.assertIn("out of time", self.results.tests[0]["detail"])
        with open(self.check.log_path("x"), encoding="ascii") as log:
            child = int(log.read().splitlines()[1])
        for _ in range(100):
            if not self.is_alive(child):
                return
            time.sleep(0.1)
        self.fail("the child of a child is alive")

    @staticmethod
    def is_alive(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as f:
                return f.read().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def test_the_log_of_a_program_is_kept(self):
        self.judged(["echo", "words"])
        with open(self.check.log_path("x"), encoding="ascii") as log:
            self.assertEqual(log.read(), "$ echo words\nwords\n")

    def test_reads_figures_from_lines_with_a_unit(self):
        text = "NVIDIA H200\ncopy = 4300.10 GB/s\nproduct f16 8192 y = 7.5 TFLOP/s\nx = words\n"
        found = self.check.FIGURE.findall(text)
        self.assertEqual(found, [("copy", "4300.10", "GB/s"), ("product f16 8192 y", "7.5", "TFLOP/s")])

    def test_a_pass_is_compared_with_the_copy(self):
        self.measured(cairn_copy=4000, cairn_cast_f32_f16=3640, torch_cast_f32_f16=3000)
        line = self.line("cast f32 f16", "device copy")
        self.assertEqual((line["ratio"], line["goal"], line["met"]), (0.91, 0.90, True))
        self.assertEqual((self.line("cast f32 f16", "PyTorch")["met"]), None)

    def test_a_product_below_pytorchs_misses_its_goal(self):
        self.measured(cairn_product_bf16_8192_y=700, torch_product_bf16_8192_y=790)
        self.assertIs(self.line("product bf16 8192 y", "PyTorch")["met"], False)

    def test_a_time_is_compared_the_other_way_round(self):
        self.measured(**{"cairn_quick_start_graph": 20, "torch_quick_start_eager": 120, "torch_quick_start_graph": 30})
        self.assertEqual(self.line("quick start graph", "PyTorch eager")["ratio"], 6)
        self.assertIs(self.line("quick start graph", "PyTorch eager")["met"], True)
        self.assertIs(self.line("quick start graph", "PyTorch graph")["met"], False)

    def test_the_mlp_is_compared_with_the_best_product_of_both(self):
        self.measured(cairn_mlp_eager_rate=480, cairn_mlp_graph_rate=520, cairn_product_bf16_8192_y=760,
                      torch_product_bf16_8192_y=800)
        line = self.line("mlp graph rate", "peak")
        self.assertEqual((line["value"], line["ratio"], line["met"]), (520, 0.65, True))

    def test_medians_are_over_the_rounds(self):
        for value in 4000, 1000, 4100:
            self.measured(cairn_copy=value)
        self.assertEqual(self.results.median("cairn", "copy"), 4000)

    def test_without_pytorch_there_is_no_verdict(self):
        self.measured(cairn_product_f16_8192_y=700)
        line = self.line("product f16 8192 y", "PyTorch")
        self.assertEqual((line["ratio"], line["met"]), (None, None))
        _, said = quietly(self.check.print_table, self.check.rows(self.results))
        self.assertNotIn("met", said.lower().replace("method", ""))

    def test_finds_what_is_bundled_without_pkg_config(self):
        os.makedirs("bundle/usr/lib/some-arch")
        for path in "bundle/meson", "bundle/usr/lib/some-arch/libcmocka.so":
            with open(path, "w", encoding="ascii"):
                pass
        command, text = self.check.setup_command()
        self.assertEqual(command[1], self.check.ROOT + "/bundle/meson")
        self.assertIn("--native-file", command)
        self.assertIn(f"'-L{self.check.ROOT}/bundle/usr/lib/some-arch'", text)
        self.assertIn(f"'-isystem{self.check.ROOT}/bundle/usr/include'", text)

    def perform_all(self, names, gpu, **steps):
        ran = []

        def step(name, body):
            def work(results):
                ran.append(name)
                return body(results)
            return work

        for name in self.check.STEPS:
            self.check.STEPS[name] = step(name, steps.get(name, lambda results: True))
        self.check.no_gpu = lambda: None if gpu else "there is no /dev/nvidia*"
        code, said = quietly(self.check.main, names)
        with open(self.check.RESULT, encoding="utf-8") as f:
            return code, ran, said, json.load(f)

    def test_without_a_gpu_it_builds_says_so_and_exits_77(self):
        code, ran, said, report = self.perform_all([], gpu=False)
        self.assertEqual((code, ran), (77, ["build"]))
        self.assertIn("no GPU: there is no /dev/nvidia*", said.splitlines()[-1])
        self.assertEqual(report["no_gpu"], "there is no /dev/nvidia*")

    def test_a_build_that_fails_is_a_failure_with_and_without_a_gpu(self):
        def broken(results):
            results.add("build", "ninja", "FAILED", 1)
            return False

        code, ran, _, _ = self.perform_all([], gpu=False, build=broken)
        self.assertEqual((code, ran), (1, ["build"]))

    def test_a_step_that_breaks_does_not_stop_the_others(self):
        def broken(results):
            raise OSError("no such thing")

        code, ran, _, report = self.perform_all([], gpu=True, suite=broken)
        self.assertEqual((code, ran), (1, list(self.check.STEPS)))
        self.assertIn("no such thing", report["tests"][0]["detail"])

    def test_runs_the_steps_that_are_named_after_the_build(self):
        self.assertEqual(self.perform_all(["bench"], gpu=True)[:2], (0, ["build", "bench"]))
        self.assertEqual(quietly(self.check.main, ["bnech"])[0], 2)

    def test_products_that_took_a_pass_more_are_counted_and_printed(self):
        line = ("cairn: debug: products: {}; a pass more took {} with a bias and {} with row sums that are not aligned "
                "to 16 bytes, and {} whose epilogue cuBLASLt does not have")
        with open("said", "w", encoding="ascii") as f:
            f.write("\n".join([line.format(10, 1, 2, 3), "copy = 5 GB/s", line.format(7, 0, 0, 1),
                               "convolutions: 9; by im2col went 1 without cuDNN, 2 with arrays that are not aligned to "
                               "16 bytes, 3 that cuDNN does not do, and 0 without memory for its workspace"]))
        self.check.BENCHES = (("cairn", "bench", ["cat", "said"], []),)
        quietly(self.check.bench_once, self.results, 1)
        self.assertEqual(self.results.passes_more,
                         {"products": 17, "bias": 1, "row sums": 2, "epilogue": 4, "convolutions": 9,
                          "without cuDNN": 1, "arrays": 2, "refused": 3, "workspace": 0})
        _, printed = quietly(self.check.print_passes_more, self.results)
        self.assertIn("Of 17 products in the benchmarks a pass more took: 1 with a bias and 2 with row sums", printed)
        self.assertIn("Of 9 convolutions by im2col went: 1 without cuDNN, 2 with arrays", printed)

    def judge_cudnn(self, is_built, has_cudnn, by_im2col):
        """Of 9 convolutions; by_im2col: those that went that way since there is no cuDNN."""
        self.results.passes_more.update({"convolutions": 9, "without cuDNN": by_im2col})
        self.check.has_cudnn = lambda: has_cudnn
        if is_built:
            modules = os.path.join(self.check.BUILD, self.check.MODULES)
            os.makedirs(modules)
            with open(os.path.join(modules, "libcairn_cudnn.so"), "w", encoding="ascii"):
                pass
        quietly(self.check.check_cudnn, self.results)
        return [(test["result"], test["detail"]) for test in self.results.tests]

    def test_cudnn_that_computes_some_convolutions_passes(self):
        (result, detail), = self.judge_cudnn(is_built=True, has_cudnn=True, by_im2col=4)
        self.assertEqual(result, "passed")
        self.assertIn("5 of 9", detail)

    def test_cudnn_that_is_there_and_computes_nothing_fails(self):
        (result, detail), = self.judge_cudnn(is_built=True, has_cudnn=True, by_im2col=9)
        self.assertEqual(result, "FAILED")
        self.assertIn("0 of 9", detail)

    def test_cudnn_is_skipped_where_its_module_was_not_built(self):
        self.assertEqual(self.judge_cudnn(is_built=False, has_cudnn=True, by_im2col=9),
                         [("skipped", "its module was not built")])

    def test_cudnn_is_skipped_where_there_is_no_libcudnn(self):
        self.assertEqual(self.judge_cudnn(is_built=True, has_cudnn=False, by_im2col=9),
                         [("skipped", "there is no libcudnn here")])

    def test_without_convolutions_cudnn_has_no_verdict(self):
        quietly(self.check.check_cudnn, self.results)
        self.assertEqual(self.results.tests, [])

    def test_results_travel_where_out_is_set(self):
        os.makedirs("home")
        os.environ["OUT"] = os.path.abspath("home")
        self.addCleanup(os.environ.pop, "OUT")
        self.judged(["echo", "words"])
        self.perform_all([], gpu=True)
        self.assertEqual(sorted(os.listdir("home")), ["gpu-check.json", "gpu-check.log"])
        with open("home/gpu-check.log", encoding="ascii") as log:
            self.assertIn("words", log.read())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
