"""Modules that scripts of tests need (PIL, torch): those of the Python that runs them, or else of Debian's, or of the
one where tools/install-peers put them, or those that CAIRN_TEST_TORCH2 names, with : between; the script begins anew
with that. Without any it exits 77, which meson counts as skipped."""
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir)
PEER = os.path.join(ROOT, "build-check/peers/torch2/bin/python")
OTHERS = ["/usr/bin/python3", *os.environ.get("CAIRN_TEST_TORCH2", PEER).split(":")]


def go_on_with(*modules):
    """Returns where this Python has these modules; else begins anew with one that has."""
    wanted = "import " + ", ".join(modules)
    try:
        exec(wanted, {})  # pylint: disable=exec-used
        return
    except ImportError:
        pass
    for python in [] if os.environ.get("CAIRN_TEST_AGAIN") else OTHERS:
        if os.path.exists(python) and subprocess.run([python, "-c", wanted], capture_output=True,
                                                     check=False).returncode == 0:
            os.environ["CAIRN_TEST_AGAIN"] = "1"
            os.execv(python, [python, *sys.argv])
    print(f"skipped: no Python here has {', '.join(modules)} (tools/install-peers installs them)")
    sys.exit(77)
