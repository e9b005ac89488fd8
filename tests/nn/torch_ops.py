#!/usr/bin/env python3
"""Every case of tests/nn/op_cases.h in PyTorch, against Cairn.

usage: torch_ops.py op_cases_test [--store folder] [--native] [words of names]

The test binary prints each case's inputs, results and gradients (--dump); this script evaluates the case's expression
with the same inputs a, b, c, ... (and F, torch and math), and starts backward from the same dy. f32 is PyTorch's own
f32. For f16 and bf16 PyTorch computes in f32 on inputs that are rounded to the type, and its results are rounded:
PyTorch 1.13 has no f16 on the CPU for many operations, and rounds in the middle of others. --native counts how many
agree with PyTorch's own halves.

--store writes what PyTorch gives into folder, a file a family: the vectors that the C test compares with where there is
no PyTorch. Skipped (77) where torch cannot be imported."""
import math
import os
import struct
import subprocess
import sys

SYSTEM = "/usr/bin/python3"  # where Debian's python3-torch is, if another python3 comes first
SAMPLE = 16                  # elements stored of one array

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    if sys.executable != SYSTEM and os.access(SYSTEM, os.X_OK): # not resolved: a virtual environment's is a link
        os.execv(SYSTEM, [SYSTEM] + sys.argv)
    print("torch cannot be imported; the stored vectors of nn-op-cases are what there is to compare with")
    sys.exit(77)

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64, "i32": torch.int32,
         "i64": torch.int64, "bool": torch.bool}
LIMITS = {"f32": (1.3e-6, 1e-5), "f16": (1e-3, 1e-3), "bf16": (1.6e-2, 1.6e-2), "f64": (0, 0)}


class Array:
    """One line of the dump."""

    def __init__(self, dtype, sizes, wanted, values):
        self.dtype = dtype
        self.shape = [] if sizes == "-" else [int(s) for s in sizes.split("x")]
        self.wanted = wanted == "1"
        flat = torch.tensor([float(v) for v in values], dtype=torch.float64)
        self.values = flat.reshape(self.shape)


def cases_of(text):
    """(family, name, hash, tolerance, expression, {type: {array name: Array}}) of every case."""
    case = None
    for line in text.splitlines():
        if line.startswith("case\t"):
            if case:
                yield case
            _, family, name, hash_, tolerance, expression = line.split("\t")
            case = (family, name, hash_, float(tolerance), expression, {})
        elif line.startswith("type "):
            arrays = case[5][line[5:]] = {}
        else:
            words = line.split(" ")
            name = words.pop(0)
            if name in ("in", "grad"):
                name += " " + words.pop(0)
            arrays[name] = Array(words[0], words[1], words[2], words[3:])
    if case:
        yield case


def evaluate(expression, arrays, compute):
    """(result, {letter: gradient}) with floats in type `compute`; None is the type of each."""
    names = {"F": F, "torch": torch, "math": math}
    wanted = {}
    for letter in "abcdefgh":
        given = arrays.get("in " + letter)
        if given is None:
            names[letter] = None
            continue
        t = given.values.to(TYPES[given.dtype])
        if t.is_floating_point():
            t = t.to(compute or t.dtype)
            if given.wanted:
                t.requires_grad_(True)
                wanted[letter] = t
        names[letter] = t
    y = eval(expression, names)  # from the tables of this repository
    grads = {}
    if y.requires_grad and "dy" not in arrays:
        raise ValueError("PyTorch has a gradient here, Cairn none")
    if y.requires_grad:
        dy = arrays["dy"].values.to(y.dtype)
        given = torch.autograd.grad(y, list(wanted.values()), dy, allow_unused=True)
        grads = {k: torch.zeros_like(t) if g is None else g for (k, t), g in zip(wanted.items(), given)}
    return y.detach(), grads


def far(got, want, dtype, tolerance):
    """None, or the first element that is too far."""
    if list(got.shape) != list(want.shape):
        return f"{list(got.shape)}, PyTorch's is {list(want.shape)}"
    relative, absolute = (limit * tolerance for limit in LIMITS.get(dtype, (0, 0)))
    got, want = got.double().flatten(), want.double().flatten()
    near = (got - want).abs() <= absolute + relative * want.abs()
    near |= (got == want) | (got.isnan() & want.isnan())
    if bool(near.all()):
        return None
    i = int((~near).nonzero()[0])
    return f"element {i} of {got.numel()}: {got[i].item():.9g}, PyTorch's {want[i].item():.9g}"


def rounded(t, dtype):
    return t.to(TYPES[dtype])


def compare(kind, arrays, y, grads, tolerance):
    ours = arrays["y"]
    if kind == "f32" and y.dtype != TYPES[ours.dtype]:
        return f"result: {ours.dtype}, PyTorch's is {y.dtype}"
    if ours.wanted and not grads:
        return "Cairn has a gradient here, PyTorch none"
    said = far(ours.values, rounded(y, ours.dtype), ours.dtype, tolerance)
    if said:
        return "result: " + said
    for letter, grad in grads.items():
        mine = arrays.get("grad " + letter)
        if mine is None:
            return f"no gradient of {letter}"
        said = far(mine.values, rounded(grad, mine.dtype), mine.dtype, tolerance)
        if said:
            return f"gradient of {letter}: {said}"
    return None


def bits(t, dtype):
    """Sampled elements as hexadecimal digits."""
    flat = rounded(t, dtype).flatten()
    n = flat.numel()
    count = min(n, SAMPLE)
    flat = flat[[k * n // count for k in range(count)]] if count else flat
    views = {"f32": (torch.int32, 8), "f16": (torch.int16, 4), "bf16": (torch.int16, 4), "f64": (torch.int64, 16),
             "i32": (torch.int32, 8), "i64": (torch.int64, 16), "bool": (torch.uint8, 2)}
    integer, width = views[dtype]
    return "".join(format(v & ((1 << 4 * width) - 1), f"0{width}x") for v in flat.contiguous().view(integer).tolist())


class Store:
    def __init__(self, folder):
        self.folder = folder
        self.files = {}

    def add(self, family, name, hash_, kind, arrays, y, grads):
        lines = self.files.setdefault(family, [])
        head = f"case {name}\t{hash_}"
        if head not in lines:
            lines.append(head)
        lines.append(f"{kind} y {arrays['y'].dtype} {bits(y, arrays['y'].dtype)}".rstrip())
        for letter, grad in grads.items():
            dtype = arrays["in " + letter].dtype
            lines.append(f"{kind} {letter} {dtype} {bits(grad, dtype)}".rstrip())

    def write(self):
        os.makedirs(self.folder, exist_ok=True)
        for family, lines in self.files.items():
            with open(os.path.join(self.folder, family + ".txt"), "w") as out:
                out.write(f"PyTorch {torch.__version__}, by torch_ops.py --store; case_torch.c says what is what\n")
                out.write("\n".join(lines) + "\n")


def native_agrees(kind, arrays, expression, tolerance):
    try:
        return compare(kind, arrays, *evaluate(expression, arrays, None), tolerance) is None
    except RuntimeError:
        return False


def main():
    arguments = sys.argv[1:]
    store = None
    native = "--native" in arguments
    if native:
        arguments.remove("--native")
    if "--store" in arguments:
        at = arguments.index("--store")
        store = Store(arguments[at + 1])
        del arguments[at:at + 2]
    torch.set_num_threads(1)
    dump = subprocess.run([arguments[0], "--dump"] + arguments[1:], stdout=subprocess.PIPE, text=True, check=False)
    failed = 1 if dump.returncode else 0
    compared = skipped = by_itself = 0
    for family, name, hash_, tolerance, expression, types in cases_of(dump.stdout):
        if not expression:
            skipped += 1
            continue
        compared += 1
        for kind, arrays in types.items():
            if "y" not in arrays:
                continue
            try:
                y, grads = evaluate(expression, arrays, torch.float32)
                said = compare(kind, arrays, y, grads, tolerance)
            except Exception as error:  # of the expression: whatever it is, the case has failed
                said = f"{type(error).__name__}: {error}"
            if said:
                failed += 1
                print(f'{family}, "{name}", {kind}: {said}')
            elif store:
                store.add(family, name, hash_, kind, arrays, y, grads)
            if native and kind != "f32":
                by_itself += native_agrees(kind, arrays, expression, tolerance)
    print(f"PyTorch {torch.__version__}: {compared} cases compared, {skipped} without an expression, {failed} failures")
    if native:
        print(f"PyTorch's own halves agree in {by_itself} of {2 * compared}")
    if store:
        store.write()
    return 1 if failed else 0


sys.exit(main())
