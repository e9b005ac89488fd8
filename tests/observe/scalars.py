"""Reads the CSV files and TensorBoard's files of a training of three ranks: the CSV by Python's csv module, the others
by TensorBoard's own reader, where it is installed (pip install tensorboard), else skipped (77).

usage: scalars.py csv|tensorboard observed"""
import collections
import csv
import glob
import math
import os
import subprocess
import sys
import tempfile

WHICH, OBSERVED = sys.argv[1], os.path.abspath(sys.argv[2])
STEPS = 20
NAMES = {"loss", "loss_scale", "lr", "grad_norm", "skipped"}


def run(folder, *options, code=0, **variables):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run([OBSERVED, *options], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=240)
    assert (done.returncode == 0) == (code == 0), done.stdout
    return done.stdout


def read_csv(path):
    scalars = collections.defaultdict(list)
    with open(path, newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    for row in rows:
        scalars[row["name"]].append((int(row["step"]), float(row["value"])))
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    return scalars


def check(scalars):
    assert NAMES <= set(scalars), f"lacks {NAMES - set(scalars)}"
    for name in NAMES:
        steps = [step for step, _ in scalars[name]]
        assert steps == list(range(1, STEPS + 1)), (name, steps)
    values = {name: [v for _, v in scalars[name]] for name in NAMES}
    assert all(math.isfinite(v) and v > 0 for v in values["loss"])
    assert all(abs(v - 0.01) < 1e-8 for v in values["lr"])
    assert all(math.log2(v).is_integer() for v in values["loss_scale"])
    assert values["skipped"] == sorted(values["skipped"]) and values["skipped"][-1] < STEPS


def try_csv(folder):
    run(folder, CAIRN_CSV="s%r.csv")
    assert sorted(os.listdir(folder)) == ["s0.csv", "s1.csv", "s2.csv"]
    ranks = [read_csv(os.path.join(folder, f"s{r}.csv")) for r in range(3)]
    for scalars in ranks:
        check(scalars)
    assert ranks[0]["grad_norm"] == ranks[1]["grad_norm"] == ranks[2]["grad_norm"]
    assert ranks[0]["loss"] != ranks[1]["loss"]
    run(folder, "--threads", "1", CAIRN_CSV="t%r.csv")
    assert read_csv(os.path.join(folder, "t2.csv"))["loss"] == ranks[2]["loss"], "ranks as threads write others'"
    run(folder, CAIRN_CSV="one.csv")
    assert read_csv(os.path.join(folder, "one.csv"))["loss"] == ranks[0]["loss"], "without %r it is rank 0's"
    os.symlink("/dev/full", os.path.join(folder, "full.csv"))
    said = run(folder, CAIRN_CSV="full.csv")
    assert said.count("the CSV file 'full.csv' could not be written") >= 1 and "No space left" in said, said
    said = run(folder, CAIRN_CSV="no/s.csv")
    assert "CAIRN_CSV is left out: the CSV file 'no/s.csv' cannot be opened" in said, said


def try_tensorboard(folder):
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        print("skipped: no TensorBoard (pip install tensorboard)")
        sys.exit(77)
    run(folder, CAIRN_TENSORBOARD="runs/first/rank%r", CAIRN_CSV="s%r.csv")
    for r in range(3):
        events = event_accumulator.EventAccumulator(os.path.join(folder, f"runs/first/rank{r}"),
                                                    size_guidance={"histograms": 0, "scalars": 0})
        events.Reload()
        tags = events.Tags()
        scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
        check(scalars)
        of_csv = read_csv(os.path.join(folder, f"s{r}.csv"))
        assert scalars.keys() == of_csv.keys()
        for tag, values in scalars.items():
            pairs = zip(values, of_csv[tag])
            assert all(a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=1e-6) for a, b in pairs), tag
        assert tags["histograms"] == ["norms"], tags
        histograms = events.Histograms("norms")
        assert [h.step for h in histograms] == list(range(1, STEPS + 1))
        for h, (_, norm) in zip(histograms, of_csv["grad_norm"]):
            assert h.histogram_value.num == 1 and h.histogram_value.min == h.histogram_value.max == norm
            assert list(h.histogram_value.bucket) == [norm <= 0.5, norm > 0.5]
    files = glob.glob(os.path.join(folder, "runs/first/rank1/events.out.tfevents.*"))
    assert len(files) == 1, files
    said = run(folder, CAIRN_TENSORBOARD="s0.csv/runs")
    assert "CAIRN_TENSORBOARD is left out: the folder 's0.csv/runs' cannot be made" in said, said


with tempfile.TemporaryDirectory() as temporary:
    {"csv": try_csv, "tensorboard": try_tensorboard}[WHICH](temporary)
print(f"{WHICH}: passed")
