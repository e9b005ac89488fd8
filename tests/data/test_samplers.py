#!/usr/bin/env python3
"""Samplers return the indices of the algorithm in cairn/data.h, reimplemented here in Python, and those of torch's
DistributedSampler with the same random permutation.

usage: test_samplers.py PROGRAM     what tests/data/samplers.c became; without a torch the second half is left out"""
import subprocess
import sys

TORCH = """
import sys
from torch.utils.data.distributed import DistributedSampler
import torch

order = []
torch.randperm = lambda n, generator: torch.tensor(order, dtype=torch.int64)
for line in sys.stdin:
    facts, order[:] = (list(map(int, part.split())) for part in line.split(":"))
    n, size, rank, drop_last, shuffle, seed, epoch = facts
    sampler = DistributedSampler(range(n), size, rank, shuffle=bool(shuffle), seed=seed, drop_last=bool(drop_last))
    sampler.set_epoch(epoch)
    print(*list(sampler))
"""


def philox(key, counter):
    """Ten rounds of Philox4x32."""
    k = [key >> shift & 0xFFFFFFFF for shift in (0, 32)]
    c = [counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & 0xFFFFFFFF, p >> 32 ^ c[3] ^ k[1], p & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def words(seed, epoch):
    block = 0
    while True:
        yield from philox(seed, 2**127 + epoch * 2**64 + block)
        block += 1


def permutation(n, seed, epoch):
    """As cairn/data.h writes it down."""
    order, w = list(range(n)), words(seed, epoch)
    for i in range(n - 1, 0, -1):
        word = next(w)
        while word * (i + 1) % 2**32 < 2**32 % (i + 1):
            word = next(w)
        j = word * (i + 1) // 2**32
        order[i], order[j] = order[j], order[i]
    return order


def expected(order, size, rank, drop_last):
    n = len(order)
    total = n // size * size if drop_last else -(-n // size) * size
    return [order[place % n] for place in range(rank, total, size)]


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def main():
    lines = subprocess.run([sys.argv[1]], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    got, asked, orders = [], [], {}
    for line in lines:
        facts, indices = (list(map(int, part.split())) for part in line.split(":"))
        n, size, rank, drop_last, shuffle, seed, epoch = facts
        key = (n, seed, epoch)
        if key not in orders:
            orders[key] = permutation(*key)
        order = orders[key] if shuffle else list(range(n))
        assert indices == expected(order, size, rank, drop_last), line
        if seed < 2**32:  # torch's are smaller than Cairn's
            got.append(" ".join(map(str, indices)))
            asked.append(line.split(":")[0] + ": " + " ".join(map(str, order)))
    assert len(got) > 10000
    print(f"{len(lines)} lines as written down")
    if not has_torch("/usr/bin/python3"):
        print("there is no torch on this machine (Debian: python3-torch), so nothing was compared with it")
        return
    torch = subprocess.run(["/usr/bin/python3", "-c", TORCH], input="\n".join(asked), stdout=subprocess.PIPE, text=True,
                           check=True).stdout.splitlines()
    assert len(torch) == len(got)
    for facts, ours, theirs in zip(asked, got, torch):
        assert ours == theirs, f"{facts}\nours {ours}\ntorch {theirs}"
    print(f"{len(torch)} lines as torch's")


if __name__ == "__main__":
    main()
