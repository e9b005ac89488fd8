"""bert_mnli's first 100 steps against those of Hugging Face's model in PyTorch's own loop: AdamW, linear schedule,
clipping, the same batches, no dropout. How far losses and weights are from a run in f64 is compared with how far
PyTorch's own f32 is; halves have stated bounds.

usage: test_training.py source-root bert_mnli

Runs with the first Python that has transformers and torch: this one, the one where tools/install-peers put them, or
those that CAIRN_TEST_TORCH2 names, with : between. Skipped (77) where there is none."""
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

from mnli_files import WORDS, read_pairs, write_model, write_pairs

ROOT, PROGRAM = sys.argv[1], os.path.abspath(sys.argv[2])
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")
WANTED = "import numpy, safetensors.torch, torch; from transformers import BertForSequenceClassification"

try:
    import safetensors.torch
    import torch
    import transformers
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast
except ImportError:
    torch = None

STEPS, BATCH = 100, 8


def go_on_with_another():
    """Begins anew with a Python that has transformers, or skips."""
    peer = os.path.join(ROOT, "build-check/peers/torch2/bin/python")
    for python in [] if os.environ.get("CAIRN_TEST_AGAIN") else os.environ.get("CAIRN_TEST_TORCH2", peer).split(":"):
        if os.path.exists(python) and subprocess.run([python, "-c", WANTED], capture_output=True,
                                                     check=False).returncode == 0:
            os.environ["CAIRN_TEST_AGAIN"] = "1"
            os.execv(python, [python, *sys.argv])
    print("skipped: no Python here has transformers and torch (tools/install-peers installs them)")
    sys.exit(77)


def batches(folder, path):
    """The file's pairs in their order, as Hugging Face's tokenizer has them."""
    tokenizer = BertTokenizerFast(os.path.join(folder, "vocab.txt"))
    pairs = read_pairs(path)
    for at in range(0, STEPS * BATCH, BATCH):
        first, second, labels = zip(*pairs[at:at + BATCH])
        yield tokenizer(list(first), list(second), padding="longest", return_tensors="pt"), torch.tensor(labels)


def train_there(folder, path, lr, dtype):
    """PyTorch's loop: losses, weights and rates."""
    model = BertForSequenceClassification.from_pretrained(folder, attn_implementation="eager").to(dtype).train()
    decays = [p for n, p in model.named_parameters() if not n.endswith("bias") and "LayerNorm" not in n]
    others = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    adamw = torch.optim.AdamW([{"params": decays, "weight_decay": 0.01}, {"params": others, "weight_decay": 0}], lr=lr)
    schedule = transformers.get_linear_schedule_with_warmup(adamw, 10, STEPS)
    losses, rates = [], []
    for inputs, labels in batches(folder, path):
        adamw.zero_grad()
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rates.append(adamw.param_groups[0]["lr"])
        adamw.step()
        schedule.step()
        losses.append(loss.item())
    return losses, model.state_dict(), rates


class FirstSteps(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = cls.holder.name
        cls.model = write_model(cls.folder + "/model")
        cls.pairs = write_pairs(cls.folder + "/train.jsonl", STEPS * BATCH)
        torch.manual_seed(3)
        config = BertConfig(vocab_size=len(WORDS), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                            intermediate_size=128, max_position_embeddings=32, initializer_range=0.1, num_labels=3,
                            hidden_dropout_prob=0, attention_probs_dropout_prob=0)
        BertForSequenceClassification(config).save_pretrained(cls.model)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def train_here(self, lr, *more):
        out, report = self.folder + "/out", self.folder + "/report.json"
        done = subprocess.run([PROGRAM, "--model", self.model, "--train", self.pairs, "--in-order", "--max-steps",
                               str(STEPS), "--warmup-steps", "10", "--batch-size", str(BATCH), "--lr", str(lr),
                               "--log-every", "1", "--max-length", "32", "--save", out, "--report", report, *more],
                              capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stderr
        with open(report, encoding="utf-8") as f:
            curve = json.load(f)["curve"]
        self.assertEqual([p["step"] for p in curve], list(range(1, STEPS + 1)))
        return [p["loss"] for p in curve], safetensors.torch.load_file(out + "/model.safetensors"), \
            [p["lr"] for p in curve]

    def off(self, run, exact):
        """The largest distance of a loss, and that of all weights by how far these have gone. The bias of attention's
        keys has a true gradient of 0, and goes where rounding sends it."""
        losses, weights, _ = run
        start = safetensors.torch.load_file(self.model + "/model.safetensors")
        names = [n for n in start if not n.endswith("key.bias")]
        norm = lambda a, b: math.sqrt(sum((a[n].double() - b[n].double()).norm().item() ** 2 for n in names))
        return max(abs(a - b) for a, b in zip(losses, exact[0])), norm(weights, exact[1]) / norm(start, exact[1])

    def test_the_first_100_steps_are_pytorchs(self):
        for lr in 5e-5, 5e-4:
            exact = train_there(self.model, self.pairs, lr, torch.float64)
            theirs = train_there(self.model, self.pairs, lr, torch.float32)
            ours = self.train_here(lr)
            self.assertLess(max(abs(a - b) for a, b in zip(ours[2], exact[2])), 1e-12 * lr, "the rates")
            self.assertLess(sum(exact[0][-20:]), sum(exact[0][:20]), "nothing was learnt")
            here, there = self.off(ours, exact), self.off(theirs, exact)
            first, last = sum(exact[0][:20]) / 20, sum(exact[0][-20:]) / 20
            print(f"lr {lr}: loss {first:.4f}, then {last:.4f}; losses off f64 {here[0]:.1e}, "
                  f"PyTorch's f32 {there[0]:.1e}; weights {here[1]:.1e}, PyTorch's {there[1]:.1e}", flush=True)
            self.assertLess(here[0], 3 * there[0], "losses")
            self.assertLess(here[1], 3 * there[1], "weights")

    def test_halves_stay_near(self):
        """Bounds: four times what was measured when they were set."""
        exact = train_there(self.model, self.pairs, 5e-4, torch.float64)
        for level, half, *bounds in (("O1", "f16", 2e-3, 5e-3), ("O1", "bf16", 1.6e-2, 4.5e-2),
                                     ("O2", "f16", 3e-3, 7e-3), ("O2", "bf16", 2e-2, 5e-2)):
            ours = self.train_here(5e-4, "--opt-level", level, "--half", half)
            found = self.off(ours, exact)
            print(f"{level} {half}: losses off f64 {found[0]:.1e}, weights {found[1]:.1e}", flush=True)
            self.assertLess(found[0], bounds[0], f"{level} {half}: losses")
            self.assertLess(found[1], bounds[1], f"{level} {half}: weights")

    def test_accumulation_is_one_large_batch(self):
        one = self.train_here(5e-4)
        parts = self.train_here(5e-4, "--batch-size", "2", "--accumulate", "4")
        loss, weights = self.off(parts, one)
        print(f"four micro-batches of two: losses off {loss:.1e}, weights {weights:.1e}")
        self.assertLess(loss, 2e-6)


if __name__ == "__main__":
    if not torch:
        go_on_with_another()
    torch.set_num_threads(1)
    print(f"with transformers {transformers.__version__} and torch {torch.__version__} ({sys.executable})", flush=True)
    unittest.main(argv=sys.argv[:1])
