"""Trainings that are killed at random moments, or stopped by a signal, and resume from their last checkpoint end with
the same bits as an uninterrupted training: the quick start and the training from files on two ranks under cairn-run
--max-restarts, and the digits' examples, killed and started again. The test compares the checksums of the last
checkpoint, which contains the whole state.

usage: restarts.py KILLS cairn-run PROGRAM...      programs: those of CASES; 08_train is skipped without NumPy.
With CAIRN_TEST_SHORT in the environment each is killed twice, and trainings under cairn-run have half the steps."""
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
SHORT = "CAIRN_TEST_SHORT" in os.environ


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


def ranks_of(job, program):
    """The processes that cairn-run has started."""
    with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="ascii") as f:
        children = [int(pid) for pid in f.read().split()]
    found = []
    for pid in children:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
            if program.encode() in f.read().split(b"\0")[0]:
                found.append(pid)
    return found


def output_of(job):
    out, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, f"exit {job.returncode}:\n{out}"
    return re.findall(r"^(?:first loss|skipped steps|final loss|test accuracy|\S+: accuracy) = .*$", out, re.M)


def start(command, env=None):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, **(env or {})})


def under_a_launcher(cairn_run, command, steps, every, kills, dice):
    """steps: of the whole training, a multiple of every."""
    command = [*command, "--save-every", str(every), "--checkpoint"]
    name = os.path.basename(command[0])
    with tempfile.TemporaryDirectory() as folder:
        alone, killed = folder + "/alone", folder + "/killed"
        want = output_of(start([cairn_run, "--nproc_per_node", "2", *command, alone]))
        assert steps_of(alone) == steps, f"{name}: the last checkpoint is of step {steps_of(alone)}, not of {steps}"
        job = start([cairn_run, "--nproc_per_node", "2", "--max-restarts", str(2 * kills), *command, killed])
        done = least = 0
        while done < kills:
            wait_for_step(job, killed, (done + 1) * (steps // every) // (kills + 2) * every, least)
            time.sleep(dice.random() * 0.03)
            ranks = ranks_of(job, name)
            if ranks:  # none while they are started again
                with contextlib.suppress(ProcessLookupError):
                    os.kill(dice.choice(ranks), signal.SIGKILL)
                    done += 1
                least = min(all_steps(killed))
        got = output_of(job)
        assert got == want, f"{got} in place of {want}"
        assert checksums(killed, steps) == checksums(alone, steps), "the last checkpoints differ"
    print(f"{name}, 2 ranks: {kills} kills, the same {want[-1]} and the same state")


def wait_for_another(job, folder, every):
    """For a checkpoint that a signal has asked for, at a step of its own."""
    end = time.monotonic() + PATIENCE
    while not any(step % every for step in all_steps(folder)):
        assert job.poll() is None, "it ended"
        assert time.monotonic() < end, f"no checkpoint was made, but {all_steps(folder)}"
        time.sleep(0.001)


def by_signals(cairn_run, program):
    """A warning to one rank saves on all; SIGTERM to the launcher saves and ends the training, which then goes on."""
    steps, every = (3000, 250) if SHORT else (6000, 500)
    command = [cairn_run, "--nproc_per_node", "2", program, "--opt-level", "O2", "--steps", str(steps), "--save-every",
               str(every), "--checkpoint"]
    with tempfile.TemporaryDirectory() as folder:
        want = output_of(start([*command, folder + "/alone"]))
        job = start([*command, folder + "/stopped"])
        wait_for_step(job, folder + "/stopped", every, 0)
        os.kill(ranks_of(job, os.path.basename(program))[1], signal.SIGUSR1)
        wait_for_another(job, folder + "/stopped", every)
        wait_for_step(job, folder + "/stopped", steps_of(folder + "/stopped") // every * every + every, every)
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=PATIENCE)
        last = steps_of(folder + "/stopped")
        assert last % every and last < steps, f"SIGTERM made no checkpoint: the last is of step {last}"
        got = output_of(start([*command, folder + "/stopped"]))
        assert got == want, f"{got} in place of {want}"
        same = checksums(folder + "/stopped", steps) == checksums(folder + "/alone", steps)
        assert same, "the last checkpoints differ"
    print(f"{os.path.basename(program)}, 2 ranks: warned, ended at step {last} and started again, the same {want[-1]}")


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


def quick_start(cairn_run, program, kills, dice):
    """At O2 in f16, whose dynamic scale grows after 2000 steps."""
    steps = 2400 if SHORT else 4000
    under_a_launcher(cairn_run, [program, "--opt-level", "O2", "--steps", str(steps)], steps, 50, kills, dice)
    by_signals(cairn_run, program)


def from_files(cairn_run, program, kills, dice):
    import train_example  # ends this script where there is no NumPy
    with tempfile.TemporaryDirectory() as folder:
        data = train_example.make_files(folder)
        epochs = 10 if SHORT else 20
        command = [program, data, "--opt-level", "O2", "--epochs", str(epochs)]
        under_a_launcher(cairn_run, command, 46 * epochs, 10, kills, dice)


def resnet(_, program, kills, dice):
    by_itself(program, ["--epochs", "2", "--opt-level", "O2", "--half", "bf16"], min(kills, 3), dice)


def transformer(_, program, kills, dice):
    by_itself(program, ["--epochs", "2", "--opt-level", "O1", "--half", "f16"], min(kills, 3), dice)


CASES = {"01_linear_regression": quick_start, "06_resnet": resnet, "07_transformer": transformer,
         "08_train": from_files}


def main():
    kills, cairn_run, *programs = sys.argv[1:]
    if SHORT:
        kills = 2
    for program in programs:
        CASES[os.path.basename(program)](cairn_run, program, int(kills), random.Random(20241124))


if __name__ == "__main__":
    main()
