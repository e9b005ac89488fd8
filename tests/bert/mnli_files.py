"""Small files for tests of bert_mnli: pairs in MNLI's format whose label follows from a rule, a vocabulary, a model."""
import json
import os
import random

NOUNS = "dogs cats birds horses fishes children".split()
VERBS = "run sleep eat sing swim play".split()
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "all", "some", "no", "and", "old", "small", ".", *NOUNS, *VERBS]
LABELS = ["entailment", "neutral", "contradiction"]


def pair(rng):
    """What is said of all holds for some, and that it holds for none contradicts; of others nothing is known."""
    noun, verb, label = rng.choice(NOUNS), rng.choice(VERBS), rng.choice(LABELS)
    other = rng.choice([n for n in NOUNS if n != noun]) if label == "neutral" else noun
    second = {"entailment": "some", "contradiction": "no"}.get(label) or rng.choice(["some", "no"])
    more = " and ".join([verb, *rng.sample([v for v in VERBS if v != verb], rng.choice([0, 0, 1, 3]))])
    return f"all {rng.choice(['', 'old ', 'small '])}{noun} {more}.", f"{second} {other} {verb}.", label


def equally_long(rng):
    noun, verb = rng.choice(NOUNS), rng.choice(VERBS)
    return f"all {noun} {verb}.", f"{rng.choice(['some', 'no'])} {noun} {verb}.", rng.choice(LABELS)


def write_pairs(path, n, seed=1, make=pair, dropped=True):
    """n pairs with a label, and after some of them one that has none ("-")."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as f:
        for i in range(n):
            first, second, label = make(rng)
            row = {"annotator_labels": [label], "gold_label": label, "pairID": str(i), "sentence1": first,
                   "sentence2": second}
            f.write(json.dumps(row) + "\n")
            if dropped and i % 50 == 7:
                f.write(json.dumps({**row, "gold_label": "-"}) + "\n")
    return path


def read_pairs(path):
    """As (first, second, class)."""
    with open(path, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return [(r["sentence1"], r["sentence2"], LABELS.index(r["gold_label"])) for r in rows if r["gold_label"] != "-"]


def write_model(folder, **settings):
    """config.json and vocab.txt alone, for --from-scratch."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(WORDS) + "\n")
    config = {"model_type": "bert", "vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2,
              "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 32,
              "initializer_range": 0.1, **settings}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return folder
