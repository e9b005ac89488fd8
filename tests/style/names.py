"""Reads what the libraries export: the shared one public names only, the archive those and cairn__*, a module its
entry.

usage: names.py nm libcairn.so libcairn.a [module.so]"""
import re
import subprocess
import sys

import sources

PUBLIC = re.compile(r"(cairn|amp|ddp)_[^_]\w*")
INTERNAL = re.compile(r"cairn__\w+")
ENTRY = re.compile(r"cairn__module_entry")


def defined(listing):
    """The names in nm's output in its POSIX format."""
    return [line.split()[0] for line in listing.splitlines() if len(line.split()) > 2]


def strangers(names, *allowed):
    return [n for n in names if not any(pattern.fullmatch(n) for pattern in allowed)]


def check_the_check():
    listing = "cairn_step T 0 1\ncairn__alloc T 0 1\namp_initialize T 0 1\nddp_ D 0 1\nhelper T 0 1\nlib.a[x.o]:\n"
    names = defined(listing)
    assert names == ["cairn_step", "cairn__alloc", "amp_initialize", "ddp_", "helper"]
    assert strangers(names, PUBLIC) == ["cairn__alloc", "ddp_", "helper"]
    assert strangers(names, PUBLIC, INTERNAL) == ["ddp_", "helper"]
    assert strangers(["cairn__module_entry", "cairn_step"], ENTRY) == ["cairn_step"]


def read_names(nm, *args, has="cairn_last_error"):
    names = defined(subprocess.run([nm, "-P", "--defined-only", *args], capture_output=True, text=True,
                                   check=True).stdout)
    assert has in names, f"{args[-1]} lacks {has}: is it the library?"
    return names


if __name__ == "__main__":
    check_the_check()
    nm, shared, archive, *modules = sys.argv[1:]
    found = [f"{shared} exports {n}" for n in strangers(read_names(nm, "-D", shared), PUBLIC)]
    found += [f"{archive} has the global {n}" for n in strangers(read_names(nm, "-g", archive), PUBLIC, INTERNAL)]
    for module in modules:
        names = read_names(nm, "-D", module, has="cairn__module_entry")
        found += [f"{module} exports {n}" for n in strangers(names, ENTRY)]
    sources.finish(found, "names")
