"""examples/bert against Hugging Face's BertForSequenceClassification: logits and gradients with the same random
weights, padding, and weights' files that go both ways.

usage: test_bert.py source-root bert_tool

Runs with the first Python that has transformers and torch: this one, the one where tools/install-peers put them, or
those that CAIRN_TEST_TORCH2 names, with : between. Skipped (77) where there is none."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")
WANTED = "import numpy, safetensors.torch, torch; from transformers import BertForSequenceClassification"

try:
    import numpy
    import safetensors.torch
    import torch
    import transformers
    from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel
except ImportError:
    torch = None

# Layers, width and heads, each with its own other sizes; the padding token is another in the last.
SIZES = [{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 160,
          "max_position_embeddings": 24, "vocab_size": 71},
         {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 8, "intermediate_size": 512,
          "max_position_embeddings": 40, "vocab_size": 130, "num_labels": 5},
         {"num_hidden_layers": 3, "hidden_size": 96, "num_attention_heads": 12, "intermediate_size": 200,
          "max_position_embeddings": 17, "vocab_size": 59, "type_vocab_size": 4, "pad_token_id": 3}]


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


def run_tool(*args):
    """What it printed."""
    done = subprocess.run([TOOL, *args], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def read(folder):
    return safetensors.torch.load_file(os.path.join(folder, "model.safetensors"))


def bits(tensor):
    return tensor.numpy().tobytes() if tensor.dtype != torch.bfloat16 else tensor.view(torch.int16).numpy().tobytes()


def distance(a, b):
    return (a.double() - b.double()).abs().max().item()


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def below(self, name):
        return os.path.join(self.folder, name)

    def same_bits(self, got, want):
        self.assertEqual(sorted(got), sorted(want))
        for name, tensor in want.items():
            self.assertEqual(got[name].dtype, tensor.dtype, name)
            self.assertEqual(bits(got[name]), bits(tensor), name)

    def model(self, size=0, spread=0.15, kind=None, **settings):
        """One of the sizes, saved in the folder 'hf', all of whose weights are random and none small: with the usual
        N(0, 0.02) every output would be about 0, and a wrong one too."""
        torch.manual_seed(7 + size)
        config = BertConfig(**{"num_labels": 3, **SIZES[size], **settings}, hidden_dropout_prob=0,
                            attention_probs_dropout_prob=0)
        model = (kind or BertForSequenceClassification)(config)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.normal_(1.0 if "LayerNorm.weight" in name else 0.0, spread)
        model.eval().save_pretrained(self.below("hf"))
        return model

    def save_inputs(self, **arrays):
        shutil.rmtree(self.below("in"), ignore_errors=True)
        os.mkdir(self.below("in"))
        for name, values in arrays.items():
            numpy.save(self.below(f"in/{name}.npy"), values.numpy())

    def outputs(self, *more):
        """Cairn's logits, loss and gradients by name."""
        run_tool("run", self.below("hf"), self.below("in"), self.below("out"), *more)
        out = safetensors.torch.load_file(self.below("out/out.safetensors"))
        return out["logits"], out["loss"].item(), read(self.below("out"))


def batch(config, rows, length, shortest):
    """Random tokens, ended by padding, with a second sentence from somewhere on."""
    rng = torch.Generator().manual_seed(rows * length)
    lengths = torch.randint(shortest, length + 1, (rows,), generator=rng)
    lengths[0] = length
    at = torch.arange(length).expand(rows, length)
    mask = (at < lengths[:, None]).long()
    ids = torch.randint(4, config.vocab_size, (rows, length), generator=rng)
    return {"ids": torch.where(mask > 0, ids, torch.tensor(config.pad_token_id or 0)), "mask": mask,
            "types": (at >= lengths[:, None] // 2).long() * mask,
            "labels": torch.randint(0, config.num_labels, (rows,), generator=rng)}


def peers(model, inputs, dtype):
    """Hugging Face's logits, loss and gradients by name."""
    model = model.to(dtype)
    model.zero_grad()
    out = model(input_ids=inputs["ids"], attention_mask=inputs.get("mask"), token_type_ids=inputs.get("types"),
                labels=inputs["labels"])
    out.loss.backward()
    return out.logits.detach(), out.loss.item(), {name: p.grad.clone() for name, p in model.named_parameters()}


class Values(InFolder):
    def compare(self, model, inputs, what, *more):
        self.save_inputs(**inputs)
        logits, loss, grads = self.outputs(*more)
        want, want_loss, want_grads = peers(model, inputs, torch.float32)
        exact, _, exact_grads = peers(model, inputs, torch.float64)
        model.float()
        self.assertGreater(want.std().item(), 0.1, "the outputs say nothing")
        self.assertLess(distance(logits, want), 1e-5, what)
        self.assertLess(abs(loss - want_loss), 1e-5, what)
        self.assertEqual(sorted(grads), sorted(want_grads))
        norm = max(g.norm().item() for g in exact_grads.values())
        off = {n: max((grads[n] - g).norm().item(), (grads[n] - exact_grads[n]).norm().item()) / norm
               for n, g in want_grads.items()}
        worst = max(off, key=off.get)
        self.assertLess(off[worst], 1e-4, f"{what}: the gradient of {worst}")
        theirs = max((g.double() - exact_grads[n]).norm().item() for n, g in want_grads.items()) / norm
        print(f"{what}: logits off {distance(logits, want):.1e}; from f64 {distance(logits, exact):.1e}, theirs "
              f"{distance(want, exact):.1e}; gradients off {off[worst]:.1e} of the largest norm, theirs from f64 "
              f"{theirs:.1e}", flush=True)

    def test_logits_and_gradients_are_hugging_faces_at_three_sizes(self):
        for i, size in enumerate(SIZES):
            model = self.model(i)
            inputs = batch(model.config, 5, size["max_position_embeddings"], 3)
            what = "{num_hidden_layers} layers of {hidden_size}, {num_attention_heads} heads".format(**size)
            self.compare(model, inputs, what)
            self.compare(model, inputs, what + ", computed again", "again")

    def test_inputs_that_are_left_out_are_hugging_faces(self):
        model = self.model()
        inputs = batch(model.config, 3, 9, 9)
        for without in (["mask"], ["types"], ["mask", "types"]):
            self.compare(model, {n: v for n, v in inputs.items() if n not in without}, "without " + ", ".join(without))

    def test_every_activation_is_hugging_faces(self):
        for name in ("gelu_new", "gelu_pytorch_tanh", "relu", "silu"):
            model = self.model(2, hidden_act=name, pad_token_id=None)
            self.compare(model, batch(model.config, 4, 11, 2), name)

    def test_gradients_have_the_same_bits_when_layers_are_computed_again(self):
        model = self.model(1)
        self.save_inputs(**batch(model.config, 4, 19, 2))
        logits, loss, grads = self.outputs()
        again = self.outputs("again")
        self.assertEqual((bits(logits), loss), (bits(again[0]), again[1]))
        self.same_bits(again[2], grads)

    def test_padding_changes_nothing(self):
        model = self.model(2)
        inputs = batch(model.config, 4, 10, 10)
        self.save_inputs(**inputs)
        logits, _, grads = self.outputs()
        for more in (1, 7):
            pad = torch.nn.functional.pad
            padded = {"ids": pad(inputs["ids"], (0, more), value=model.config.pad_token_id), "labels": inputs["labels"],
                      "mask": pad(inputs["mask"], (0, more)), "types": pad(inputs["types"], (0, more))}
            self.save_inputs(**padded)
            got, _, got_grads = self.outputs()
            self.assertLess(distance(got, logits), 1e-5)
            norm = max(g.norm().item() for g in grads.values())
            for name, g in grads.items():
                self.assertLess((got_grads[name] - g).norm().item() / norm, 1e-5, name)
            padded["mask"] = None
            self.save_inputs(**{n: v for n, v in padded.items() if v is not None})
            self.assertGreater(distance(self.outputs()[0], logits), 1e-3, "without the mask padding must count")


class Files(InFolder):
    def copy(self, dtype="f32"):
        shutil.rmtree(self.below("cairn"), ignore_errors=True)
        said = run_tool("copy", self.below("hf"), self.below("cairn"), dtype)
        return said, read(self.below("cairn"))

    def loaded(self, folder, **settings):
        """As from_pretrained has it, which must find everything and nothing else."""
        model, info = BertForSequenceClassification.from_pretrained(folder, output_loading_info=True, **settings)
        for what, names in info.items():
            self.assertFalse(names, what)
        return model

    def test_what_hugging_face_saves_comes_back_unchanged(self):
        for i in range(len(SIZES)):
            model = self.model(i)
            said, got = self.copy()
            self.assertEqual(said, "")
            self.same_bits(got, model.state_dict())
            again = self.loaded(self.below("cairn"))
            self.same_bits(again.state_dict(), model.state_dict())
            same = {**again.config.to_dict(), "_name_or_path": None}
            self.assertEqual(same, {**model.config.to_dict(), "_name_or_path": None, "dtype": same["dtype"]})

    def test_what_cairn_makes_goes_to_hugging_face_and_back_unchanged(self):
        self.model(1, id2label={0: "entailment", 1: "neutral", 2: "a \"b\" \u00e4"}, num_labels=3,
                   label2id={"entailment": 0, "neutral": 1, "a \"b\" \u00e4": 2})
        run_tool("init", self.below("hf"), "5", self.below("made"))
        made = read(self.below("made"))
        model = self.loaded(self.below("made"))
        self.assertEqual(model.config.id2label, {0: "entailment", 1: "neutral", 2: "a \"b\" \u00e4"})
        self.same_bits(model.state_dict(), made)
        shutil.rmtree(self.below("hf"))
        model.save_pretrained(self.below("hf"))
        self.same_bits(self.copy()[1], made)

    def test_halves_come_back_unchanged(self):
        for dtype, name in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
            model = self.model().to(dtype)
            model.save_pretrained(self.below("hf"))
            self.same_bits(self.copy(name)[1], model.state_dict())
            again = self.loaded(self.below("cairn"), dtype="auto")
            self.same_bits(again.state_dict(), model.state_dict())
            self.same_bits(self.copy("f32")[1], {n: t.float() for n, t in model.state_dict().items()})

    def test_weights_in_several_files_come_back_unchanged(self):
        model = self.model(1)
        shutil.rmtree(self.below("hf"))
        model.save_pretrained(self.below("hf"), max_shard_size="400KB")
        self.assertTrue(os.path.exists(self.below("hf/model.safetensors.index.json")))
        self.same_bits(self.copy()[1], model.state_dict())

    def test_old_names_and_names_without_a_prefix_are_read(self):
        want = self.model().state_dict()
        renamings = {"gamma": lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma")
                                         .replace("LayerNorm.bias", "LayerNorm.beta"),
                     "bare": lambda n: n.removeprefix("bert.")}
        for kinds in (["gamma"], ["bare"], ["gamma", "bare"]):
            file = {"bert.embeddings.position_ids": torch.arange(24)[None], "cls.predictions.bias": torch.zeros(71)}
            for name, tensor in [*want.items(), *list(file.items())[:1]]:
                file.pop(name, None)
                for kind in kinds:
                    name = renamings[kind](name)
                file[name] = tensor
            safetensors.torch.save_file(file, self.below("hf/model.safetensors"), {"format": "pt"})
            said, got = self.copy()
            self.assertEqual(said, "", kinds)
            self.same_bits(got, want)

    def test_a_pretrained_encoder_gets_a_new_head_and_it_is_said(self):
        for kind, lacks, prefix in ((BertModel, "no classification head: it starts", "bert."),
                                    (BertForMaskedLM, "no pooler and no classification head: they start", "")):
            shutil.rmtree(self.below("hf"), ignore_errors=True)
            want = {prefix + n: t for n, t in self.model(kind=kind).state_dict().items() if not n.startswith("cls.")}
            said, got = self.copy()
            self.assertIn(lacks, said)
            new = {n: t for n, t in got.items() if n not in want}
            self.same_bits({n: t for n, t in got.items() if n in want}, want)
            self.assertEqual({n.rsplit(".", 1)[0] for n in new}, {"classifier"} if prefix else {"classifier",
                                                                                           "bert.pooler.dense"})
            for name, tensor in new.items():
                if name.endswith("bias"):
                    self.assertEqual(tensor.abs().max().item(), 0)
                else:
                    self.assertTrue(0.015 < tensor.std().item() < 0.025, name)

    def test_first_values_are_hugging_faces(self):
        self.model(1, initializer_range=0.05, pad_token_id=9)
        run_tool("init", self.below("hf"), "3", self.below("made"))
        made = read(self.below("made"))
        run_tool("init", self.below("hf"), "4", self.below("other"))
        torch.manual_seed(1)
        theirs = BertForSequenceClassification(BertConfig.from_pretrained(self.below("hf"))).state_dict()
        other = read(self.below("other"))
        self.assertEqual(sorted(made), sorted(theirs))
        seen = set()
        for name, tensor in made.items():
            if theirs[name].std() == 0:
                self.assertEqual(bits(tensor), bits(theirs[name]), name)
                continue
            n = tensor.numel()
            self.assertLess(abs(tensor.mean().item()), 6 * 0.05 / n**0.5, name)
            self.assertLess(abs(tensor.std().item() - 0.05), 6 * 0.05 / (2 * n)**0.5 + 0.01 * 0.05, name)
            self.assertNotEqual(bits(tensor), bits(other[name]), name)
            seen.add(bits(tensor[:1]))
        self.assertEqual(len(seen), sum(t.std() > 0 for t in theirs.values()), "no two are drawn alike")
        words = made["bert.embeddings.word_embeddings.weight"]
        self.assertEqual([i for i, row in enumerate(words) if not row.any()], [9])


if __name__ == "__main__":
    if not torch:
        go_on_with_another()
    torch.set_num_threads(1)
    print(f"with transformers {transformers.__version__} and torch {torch.__version__} ({sys.executable})", flush=True)
    unittest.main(argv=sys.argv[:1])
