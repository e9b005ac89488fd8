"""Checks that the GPU module stays small enough to load and copy: 4 MiB for each chip.

usage: module_size.py MIB MODULE       exits 77 with a word in MODULE's place: of builds with lines of the sources"""
import os
import sys

import sources


def main():
    limit, module = float(sys.argv[1]) * 2**20, sys.argv[2]
    if not os.path.exists(module):
        print(module)
        sys.exit(sources.SKIP)
    nbytes = os.path.getsize(module)
    print(f"{os.path.basename(module)}: {nbytes / 2**20:.1f} MiB, at most {limit / 2**20:g}")
    sources.finish([f"it is {nbytes - limit:.0f} bytes too large"] if nbytes > limit else [], "module size")


if __name__ == "__main__":
    main()
