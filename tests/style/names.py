"""Reads what the libraries export: the shared one public names only, the archive those and cairn__*, a module its
entry. What the shared one exports is what the list of symbols holds, and every version there is one that came. Public
names put the object before the verb, but for those that are apex's or torch's.

usage: names.py nm version cairn.symbols libcairn.so libcairn.a [module.so]"""
import os
import re
import subprocess
import sys

import sources

PUBLIC = re.compile(r"(cairn|amp|ddp)_[^_]\w*")
INTERNAL = re.compile(r"cairn__\w+")
ENTRY = re.compile(r"cairn__module_entry")

# A verb of these in front of its object is refused, but in the names that apex or torch has (CONTRIBUTING.md).
VERB_FIRST = re.compile(r"(cairn|amp|ddp)_(begin|clear|clip|convert|create|destroy|detect|end|forget|free|get|load|"
                        r"make|read|register|reset|set|start|stop|unscale|update|write|zero)_\w+")
VERB_ALONE = ("cairn_step",)  # no object at all, and not an operation on tensors
FOLLOWED = {
    "cairn_clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    "cairn_clip_grad_value": "torch.nn.utils.clip_grad_value_",
    "cairn_detect_anomaly": "torch.autograd.detect_anomaly",
    "cairn_set_num_threads": "torch.set_num_threads",
    "cairn_step": "torch.optim.Optimizer.step",
    "cairn_zero_grad": "torch.optim.Optimizer.zero_grad",
    "ddp_convert_sync_batchnorm": "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
    "ddp_create_syncbn_process_group": "apex.parallel.create_syncbn_process_group",
}
NO_OBJECT = ("cairn_set_log",)  # it is the process's


def defined(listing):
    """The names in nm's output in its POSIX format."""
    return [line.split()[0] for line in listing.splitlines() if len(line.split()) > 2]


def strangers(names, *allowed):
    return [n for n in names if not any(pattern.fullmatch(n) for pattern in allowed)]


def number(version):
    return tuple(int(part) for part in version.split("."))


def wrong_entries(text, version, exported):
    """What is wrong with the list, for a library of this version."""
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    strange = [row for row in rows if len(row) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", row[1])]
    if strange:
        return [f"no 'name version': {' '.join(strange[0])}"]
    listed = [name for name, _ in rows]
    major, minor, patch = number(version)
    coming = [(major, minor, patch + 1), (major, minor + 1, 0), (major + 1, 0, 0)]
    found = [f"lists {n}, which the library does not export" for n in sorted(set(listed) - set(exported))]
    found += [f"lacks {n}, which the library exports" for n in sorted(set(exported) - set(listed))]
    found += [f"has {b} behind {a}" for a, b in zip(listed, listed[1:]) if a >= b]
    return found + [f"has {n} of {v}; the version is {version}" for n, v in rows
                    if number(v) > (major, minor, patch) and number(v) not in coming]


def read_headers(folder):
    """Names in the public headers that are deprecated, or whose object is a context of amp or ddp."""
    text = "".join(sources.without_comments(sources.read(folder, n)) for n in sorted(os.listdir(folder)))
    old = re.findall(r"CAIRN_DEPRECATED\([^)]*\)[^;(]*?(\w+)\(", text)
    contexts = re.findall(r"\b((?:amp|ddp)_\w+)\((?:[^;]*?|const )(?:amp|ddp)_context \*", text)
    return set(old) | set(contexts)


def verbs_first(names, excused):
    """Names with the verb before the object, and those that are listed for nothing."""
    listed = set(FOLLOWED) | set(NO_OBJECT)
    wrong = [n for n in names if (VERB_FIRST.fullmatch(n) or n in VERB_ALONE) and n not in listed | excused]
    return ([f"has the verb before the object: {n}" for n in wrong] +
            [f"lacks {n}, which names.py lists as apex's or torch's" for n in sorted(listed - set(names))])


def check_the_check():
    every = [*FOLLOWED, *NO_OBJECT]
    assert not verbs_first([*every, "cairn_optimizer_set_lr", "amp_begin_step"], {"amp_begin_step"})
    assert verbs_first([*every, "amp_set_op_cast"], set()) == ["has the verb before the object: amp_set_op_cast"]
    assert verbs_first([n for n in every if n != "cairn_step"], set())[0].startswith("lacks cairn_step")
    good = "# words\namp_a 0.1.0\ncairn_b 0.8.0\n"
    assert not wrong_entries(good, "0.7.0", ["cairn_b", "amp_a"])
    for text, exported, told in (
            (good, ["cairn_b"], "lists amp_a"), (good, ["amp_a", "cairn_b", "cairn_c"], "lacks cairn_c"),
            ("cairn_b 0.1.0\namp_a 0.1.0\n", ["amp_a", "cairn_b"], "has amp_a behind cairn_b"),
            ("amp_a 0.1.0\namp_a 0.1.0\n", ["amp_a"], "has amp_a behind amp_a"),
            ("amp_a 0.9.0\n", ["amp_a"], "has amp_a of 0.9.0"),
            ("amp_a 1.1.0\n", ["amp_a"], "has amp_a of 1.1.0"), ("amp_a\n", ["amp_a"], "no 'name version': amp_a")):
        assert [w for w in wrong_entries(text, "0.7.0", exported) if told in w], told
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
    nm, version, symbols, shared, archive, *modules = sys.argv[1:]
    exported = read_names(nm, "-D", shared)
    found = [f"{shared} exports {n}" for n in strangers(exported, PUBLIC)]
    with open(symbols, encoding="ascii") as f:
        found += [f"{symbols} {what}" for what in wrong_entries(f.read(), version, exported)]
    headers = os.path.join(os.path.dirname(symbols), "../include/cairn")
    found += [f"{shared} {what}" for what in verbs_first(exported, read_headers(headers))]
    found += [f"{archive} has the global {n}" for n in strangers(read_names(nm, "-g", archive), PUBLIC, INTERNAL)]
    for module in modules:
        names = read_names(nm, "-D", module, has="cairn__module_entry")
        found += [f"{module} exports {n}" for n in strangers(names, ENTRY)]
    sources.finish(found, "names")
