"""Reads the timelines of a training of three ranks by Perfetto's rules: sorted, spans nested on their track, begins and
ends of asynchronous ones matched, one track per rank and thread.

usage: timeline.py observed"""
import collections
import json
import os
import subprocess
import sys
import tempfile

OBSERVED = os.path.abspath(sys.argv[1])
SPANS = {"forward", "backward", "bucket_fill", "bucket", "optimizer_step", "overflow_check", 'make "batch"\n',
         "iteration"}
SLACK = 0.002  # us, of decimals


def run(folder, *options, code=0, **variables):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CAIRN_TIMELINE")}
    env.update(OMP_NUM_THREADS="1", **variables)
    done = subprocess.run([OBSERVED, *options], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=240)
    assert (done.returncode == 0) == (code == 0), done.stdout
    return done.stdout


def read(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return json.load(f)["traceEvents"]


def check_sorted(events):
    times = [e["ts"] for e in events if "ts" in e]
    assert times == sorted(times), "not sorted"


def check_nested(events):
    tracks = collections.defaultdict(list)
    for e in events:
        if e["ph"] != "X":
            continue
        stack = tracks[e["pid"], e["tid"]]
        while stack and stack[-1] <= e["ts"] + SLACK:
            stack.pop()
        end = e["ts"] + e["dur"]
        assert not stack or end <= stack[-1] + SLACK, f"{e} ends after the span it is in"
        stack.append(end)


def check_matched(events):
    begins = {e["id"]: e for e in events if e["ph"] == "b"}
    ends = {e["id"]: e for e in events if e["ph"] == "e"}
    assert len(begins) == sum(e["ph"] == "b" for e in events) and begins.keys() == ends.keys(), "unmatched"
    for i, b in begins.items():
        assert b["name"] == ends[i]["name"] and b["pid"] == ends[i]["pid"] and b["ts"] <= ends[i]["ts"], b


def check_tracks(events, ranks):
    names = [(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"]
    assert len(names) == len(set(names)), "a track has two names"
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xib"}
    assert used <= set(names), "a track without a name"
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {f"rank {r}" for r in range(ranks)}


def check(events, ranks, steps):
    check_nested(events)
    check_matched(events)
    check_tracks(events, ranks)
    for r in range(ranks):
        mine = collections.Counter(e["name"] for e in events if e["pid"] == r and e["ph"] in "Xb")
        assert SPANS <= set(mine), f"rank {r} lacks {SPANS - set(mine)}"
        assert mine["iteration"] == mine["optimizer_step"] == steps, mine
        values = collections.Counter(e["name"] for e in events if e["pid"] == r and e["ph"] == "C")
        assert values["loss"] == steps and values["queue"] == steps, values


def together(events, ranks):
    """No rank has a bucket before all have launched it: in one clock these overlap."""
    spans = {e["id"]: e["ts"] for e in events if e["ph"] == "b" and e["name"] == "iteration"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "e" and e["name"] == "iteration"}
    by_rank = [[(spans[i], ends[i]) for i in spans if i.startswith(f"{r}.")] for r in range(ranks)]
    for steps in zip(*by_rank):
        assert max(b for b, _ in steps) < min(e for _, e in steps), f"iterations do not overlap: {steps}"


def processes_and_threads_make_one_timeline(folder):
    for threads in "01":
        run(folder, "--threads", threads, CAIRN_TIMELINE="t.json")
        events = read(folder, "t.json")
        assert os.listdir(folder) == ["t.json"], os.listdir(folder)
        check_sorted(events)
        check(events, 3, 20)
        together(events, 3)


def spans_last_as_long_as_the_reducer_says(folder):
    run(folder, "--pause", "1", CAIRN_TIMELINE="t.json", CAIRN_DDP_LOG="ddp%r.json")
    events = read(folder, "t.json")
    for r in range(3):
        with open(os.path.join(folder, f"ddp{r}.json"), encoding="utf-8") as f:
            said = json.load(f)
        spans = collections.defaultdict(list)
        ends = {e["id"]: e["ts"] for e in events if e["ph"] == "e"}
        for e in events:
            if e["ph"] == "b" and e["pid"] == r and e["cat"] == "ddp":
                spans[e["name"]].append((e["ts"], ends[e["id"]]))
        for name, field in (("forward", "avg_forward_compute_time"), ("backward", "avg_backward_compute_time"),
                            ("bucket", "avg_backward_comm_busy_time"),
                            ("bucket_wait", "avg_backward_exposed_comm_time")):
            covered, until = 0, 0
            for begin, end in sorted(spans[name]):
                covered += max(0, end - max(begin, until))
                until = max(until, end)
            ratio = covered * 1000 / (said[field] * said["iteration"])
            assert 0.95 <= ratio <= 1.05, f"rank {r}: {name} spans last {ratio:.3f} times {field}"


def one_rank_needs_no_parts(folder):
    run(folder, "--ranks", "1", CAIRN_TIMELINE="one.json")
    assert os.listdir(folder) == ["one.json"]
    check_tracks(read(folder, "one.json"), 1)


def a_killed_rank_leaves_what_can_be_read(folder):
    run(folder, "--kill", "1", "--steps", "60", "--pause", "40", code=1, CAIRN_TIMELINE="t.json")
    parts = [f"t.rank{r}.json" for r in range(3)]
    assert set(parts) <= set(os.listdir(folder)), os.listdir(folder)
    for part in parts:
        assert sum(e["name"] == "optimizer_step" for e in read(folder, part)) >= 10, part
    run(folder, "--merge", "t.json")
    events = read(folder, "t.json")
    check_sorted(events)
    check_matched(events)
    assert {e["pid"] for e in events} == {0, 1, 2}
    with open(os.path.join(folder, parts[2]), "r+b") as f:  # as a machine that lost its power leaves it
        f.truncate(os.path.getsize(f.name) - 40)
    run(folder, "--merge", "t.json")
    check_sorted(read(folder, "t.json"))


def clocks_of_machines_are_aligned_within_the_bound(folder):
    said = run(folder, "--align", "t.json")
    events = read(folder, "t.json")
    check_sorted(events)
    together(events, 3)
    assert said.count("within") == 3, said
    run(folder, "--align", "u.json", "--kill", "2", code=1)  # whose parts stay: one clock, so nobody is ahead
    for r in (1, 2):
        clock = [e["args"] for e in read(folder, f"u.rank{r}.json") if "ahead_ns" in e.get("args", {})][-1]
        assert abs(clock["ahead_ns"]) <= clock["within_ns"] < 1e9, clock
        print(f"rank {r}: ahead {clock['ahead_ns']} ns, within {clock['within_ns']} ns")


def what_cannot_be_written_ends_no_training(folder):
    said = run(folder, CAIRN_TIMELINE="missing/t.json")
    assert "CAIRN_TIMELINE is left out: the timeline 'missing/t.rank0.json' cannot be opened" in said, said
    os.symlink("/dev/full", os.path.join(folder, "full.json"))
    said = run(folder, "--ranks", "1", CAIRN_TIMELINE="full.json")
    assert "'full.json' could not be written" in said and "No space left" in said, said
    said = run(folder, "--ranks", "1", "--align", "same.json", CAIRN_TIMELINE="same.json", code=1)
    assert "'same.json' is being written by another rank or program" in said, said


for test in (processes_and_threads_make_one_timeline, spans_last_as_long_as_the_reducer_says, one_rank_needs_no_parts,
             a_killed_rank_leaves_what_can_be_read, clocks_of_machines_are_aligned_within_the_bound,
             what_cannot_be_written_ends_no_training):
    with tempfile.TemporaryDirectory() as temporary:
        test(temporary)
    print(f"{test.__name__}: passed")
