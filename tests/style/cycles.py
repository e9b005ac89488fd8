"""Finds files of one room that call each other in a cycle, from their defined and undefined symbols.

usage: cycles.py nm libcairn.a [room...]    (every room; a room is amp, or the name of a folder of src)

Cycles of two files are allowed: an object split into two files."""
import re
import subprocess
import sys

import sources

MOST = 2  # files of a circle
MEMBER = re.compile(r"^(\S+)\.(?:c|cc)\.o:$")
SYMBOL = re.compile(r"^(?:[0-9a-f]+)?\s+([A-Za-z]) (\S+)$")


def room_of(member):
    parts = member.split("_")
    return parts[1] if parts[0] == "src" and len(parts) > 2 else parts[0]


def read_listing(text):
    """What nm says: for each file the symbols it defines for others, and those it needs."""
    files, here = {}, None
    for line in text.splitlines():
        member, symbol = MEMBER.match(line), SYMBOL.match(line)
        if member:
            here = files.setdefault(member.group(1).split("/")[-1], (set(), set()))
        elif symbol and here and (symbol.group(1).isupper() or symbol.group(1) == "w"):
            here[symbol.group(1) in "Uw"].add(symbol.group(2))
    return files


def calls_of(files):
    """For each file those of its room that define what it needs."""
    home = {(room_of(name), symbol): name for name, (defined, _) in files.items() for symbol in defined}
    return {name: {home[room_of(name), s] for s in needed if (room_of(name), s) in home} - {name}
            for name, (_, needed) in files.items()}


def reached(calls, start):
    seen, waiting = set(), [start]
    while waiting:
        for other in calls[waiting.pop()] - seen:
            seen.add(other)
            waiting.append(other)
    return seen


def circles(calls):
    """Sets of files each of which reaches all of the others."""
    reach = {name: reached(calls, name) for name in calls}
    found = {frozenset(o for o in reach[name] if name in reach[o]) for name in calls if name in reach[name]}
    return sorted(sorted(circle) for circle in found if len(circle) > MOST)


def violations(listing, rooms):
    calls = calls_of(read_listing(listing))
    return [f"{len(circle)} files of {room_of(circle[0])} call each other in a circle: " +
            "; ".join(f"{name} calls {', '.join(sorted(calls[name] & set(circle)))}" for name in circle)
            for circle in circles(calls) if not rooms or room_of(circle[0]) in rooms]


SAMPLE = """
src_a_one.c.o:
0000000000000000 T f
                 U g
0000000000000010 t own

src_a_two.c.o:
0000000000000000 T g
                 U h
                 U free

src_a_three.c.o:
0000000000000000 T h
                 U {}

src_b_one.c.o:
                 U f
0000000000000000 T k
"""


def check_the_check():
    assert violations(SAMPLE.format("f"), []) and violations(SAMPLE.format("f"), ["a"])
    assert not violations(SAMPLE.format("f"), ["b"])
    for other in "g", "k", "own", "free":  # of two files, of another room, hidden, of nobody
        assert not violations(SAMPLE.format(other), []), other


if __name__ == "__main__":
    check_the_check()
    names = subprocess.run([sys.argv[1], sys.argv[2]], capture_output=True, text=True, check=True).stdout
    assert len(read_listing(names)) > 1, f"nm reads no files in {sys.argv[2]}"
    sources.finish(violations(names, sys.argv[3:]), "cycles")
