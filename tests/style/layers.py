"""Checks #include lines against the table of rooms in docs/design.md, which says which room may include which.

usage: layers.py source-root"""
import os
import re
import sys
import tempfile

import sources

DESIGN = "docs/design.md"  # its table of rooms is the one there is
HEAD = "| room | its purpose in a sentence | may include |"
UNBOUND = {"examples": "public headers", "tools": "any"}  # folders of the table that are no rooms
NOTHING = "libc, POSIX"
PUBLIC = re.compile(r"public (\w+) and (\w+) with their `hooks\.h`")
PUBLIC_ONE = re.compile(r"public (\w+) with its `hooks\.h`")
PUBLIC_ALONE = re.compile(r"public (\w+)(?=,|$)")  # without its hooks.h
SHOWN = ("nn", "optim", "amp", "ddp")  # rooms that some may see from outside alone

# Public headers whose room is not their name. The handle cairn_env is for whoever may use a device (struct cairn_env is
# in src/device/env.h); what fills it in is the room env.
PUBLIC_ROOM = {"version": "core", "store": "rendezvous", "dist": "comm", "env": "device", "graph": "device",
               "interop_cuda": "device", "tensor": "nn", "ops": "nn", "modules": "nn", "autocast": "amp", "fp8": "amp",
               "scaler": "amp", "layer_scales": "amp", "ddp_logging": "ddp", "sync_batch_norm": "ddp",
               "powersgd": "ddp", "local_sgd": "ddp", "progress": "observe",
               "exponents": "observe", "npy": "data", "pipeline": "parallel", "data_parallel": "parallel",
               "loader": "data", "datasets": "data", "pictures": "data",
               "schedule": "optim", "param_groups": "optim", "multi_tensor": "optim",
               "custom_optimizer": "optim", "muon": "optim", "averages": "optim",
               "stateful": "core", "weights": "state"}
PUBLIC_OWNER = {"version": "core", "store": "rendezvous", "dist": "comm", "graph": "device", "interop_cuda": "device",
                "tensor": "nn", "ops": "nn", "modules": "nn", "autocast": "amp", "fp8": "amp", "scaler": "amp",
                "layer_scales": "amp",
                "ddp_logging": "ddp", "sync_batch_norm": "ddp", "powersgd": "ddp",
                "local_sgd": "ddp", "progress": "observe",
                "exponents": "observe", "npy": "data", "pipeline": "parallel", "data_parallel": "parallel",
                "loader": "data", "datasets": "data", "pictures": "data",
                "schedule": "optim", "param_groups": "optim", "multi_tensor": "optim",
                "custom_optimizer": "optim", "muon": "optim", "averages": "optim",
                "stateful": "core", "weights": "state"}

# Foreign headers, and the only folders that may include them.
FOREIGN = {"oneapi/": "src/device/cpu", "dnnl": "src/device/cpu", "cuda": "src/device/cuda",
           "cublas": "src/device/cuda",
           "standin/": "src/device/cuda",  # tests/device/standin, where there is no CUDA compiler
           "nccl": "src/device/cuda", "cudnn": "src/device/cuda",
           "jansson": ("src/state", "src/data"), "xxhash": "src/state", "sodium": "src/rendezvous",
           "jpeglib": "src/data/pictures", "jerror": "src/data/pictures", "png.h": "src/data/pictures",
           "mpi.h": "src/comm/mpi", "pmix.h": "src/rendezvous/pmix", "gloo/": "src/comm/gloo"}

# Structs whose fields one file alone knows.
OPAQUE = {"cairn__grad": "src/param/grad.c"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)


def read_table(text):
    """Of docs/design.md: a room, and the rooms it may include; "nn:public" is what nn shows others: its public header
    and hooks.h."""
    assert text.count(HEAD) == 1, f"{DESIGN} has no table of rooms, or several"
    rows, table = text.split(HEAD, 1)[1].split("\n\n", 1)[0].splitlines()[2:], {}
    for row in rows:
        folder, _, told = (cell.strip() for cell in row.strip("|").split(" | "))
        room = folder.strip("`").removeprefix("src/")
        assert room not in table, f"{DESIGN} has two rows of {folder}"
        if room in UNBOUND:
            assert told == UNBOUND[room], f"{folder} may include {told}, which {__file__} does not look at"
            continue
        told = PUBLIC_ONE.sub(r"\1:public", PUBLIC.sub(r"\1:public, \2:public", told))
        words = PUBLIC_ALONE.sub(r"\1:public", told).split(", ")
        table[room] = set() if told == NOTHING else set(words)
    for room, others in table.items():
        strange = sorted(o for o in others if o.split(":")[0] not in table)
        assert not strange, f"{DESIGN} lets {room} include {', '.join(strange)}, which is no room of it"
    return table


def room_of(path):
    """The room a file belongs to; None for files the table does not bind."""
    parts = path.split("/")
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] == "include":
        name = os.path.splitext(parts[-1])[0]
        return None if name == "cairn" else PUBLIC_OWNER.get(name, name)
    return {"amp": "amp", "examples": "examples"}.get(parts[0])


def resolve(root, includer, name):
    """The project file that `#include name` means, or None for a header of the system."""
    for folder in (os.path.dirname(includer), "include", "src", "amp"):
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(os.path.join(root, path)):
            return path
    return None


def needs(path):
    """What a room must be allowed in order to include the file at path."""
    parts = path.split("/")
    name = os.path.splitext(parts[-1])[0]
    if parts[0] == "include":
        if name == "cairn":
            return "every room"
        room = PUBLIC_ROOM.get(name, name)
        return room + ":public" if room in SHOWN else room
    room = room_of(path)
    return room + ":public" if room in ("nn", "optim") and parts[-1] == "hooks.h" else room


def foreign_homes(name):
    homes = next((home for prefix, home in FOREIGN.items() if name.startswith(prefix)), ())
    return (homes,) if isinstance(homes, str) else homes


def complaint(table, root, path, bracket, name):
    """None, or why the file at path may not include name."""
    room = room_of(path)
    target = resolve(root, path, name)
    if room == "examples":
        allowed = bool(target) and target.startswith(("include/", "examples/"))
        return None if allowed or (bracket == "<" and not target) else "examples use public headers and their own"
    if target is None:
        homes = foreign_homes(name)
        if bracket == '"' and not homes:
            return "there is no such file"
        is_home = path.startswith(tuple(home + "/" for home in homes))
        return f"only {' and '.join(homes)} may" if homes and not is_home else None
    if path.startswith("include/") and not target.startswith("include/"):
        return "a public header includes public headers only"
    needed = needs(target)
    if needed is None:
        return "it is in no room"
    allowed = table.get(room)
    if allowed is None:
        return f"there is no room {room} in the table"
    if needed.split(":")[0] == room or needed in allowed or needed.split(":")[0] in allowed:
        return None
    return f"{room} may not include {needed}"


def violations(table, root, paths):
    found = []
    for path in paths:
        if not path.endswith((".c", ".h", ".cc", ".cu", ".cuh")) or room_of(path) is None:
            continue
        for bracket, name in INCLUDE.findall(sources.without_comments(sources.read(root, path))):
            why = complaint(table, root, path, bracket, name)
            if why:
                found.append(f"{path} includes {name}: {why}")
    return found + opened(root, paths) + raised(table, root, paths)


def opened(root, paths):
    """Definitions of opaque structs where they do not belong."""
    found = []
    for path in paths:
        if not path.endswith((".c", ".h", ".cc", ".cu", ".cuh")):
            continue
        for name in re.findall(r"\bstruct (\w+) \{", sources.without_comments(sources.read(root, path))):
            if OPAQUE.get(name, path) != path:
                found.append(f"{path} defines struct {name}, whose fields are those of {OPAQUE[name]} alone")
    return found


def below(table, room):
    """A room and every room that it may reach by includes."""
    found, new = set(), {room}
    while new:
        found |= new
        new = {r.split(":")[0] for n in new for r in table.get(n, ())} - found
    return found


def raised(table, root, paths):
    """Fields of a struct whose type is a struct of a room above: a pointer needs no include."""
    texts = {p: sources.without_comments(sources.read(root, p)) for p in paths
             if p.endswith((".c", ".h", ".cc", ".cu", ".cuh")) and room_of(p) in table}
    homes = {}
    for path, text in texts.items():
        for name in re.findall(r"\bstruct (\w+) \{", text):
            homes.setdefault(name, set()).add(room_of(path))
    found = []
    for path, text in texts.items():
        for owner, fields in re.findall(r"^struct (\w+) \{(.*?)^\}", text, re.M | re.S):
            for name in sorted(set(re.findall(r"\bstruct (\w+)\b", fields))):
                if name in homes and not homes[name] & below(table, room_of(path)):
                    found.append(f"{path}: a field of struct {owner} is of struct {name}, of {min(homes[name])}")
    return found


# Files with the include in them, and whether the table forbids it.
CASES = [
    ("src/core/a.c", '"core/core_part.h"', False),
    ("src/core/a.c", '"kernels/kernels_part.h"', True),
    ("src/core/a.c", "<stdio.h>", False),
    ("src/core/a.c", '"cairn/core.h"', False),
    ("src/core/a.c", '"cairn/env.h"', True),
    ("src/core/a.c", '"no_such_file.h"', True),
    ("src/core/a.c", "/* */ \"nn/nn_part.h\"", True),
    ("src/kernels/a.c", '"device/device_part.h"', True),
    ("src/param/a.c", '"cairn/env.h"', False),
    ("src/param/a.c", '"device/device_part.h"', False),
    ("src/param/a.c", '"rendezvous/rendezvous_part.h"', True),
    ("src/nn/a.c", '"cairn/amp.h"', True),
    ("src/nn/a.c", '"ddp/ddp_part.h"', True),
    ("src/nn/a.c", '"optim/optim_part.h"', True),
    ("src/nn/a.c", '"cairn/cairn.h"', True),
    ("src/nn/a.c", '<oneapi/dnnl/dnnl.h>', True),
    ("src/data/a.c", '<jansson.h>', False),
    ("src/nn/a.c", '<jansson.h>', True),
    ("src/device/cpu/a.c", '<oneapi/dnnl/dnnl.h>', False),
    ("src/device/cuda/a.cuh", '<cuda_fp16.h>', False),
    ("src/device/cuda/a.c", '<cublasLt.h>', False),
    ("src/device/a.c", '<cublasLt.h>', True),
    ("src/device/cuda/a.cuh", '"standin/kernel.h"', False),
    ("src/device/a.c", '"standin/kernel.h"', True),
    ("src/nn/a.cu", '<cuda_runtime_api.h>', True),
    ("include/cairn/graph.h", '"env.h"', False),
    ("include/cairn/graph.h", '"nn.h"', True),
    ("include/cairn/interop_cuda.h", '<cuda_runtime_api.h>', True),
    ("amp/a.c", '"cairn/graph.h"', False),
    ("amp/a.c", '"nn/hooks.h"', False),
    ("amp/a.c", '"cairn/nn.h"', False),
    ("amp/a.c", '"nn/nn_part.h"', True),
    ("amp/a.c", '"optim/hooks.h"', False),
    ("amp/a.c", '"optim/optim_part.h"', True),
    ("amp/a.c", '"ddp/ddp_part.h"', True),
    ("amp/a.c", '"cairn/ddp.h"', True),
    ("amp/a.c", '"comm/comm_part.h"', True),
    ("amp/a.c", '"cairn/dist.h"', True),
    ("src/ddp/a.c", '"comm/comm_part.h"', False),
    ("src/ddp/a.c", '"cairn/dist.h"', False),
    ("src/ddp/a.c", '"rendezvous/rendezvous_part.h"', True),
    ("src/ddp/a.c", '"cairn/store.h"', True),
    ("src/rendezvous/a.c", '"cairn/store.h"', False),
    ("src/rendezvous/a.c", '"comm/comm_part.h"', True),
    ("src/rendezvous/a.c", '"cairn/dist.h"', True),
    ("src/comm/a.c", '"rendezvous/rendezvous_part.h"', False),
    ("src/ddp/a.c", '"cairn/amp.h"', True),
    ("src/ddp/a.c", '"amp_part.h"', True),
    ("src/parallel/a.c", '"cairn/amp.h"', False),
    ("src/parallel/a.c", '"nn/hooks.h"', False),
    ("src/parallel/a.c", '"amp_part.h"', True),
    ("src/parallel/a.c", '"cairn/ddp.h"', False),
    ("src/parallel/a.c", '"ddp/ddp_part.h"', True),
    ("src/parallel/a.c", '"nn/nn_part.h"', True),
    ("src/env/a.c", '"nn/nn_part.h"', False),
    ("src/env/a.c", '"optim/optim_part.h"', True),
    ("src/attic/a.c", '"core/core_part.h"', True),
    ("include/cairn/optim.h", '"param.h"', False),
    ("include/cairn/optim.h", '"amp.h"', True),
    ("include/cairn/optim.h", '"autocast.h"', True),
    ("include/cairn/amp.h", '"autocast.h"', False),
    ("include/cairn/param.h", '"param/param_part.h"', True),
    ("include/cairn/env.h", '"dist.h"', False),
    ("examples/a.c", "<cairn/cairn.h>", False),
    ("examples/a.c", "<stdio.h>", False),
    ("examples/a.c", '"core/core_part.h"', True),
    ("tools/a.c", '"ddp/ddp_part.h"', False),
    ("src/comm/gloo/a.cc", '<gloo/context.h>', False),
    ("src/comm/a.c", '<gloo/context.h>', True),
    ("src/comm/gloo/a.cc", '"nn/nn_part.h"', True),
]


def write(root, path, text):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def check_the_check(table):
    for path, include, forbidden in CASES:
        with tempfile.TemporaryDirectory() as root:
            for room in table:
                write(root, f"include/cairn/{room}.h", "")
                write(root, f"amp/{room}_part.h" if room == "amp" else f"src/{room}/{room}_part.h", "")
            for header in ("include/cairn/cairn.h", "include/cairn/graph.h", "include/cairn/autocast.h",
                           "include/cairn/dist.h", "include/cairn/store.h",
                           "src/nn/hooks.h", "src/optim/hooks.h"):
                write(root, header, "")
            write(root, path, f"/* #include <dnnl.h> */\n#include {include}\n")
            found = violations(table, root, sources.tracked(root))
            assert bool(found) == forbidden, f"{path} with {include}: {found}"


def check_the_check_of_fields():
    for path, allowed in (("src/param/grad.c", True), ("src/param/grad.h", False), ("tests/param/a.c", False)):
        with tempfile.TemporaryDirectory() as root:
            write(root, path, "struct cairn__grad;\nstruct cairn__grad {\n    int slot;\n};\n")
            assert bool(opened(root, [path])) != allowed, path


def check_the_check_of_types(table):
    for path, allowed in (("src/param/a.h", False), ("src/ddp/a.h", True), ("src/kernels/a.h", False)):
        with tempfile.TemporaryDirectory() as root:
            write(root, "src/comm/b.h", "struct group {\n    int size;\n};\n")
            write(root, path, "struct set {\n    int n;\n    struct group *group; /* struct none */\n};\n")
            assert bool(raised(table, root, [path, "src/comm/b.h"])) != allowed, path


def check_the_reader():
    top = f"# Rooms\n\n{HEAD}\n| --- | --- | --- |\n| `src/a` | Lies below | libc, POSIX |\n"
    more = "| `b` | Sees both. | a, public c and a with their `hooks.h` |\n" \
           "| `src/c` | More. | a, public b |\n| `tools` | T | any |\n"
    assert read_table(top + more + "\nEnd\n") == {"a": set(), "b": {"a", "c:public", "a:public"},
                                                  "c": {"a", "b:public"}}
    for wrong in "| `src/b` | B | d |\n", "| `src/b` | B | a and a |\n", "| `src/a` | A | a |\n", \
            "| `tools` | T | a |\n", f"\n{HEAD}\n":
        try:
            read_table(top + wrong)
        except AssertionError:
            continue
        raise AssertionError(f"the table may have {wrong}")


def folders_without_a_row(table, paths):
    """A room that nobody includes would otherwise be free of the table."""
    rooms = {room_of(path) for path in paths if path.startswith(("src/", "amp/"))} - {None}
    return [f"{DESIGN} has no row of {room}" for room in sorted(rooms - set(table))] + \
           [f"{DESIGN} has a row of {room}, which is no folder" for room in sorted(set(table) - rooms)]


if __name__ == "__main__":
    rules = read_table(sources.read(sys.argv[1], DESIGN))
    every = sources.tracked(sys.argv[1])
    check_the_reader()
    check_the_check(rules)
    check_the_check_of_types(rules)
    check_the_check_of_fields()
    sources.finish(violations(rules, sys.argv[1], every) + folders_without_a_row(rules, every), "layers")
