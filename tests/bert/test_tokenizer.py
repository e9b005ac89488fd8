#!/usr/bin/env python3
"""The tokenizer of examples/bert gives what Hugging Face's does: tokens, types and offsets of generated texts and
pairs, cased and uncased, with every truncation; and takes each code point as it does.

usage: test_tokenizer.py source-root TOKENIZE [TEXTS, 100000]     with fewer texts, a part of the code points, too

TOKENIZE is what tests/bert/tokenize.c became. Skipped where no Python has `tokenizers`. Code points that have no
meaning in the Unicode version of utf8proc are left out of the texts, and looked at one by one: with some of them
`tokenizers` may do what a later Unicode says."""
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

import peer

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
TEXTS = int(sys.argv[3]) if len(sys.argv) > 3 else 100000
tokenizers = peer.import_tokenizers(ROOT)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 28, 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200C), 0x2028, 0x2029,
                           0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF)]
WORDS = "The quick brown Foxes aren't jumping over İstanbul's ΟΔΥΣΣΕΥΣ Straße ﬁne naïve Ångström".split() + \
    "北京 한국어 คน हिन्दी".split()
# Blocks from which much comes, beside the planes: Latin, marks, Greek, Indic, Hangul, kana, Chinese, compatibility
# forms, symbols, music (marks that are not Mn), emoji, tags.
BLOCKS = [(0, 0x180), (0x300, 0x370), (0x370, 0x530), (0x591, 0x8FF), (0x900, 0xE00), (0xF00, 0xFFF), (0x1100, 0x1200),
          (0x1AB0, 0x1B00), (0x1D00, 0x2000), (0x2000, 0x2070), (0x20D0, 0x2100), (0x3000, 0x3100), (0x3400, 0x3500),
          (0x4E00, 0xA000), (0xA600, 0xAC00), (0xAC00, 0xD7A4), (0xF900, 0xFB00), (0xFB00, 0xFE30), (0x10A00, 0x11FFF),
          (0x16F00, 0x17000), (0x1D160, 0x1D1B0), (0x1E000, 0x1E960), (0x1F300, 0x1FAFF), (0x20000, 0x2FA20),
          (0xE0000, 0xE0200), (0xF0000, 0xF0100)]


def request(first, second=None):
    head = struct.pack("ii", len(first), -1 if second is None else len(second))
    return head + first + (second or b"")


def ours(vocabulary, requests, **options):
    """A list of tokens for each request, or the sentence: a token is (id, type, mask, begin, end, first byte, end)."""
    done = subprocess.run([TOOL, vocabulary, *(f"{k}={v}" for k, v in options.items())], input=b"".join(requests),
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().split("\n")[:-1]
    assert len(lines) == len(requests), (len(lines), len(requests))
    return [x if x[:1] == "!" else [tuple(map(int, t.split())) for t in x.split(",")] if x else [] for x in lines]


def unassigned(path):
    """The code points without a meaning, as utf8proc says: U+0378 is one, and a tokenizer that knew none would not
    see that a letter stands beside them."""
    out = subprocess.run([TOOL, "--unassigned"], capture_output=True, text=True, check=True).stdout.split()
    return out[0], {c for a, b in zip(out[1::2], out[2::2]) for c in range(int(a, 16), int(b, 16) + 1)}


class Texts:
    """Makes texts; the same from the same seed."""

    def __init__(self, seed, without):
        self.random, self.without = random.Random(seed), without
        every = [c for c in range(0x110000) if c not in without and not 0xD800 <= c < 0xE000]
        self.planes = [[c for c in every if c >> 16 == plane] for plane in range(17)]
        self.planes = [p for p in self.planes if p]
        self.blocks = [b for b in ([c for c in every if low <= c < high] for low, high in BLOCKS) if b]
        self.marks = [c for c in every if unicodedata.category(chr(c))[0] == "M" or unicodedata.combining(chr(c))]

    def piece(self):
        r = self.random
        kind = r.randrange(16)
        if kind < 3:
            return r.choice(WORDS)
        if kind < 5:
            return r.choice(SPACES) * r.choice((1, 1, 2))
        if kind == 5:
            return "".join(chr(r.randrange(33, 127)) for _ in range(r.randrange(1, 6)))
        if kind == 6:
            return r.choice("aeoıİIß你ａ") + "".join(chr(r.choice(self.marks)) for _ in range(r.randrange(1, 5)))
        if kind == 7:
            return r.choice((*SPECIAL, *SPECIAL, "[sep]", "[SEP", "[[MASK]", "[ SEP]", "##ing",
                             "\N{COMBINING ACUTE ACCENT}"))
        if kind == 8:
            return r.choice("xyé") * r.choice((1, 20, 98, 99, 100, 101, 102)) if r.randrange(4) == 0 else "ing"
        if kind == 9:
            return chr(r.choice(r.choice(self.planes)))
        if kind == 10:
            return "".join(chr(r.choice(self.planes[0])) for _ in range(r.randrange(1, 4)))
        block = r.choice(self.blocks)
        return "".join(chr(r.choice(block)) for _ in range(r.randrange(1, 5)))

    def text(self):
        """Bytes, one in eight texts of which are not UTF-8."""
        r = self.random
        text = b"".join(self.piece().encode() for _ in range(r.randrange(r.choice((2, 12, 30)))))
        if r.randrange(8) == 0:
            for _ in range(r.randrange(1, 4)):
                at = r.randrange(len(text) + 1)
                text = text[:at] + bytes(r.choice((*range(0x80, 0x100), 0x41)) for _ in range(r.randrange(1, 4))) + \
                    text[at + r.randrange(3):]
        return text


def vocabulary_of(texts, seed):
    """Single characters, and pieces from the beginnings and the insides of words: half of the words can be cut."""
    r, tokens = random.Random(seed), set()
    for lower in (True, False):
        t = peer.bert_tokenizer(tokenizers, {s: i for i, s in enumerate(SPECIAL)}, lower=lower)
        for text in texts:
            normal = t.normalizer.normalize_str(text.decode(errors="replace"))
            for word, _ in t.pre_tokenizer.pre_tokenize_str(normal):
                if r.randrange(3):
                    continue
                at = r.randrange(len(word))
                tokens.add(word[:1 + r.randrange(len(word))])
                tokens.add("##" + word[at:at + 1 + r.randrange(4)])
                for c in word if r.randrange(2) else ():
                    tokens.update((c, "##" + c))
    tokens -= {t for t in tokens if t != t.strip() or "\n" in t or "\r" in t or t in SPECIAL}
    return [*SPECIAL[:2], *sorted(tokens), *SPECIAL[2:]]


def show(t):
    return ascii(t.decode(errors="replace"))


def same(texts, theirs, mine, note):
    """Compares, and each token's bytes with its characters."""
    for (first, second), e, got in zip(texts, theirs, mine):
        want = list(zip(e.ids, e.type_ids, e.attention_mask, *zip(*e.offsets))) if e.ids else []
        assert [g[:5] for g in got] == want, \
            f"{note}: {show(first)}, {show(second or b'')}:\nhas   {got}\nwants {want}"
        for i, (_, kind, _, begin, end, first_byte, end_byte) in enumerate(got):
            text = second if kind else first
            assert text[first_byte:end_byte].decode(errors="replace") == text.decode(errors="replace")[begin:end], \
                f"{note}: token {i} of {show(text)}"


def encode(t, pairs):
    texts = [[x.decode(errors="replace") for x in p if x is not None] for p in pairs]
    return t.encode_batch([tuple(p) if len(p) == 2 else p[0] for p in texts])


def compare_texts(vocabulary, texts, cases):
    """Each text alone, in the ways that options can choose."""
    for n, options in enumerate(cases):
        mine_of = {"lower": int(options["lower"]), "chinese": int(options.get("chinese", True))}
        if options.get("strip") is not None:
            mine_of["strip"] = int(options["strip"])
        part = texts if n < 2 else texts[n::10]
        t = peer.bert_tokenizer(tokenizers, vocabulary, **options)
        for at in range(0, len(part), 5000):
            some = [(x, None) for x in part[at:at + 5000]]
            same(some, encode(t, some), ours(vocabulary, [request(*p) for p in some], **mine_of), options)
        print(f"{len(part)} texts, {options}")


def compare_pairs(vocabulary, texts):
    """Pairs and single texts with truncations; what `tokenizers` refuses must be refused."""
    kinds = {"longest_first": 1, "only_first": 2, "only_second": 3}
    pairs = list(zip(texts[0::2], [None if i % 5 == 0 else x for i, x in enumerate(texts[1::2])]))
    count = refused = 0
    for n, (kind, number) in enumerate(kinds.items()):
        for k, most in enumerate((3, 4, 5, 8, 16, 17, 48)):
            lower = (n + k) % 2
            t = peer.bert_tokenizer(tokenizers, vocabulary, lower=bool(lower))
            t.enable_truncation(most, strategy=kind)
            some = pairs[n * 7 + k::21]
            mine = ours(vocabulary, [request(*p) for p in some], lower=lower, max_length=most, truncation=number)
            for p, got in zip(some, mine):
                count += 1
                try:
                    want = encode(t, [p])
                except Exception:  # noqa: BLE001, of Rust
                    refused += 1
                    assert got[0] == "!", f"{kind} {most}: {p}: {got}"
                    continue
                if p[1] is None and kind == "only_second":
                    assert got[0] == "!", (p, got)
                    continue
                assert got[0] != "!", f"{kind} {most}: {p}: {got}"
                same([p], want, [got], (kind, most))
    print(f"{count} pairs and texts with truncation, {refused} of which cannot be cut")


def compare_code_points(without):
    """Each between two letters: whether it is taken out, parts words, is a word, and what it becomes."""
    letters = sorted({chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000} - set("\n\r"))
    if TEXTS < 100000:
        letters = letters[:0x800] + sorted(random.Random(TEXTS).sample(letters[0x800:], 60000))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vocab.txt")
        tokens = SPECIAL + [c for c in letters if c != "\0"] + ["##" + c for c in letters if c != "\0"]
        with open(path, "w", encoding="utf-8", newline="") as f:
            f.write("".join(t + "\n" for t in tokens))
        ids = {t: i for i, t in enumerate(tokens)}
        for options in ({"lower": True}, {"lower": False}):
            t = peer.bert_tokenizer(tokenizers, ids, **options)
            known = [("b\u0345" + c + "\u0334x").encode() for c in letters if ord(c) not in without]
            other = [("b" + c + "x").encode() for c in letters if ord(c) in without]
            for at in range(0, len(known), 20000):
                some = [(x, None) for x in known[at:at + 20000]]
                mine = ours(path, [request(*p) for p in some], lower=int(options["lower"]))
                same(some, encode(t, some), mine, options)
            theirs = encode(t, [(x, None) for x in other])
            mine = ours(path, [request(x) for x in other], lower=int(options["lower"]))
            differ = [x for x, e, got in zip(other, theirs, mine) if e.ids != [g[0] for g in got]]
            print(f"{len(known)} code points, {options}; of {len(other)} that utf8proc lacks {len(differ)} differ")


def compare_with_transformers(vocabulary, texts):
    """The class itself: peer.py puts together what it is made of."""
    try:
        from transformers import BertTokenizerFast
    except ImportError:
        print("there is no transformers")
        return
    with open(vocabulary, encoding="utf-8", newline="\n") as f:
        ids = {t.rstrip("\n"): i for i, t in enumerate(f)}
    for lower in (True, False):
        t = BertTokenizerFast(vocab=ids, do_lower_case=lower)
        for kind, number in (("longest_first", 1), ("only_first", 2)):
            for first, second in zip(texts[0::2], texts[1::2]):
                if not second:
                    continue  # which transformers takes for none
                try:
                    e = t(first.decode(errors="replace"), second.decode(errors="replace"), max_length=40,
                          truncation=kind, padding="max_length", return_offsets_mapping=True)
                except Exception:  # noqa: BLE001, of Rust
                    continue
                got = ours(vocabulary, [request(first, second)], lower=int(lower), max_length=40, truncation=number,
                           pad_to=40)[0]
                want = list(zip(e["input_ids"], e["token_type_ids"], e["attention_mask"], *zip(*e["offset_mapping"])))
                assert [g[:5] for g in got] == want, f"{kind}: {show(first)}, {show(second)}\nhas   {got}\nwants {want}"
    print(f"{len(texts) // 2} pairs with BertTokenizerFast")


def main():
    version, without = unassigned(TOOL)
    maker = Texts(24, without)
    texts = [maker.text() for _ in range(TEXTS)]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = os.path.join(folder, "vocab.txt")
        with open(vocabulary, "w", encoding="utf-8", newline="") as f:
            f.write("".join(t + "\n" for t in vocabulary_of(texts[:8000], 1)))
        print(f"tokenizers {tokenizers.__version__}; utf8proc has Unicode {version}, without {len(without)} code "
              f"points; {sum(t.decode(errors='replace').encode() != t for t in texts)} of {len(texts)} texts are not "
              "UTF-8")
        cases = [{"lower": lower, "strip": strip, "chinese": chinese} for chinese in (True, False)
                 for strip in (None, True, False) for lower in (True, False)]
        compare_texts(vocabulary, texts, cases)
        compare_pairs(vocabulary, texts)
        compare_with_transformers(vocabulary, texts[:100])
    compare_code_points(without)


main()
