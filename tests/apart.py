"""Reruns a test in separate namespaces: all processes that it starts end with it, even if it is killed, and it does not
share network, ports, host name and mounts with other programs."""
import os
import shutil
import subprocess
import sys

INSIDE = "CAIRN_TEST_APART"
FLAGS = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]


def move(*, without_root=False):
    """Returns "" inside; outside it does not return, but where namespaces cannot be had it returns a sentence why."""
    if os.environ.pop(INSIDE, None):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return ""
    if os.geteuid() == 0:
        flags = FLAGS
    elif without_root:
        flags = FLAGS + ["--user", "--map-root-user"]
    else:
        return "this needs root"
    for tool in "unshare", "ip":
        if not shutil.which(tool):
            return f"there is no {tool} (Debian's util-linux and iproute2)"
    trial = subprocess.run(["unshare", *flags, "true"], capture_output=True, text=True, check=False)
    if trial.returncode != 0:
        return "namespaces cannot be made here: " + trial.stderr.strip()
    os.environ[INSIDE] = "yes"
    sys.stdout.flush()
    os.execvp("unshare", ["unshare", *flags, sys.executable, *sys.argv])
