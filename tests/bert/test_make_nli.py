#!/usr/bin/env python3
"""The sets of examples/bert/make_nli.py: every label is what worlds say, all of those of up to four things; labels are
balanced; no dev pair is a train pair, whatever the seed and size; mismatched pairs are about other things; files are in
MNLI's and GLUE's formats; vocab.txt has every word; a seed gives the same bytes.

usage: test_make_nli.py SOURCE_ROOT [PROGRAM]   PROGRAM: tests/bert/tokenize.c, which finds no [UNK]

What sentences mean is written here anew."""
import csv
import functools
import itertools
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT, PROGRAM = sys.argv[1], (sys.argv[2:] or [None])[0]
MAKE = [sys.executable, os.path.join(ROOT, "examples/bert/make_nli.py")]
LABELS = ("entailment", "neutral", "contradiction")
PARTS = ("train", "dev_matched", "dev_mismatched")
LARGER = "birds dogs cats fish men boats ghosts horses".split()

# The things X of which it is said that they are P: f(number of X that are P, number of X).
MEANINGS = [
    (r"(?:all|every one of the) (\w+) (?:are|is) (not )?(\w+)", lambda p, n: p == n),
    (r"(?:some|at least one of the) (\w+) (?:are|is) (not )?(\w+)", lambda p, n: p >= 1),
    (r"(?:no|not one of the|none of the) (\w+) (?:are|is) (not )?(\w+)", lambda p, n: p == 0),
    (r"(?:not all|not every one of the) (\w+) (?:are|is) (not )?(\w+)", lambda p, n: p < n),
]


@functools.lru_cache(None)
def meaning(sentence):
    """Noun, predicate, whether that is under "not", what is said, and whether that is said to be false."""
    text = sentence.rstrip(".").lower()
    opener = re.match(r"it is (true|false) that ", text)
    text = text[opener.end():] if opener else text
    found = [(re.fullmatch(pattern, text), says) for pattern, says in MEANINGS]
    (match, says), = [(m, s) for m, s in found if m]
    noun, negated, predicate = match.groups()
    return noun, predicate, bool(negated), says, bool(opener) and opener[1] == "false"


def is_true(sentence, world, place):
    """world: for each thing, for each word at its place whether the thing is that."""
    noun, predicate, negated, says, is_false = meaning(sentence)
    those = [thing for thing in world if thing[place[noun]]]
    count = sum(thing[place[predicate]] != negated for thing in those)
    return says(count, len(those)) != is_false


@functools.lru_cache(None)
def worlds(nouns, subset, predicates):
    """Of 1 to 4 things. subset: (i, j), each noun i is a noun j. There is one of each noun at least."""
    kinds = [kind for kind in itertools.product((False, True), repeat=nouns + predicates)
             if not subset or not kind[subset[0]] or kind[subset[1]]]
    return [world for n in range(1, 5) for world in itertools.combinations_with_replacement(kinds, n)
            if all(any(thing[i] for thing in world) for i in range(nouns))]


def truth(premise, hypothesis):
    nouns = list(dict.fromkeys([meaning(premise)[0], meaning(hypothesis)[0]]))
    predicates = list(dict.fromkeys([meaning(premise)[1], meaning(hypothesis)[1]]))
    place = {word: i for i, word in enumerate(nouns + predicates)}
    subset = None
    for small, large in itertools.permutations(nouns, 2):
        if large in LARGER and small.endswith(large):
            subset = (place[small], place[large])
    outcomes = set()
    for world in worlds(len(nouns), subset, len(predicates)):
        if is_true(premise, world, place):
            outcomes.add(is_true(hypothesis, world, place))
    return {(True,): "entailment", (False,): "contradiction", (False, True): "neutral"}[tuple(sorted(outcomes))]


SHAPES = {}


def truth_of_shape(premise, hypothesis):
    """Worlds do not know what words are called: pairs of one shape have one label."""
    first, second = meaning(premise), meaning(hypothesis)
    shape = tuple(re.sub(r"\b(%s|%s)\b" % m[:2], "_", s.lower()) for m, s in ((first, premise), (second, hypothesis)))
    relation = (first[0] == second[0], first[0] in LARGER and second[0].endswith(first[0]),
                second[0] in LARGER and first[0].endswith(second[0]), first[1] == second[1])
    if (shape, relation) not in SHAPES:
        SHAPES[shape, relation] = truth(premise, hypothesis)
    return SHAPES[shape, relation]


def make(folder, *options):
    subprocess.run(MAKE + [folder, *options], check=True)
    return {part: read(os.path.join(folder, f"multinli_1.0_{part}.jsonl")) for part in PARTS}


def read(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def tokenize(vocabulary, given):
    """The ids of each pair."""
    requests = [struct.pack("<2i", len(a), len(b)) + (a + b).encode() for a, b in given]  # ASCII
    said = subprocess.run([PROGRAM, vocabulary], input=b"".join(requests), stdout=subprocess.PIPE, check=True).stdout
    answers = [[int(token.split()[0]) for token in line.split(",")] for line in said.decode().splitlines()]
    assert len(answers) == len(given)
    return answers


def pairs(rows):
    return [(row["sentence1"], row["sentence2"]) for row in rows]


class MakeNli(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_every_label_is_what_the_worlds_say(self):
        for level in "1234":
            made = make(self.folder, "--train", "3000", "--dev", "300", "--level", level)
            for part, rows in made.items():
                for row in rows:
                    if row["gold_label"] != "-":
                        said = truth_of_shape(row["sentence1"], row["sentence2"])
                        self.assertEqual(said, row["gold_label"], (level, part, row["sentence1"], row["sentence2"]))

    def test_labels_are_balanced_and_one_in_a_hundred_more_is_undecided(self):
        for part, rows in make(self.folder, "--train", "1000", "--dev", "500").items():
            labels = [row["gold_label"] for row in rows]
            counts = [labels.count(label) for label in LABELS]
            count = 1000 if part == "train" else 500
            self.assertEqual(sum(counts), count)
            self.assertLessEqual(max(counts) - min(counts), 1)
            self.assertEqual(labels.count("-"), count // 100)

    def test_neither_sentence_alone_tells_the_label(self):
        rows = [row for row in make(self.folder, "--train", "12000", "--dev", "0")["train"] if row["gold_label"] != "-"]
        for key in ("sentence1", "sentence2"):
            shapes = {}
            for row in rows:
                noun, predicate = meaning(row[key])[:2]
                shape = re.sub(rf"\b({noun}|{predicate})\b", "_", row[key].lower())
                shapes.setdefault(shape, []).append(row["gold_label"])
            best = sum(max(map(labels.count, LABELS)) for labels in shapes.values()) / len(rows)
            self.assertLess(best, 0.6, key)  # premises with "all" or "no" are never neutral: 5/9

    def test_dev_pairs_are_never_train_pairs_and_come_once(self):
        first = make(self.folder, "--train", "8000", "--dev", "1000", "--level", "1")
        other = make(self.folder, "--train", "8000", "--dev", "1000", "--level", "1", "--seed", "2")
        train = set(pairs(first["train"]) + pairs(other["train"]))
        for part in ("dev_matched", "dev_mismatched"):
            for made in (first, other):
                self.assertEqual(len(set(pairs(made[part]))), len(made[part]))
                self.assertFalse(train & set(pairs(made[part])))
        self.assertNotEqual(pairs(first["train"]), pairs(other["train"]))

    def test_mismatched_pairs_are_about_other_things_of_the_same_pieces(self):
        made = make(self.folder, "--train", "8000", "--dev", "600")
        nouns = {part: {meaning(s)[0] for pair in pairs(rows) for s in pair} for part, rows in made.items()}
        self.assertLessEqual(nouns["dev_matched"], nouns["train"])
        self.assertFalse(nouns["dev_mismatched"] & nouns["train"])
        twice = {part: any(all(s.startswith("It is ") for s in pair) for pair in pairs(rows))
                 for part, rows in made.items()}
        self.assertEqual(twice, {"train": False, "dev_matched": False, "dev_mismatched": True})

    def test_files_have_the_fields_of_mnli_and_glue(self):
        made = make(self.folder, "--train", "500", "--dev", "200", "--tsv")
        parses = {f"sentence{i}_{kind}" for i in (1, 2) for kind in ("parse", "binary_parse")}
        for part, rows in made.items():
            for row in rows:
                self.assertEqual(set(row), parses | {"annotator_labels", "genre", "gold_label", "pairID", "promptID",
                                                     "sentence1", "sentence2"})
                votes, gold = row["annotator_labels"], row["gold_label"]
                most = sorted((votes.count(label), label) for label in LABELS)
                self.assertEqual(gold, "-" if most[-1][0] == most[-2][0] else most[-1][1])
            with open(os.path.join(self.folder, part + ".tsv"), encoding="utf-8", newline="") as f:
                table = list(csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE))
            decided = [row for row in rows if row["gold_label"] != "-"]
            names = ("pairID", "promptID", "genre", "gold_label", "sentence1", "sentence2")
            self.assertEqual([[row[n] for n in names] for row in table], [[row[n] for n in names] for row in decided])
            self.assertEqual([row["index"] for row in table], [str(i) for i in range(len(decided))])
            self.assertEqual("label5" in table[0], part != "train")

    def test_the_vocabulary_has_every_word_and_config_its_size(self):
        made = make(self.folder, "--train", "2000", "--dev", "300", "--level", "4")
        path = os.path.join(self.folder, "vocab.txt")
        with open(path, encoding="utf-8") as f:
            vocabulary = f.read().splitlines()
        with open(os.path.join(self.folder, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        self.assertEqual(config["vocab_size"], len(vocabulary))
        self.assertEqual(len(set(vocabulary)), len(vocabulary))
        self.assertEqual(sorted(config["label2id"]), sorted(LABELS))
        self.assertEqual({int(i): label for i, label in config["id2label"].items()},
                         {i: label for label, i in config["label2id"].items()})
        if PROGRAM:
            given = [pair for rows in made.values() for pair in pairs(rows)]
            answers = tokenize(path, given)
            self.assertFalse([pair for pair, ids in zip(given, answers) if vocabulary.index("[UNK]") in ids])
            self.assertLessEqual(max(map(len, answers)), config["max_position_embeddings"])
            seen = {i for ids in answers[:len(made["train"])] for i in ids}
            unseen = {vocabulary[i] for ids in answers for i in ids if i not in seen}
            self.assertFalse(unseen, "pieces of dev files that training never sees")

    def test_a_seed_gives_the_same_bytes(self):
        def contents():
            found = {}
            for name in sorted(os.listdir(self.folder)):
                with open(os.path.join(self.folder, name), "rb") as f:
                    found[name] = f.read()
            return found
        make(self.folder, "--train", "300", "--dev", "60", "--tsv", "--seed", "9")
        first = contents()
        make(self.folder, "--train", "300", "--dev", "60", "--tsv", "--seed", "9")
        self.assertEqual(first, contents())

    def test_what_cannot_be_made_is_said(self):
        for options, words in ((["--dev", "100000", "--train", "9", "--level", "1"], "fewer than 100000 different dev"),
                               (["--train", "-3"], "-3 is no number of pairs")):
            run = subprocess.run(MAKE + [self.folder, *options], stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(run.returncode, 2)
            self.assertIn(words, run.stderr)
        run = subprocess.run(MAKE + ["/dev/null/nli"], stderr=subprocess.PIPE, text=True, check=False)
        self.assertIn("/dev/null/nli: Not a directory; give a folder that can be written", run.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
