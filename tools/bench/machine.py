"""What benchmarks ask about where they run."""
import os
import subprocess


def find_torch(wanted):
    """A Python that can import torch, None where there is none."""
    for python in [wanted] if wanted else ["python3", "/usr/bin/python3"]:
        try:
            probe = subprocess.run([python, "-c", "import torch, numpy"], capture_output=True, check=False)
        except OSError:
            continue
        if probe.returncode == 0:
            return python
    return None


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0] if names else "unknown CPU"


def num_processors():
    return len(os.sched_getaffinity(0))
