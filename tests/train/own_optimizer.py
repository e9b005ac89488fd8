#!/usr/bin/env python3
"""examples/12_own_optimizer learns on 1, 2 and 3 ranks; its losses are the same where the ranks share the updates, and
at the end averages of weights are better than the weights. Averages of shared half weights end in a sentence.

usage: own_optimizer.py CAIRN_RUN PROGRAM       CAIRN_TEST_SHORT in the environment: on 1 and 3 ranks
"""
import os
import re
import subprocess
import sys

END = 0.02  # the mean square of what is to be learnt is near 0.4


def run(launcher, program, ranks, *options):
    command = [launcher, "--nproc_per_node", str(ranks), program, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def losses_of(ended):
    if ended.returncode:
        sys.exit(f"exited with {ended.returncode}:\n{ended.stderr}")
    losses = re.findall(r"^step \d+  test loss (\S+), of averages (\S+)$", ended.stdout, re.M)
    own, averaged = map(float, losses[-1])
    if len(losses) != 6 or not averaged < own or not averaged < END:
        sys.exit(f"it should learn, and averages better:\n{ended.stdout}")
    return losses


def main():
    launcher, program = sys.argv[1:]
    for ranks in (1, 3) if "CAIRN_TEST_SHORT" in os.environ else (1, 2, 3):
        alone = losses_of(run(launcher, program, ranks))
        shared = losses_of(run(launcher, program, ranks, "--shard", "on"))
        if shared != alone:
            sys.exit(f"{ranks} ranks: {shared} where updates are shared, {alone} where not")
    losses_of(run(launcher, program, 2, "--opt-level", "O2", "--half", "bf16"))
    refused = run(launcher, program, 2, "--opt-level", "O2", "--shard", "on")
    if refused.returncode == 0 or "cairn_averages_create: ranks share the update" not in refused.stderr:
        sys.exit(f"averages of shared half weights should be refused:\n{refused.stderr}")
    print("every loss is where it should be")


if __name__ == "__main__":
    main()
