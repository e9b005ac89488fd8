"""bert_mnli from files to accuracy, on one rank and several: results that must be equal are, a killed training resumes
to the same bits, and unusable input fails with a message.

usage: test_mnli.py cairn-run bert_mnli

With CAIRN_TEST_SHORT set, as by tools/check without --all, it learns the rule at one level instead of four, in 450
steps instead of 600, and is killed twice instead of three times."""
import array
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

from mnli_files import LABELS, equally_long, read_pairs, write_model, write_pairs

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../train"))
import restarts

CAIRN_RUN, PROGRAM = (os.path.abspath(path) for path in sys.argv[1:3])


def tensors(path):
    """The f32 tensors of a safetensors file, by name."""
    with open(path, "rb") as f:
        data = f.read()
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, facts in json.loads(data[8:start]).items():
        if facts.get("dtype") == "F32":
            begin, end = facts["data_offsets"]
            found[name] = array.array("f", data[start + begin:start + end])
    return found


class Trainings(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        self.model = write_model(self.below("model"), hidden_dropout_prob=0, attention_probs_dropout_prob=0)
        self.pairs = write_pairs(self.below("train.jsonl"), 500)
        self.dev = write_pairs(self.below("dev.jsonl"), 101, 2)

    def below(self, name):
        return os.path.join(self.folder, name)

    def command(self, *options, ranks=1, model=None, train=True):
        launcher = [CAIRN_RUN, "--nproc_per_node", str(ranks)] if ranks > 1 else []
        return [*launcher, PROGRAM, "--model", model or self.model, "--max-length", "32",
                *(["--train", self.pairs, "--lr", "1e-3"] if train else []), *options]

    def run_it(self, *options, **how):
        """Its report."""
        done = subprocess.run([*self.command(*options, **how), "--report", self.below("report.json")],
                              capture_output=True, text=True, check=False, timeout=200,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.below("report.json"), encoding="utf-8") as f:
            return json.load(f)

    def losses(self, *options, **how):
        return [p["loss"] for p in self.run_it("--from-scratch", "--log-every", "1", *options, **how)["curve"]]

    def test_each_example_counts_once_on_any_number_of_ranks(self):
        out = self.below("out")
        write_pairs(self.pairs, 1500)
        trained = self.run_it("--from-scratch", "--epochs", "2", "--lr", "2e-3", "--warmup-steps", "20", "--save", out,
                              "--eval", self.dev, "--eval", self.pairs)
        self.assertEqual([e["examples"] for e in trained["evaluations"]], [101, 1500])
        self.assertEqual(len(trained["accuracies"]), 2)
        self.assertGreater(trained["evaluations"][1]["accuracy"], 0.6, "it has learnt what \"no\" means")
        want = [LABELS.index(label) for _, _, label in self.by_name(self.dev)]
        rows = [sum(row) for row in trained["evaluations"][0]["confusion"]]
        self.assertEqual(rows, [want.count(i) for i in range(3)])
        for ranks, batch in (1, 7), (2, 50), (3, 33):  # of 101, two ranks have 51 and 50: two batches, and one
            again = self.run_it("--eval", self.dev, "--eval", self.pairs, "--batch-size", str(batch), ranks=ranks,
                                model=out, train=False)
            for one, other in zip(trained["evaluations"], again["evaluations"]):
                self.assertEqual(one["confusion"], other["confusion"], f"{ranks} ranks")
                self.assertAlmostEqual(one["loss"], other["loss"], places=5)

    def test_it_learns_the_rule_with_half_types(self):
        """A model of two layers of 64, whose loss falls at once when it has found which word to compare with which."""
        write_model(self.model, hidden_size=64, num_attention_heads=4, intermediate_size=128, hidden_dropout_prob=0,
                    attention_probs_dropout_prob=0)
        write_pairs(self.pairs, 16000)
        cases = (2, "O2", "f16"), (1, "O1", "f16"), (2, "O1", "bf16"), (1, "O2", "bf16")
        steps = "450" if restarts.SHORT else "600"
        for ranks, level, half in cases[:1] if restarts.SHORT else cases:
            report = self.run_it("--from-scratch", "--max-steps", steps, "--warmup-steps", "100", "--eval", self.dev,
                                 "--opt-level", level, "--half", half, "--batch-size", str(32 // ranks), ranks=ranks)
            accuracy = report["evaluations"][0]["accuracy"]
            print(f"{level} {half}, {ranks} ranks: {100 * accuracy:.1f} % after {report['seconds']:.0f} s", flush=True)
            self.assertGreaterEqual(accuracy, 0.97, f"{level} {half}")

    def by_name(self, path):
        return [(a, b, LABELS[label]) for a, b, label in read_pairs(path)]

    def test_two_ranks_of_16_are_one_of_32(self):
        write_pairs(self.pairs, 320, make=equally_long)
        runs = []
        for ranks, batch in (1, 32), (2, 16):
            folder = self.below(f"state{ranks}")
            options = ["--batch-size", str(batch), "--max-steps", "1", "--clip", "0", "--in-order"]
            loss, = self.losses(*options, "--checkpoint", folder, "--save-every", "1", ranks=ranks)
            state = tensors(folder + "/step-00000001/shared.safetensors")
            runs.append((loss, {n: t for n, t in state.items() if "exp_avg" in n and "exp_avg_sq" not in n}))
        (one, grads), (two, others) = runs
        self.assertLess(abs(one - two), 1e-6)
        self.assertGreater(len(grads), 20)
        largest = max(abs(x) for t in grads.values() for x in t)
        for name, t in grads.items():
            off = max(abs(a - b) for a, b in zip(t, others[name]))
            self.assertLess(off, 1e-6 * largest, name)

    def test_workers_checkpointing_and_format_change_no_bit(self):
        few = ["--max-steps", "12", "--batch-size", "16"]
        want = self.losses(*few)
        self.assertEqual(len(want), 12)
        self.assertEqual(self.losses(*few, "--workers", "0"), want)
        self.assertEqual(self.losses(*few, "--workers", "3"), want)
        self.assertEqual(self.losses(*few, "--gradient-checkpointing"), want)
        table = self.below("train.tsv")
        with open(table, "w", encoding="utf-8") as f:
            f.write("index\tsentence1\tsentence2\tlabel1\tgold_label\n")
            for i, (first, second, label) in enumerate(self.by_name(self.pairs)):
                f.write(f"{i}\t{first}\t{second}\t-\t{label}\n")
        self.assertEqual(self.losses(*few, "--train", table), want)
        self.assertNotEqual(self.losses(*few, "--seed", "1"), want)

    def test_each_epoch_is_shuffled_and_its_last_step_has_the_rest(self):
        write_pairs(self.pairs, 21)
        report = self.run_it("--from-scratch", "--batch-size", "4", "--accumulate", "2", "--epochs", "2", "--log-every",
                             "1", "--lr", "0", "--eval", self.pairs)
        self.assertEqual(report["steps"], 6)  # 8, 8 and 5 of 21
        losses = [p["loss"] for p in report["curve"]]
        mean = lambda part: sum(n * x for n, x in zip((8, 8, 5), part)) / 21
        self.assertAlmostEqual(mean(losses[:3]), mean(losses[3:]), places=6)
        self.assertAlmostEqual(mean(losses[:3]), report["evaluations"][0]["loss"], places=6)
        self.assertNotAlmostEqual(losses[0], losses[3], places=6)

    def test_classes_are_numbered_as_the_model_has_them(self):
        names = ["contradiction", "entailment", "neutral"]
        write_model(self.model, id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)})
        report = self.run_it("--from-scratch", "--max-steps", "1", "--eval", self.dev, "--save", self.below("out"))
        found = report["evaluations"][0]
        self.assertEqual(found["labels"], names)
        want = [label for _, _, label in self.by_name(self.dev)]
        self.assertEqual([sum(row) for row in found["confusion"]], [want.count(n) for n in names])
        with open(self.below("out/config.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["id2label"], {str(i): n for i, n in enumerate(names)})

    def test_a_model_may_be_saved_where_it_was(self):
        """Its vocab.txt is not copied onto itself, by whatever name."""
        with open(self.model + "/vocab.txt", "rb") as f:
            want = f.read()
        for folder in self.model, self.model + "/", self.below("link"):
            if not os.path.exists(folder):
                os.symlink(self.model, folder)
            self.run_it("--from-scratch", "--max-steps", "1", "--save", folder)
            with open(self.model + "/vocab.txt", "rb") as f:
                self.assertEqual(f.read(), want, folder)
        self.run_it("--eval", self.dev, train=False)

    def test_a_training_that_is_killed_ends_with_the_same_bits(self):
        write_model(self.model)  # with dropout, which draws on after a restart
        command = self.command("--from-scratch", "--eval", self.dev, "--opt-level", "O2", "--batch-size", "8",
                               "--max-steps", "60", "--log-every", "4", "--accumulate", "2")
        restarts.under_a_launcher(CAIRN_RUN, command, 60, 5, 2 if restarts.SHORT else 3, random.Random(1))

    def test_what_it_cannot_use_ends_in_a_sentence(self):
        def text(name, content):
            with open(self.below(name), "w", encoding="utf-8") as f:
                f.write(content)
            return self.below(name)

        def changed(**settings):
            return write_model(self.below("changed"), **settings)

        line = '{"gold_label": "%s", "sentence1": "a", "sentence2": "b"}\n'
        cases = [(["--wrong", "1"], "--wrong: no such option"), (["--lr"], "--lr: its value is missing"),
                 (["--lr", "fast"], "--lr fast: it must be a number"), (["--epochs", "1.5"], "must be a whole number"),
                 (["--opt-level", "O4"], "must be O0, O1, O2 or O3"), (["--half", "f8"], "must be f16 or bf16"),
                 (["--max-length", "33"], "the model has 32 positions"),
                 (["--warmup-steps", "99999"], "more than all steps"),
                 (["--train", self.below("none.jsonl")], "none.jsonl"),
                 (["--model", self.below("none")], "none: cannot be opened"),
                 (["--train", text("dashes.jsonl", line % "-")], "there is no pair with a label"),
                 (["--train", text("other.jsonl", line % "perhaps")], "perhaps"),
                 (["--train", text("torn.jsonl", line[:30] + "\n" + line)], "torn.jsonl"),
                 (["--model", changed(vocab_size=7)], "they are of different models"),
                 (["--save", "/proc/none"], "/proc/none"), (["--report", "/proc/none/r"], "cannot be written")]
        for options, words in cases:
            done = subprocess.run(self.command("--from-scratch", "--max-steps", "1", *options), capture_output=True,
                                  text=True, check=False, timeout=60)
            self.assertIn(done.returncode, (1, 2), (options, done.stderr))
            self.assertIn(words, done.stderr, options)
        os.unlink(self.below("changed/vocab.txt"))
        shutil.rmtree(self.below("changed"))
        for options, words in ((["--model", changed(id2label={0: "a", 1: "b"})], "those of MNLI are"),
                               ([], "model.safetensors")):
            done = subprocess.run(self.command(*options), capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
