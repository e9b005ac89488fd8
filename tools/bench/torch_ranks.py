"""A rank of PyTorch's gloo for tools/cairn-bench; worker.h documents the protocol, calls.h the data.

usage: torch_ranks.py SOCKET FILE, with RANK and WORLD_SIZE in the environment"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

PERIOD, VALUES, ROOT, MASK = 1021, 5, 0, 0xffffffff
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Call:
    """One collective as this rank calls it."""

    def __init__(self, collective, dtype, n, place, calls):
        self.collective, self.dtype, self.n, self.in_place = collective, TYPES[dtype], n, place == "in"
        self.rank, self.size, self.calls = dist.get_rank(), dist.get_world_size(), calls
        parts_out = collective in ("reduce_scatter", "alltoall")
        parts_in = collective in ("allgather", "alltoall")
        self.source = torch.empty(n * self.size if parts_out else n, dtype=self.dtype)
        fresh = not self.in_place
        self.destination = torch.empty(n * self.size if parts_in else n, dtype=self.dtype) if fresh else self.source

    # ---- data ----

    def values(self, rank, turn, part=0):
        """As calls.c has them; int64 holds what is uint32_t there."""
        x = torch.arange(PERIOD, dtype=torch.int64) + PERIOD * rank + 65537 * part + 1048583 * turn
        x = (x & MASK) * 2654435761 & MASK
        x = (x ^ x >> 15) * 2246822519 & MASK
        return (x ^ x >> 13) % VALUES

    def stretch(self, values, n, first=0):
        """n elements from number `first` on of what repeats values."""
        values = values.roll(-(first % PERIOD)).to(self.dtype)
        return values.repeat(n // PERIOD + 1)[:n]

    def parts(self, stretches):
        return torch.cat([self.stretch(values, self.n) for values in stretches])

    def wanted_source(self, turn):
        if self.collective == "alltoall":
            return self.parts(self.values(self.rank, turn, part) for part in range(self.size))
        return self.stretch(self.values(self.rank, turn), self.source.numel())

    def wanted(self, turn):
        ranks = range(self.size)
        if self.collective == "allgather":
            return self.parts(self.values(rank, turn) for rank in ranks)
        if self.collective == "alltoall":
            return self.parts(self.values(rank, turn, self.rank) for rank in ranks)
        if self.collective == "broadcast":
            return self.stretch(self.values(ROOT, turn), self.n)
        if self.collective == "sendrecv":
            return self.stretch(self.values((self.rank - 1) % self.size, turn), self.n)
        first = self.rank * self.n if self.collective == "reduce_scatter" else 0
        return self.stretch(self.sum_of_calls(sum(self.values(rank, turn) for rank in ranks), turn), self.n, first)

    def sum_of_calls(self, total, turn):
        """As calls.c has it."""
        total, more = total.double(), self.calls - 1 if self.in_place else 0
        if self.collective == "allreduce":
            return total * float(self.size) ** more
        return total + more * (total - self.values(self.rank, turn))

    def prepare(self, turn):
        self.destination.fill_(float("nan"))
        self.source.copy_(self.wanted_source(turn))

    def count_wrong(self, turn):
        wrong = 0
        if self.collective != "reduce" or self.rank == ROOT:
            wrong += self.differences(self.destination, self.wanted(turn))
        return wrong + (0 if self.in_place else self.differences(self.source, self.wanted_source(turn)))

    @staticmethod
    def differences(got, wanted):
        return 0 if torch.equal(got, wanted) else int((got != wanted).sum())

    # ---- the call ----

    def run(self):
        getattr(self, self.collective)()

    def allreduce(self):
        dist.all_reduce(self.destination)

    def reduce(self):
        dist.reduce(self.destination, ROOT)

    def broadcast(self):
        dist.broadcast(self.destination, ROOT)

    def allgather(self):
        dist.all_gather(list(self.destination.chunk(self.size)), self.source)

    def reduce_scatter(self):
        dist.reduce_scatter(self.destination, list(self.source.chunk(self.size)))

    def alltoall(self):
        dist.all_to_all_single(self.destination, self.source)

    def sendrecv(self):
        works = [dist.isend(self.source, (self.rank + 1) % self.size),
                 dist.irecv(self.destination, (self.rank - 1) % self.size)]
        for work in works:
            work.wait()

    def lacks(self):
        if self.in_place != (self.collective in ("allreduce", "reduce", "broadcast")):
            return "torch.distributed has no such call " + ("in place" if self.in_place else "out of place")
        return None


def start_together():
    dist.barrier()
    dist.barrier()


def time_calls(call, first, rounds):
    times, wrong = [], 0
    for turn in range(first, first + rounds):
        call.prepare(turn)
        start_together()
        begin = time.perf_counter()
        for _ in range(call.calls):
            call.run()
        times.append(1e6 * (time.perf_counter() - begin) / call.calls)
        dist.barrier()
        wrong += call.count_wrong(turn)
    return wrong, times


def time_barriers(n, rounds):
    times = []
    for _ in range(rounds):
        start_together()
        begin = time.perf_counter()
        for _ in range(n):
            dist.barrier()
        times.append(1e6 * (time.perf_counter() - begin) / n)
    return 0, times


def answer(line, calls):
    _, collective, dtype, n, place, _, times, _, first, rounds = line.split()
    if collective == "barrier":
        wrong, times = time_barriers(int(n), int(rounds))
    else:
        key = collective, dtype, int(n), place, int(times)
        if key not in calls:
            calls.clear()
            calls[key] = Call(*key)
        why = calls[key].lacks()
        if why:
            return f"no {why}"
        wrong, times = time_calls(calls[key], int(first), int(rounds))
    return f"ok {wrong} " + " ".join(f"{us:.3f}" for us in times)


def main(path, file):
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=size)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    bench, calls = connection.makefile("rw"), {}
    bench.write(f"hello torch {rank} gloo of PyTorch {torch.__version__}\n")
    bench.flush()
    for line in bench:
        if line == "end\n":
            break
        try:
            reply = answer(line, calls)
        except RuntimeError as why:  # what gloo has not
            reply = "no " + " ".join(str(why).split())
        bench.write(reply + "\n")
        bench.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
