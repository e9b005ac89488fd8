"""Counts a training's saved gradients with NumPy and compares with the counts in CAIRN_LAB's files: every binade of
every gradient before and after its reduction, on 1 and 3 ranks, at O1 and O2, in f16 and bf16. Also the files' other
contents (facts, scalars, the first line), and the files after a rank is killed or if the folder cannot be created.

usage: lab.py recorded observed 11_data_parallel"""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import with_numpy

np = with_numpy.import_numpy()
RECORDED, OBSERVED, REPLICAS = map(os.path.abspath, sys.argv[1:4])


def run(program, folder, *options, code=0, **variables):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run([program, *options], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=240)
    assert (done.returncode == 0) == (code == 0), done.stdout
    return done.stdout


def read_lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def read_raw(path, dtype):
    if dtype == "bf16":
        return (np.fromfile(path, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.fromfile(path, {"f16": np.float16, "f32": np.float32}[dtype]).astype(np.float64)


def count(x):
    """What a line says of these values."""
    binades = np.frexp(x[np.isfinite(x) & (x != 0)])[1] - 1
    first = int(binades.min()) if binades.size else 0
    return {"count": x.size, "zero": int((x == 0).sum()), "inf": int(np.isinf(x).sum()),
            "nan": int(np.isnan(x).sum()), "below": 0, "above": 0, "first": first,
            "counts": np.bincount(binades - first).tolist() if binades.size else []}


def check_histograms(folder, rank, ranks, steps):
    lines = read_lines(f"{folder}/lab/rank{rank}.jsonl")
    scales = {line["step"] for line in lines if line["kind"] == "scalar" and line["name"] == "loss_scale"}
    found = {(line["name"], line["step"]): line for line in lines if line["kind"] == "histogram"}
    compared = 0
    for file in os.listdir(f"{folder}/raw/rank{rank}"):
        what, step, dtype, name = file.split("-")
        step, what = int(step), {"before": "grad_before"}.get(what, what)
        line = found.pop((f"{what}/{name}", step), None)
        if step not in steps:
            assert line is None, f"step {step} was recorded"
            continue
        if line is None and what == "activation":
            continue  # what the root returns is its last child's
        want = count(read_raw(f"{folder}/raw/rank{rank}/{file}", dtype))
        assert line and line["type"] == dtype, (file, line)
        assert {key: line[key] for key in want} == want, (file, line, want)
        assert line["scale"] == 1 if what == "activation" else line["scale"] > 0
        compared += what != "activation"
    assert compared == 2 * 4 * len(steps), compared
    assert {step for _, step in found} <= steps and len(scales) >= max(steps), scales
    rest = {name for name, _ in found}
    assert rest >= {"activation/0", "activation/1", "activation/2", "activation_grad/0", "activation_grad/2"}, rest
    for line in found.values():
        assert line["count"] == line["zero"] + line["inf"] + line["nan"] + sum(line["counts"]), line
    return lines


def check_facts(lines, rank, ranks, level, half):
    assert lines[0].pop("cairn").count(".") == 2
    assert lines[0] == {"kind": "run", "format": 1, "rank": rank, "ranks": ranks, "every": 2}, lines[0]
    facts = {line["name"]: line["value"] for line in lines if line["kind"] == "fact"}
    assert facts == {"device": "cpu", "opt_level": level, "half": half}, facts
    scalars = {line["name"] for line in lines if line["kind"] == "scalar" and line["room"] == "optim"}
    assert scalars >= {"loss_scale", "lr", "skipped"}, scalars


def try_training(ranks, level, half, *options):
    with tempfile.TemporaryDirectory() as folder:
        run(RECORDED, folder, "--ranks", str(ranks), "--steps", "5", "--level", level, "--half", half, *options,
            CAIRN_LAB="lab", CAIRN_LAB_EVERY="2")
        assert sorted(os.listdir(f"{folder}/lab")) == [f"rank{r}.jsonl" for r in range(ranks)]
        after = []
        for rank in range(ranks):
            lines = check_histograms(folder, rank, ranks, {1, 3, 5})
            check_facts(lines, rank, ranks, level, half)
            after.append([{**line, "seconds": 0} for line in lines if line.get("name", "").startswith("grad/")])
        assert all(a == after[0] for a in after), "ranks differ in reduced gradients"


def try_bits(folder):
    """What is recorded is computed as it is without."""
    saved = []
    for name, variables in (("plain", {}), ("recorded", {"CAIRN_LAB": "lab", "CAIRN_LAB_EVERY": "1"})):
        os.mkdir(f"{folder}/{name}")
        run(RECORDED, folder, "--ranks", "3", "--steps", "3", "--level", "O2", "--folder", name, **variables)
        saved.append({})
        for path in glob.glob(f"{folder}/{name}/raw/*/*"):
            with open(path, "rb") as f:
                saved[-1][path.split("/raw/")[1]] = f.read()
    assert len(saved[0]) == 3 * 3 * (2 * 4 + 1) and saved[0] == saved[1]


def try_beside_other_writers(folder):
    run(RECORDED, folder, "--ranks", "3", "--steps", "2", CAIRN_LAB="lab", CAIRN_TIMELINE="t.json", CAIRN_CSV="s.csv",
        CAIRN_TENSORBOARD="runs")
    assert check_histograms(folder, 2, 3, {1})
    with open(f"{folder}/t.json", encoding="utf-8") as f:
        events = json.load(f)
    assert {e["pid"] for e in events["traceEvents"] if "pid" in e} == {0, 1, 2}
    with open(f"{folder}/s.csv", encoding="utf-8") as f:
        assert not any("grad/" in line or "opt_level" in line for line in f)
    with open(glob.glob(f"{folder}/runs/*tfevents*")[0], "rb") as f:
        assert b"grad_before/0.weight" in f.read()


def try_what_fails(folder):
    open(f"{folder}/file", "w", encoding="utf-8").close()
    said = run(OBSERVED, folder, "--ranks", "1", CAIRN_LAB="file/lab")
    assert "CAIRN_LAB is left out: the folder 'file" in said, said
    said = run(OBSERVED, folder, "--ranks", "1", CAIRN_LAB="lab", CAIRN_LAB_EVERY="often")
    assert said.count("CAIRN_LAB_EVERY='often'") == 1 and "every 10 steps" in said, said
    lines = read_lines(f"{folder}/lab/rank0.jsonl")
    assert lines[0]["every"] == 10
    own = [line for line in lines if line["kind"] == "histogram" and line["room"] == "user"]
    assert own[0]["limits"] == [0.5, 1e300] and sum(own[0]["counts"]) == 1 and own[0]["scale"] == 1, own[0]


def try_a_killed_rank(folder):
    """Its file has whole lines; the others end by its death."""
    run(OBSERVED, folder, "--ranks", "2", "--kill", "1", "--pause", "60", code=1, CAIRN_LAB="killed")
    assert len(read_lines(f"{folder}/killed/rank1.jsonl")) > 10


def try_replicas(place):
    """They are part of their rank: no files of their own, and threads of its timeline."""
    said = run(REPLICAS, place, "--replicas", "2", "--steps", "20", CAIRN_LAB="lab", CAIRN_TIMELINE="t.json")
    assert "left out" not in said, said
    assert os.listdir(os.path.join(place, "lab")) == ["rank0.jsonl"], os.listdir(os.path.join(place, "lab"))
    assert sorted(os.listdir(place)) == ["lab", "t.json"], os.listdir(place)
    lines = read_lines(os.path.join(place, "lab", "rank0.jsonl"))
    steps = [d["step"] for d in lines if d["kind"] == "histogram" and d["name"] == "grad/0.weight"]
    assert steps == [1, 11], steps
    with open(os.path.join(place, "t.json"), encoding="utf-8") as f:
        backward = [e["tid"] for e in json.load(f)["traceEvents"] if e["name"] == "backward"]
    assert len(set(backward)) == 3 and len(backward) == 60, backward


if __name__ == "__main__":
    signal.alarm(300)
    for arguments in ((1, "O2", "f16"), (3, "O2", "f16"), (3, "O1", "bf16"), (1, "O2", "bf16"),
                      (3, "O1", "f16", "--threads", "1")):
        try_training(*arguments)
    with tempfile.TemporaryDirectory() as place:
        try_bits(place)
    with tempfile.TemporaryDirectory() as place:
        try_beside_other_writers(place)
    with tempfile.TemporaryDirectory() as place:
        try_what_fails(place)
        try_a_killed_rank(place)
    with tempfile.TemporaryDirectory() as place:
        try_replicas(place)
