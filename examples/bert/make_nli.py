#!/usr/bin/env python3
"""Makes a set of sentence pairs in MNLI's files, with a rule that is known: what follows from quantifiers and negation.

usage: make_nli.py FOLDER [--train 20000] [--dev 1000] [--seed 1] [--level 2] [--tsv]

    premise     Not all seabirds are awake.
    hypothesis  It is false that every one of the seabirds is awake.     entailment

FOLDER gets multinli_1.0_train.jsonl, multinli_1.0_dev_matched.jsonl and multinli_1.0_dev_mismatched.jsonl; with --tsv
also train.tsv, dev_matched.tsv and dev_mismatched.tsv in GLUE's columns; and vocab.txt, tokenizer_config.json (uncased)
and config.json of a small BERT, whose words these are. The same numbers and seed give the same bytes.

The rule. There is at least one of whatever a sentence is about. A label is "entailment" where the hypothesis is true in
every world in which the premise is, "contradiction" where it is true in none of these, and "neutral" otherwise. Worlds
differ in which things are what; --level says in what else the pairs do:

    1  quantifiers (all, some, no, not all, in several words) and "not" before the predicate; both sentences have the
       same noun and the same predicate
    2  also "It is true that" and "It is false that" before a sentence
    3  also another noun, or another predicate, in half of the neutral pairs; to compare words takes a model far longer
       to learn than what they mean
    4  also kinds: all seabirds are birds, so that what is true of all birds is true of all seabirds

The three labels are equally frequent, in each file, up to one. One pair in 100 more has gold_label "-", as where MNLI's
annotators disagreed; GLUE's files have none. Pairs of the dev files are in no train file of any size and seed.
Mismatched pairs are about things (other compounds of the same words) that matched and train pairs never mention, and
from level 2 on both sentences of a pair may have "It is ... that", of which others have one at most."""
import argparse
import json
import os
import random
import zlib

MOST_TRIES = 100000  # for a pair that is not in the file yet
LABELS = ["entailment", "neutral", "contradiction"]  # Hugging Face's order
UNDECIDED = "-"

STEMS = ["sea", "land", "snow", "river", "forest", "city", "night", "house", "moon", "hill"]
HEADS = ["birds", "dogs", "cats", "fish", "men", "boats", "ghosts", "horses"]
PREDICATES = ["asleep", "awake", "hungry", "happy", "old", "young", "quick", "slow", "quiet", "lost", "safe", "tired"]

# What is said of X and P, as the truth in three kinds of worlds: all X are P, some are and some are not, none is.
ALL, SOME, NO, NOT_ALL = (1, 0, 0), (1, 1, 0), (0, 0, 1), (0, 1, 1)
FORMS = [("all {x} are {p}", ALL), ("every one of the {x} is {p}", ALL), ("no {x} are not {p}", ALL),
         ("some {x} are {p}", SOME), ("at least one of the {x} is {p}", SOME), ("not all {x} are not {p}", SOME),
         ("no {x} are {p}", NO), ("not one of the {x} is {p}", NO), ("none of the {x} are {p}", NO),
         ("not all {x} are {p}", NOT_ALL), ("some {x} are not {p}", NOT_ALL),
         ("not every one of the {x} is {p}", NOT_ALL), ("at least one of the {x} is not {p}", NOT_ALL)]
OPENERS = {True: "it is true that ", False: "it is false that "}


def is_mismatched(noun):
    """A fifth of the compounds, so that each stem and each head is in a compound of either sort."""
    stem, head = noun
    return stem is not None and (STEMS.index(stem) + HEADS.index(head)) % 5 == 0


NOUNS = [(stem, head) for head in HEADS for stem in [None] + STEMS]
MATCHED = [noun for noun in NOUNS if not is_mismatched(noun)]
MISMATCHED = [noun for noun in NOUNS if is_mismatched(noun)]


def word(noun):
    return (noun[0] or "") + noun[1]


class Sentence:
    """Says something (truth) of a noun and a predicate; opener: None, True or False."""

    def __init__(self, noun, predicate, form, opener):
        self.noun, self.predicate = noun, predicate
        text, self.truth = form
        if opener is False:
            self.truth = tuple(1 - t for t in self.truth)
        text = (OPENERS.get(opener, "") + text).format(x=word(noun), p=predicate)
        self.text = text[0].upper() + text[1:] + "."


def is_kind_of(noun, other):
    """Whether all of noun are of other, and other than it."""
    return noun[1] == other[1] and noun[0] is not None and other[0] is None


def label_of(premise, hypothesis):
    if premise.predicate != hypothesis.predicate:
        return "neutral"
    p, h = premise.truth, hypothesis.truth
    if premise.noun == hypothesis.noun:
        worlds = {b for a, b in zip(p, h) if a}
    elif is_kind_of(hypothesis.noun, premise.noun):  # all, some or none of the smaller group follow from the larger
        worlds = {h[b] for a, b in ((0, 0), (1, 0), (1, 1), (1, 2), (2, 2)) if p[a]}
    elif is_kind_of(premise.noun, hypothesis.noun):
        worlds = {h[b] for b, a in ((0, 0), (1, 0), (1, 1), (1, 2), (2, 2)) if p[a]}
    else:
        return "neutral"
    return {(1,): "entailment", (0,): "contradiction"}.get(tuple(worlds), "neutral")


class TooFew(Exception):
    """There are no more pairs that differ."""


class Maker:
    def __init__(self, seed, level, part):
        self.pick = random.Random(f"{seed} {level} {part}")
        self.level, self.part = level, part
        self.seen = set()

    def openers(self):
        pick = self.pick
        chosen = [pick.choice([None, True, False]) if self.level > 1 else None for _ in range(2)]
        if self.part != "dev_mismatched" and None not in chosen:
            chosen[pick.randrange(2)] = None
        return chosen

    def nouns(self, differ):
        own = MISMATCHED if self.part == "dev_mismatched" else MATCHED
        first = self.pick.choice(own)
        if differ:
            return first, self.pick.choice([noun for noun in own if noun != first])
        if self.level > 3 and first[0] and self.pick.random() < 0.5:
            pair = [first, (None, first[1])]
            self.pick.shuffle(pair)
            return pair
        return first, first

    def any_pair(self, label):
        """A pair, which may or may not have the label."""
        pick = self.pick
        differ = self.level > 2 and label == "neutral" and pick.random() < 0.5
        other = pick.choice(["noun", "predicate", "both"]) if differ else None
        nouns = self.nouns(other in ("noun", "both"))
        predicate = pick.choice(PREDICATES)
        predicates = [predicate, predicate]
        if other in ("predicate", "both"):
            predicates[1] = pick.choice([p for p in PREDICATES if p != predicate])
        return [Sentence(*said) for said in zip(nouns, predicates, pick.choices(FORMS, k=2), self.openers())]

    def is_ours(self, texts):
        """One pair in eight is for the dev files, and there no pair comes twice."""
        for_dev = zlib.crc32("\n".join(texts).encode()) % 8 == 0
        if self.part == "train":
            return not for_dev
        if not for_dev or texts in self.seen:
            return False
        self.seen.add(texts)
        return True

    def pair(self, label):
        for _ in range(MOST_TRIES):
            premise, hypothesis = self.any_pair(label)
            texts = (premise.text, hypothesis.text)
            if label_of(premise, hypothesis) == label and texts[0] != texts[1] and self.is_ours(texts):
                return texts
        raise TooFew


def votes(pick, label, part):
    """annotator_labels: one in train; in dev five, of which gold_label has most, and two labels equally many for
    "-"."""
    if label == UNDECIDED:
        first, second, third = pick.sample(LABELS, 3)
        return [first, first, second, second, third]
    if part == "train":
        return [label]
    others = [l for l in LABELS if l != label]
    given = [label] * pick.choice([3, 4, 5])
    return given + pick.choices(others, k=5 - len(given))


def rows(maker, count):
    """Labels in blocks of three, shuffled, and among them the undecided."""
    pick, labels = maker.pick, []
    for _ in range(0, count, len(LABELS)):
        labels += pick.sample(LABELS, len(LABELS))
    labels = labels[:count]
    for _ in range(count // 100):
        labels.insert(pick.randrange(len(labels) + 1), UNDECIDED)
    for number, label in enumerate(labels):
        meant = pick.choice(LABELS) if label == UNDECIDED else label
        first, second = maker.pair(meant)
        yield {"annotator_labels": votes(pick, label, maker.part), "genre": GENRES[maker.part], "gold_label": label,
               "pairID": f"{number}{meant[0]}", "promptID": str(number),
               "sentence1": first, "sentence1_binary_parse": "", "sentence1_parse": "",
               "sentence2": second, "sentence2_binary_parse": "", "sentence2_parse": ""}


GENRES = {"train": "plain", "dev_matched": "plain", "dev_mismatched": "compound"}
COLUMNS = ["index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse",
           "sentence1_parse", "sentence2_parse", "sentence1", "sentence2"]


class Tsv:
    """GLUE's file, which has no undecided rows."""

    def __init__(self, path, part):
        self.file, self.index = open(path, "w", encoding="utf-8", newline="\n"), 0
        labels = ["label1"] if part == "train" else [f"label{i}" for i in range(1, 6)]
        self.put(COLUMNS + labels + ["gold_label"])

    def put(self, cells):
        self.file.write("\t".join(cells) + "\n")

    def add(self, row):
        if row["gold_label"] != UNDECIDED:
            cells = [str(self.index)] + [row[name] for name in COLUMNS[1:]]
            self.put(cells + row["annotator_labels"] + [row["gold_label"]])
            self.index += 1


def write_part(folder, part, count, options):
    path = os.path.join(folder, f"multinli_1.0_{part}.jsonl")
    tsv = Tsv(os.path.join(folder, f"{part}.tsv"), part) if options.tsv else None
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        for row in rows(Maker(options.seed, options.level, part), count):
            f.write(json.dumps(row) + "\n")
            if tsv:
                tsv.add(row)
    if tsv:
        tsv.file.close()


def vocabulary():
    """Compounds are two pieces, so that those of the mismatched pairs have no piece that training does not see."""
    words = {w for text, _ in FORMS for w in text.split() if "{" not in w}
    words.update(w for opener in OPENERS.values() for w in opener.split())
    words.update(PREDICATES + STEMS + HEADS + ["."])
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + sorted(words) + ["##" + head for head in HEADS]


def config(size):
    """Small, without dropout, and with initial weights wide enough for its width: 0.02 takes it far longer."""
    return {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": size,
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
            "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
            "max_position_embeddings": 64, "type_vocab_size": 2, "initializer_range": 0.1, "layer_norm_eps": 1e-12,
            "pad_token_id": 0, "id2label": {str(i): label for i, label in enumerate(LABELS)},
            "label2id": {label: i for i, label in enumerate(LABELS)}}


def write_model(folder):
    tokens = vocabulary()
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8", newline="\n") as f:
        f.writelines(token + "\n" for token in tokens)
    for name, value in (("config.json", config(len(tokens))),
                        ("tokenizer_config.json", {"do_lower_case": True, "tokenizer_class": "BertTokenizer"})):
        with open(os.path.join(folder, name), "w", encoding="utf-8", newline="\n") as f:
            f.write(json.dumps(value, indent=2) + "\n")


def count_of(text):
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"{count} is no number of pairs")
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--train", type=count_of, default=20000, help="pairs for training (20000)")
    parser.add_argument("--dev", type=count_of, default=1000, help="pairs in each dev file (1000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--level", type=int, choices=(1, 2, 3, 4), default=2)
    parser.add_argument("--tsv", action="store_true", help="GLUE's files as well")
    options = parser.parse_args()
    try:
        os.makedirs(options.folder, exist_ok=True)
        for part in GENRES:
            write_part(options.folder, part, options.train if part == "train" else options.dev, options)
        write_model(options.folder)
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}; give a folder that can be written")
    except TooFew:
        parser.error(f"there are fewer than {options.dev} different dev pairs at level {options.level}; "
                     "lower --dev or raise --level")


if __name__ == "__main__":
    main()
