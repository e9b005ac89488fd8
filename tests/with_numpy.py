"""NumPy for test scripts: from the Python that runs them, otherwise from Debian's Python, with which the script
restarts. Without either it exits 77, which meson counts as skipped."""
import os
import sys

DEBIANS = "/usr/bin/python3"


def import_numpy():
    try:
        import numpy
        return numpy
    except ImportError:
        if sys.executable != DEBIANS and os.path.exists(DEBIANS):
            os.execv(DEBIANS, [DEBIANS, *sys.argv])
        print("skipped: no NumPy (Debian: python3-numpy)")
        sys.exit(77)
