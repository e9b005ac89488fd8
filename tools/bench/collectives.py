"""The collectives of `tools/cairn-bench`: Cairn and its peers, measured in turn.

Only one side's ranks work at a time, the others sleep in a read; worker.h defines sizes, rounds and the clock. A time
is the slowest rank's, a figure the median over rounds. With --calls 20 a round is 20 consecutive calls and its time
their mean, as in nccl-tests; otherwise a call begins when all ranks are ready, possibly with the arrays outside the
caches.

    size    bytes of the larger of the two arrays of a rank (nccl-tests' convention)
    count   the call's argument n
    algbw   size / time
    busbw   algbw times a factor that makes it comparable with the bandwidth of one rank's link for any number of ranks
            p (nccl-tests, doc/PERFORMANCE.md):
              allreduce        2 (p-1)/p   of S bytes, (p-1)/p S come in to be added, and (p-1)/p S as results
              reduce_scatter,
              allgather,
              alltoall           (p-1)/p   all but one's own part of S moves
              reduce, broadcast,
              sendrecv               1     S passes through the busiest link
    #wrong  wrong elements over all rounds; then there is no time
    pairs   time relative to two ranks of the same backend, out of place and in place
"""
import argparse
import json
import math
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import machine

HERE = os.path.dirname(os.path.abspath(__file__))
WIDTHS = {"f32": 4, "f16": 2, "bf16": 2}
PRECISION = {"f32": (24, 127), "f16": (11, 15), "bf16": (8, 127)}  # bits of a significand, the largest power of two
REDUCTIONS = ("allreduce", "reduce", "reduce_scatter")
IN_PARTS = ("allgather", "reduce_scatter", "alltoall")  # the larger array has a part for each rank
COLLECTIVES = ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "sendrecv", "barrier")
BESIDE = ("limit", "torch", "mpi", "pair")
WITHOUT_ASKING = ("limit", "torch", "mpi")
BARRIERS, BARRIER_SECONDS = 1000, 6  # so many in a row
CHUNKS, LEAST_ROUNDS, MAX_ROUNDS = 5, 3, 300
LOOPS = ("kernel", "plain", "streaming")
LAUNCHERS = ("OMPI_", "PMI", "PALS_", "MV2_", "SLURM_", "MASTER_", "TORCHELASTIC_", "CAIRN_BACKEND")


class SideFailed(Exception):
    """A side is out of the comparison; the sentence says why."""


def bus_factor(collective, ranks):
    if collective == "allreduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in IN_PARTS else 1.0


def count_of(collective, size, dtype, ranks):
    """n of the call whose larger array has about `size` bytes."""
    parts = ranks if collective in IN_PARTS else 1
    return max(1, size // (WIDTHS[dtype] * parts))


def size_of(collective, n, dtype, ranks):
    return n * WIDTHS[dtype] * (ranks if collective in IN_PARTS else 1)


def counts(args):
    sizes, size = [], args.min
    while size < args.max:
        sizes.append(size)
        size *= args.factor
    return sorted({count_of(args.what, size, args.type, args.ranks) for size in sizes + [args.max]})


def binds(args, ranks=None):
    return (ranks or args.ranks) <= machine.num_processors() if args.bind is None else args.bind


def places(collective):
    return [place for place in ("out", "in") if not (place == "in" and collective in ("alltoall", "sendrecv"))
            and not (place == "out" and collective == "broadcast")]


def program(args, name, backend="shm"):
    """The path of one of the build's tools, beside the module of a backend."""
    try:
        if backend != "shm":
            machine.build(args.build, f"src/comm/{backend}/libcairn_{backend}.so")
        return machine.program(args.build, "tools/" + name)
    except machine.Missing as why:
        raise SideFailed(str(why)) from None


def torch_python(args):
    try:
        return machine.find_torch(args.python).python
    except machine.Missing as why:
        raise SideFailed(str(why)) from None


# ---- sides ----

class Side:
    """The ranks of Cairn, of the limit, of PyTorch, of Open MPI, or of a pair: Cairn again, by two."""

    def __init__(self, name, listener, ranks, timeout):
        self.name, self.listener, self.size, self.timeout = name, listener, ranks, timeout
        self.processes, self.streams, self.what, self.turn = [], {}, "", 0
        self.broken = None  # why it is out of the comparison
        self.errors = tempfile.TemporaryFile("w+")

    def start(self, command, env, processor=None, **more):
        def prepare():
            os.setpgid(0, 0)  # no session of its own, which Linux gives a share of the processors of its own
            if processor is not None:
                os.sched_setaffinity(0, {processor})
        self.processes.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=self.errors,
                                               stderr=self.errors, preexec_fn=prepare, **more))

    def said(self):
        self.errors.seek(0)
        lines = list(dict.fromkeys(line.strip() for line in self.errors if line.strip())) # several ranks say the same
        return "; ".join(lines[-3:]) or "it said nothing"

    def last_words(self):
        """Of ranks that are just ending."""
        for process in self.processes:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                pass
        return self.said()

    def meet(self):
        """Until all ranks are there."""
        end = time.monotonic() + self.timeout
        self.listener.settimeout(0.1)
        while len(self.streams) < self.size:
            if time.monotonic() > end:
                raise SideFailed(f"{len(self.streams)} of {self.size} ranks came within {self.timeout} s: "
                                 f"{self.said()}")
            if any(process.poll() is not None for process in self.processes):
                raise SideFailed(self.last_words())
            try:
                connection, _ = self.listener.accept()
            except socket.timeout:
                continue
            connection.settimeout(self.timeout)
            stream = connection.makefile("rw")
            _, _, rank, self.what = stream.readline().rstrip("\n").split(" ", 3)
            self.streams[int(rank)] = stream

    def ask(self, *words):
        """(wrong elements, us of each round by the slowest rank), or a sentence why there is none."""
        try:
            for stream in self.streams.values():
                stream.write(" ".join(map(str, words)) + "\n")
                stream.flush()
            answers = [stream.readline().split() for stream in self.streams.values()]
        except socket.timeout:
            raise SideFailed(f"{words[1]} of {words[3]} elements was not over after {self.timeout} s") from None
        except OSError:
            raise SideFailed(self.last_words()) from None
        for answer in answers:
            if not answer or answer[0] == "failed":
                raise SideFailed(" ".join(answer[1:]) or self.last_words())
        if any(answer[0] == "no" for answer in answers):
            return next(" ".join(answer[1:]) for answer in answers if answer[0] == "no")
        times = [[float(us) for us in answer[2:]] for answer in answers]
        return sum(int(answer[1]) for answer in answers), [max(us) for us in zip(*times)]

    def run(self, order, variant, rounds):
        """A peer that fails is left out from then on; without Cairn there is nothing to tell."""
        self.turn += rounds
        if self.broken:
            return self.broken
        try:
            return self.ask("run", *order, variant, self.turn - rounds, rounds)
        except SideFailed as why:
            if self.name == "cairn":
                raise
            self.broken = f"failed: {why}"
            self.kill()
            return self.broken

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def end(self):
        """Nothing of it stays behind."""
        for stream in self.streams.values():
            try:
                stream.write("end\n")
                stream.flush()
            except (OSError, ValueError):
                pass
        for process in self.processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.kill()
        self.errors.close()


class Sides:
    """Starts them, and ends them whatever happens."""

    side_type = Side

    def __init__(self, args):
        self.args, self.all = args, []
        self.folder = tempfile.TemporaryDirectory(prefix="cairn-bench-")
        self.path = os.path.join(self.folder.name, "socket")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(256)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for side in self.all:
            side.end()
        self.listener.close()
        self.folder.cleanup()

    def env(self, rank=None, size=None, **more):
        env = {name: text for name, text in os.environ.items() if not name.startswith(LAUNCHERS)}
        env.update(OMP_NUM_THREADS="1", **more)
        if rank is not None:
            env.update(RANK=str(rank), WORLD_SIZE=str(size or self.args.ranks), LOCAL_RANK=str(rank))
        return env

    def mpirun(self, ranks=None):
        found = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
        if not found:
            raise SideFailed("there is no mpirun (Debian's openmpi-bin)")
        more = ["--oversubscribe"] if self.args.ranks > machine.num_processors() else []
        return [found, *more, "-n", str(ranks or self.args.ranks)]

    def processor(self, rank, ranks=None):
        """Its own, so that the system does not put ranks that were woken together on one; None: any."""
        processors = sorted(os.sched_getaffinity(0))
        return processors[rank % len(processors)] if binds(self.args, ranks) else None

    def program(self, name):
        return program(self.args, name)

    def add(self, name):
        ranks = 2 if name == "pair" else self.args.ranks
        side = self.side_type(name, self.listener, ranks, self.args.timeout)
        try:
            getattr(self, "start_" + name)(side)
            side.meet()
        except SideFailed:
            side.end()
            raise
        self.all.append(side)
        return side

    AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def start_cairn(self, side):
        backend, size = self.args.backend, side.size
        path = program(self.args, "bench-collectives", backend)
        if backend == "mpi":
            side.start(self.mpirun(size) + [path, self.path, "cairn", "-"],
                       self.env(CAIRN_BACKEND="mpi", **self.AS_ROOT))
            return
        for rank in range(size):
            side.start([path, self.path, "cairn", os.path.join(self.folder.name, "store of " + side.name)],
                       self.env(rank, size, CAIRN_BACKEND=backend),
                       self.processor(rank, size) if backend == "shm" else None)

    start_pair = start_cairn

    def start_limit(self, side):
        memory = os.memfd_create("cairn-bench")
        os.truncate(memory, 4096)
        for rank in range(self.args.ranks):
            side.start([self.program("bench-collectives"), self.path, "limit", str(memory)], self.env(rank),
                       self.processor(rank), pass_fds=[memory])
        os.close(memory)

    def start_torch(self, side):
        python = torch_python(self.args)
        for rank in range(self.args.ranks):
            side.start([python, os.path.join(HERE, "torch_ranks.py"), self.path,
                        os.path.join(self.folder.name, "torch")],
                       self.env(rank))

    def start_mpi(self, side):
        side.start(self.mpirun() + [self.program("bench-mpi"), self.path], self.env(**self.AS_ROOT))


# ---- measuring ----

class Task:
    """One side's part of a line."""

    def __init__(self, side, variant="-"):
        self.side, self.variant = side, variant
        self.us, self.wrong, self.why, self.rounds = [], 0, None, 0

    def warm_up(self, order, seconds, rounds):
        """Two rounds, or one that takes long; they also tell how many fit into so many seconds."""
        for _ in range(2):
            begin = time.monotonic()
            got = self.side.run(order, self.variant, 1)
            took = time.monotonic() - begin
            if isinstance(got, str):
                self.why = got
                return
            self.wrong += got[0]
            if took > seconds / 5:
                break
        self.rounds = rounds or min(max(int(seconds / took), LEAST_ROUNDS), MAX_ROUNDS)

    def go_on(self, order, chunk):
        rounds = self.rounds * (chunk + 1) // CHUNKS - self.rounds * chunk // CHUNKS
        if self.why or rounds == 0:
            return
        got = self.side.run(order, self.variant, rounds)
        if isinstance(got, str):
            self.why = got
            return
        self.wrong += got[0]
        self.us += got[1]

    def figures(self, size, collective, ranks):
        if self.why:
            return {"why": self.why}
        if self.wrong:
            return {"wrong": self.wrong, "rounds": len(self.us)}
        us = statistics.median(self.us)
        algbw = size / us * 1e-3
        return {"time_us": us, "least_us": min(self.us), "algbw": algbw, "busbw": algbw * bus_factor(collective, ranks),
                "wrong": 0, "rounds": len(self.us)}


def measure(tasks, order, seconds, rounds):
    """In turn. The non-temporal loop comes last: it leaves the arrays outside every cache, which the next one pays
    for."""
    for task in tasks:
        task.warm_up(order, seconds / max(1, len(tasks)), rounds)
    last = [task for task in tasks if task.variant == "streaming"]
    for group in [task for task in tasks if task not in last], last:
        for chunk in range(CHUNKS):
            for task in group:
                task.go_on(order, chunk)


def limit_of(tasks):
    loops = {task.variant: statistics.median(task.us) for task in tasks if task.us and not task.why}
    wrong = sum(task.wrong for task in tasks)
    if not loops:
        return None
    return {"time_us": min(loops.values()), "wrong": wrong, **{f"{loop}_us": us for loop, us in loops.items()}}


def measure_place(sides, args, n, place, memory, seconds):
    """{side: figures} of one size in one place, and the limit where there is one."""
    order = [args.what, args.type, n, place, memory, args.calls]
    tasks = [Task(side) for side in sides if side.name != "limit"]
    loops = [Task(side, loop) for side in sides if side.name == "limit" and place == "in" for loop in LOOPS]
    measure(tasks + loops, order, seconds, args.rounds)
    size = size_of(args.what, n, args.type, args.ranks)
    return {task.side.name: task.figures(size, args.what, task.side.size) for task in tasks}, limit_of(loops)


# ---- printing ----

def show(figures):
    if figures is None or "why" in figures:
        return f"{'-':>11} {'-':>7} {'-':>7} {'-':>6}"
    if figures["wrong"]:
        return f"{'-':>11} {'-':>7} {'-':>7} {figures['wrong']:>6}"
    return f"{figures['time_us']:11.2f} {figures['algbw']:7.2f} {figures['busbw']:7.2f} {0:>6}"


def show_pairs(row):
    if not row["pairs"]:
        return ""
    figures = " ".join(f"{x:6.1f}" if x else f"{'-':>6}" for x in row["pairs"].values())
    return ("" if row["limit"] else f"{'':18}") + figures


def show_limit(limit, figures):
    if not limit:
        return ""
    if limit["wrong"]:
        return f" {'-':>10} {'-':>6}"
    text = f" {limit['time_us']:10.2f}"
    times = f"{figures['time_us'] / limit['time_us']:.2f}" if figures and "time_us" in figures else "-"
    return f"{text} {times:>6}"


HEADS = (f"#{'':45}{'out of place':^35}{'in place':^35}".rstrip(),
         f"#{'size':>9} {'count':>9} {'type':>5} {'op':>5} {'side':<6} {'memory':<8}" +
         2 * f"{'time':>11} {'algbw':>7} {'busbw':>7} {'#wrong':>6} " + f"{'limit':>10} {'times':>6}")
HEADS_WITH_PAIRS = (f"{HEADS[0]}{'':16}{'pairs':>15}", f"{HEADS[1]}{'out':>6} {'in':>6}")


def row_text(row):
    return (f"{row['size']:>10} {row['count']:>9} {row['type']:>5} {row['op']:>5} {row['side']:<6} {row['memory']:<8}"
            f"{show(row['out_of_place'])} {show(row['in_place'])}{show_limit(row['limit'], row['in_place'])}"
            f"{show_pairs(row)}").rstrip()


def print_heads(args, sides, missing):
    bound = ", those of shm and of the limit bound to one each" if binds(args) else ""
    what = f"sums of {args.type}" if args.what in REDUCTIONS else args.type
    what += f", {args.calls} calls in a row" if args.calls > 1 else ""
    print(f"# {machine.cpu_name()}, {machine.num_processors()} processors; {args.what} of {args.ranks} ranks{bound}"
          + ("" if args.what == "barrier" else f", {what}"))
    print("# " + " ".join(["tools/cairn-bench"] + sys.argv[1:]))
    for side in sides:
        kind = {"limit": "the same by ranks that agree on nothing, best of three loops, ", "pair": "two ranks of "}
        print(f"# {side.name}: {kind.get(side.name, '')}{side.what}")
    for name, why in missing.items():
        print(f"# {name}: left out, {why}")


def print_reasons(rows):
    """Why a side has no figure, once each."""
    reasons = {(row["side"], row[place]["why"]) for row in rows for place in ("out_of_place", "in_place")
               if row[place] and "why" in row[place]}
    for side, why in sorted(reasons):
        print(f"# {side}: {why}")


# ---- the whole ----

def ratio(found, place):
    """Of Cairn's time and the pair's."""
    us = [found[place][0].get(name, {}).get("time_us") if place in found else None for name in ("cairn", "pair")]
    return us[0] / us[1] if all(us) else None


def rows_of_size(sides, args, n, memory, seconds):
    found = {place: measure_place(sides, args, n, place, memory, seconds) for place in places(args.what)}
    limit = found["in"][1] if "in" in found else None
    rows = []
    for side in sides:
        if side.name == "limit":
            continue
        results = {place: found[place][0][side.name] if place in found else None for place in ("out", "in")}
        pairs = {name: ratio(found, place) for name, place in (("out_of_place", "out"), ("in_place", "in"))}
        rows.append({"side": side.name, "what": side.what, "size": size_of(args.what, n, args.type, args.ranks),
                     "count": n, "type": args.type, "op": "sum" if args.what in REDUCTIONS else "none",
                     "memory": memory if side.name in ("cairn", "pair") else "ordinary", "out_of_place": results["out"],
                     "in_place": results["in"], "limit": limit if side.name == "cairn" else None,
                     "pairs": pairs if side.name == "cairn" and any(side.name == "pair" for side in sides) else None})
    return rows


def time_sizes(sides, args):
    memories = ["group", "ordinary"] if args.memory == "both" else [args.memory]
    todo = [(n, memory) for n in counts(args) for memory in memories]
    seconds = args.seconds / (len(todo) * len(places(args.what)))
    print("\n".join(HEADS_WITH_PAIRS if "pair" in args.beside else HEADS))
    rows = []
    for n, memory in todo:
        for row in rows_of_size(sides, args, n, memory, seconds):
            rows.append(row)
            print(row_text(row), flush=True)
    print_reasons(rows)
    return rows


def time_barriers(sides, args):
    tasks = [Task(side) for side in sides]
    measure(tasks, ["barrier", "f32", BARRIERS, "in", "ordinary", 1], min(args.seconds, BARRIER_SECONDS), args.rounds)
    rows = []
    for task in tasks:
        if task.why:
            print(f"barrier {task.side.name:<6} {task.why}")
            continue
        us = statistics.median(task.us)
        rows.append({"side": task.side.name, "what": task.side.what, "time_us": us, "least_us": min(task.us),
                     "rounds": len(task.us)})
        print(f"barrier {task.side.name:<6} {us:9.2f} us")
    return rows


def is_wrong(row):
    places_of_row = [row.get("out_of_place"), row.get("in_place"), row.get("limit")]
    return any(figures and figures.get("wrong") for figures in places_of_row)


def gather(sides, args):
    """Adds the available peers; returns the reasons for the others."""
    cairn = sides.add("cairn")
    if not cairn.what.startswith(args.backend + " ") and args.ranks > 1:
        raise SideFailed(f"Cairn has taken {cairn.what} and not {args.backend}; is that backend in this build?")
    missing = {}
    for name in args.beside:
        if name == "limit" and args.what != "allreduce" or name == "pair" and args.what in IN_PARTS:
            continue
        try:
            sides.add(name)
        except SideFailed as why:
            missing[name] = str(why)
    return missing


def run(args):
    begin = time.monotonic()
    with Sides(args) as sides:
        missing = gather(sides, args)
        print_heads(args, sides.all, missing)
        rows = time_barriers(sides.all, args) if args.what == "barrier" else time_sizes(sides.all, args)
    print(f"# {time.monotonic() - begin:.0f} s")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine.cpu_name(), "processors": machine.num_processors(), "command": sys.argv[1:],
                       "collective": args.what, "ranks": args.ranks, "bound": binds(args), "backend": args.backend,
                       "calls": args.calls, "left_out": missing,
                       "rows": rows}, file, indent=1)
            file.write("\n")
    wrong = [row for row in rows if is_wrong(row)]
    if wrong:
        print(f"cairn-bench: {len(wrong)} lines have wrong results", file=sys.stderr)
    return 1 if wrong else 0


# ---- options ----

def nbytes(text):
    """8, 64K, 256M, 1G"""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    number = int(text[:-1] if unit > 1 else text)
    if number < 1:
        raise ValueError
    return number * unit


def positive(text):
    if float(text) <= 0 or not math.isfinite(float(text)):
        raise ValueError
    return float(text)


def beside(text):
    names = [] if text == "none" else text.split(",")
    if not set(names) <= set(BESIDE):
        raise ValueError
    return [name for name in BESIDE if name in names]


def at_least(least, most=1 << 30):
    def number(text):
        if not least <= int(text) <= most:
            raise ValueError
        return int(text)
    number.__name__ = f"number from {least} to {most}"
    return number


def stay_exact(collective, dtype, ranks, calls):
    """Whether sums in place, of numbers up to 4 (calls.h), are exact to the last call, in whatever order a side
    adds."""
    bits, exponents = PRECISION[dtype]
    if calls == 1 or collective not in REDUCTIONS:
        return True
    if collective != "allreduce":
        return 4 * ranks * calls <= 1 << bits
    if ranks & (ranks - 1):
        return 4 * ranks ** calls <= 1 << bits
    return 4 * ranks ** 2 <= 1 << bits and 4 * ranks ** calls <= 1 << exponents


def add_options(parser):
    parser.add_argument("--build", default="build")
    parser.add_argument("--backend", default="shm", choices=["shm", "mpi", "gloo"], help="Cairn's; shm")
    parser.add_argument("--ranks", type=at_least(1, 64), default=2, help="2")
    parser.add_argument("--type", default="f32", choices=list(WIDTHS), help="f32")
    parser.add_argument("--min", type=nbytes, default=8, help="bytes of the smallest array, such as 8 or 64K; 8")
    parser.add_argument("--max", type=nbytes, default=256 << 20, help="of the largest; 256M")
    parser.add_argument("--factor", type=at_least(2), default=8, help="from one size to the next; 8")
    parser.add_argument("--memory", default="group", choices=["group", "ordinary", "both"],
                        help="Cairn's arrays: cairn_group_alloc's, or any; group")
    parser.add_argument("--beside", type=beside, default=list(WITHOUT_ASKING), metavar="LIST",
                        help="some of limit,torch,mpi,pair, or none; limit,torch,mpi. pair is Cairn again, by two "
                             "ranks")
    parser.add_argument("--calls", type=at_least(1, 1000), default=1,
                        help="in a row, timed as one; nccl-tests has 20. 1. Sums in place add up: with f16 few stay "
                             "exact")
    parser.add_argument("--bind", action=argparse.BooleanOptionalAction,
                        help="each rank of shm and of the limit to a processor, as mpirun does with its own; where "
                             "there are as many processors")
    parser.add_argument("--rounds", type=at_least(1, 10000),
                        help="of each figure; as many as fit into the seconds, 3 to 300")
    parser.add_argument("--seconds", type=positive, default=40, help="for all sizes, about; 40")
    parser.add_argument("--timeout", type=positive, default=120, help="seconds without an answer of a side; 120")
    parser.add_argument("--python", help="the Python that has PyTorch")
    parser.add_argument("--json", metavar="FILE", help="the same figures, and each loop of the limit")


def main(args, parser):
    if args.min > args.max:
        parser.error(f"--min {args.min} is more than --max {args.max}")
    if not stay_exact(args.what, args.type, args.ranks, args.calls):
        parser.error(f"--calls {args.calls}: sums of {args.type} over {args.ranks} ranks would not stay exact; take "
                     "fewer calls, f32, or 2, 4 or 8 ranks")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # sides are ended on the way out
    try:
        return run(args)
    except (SideFailed, OSError) as why:
        print(f"cairn-bench: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
