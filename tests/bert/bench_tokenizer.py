#!/usr/bin/env python3
"""Times the tokenizer of examples/bert against Hugging Face's `tokenizers`, each in one thread, on the same texts.

usage: tests/bert/bench_tokenizer.py source-root TOKENIZE [ROUNDS, 7] [--small]

TOKENIZE is what tests/bert/tokenize.c became: build/tests/bert/tokenize. The texts are this project's documents and
sources: paragraphs, lines as pairs, and the same lines with accents, Chinese and emoji in them. The vocabulary of
30522 tokens is trained on them by `tokenizers`. Before anything is timed, all tokens and offsets must be equal; what is
timed must have the same sum of ids. Times are of the processor, so that other programs do not count. Rounds are
interleaved; shown are the medians of a text's time, and of the ratios. --small: a twentieth of the texts."""
import glob
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import peer

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
SMALL = sys.argv[-1] == "--small"
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 + SMALL else 7
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
tokenizers = peer.import_tokenizers(ROOT)
ACCENTS = str.maketrans({"e": "é", "o": "ö", "n": "ñ", "A": "Å", "x": "北", "z": "😀"})


def read_texts():
    paths = [p for pattern in ("docs/*.md", "include/cairn/*.h", "src/*/*.[ch]", "README.md")
             for p in sorted(glob.glob(os.path.join(ROOT, pattern)))]
    paragraphs = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            paragraphs += [p.strip() for p in f.read().split("\n\n") if p.strip()]
    words = [w for p in paragraphs for w in [" ".join(re.findall(r"[A-Za-z][a-z'-]* ?[,.;:]?", p))] if len(w) > 60]
    lines = [w[i:i + 120] for w in words for i in range(0, len(w) - 60, 120)]
    pairs = list(zip(lines[0::2], lines[1::2]))
    texts = {"paragraphs of sources": [(p, None) for p in paragraphs], "pairs of sentences": pairs,
             "pairs, not ASCII": [(a.translate(ACCENTS), b.translate(ACCENTS)) for a, b in pairs]}
    return {name: part[::20] if SMALL else part for name, part in texts.items()}


def write_vocabulary(path, texts):
    """The file, and the same as {token: id}."""
    from tokenizers import trainers
    t = peer.bert_tokenizer(tokenizers, {s: i for i, s in enumerate(SPECIAL)})
    t.train_from_iterator((x for part in texts.values() for pair in part for x in pair if x),
                          trainers.WordPieceTrainer(vocab_size=30522, special_tokens=SPECIAL, show_progress=False))
    ids = t.get_vocab()
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write("".join(token + "\n" for token in sorted(ids, key=ids.get)))
    return ids


def requests(pairs):
    out = []
    for first, second in pairs:
        a, b = first.encode(), (second or "").encode()
        out += [struct.pack("ii", len(a), -1 if second is None else len(b)), a, b]
    return b"".join(out)


def run(vocabulary, data, *options):
    return subprocess.run([TOOL, vocabulary, *options], input=data, stdout=subprocess.PIPE, check=True).stdout.decode()


def ours(vocabulary, data, lower, want):
    out = run(vocabulary, data, f"lower={lower}", "max_length=128", "--time", "1").split()
    assert int(out[1]) == want, f"ids add up to {out[1]}, not {want}"
    return float(out[0])


def in_batch(t, inputs, want):
    begin = time.process_time()
    encodings = t.encode_batch(inputs)
    passed = time.process_time() - begin
    assert sum(sum(e.ids) for e in encodings) == want
    return passed


def one_by_one(t, inputs, want):
    begin = time.process_time()
    encodings = [t.encode(*x) if isinstance(x, tuple) else t.encode(x) for x in inputs]
    passed = time.process_time() - begin
    total = sum(sum(e.ids) for e in encodings)
    assert total == want, (total, want)
    return passed


def check(vocabulary, data, lower, t, inputs):
    """Equal tokens; returns the sum of all ids and their number."""
    total = count = 0
    lines = run(vocabulary, data, f"lower={lower}", "max_length=128").split("\n")[:-1]
    assert len(lines) == len(inputs)
    for line, e in zip(lines, t.encode_batch(inputs)):
        got = [tuple(map(int, x.split()[:5])) for x in line.split(",")]
        assert got == list(zip(e.ids, e.type_ids, e.attention_mask, *zip(*e.offsets))), (line, e)
        total, count = total + sum(e.ids), count + len(e.ids)
    return total, count


def main():
    texts = read_texts()
    print(f"tokenizers {tokenizers.__version__}, one thread each; us of CPU a text, medians of {ROUNDS} rounds")
    print(f"{'':34}{'texts':>7}{'tokens':>8}{'cairn':>8}{'encode':>8}{'batch':>8}   encode / cairn, batch / cairn")
    slowest = 9e9
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = os.path.join(folder, "vocab.txt")
        ids = write_vocabulary(vocabulary, texts)
        for lower in (1, 0):
            t = peer.bert_tokenizer(tokenizers, ids, lower=bool(lower))
            t.enable_truncation(128, strategy="longest_first")
            for name, pairs in texts.items():
                inputs = [p if p[1] is not None else p[0] for p in pairs]
                data = requests(pairs)
                total, count = check(vocabulary, data, lower, t, inputs)
                rows = [(ours(vocabulary, data, lower, total), one_by_one(t, inputs, total),
                         in_batch(t, inputs, total)) for _ in range(ROUNDS)]
                mine, encode, batch = (statistics.median(column) * 1e6 / len(pairs) for column in zip(*rows))
                ratios = [statistics.median(r[k] / r[0] for r in rows) for k in (1, 2)]
                slowest = min(slowest, *ratios)
                title = f"{name}, {'uncased' if lower else 'cased'}"
                print(f"{title:34}{len(pairs):7}{count:8}{mine:8.2f}{encode:8.2f}{batch:8.2f}   {ratios[0]:14.2f}"
                      f"{ratios[1]:16.2f}", flush=True)
    print(f"cairn is {slowest:.2f} times as fast or more")
    return slowest < 1


sys.exit(main())
