"""Trainings that are killed at random moments and go on from their last checkpoint end with the bits of one that was
left alone: the quick start on two ranks under cairn-run --max-restarts, and the digits' examples, killed and started
again. Compared are the checksums of the last checkpoint, which has all there is.

usage: restarts.py cairn-run 01_linear_regression 06_resnet 07_transformer [kills]"""
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from digits import text_of_digits

PATIENCE = 240  # seconds without a further step
STEPS, EVERY = 4000, 50


def all_steps(folder):
    with contextlib.suppress(FileNotFoundError):
        return [int(name[5:]) for name in os.listdir(folder) if name.startswith("step-")]
    return []


def steps_of(folder):
    return max(all_steps(folder), default=0)


def checksums(folder, step):
    with open(f"{folder}/step-{step:08}/checkpoint.json", encoding="utf-8") as f:
        manifest = json.load(f)
    assert manifest["step"] == step
    return [(file["name"], file["nbytes"], file["xxh3"]) for file in manifest["files"]]


def wait_for_step(job, folder, step, least):
    """least: no checkpoint before it, else the training has begun anew instead of going on."""
    end = time.monotonic() + PATIENCE
    while steps_of(folder) < step:
        assert min(all_steps(folder), default=least) >= least, f"it began anew, before step {least}"
        assert job.poll() is None, f"it ended at step {steps_of(folder)}, before it was killed at {step}"
        assert time.monotonic() < end, f"no step after {steps_of(folder)}"
        time.sleep(0.001)


def ranks_of(job):
    """The processes that cairn-run has started."""
    with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="ascii") as f:
        children = [int(pid) for pid in f.read().split()]
    found = []
    for pid in children:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
            if b"01_linear" in f.read().split(b"\0")[0]:
                found.append(pid)
    return found


def output_of(job):
    out, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, f"exit {job.returncode}:\n{out}"
    return re.findall(r"^(?:first loss|skipped steps|final loss) = .*$", out, re.M)


def start(command, env=None):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, **(env or {})})


def under_a_launcher(cairn_run, program, kills, dice):
    """At O2 in f16, whose dynamic scale overflows on the way."""
    options = [program, "--opt-level", "O2", "--steps", str(STEPS), "--save-every", str(EVERY), "--checkpoint"]
    with tempfile.TemporaryDirectory() as folder:
        alone, killed = folder + "/alone", folder + "/killed"
        want = output_of(start([cairn_run, "--nproc_per_node", "2", *options, alone]))
        job = start([cairn_run, "--nproc_per_node", "2", "--max-restarts", str(2 * kills), *options, killed])
        done = least = 0
        while done < kills:
            wait_for_step(job, killed, (done + 1) * (STEPS // EVERY) // (kills + 2) * EVERY, least)
            time.sleep(dice.random() * 0.03)
            ranks = ranks_of(job)
            if ranks:  # none while they are started again
                with contextlib.suppress(ProcessLookupError):
                    os.kill(dice.choice(ranks), signal.SIGKILL)
                    done += 1
                least = min(all_steps(killed))
        got = output_of(job)
        assert got == want, f"{got} in place of {want}"
        assert checksums(killed, STEPS) == checksums(alone, STEPS), "the last checkpoints differ"
    print(f"quick start, 2 ranks: {kills} kills, the same {want[-1]} and the same state")


def by_itself(program, options, kills, dice):
    """Started again by hand, and killed again."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, text_of_digits(folder), *options, "--save-every", "11", "--checkpoint"]
        job = start([*command, folder + "/alone"])
        out, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0, out
        last = steps_of(folder + "/alone")
        least = 0
        for k in range(kills):
            job = start([*command, folder + "/killed"])
            wait_for_step(job, folder + "/killed", (k + 1) * (last // 11) // (kills + 2) * 11, least)
            time.sleep(dice.random() * 0.05)
            job.kill()
            job.communicate()
            least = min(all_steps(folder + "/killed"))
        job = start([*command, folder + "/killed"])
        again, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0, again
        assert again.splitlines()[-2:] == out.splitlines()[-2:], f"{again}\nin place of\n{out}"
        assert checksums(folder + "/killed", last) == checksums(folder + "/alone", last), "the last checkpoints differ"
    print(f"{os.path.basename(program)} {' '.join(options)}: {kills} kills, {out.splitlines()[-1]}")


def main():
    cairn_run, quick_start, resnet, transformer = sys.argv[1:5]
    kills = int(sys.argv[5]) if len(sys.argv) > 5 else 4
    dice = random.Random(20241124)
    under_a_launcher(cairn_run, quick_start, kills, dice)
    by_itself(resnet, ["--epochs", "2", "--opt-level", "O2", "--half", "bf16"], min(kills, 3), dice)
    by_itself(transformer, ["--epochs", "2", "--opt-level", "O1", "--half", "f16"], min(kills, 3), dice)


if __name__ == "__main__":
    main()
