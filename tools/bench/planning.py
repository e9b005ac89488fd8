"""Compares cairn-plan's prediction for a step on two ranks with the measured time.

    quickstart     Linear 1024 to 16, batch 64 on each rank
    mlp            6 layers 1024x1024 with relu between them, batch 128
    transformer    2 encoder layers of width 128, 32 tokens, batch 8

Each model is trained (f32, AdamW) with two bucket caps by both ranks together, and by each rank independently; the
trainings alternate, a few steps at a time (bench/plan_ranks.c). The independent trainings give the profile; the link is
the time by which an all-reduce lengthens a cycle of work, writing and reading (bench/plan_link.c). cairn-plan predicts
from these two. Times are medians of steps on the slower rank; everything is measured several times in turn, and the
medians are printed.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

import collectives
import machine
from collectives import SideFailed, program

GOAL = 15.0  # percent
CAPS = {"quickstart": (64, 25 << 20), "mlp": (1 << 20, 25 << 20), "transformer": (64 << 10, 25 << 20)}
PATIENCE = 600  # seconds


def call(command, env=None):
    """What it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})
    if done.returncode:
        raise SideFailed(f"{os.path.basename(command[0])}: {done.stderr.strip() or f'ended with {done.returncode}'}")
    return done.stdout


def run_ranks(args, *words):
    return call([program(args, "cairn-run"), "--standalone", "--nproc_per_node", "2", program(args, "bench-plan"),
                 *words],
                {"CAIRN_BACKEND": "shm"})


def measure_model(args, model, profile):
    """{cap: us}"""
    lines = run_ranks(args, model, str(args.seconds / args.repeats), profile, *map(str, CAPS[model]))
    return {int(cap): float(us) for cap, us in (line.split() for line in lines.splitlines())}


def predict(args, profile, link, cap):
    out = call([program(args, "cairn-plan"), "--json", "--link", link, "--cap", str(cap), profile])
    return json.loads(out)["steps"][0]


def compare(args, model, folder):
    """[(cap, buckets, communication, predicted, measured)] of one time, us."""
    profile, link = os.path.join(folder, model + ".json"), os.path.join(folder, "link.json")
    run_ranks(args, "link", str(args.seconds / args.repeats / 3), link, str(args.link_max))
    found = []
    for cap, us in measure_model(args, model, profile).items():
        step = predict(args, profile, link, cap)
        found.append((cap, len(step["buckets"]), step["communication_ns"] * 1e-3, step["step_ns"] * 1e-3, us))
    return found


def row_of(model, times):
    """What one cap had each time."""
    cap, buckets = times[0][:2]
    communication, predicted, measured = zip(*(time[2:] for time in times))
    return {"model": model, "cap": cap, "buckets": buckets, "communication_us": statistics.median(communication),
            "predicted_us": statistics.median(predicted), "measured_us": statistics.median(measured),
            "error_percent": statistics.median(100 * (p / m - 1) for p, m in zip(predicted, measured)),
            "all_predicted_us": predicted, "all_measured_us": measured}


def cap_text(cap):
    return next(f"{cap // size} {unit}" for size, unit in ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")) if cap >= size)


def row_text(row):
    return (f"{row['model']:12} {cap_text(row['cap']):>10} {row['buckets']:8} {row['communication_us']:14.1f} "
            f"{row['predicted_us']:12.1f} {row['measured_us']:12.1f} {row['error_percent']:+8.1f} %")


def measure(args, folder):
    rows = []
    print(f"# {machine.cpu_name()}, {machine.num_processors()} processors; two ranks of shm, a thread each")
    print("# " + " ".join(["tools/cairn-bench"] + sys.argv[1:]))
    print(f"{'':12} {'cap':>10} {'buckets':>8} {'communication':>14} {'predicted us':>12} "
          f"{'measured us':>12} {'error':>10}")
    for model in args.only or CAPS:
        for times in zip(*(compare(args, model, folder) for _ in range(args.repeats))):
            rows.append(row_of(model, times))
            print(row_text(rows[-1]), flush=True)
    worst = max(abs(row["error_percent"]) for row in rows)
    print(f"# the worst is off by {worst:.1f} %; the goal is {GOAL:.0f} %")
    return rows


def add_options(parser):
    parser.add_argument("--build", default="build")
    parser.add_argument("--seconds", type=collectives.positive, default=10, help="for each model, about; 10")
    parser.add_argument("--repeats", type=collectives.at_least(1, 100), default=5, help="times that all is measured; 5")
    parser.add_argument("--link-max", type=collectives.nbytes, default=32 << 20, metavar="BYTES",
                        help="of the largest all-reduce that is measured; 32M")
    parser.add_argument("--only", action="append", choices=list(CAPS), help="only this model; may be given again")
    parser.add_argument("--keep", metavar="FOLDER",
                        help="where profiles and link of the last time stay, which must exist")
    parser.add_argument("--json", metavar="FILE", help="the same figures")


def main(args):
    try:
        with tempfile.TemporaryDirectory(prefix="cairn-bench-") as folder:
            rows = measure(args, args.keep or folder)
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump({"machine": machine.cpu_name(), "command": sys.argv[1:], "goal_percent": GOAL, "rows": rows},
                          file, indent=1)
                file.write("\n")
        return 0
    except (SideFailed, OSError, subprocess.TimeoutExpired) as why:
        print(f"cairn-bench: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
