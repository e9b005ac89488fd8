"""Python's safetensors reads Cairn's files, and Cairn reads those of safetensors; and a net with weights saved by Cairn
gives the same outputs in PyTorch.

usage: test_safetensors.py source-root weights_tool

Runs with the first Python that has safetensors: this one, Debian's, the one where tools/install-peers put it, or those
that CAIRN_TEST_TORCH2 names, with : between. What needs PyTorch is skipped where that Python has none."""
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import safetensors
except ImportError:
    safetensors = None
try:
    import torch
    import safetensors.torch
except ImportError:
    torch = None

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
OLD_TYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
             "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def go_on_with_another():
    """Begins anew with a Python that has safetensors, or skips."""
    peer = os.path.join(ROOT, "build-check/peers/torch2/bin/python")
    others = ["/usr/bin/python3", *os.environ.get("CAIRN_TEST_TORCH2", peer).split(":")]
    for python in [] if os.environ.get("CAIRN_TEST_AGAIN") else others:
        found = subprocess.run([python, "-c", "import safetensors"], capture_output=True, check=False).returncode == 0 \
            if os.path.exists(python) else False
        if found:
            os.environ["CAIRN_TEST_AGAIN"] = "1"
            os.execv(python, [python, *sys.argv])
    print("skipped: no Python here has safetensors (tools/install-peers installs it)")
    sys.exit(77)


def run_tool(*args):
    done = subprocess.run([TOOL, *args], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def read(path):
    """A file's tensors as {name: (type, shape, bytes)}, as the library reads it."""
    with open(path, "rb") as f:
        return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in safetensors.deserialize(f.read())}


def header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(int.from_bytes(f.read(8), "little")))


def types_that_python_writes():
    try:
        safetensors.TensorSpec(dtype="?", shape=[1], data_ptr=0, data_len=0)
    except AttributeError:
        return OLD_TYPES
    except safetensors.SafetensorError as error:
        return re.findall(r"\w+", str(error).split("dtypes:")[1])


def write(path, arrays, metadata):
    """arrays: {name: (type, shape, bytes)}, under Python's names of types."""
    kept, given = [], {}
    for name, (dtype, shape, data) in arrays.items():
        if hasattr(safetensors, "TensorSpec"):
            kept.append(ctypes.create_string_buffer(data, len(data)))
            given[name] = safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(kept[-1]),
                                                 data_len=len(data))
        else:
            given[name] = {"dtype": dtype, "shape": shape, "data": data}
    safetensors.serialize_file(given, path, metadata)


def sample(dtype, shape):
    """Bytes for elements of a type by one of Python's names."""
    n = 1
    for size in shape:
        n *= size
    bits = 8 if "float4" in dtype or dtype == "bool" else int(re.search(r"\d+", dtype)[0])
    if dtype == "bool":
        return bytes(i % 2 for i in range(n))
    return bytes((37 * i + 11) % 251 for i in range(n * bits // 8))


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def below(self, name):
        return os.path.join(self.folder, name)


class Files(InFolder):
    def test_cairn_reads_every_type_that_python_writes(self):
        arrays = {}
        for dtype in types_that_python_writes():
            for shape in ([3, 2, 4], [8], [0, 5], [1, 2]):
                arrays[f"{dtype} {shape}"] = (dtype, shape, sample(dtype, shape))
        for dtype in ("bool", "float32", "int64"):
            arrays[dtype + " alone"] = (dtype, [], sample(dtype, []))
        write(self.below("python"), arrays, {"key": "text", "a \"b\"\\\n\u00e4\U0001f30d": ""})
        run_tool("copy", self.below("python"), self.below("cairn"))
        self.assertEqual(len(read(self.below("python"))), len(arrays))
        self.assertEqual(read(self.below("cairn")), read(self.below("python")))
        self.assertEqual(header(self.below("cairn"))["__metadata__"], header(self.below("python"))["__metadata__"])

    def test_cairn_reads_a_file_without_tensors(self):
        write(self.below("python"), {}, None)
        run_tool("copy", self.below("python"), self.below("cairn"))
        self.assertEqual(read(self.below("cairn")), {})

    def test_python_reads_every_kind_of_file_that_cairn_writes(self):
        run_tool("save", self.folder)
        f32 = read(self.below("f32.safetensors"))
        self.assertEqual(len(f32), 11)
        self.assertEqual(f32["0.weight"][:2], ("F32", [4, 2, 3, 3]))
        self.assertEqual(f32["1.num_batches_tracked"], ("I64", [], bytes(8)))
        self.assertEqual(header(self.below("f32.safetensors"))["__metadata__"], {"format": "pt"})
        for half, name in (("F16", "f16"), ("BF16", "bf16")):
            got = read(self.below(name + ".safetensors"))
            self.assertEqual({n: t[1] for n, t in got.items()}, {n: t[1] for n, t in f32.items()})
            self.assertEqual({t[0] for t in got.values()}, {half, "I64"})
        masters = read(self.below("o2.safetensors"))
        self.assertEqual({n: t for n, t in masters.items() if t[0] == "F32"},
                         {n: t for n, t in f32.items() if t[0] == "F32"})

    def test_python_reads_names_texts_and_tied_weights(self):
        run_tool("save", self.folder)
        f32, named = read(self.below("f32.safetensors")), read(self.below("named.safetensors"))
        self.assertEqual(named["net.stem.weight"], f32["0.weight"])
        self.assertEqual(named["net.a.w"][2] + named["net.b.w"][2], f32["3.weight"][2])
        self.assertEqual(named["net.b.w"][1], [3, 16])
        self.assertEqual(header(self.below("named.safetensors"))["__metadata__"],
                         {"title": "a \"net\"\n\u00e4", "format": "pt"})
        self.assertEqual(list(read(self.below("tied.safetensors"))), ["embedding"])
        self.assertEqual(header(self.below("tied.safetensors"))["__metadata__"],
                         {"format": "pt", "decoder": "embedding"})

    def test_an_index_is_as_hugging_face_writes_it(self):
        run_tool("save", self.folder)
        with open(self.below("several/model.safetensors.index.json"), encoding="utf-8") as f:
            index = json.load(f)
        self.assertEqual(sorted(set(index["weight_map"].values())),
                         [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)])
        got = {}
        for name in set(index["weight_map"].values()):
            part = read(self.below("several/" + name))
            self.assertEqual({n for n, f in index["weight_map"].items() if f == name}, set(part))
            got.update(part)
        self.assertEqual(got, read(self.below("f32.safetensors")))
        self.assertEqual(index["metadata"]["total_size"], sum(len(t[2]) for t in got.values()))


@unittest.skipUnless(torch, "this Python has no PyTorch")
class Torch(InFolder):
    def net(self):
        return torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(1),
                                   torch.nn.Linear(16, 6), torch.nn.LayerNorm(6)).eval()

    def test_a_net_of_the_same_structure_gives_cairns_outputs(self):
        run_tool("save", self.folder)
        io = safetensors.torch.load_file(self.below("io.safetensors"))
        for name, bound in (("f32", 1e-5), ("o2", 1e-5), ("f16", 1e-2), ("bf16", 1e-1)):
            net = self.net()
            net.load_state_dict(safetensors.torch.load_file(self.below(name + ".safetensors")), strict=True)
            with torch.no_grad():
                off = (net(io["x"]) - io["y"]).abs().max().item()
            self.assertLess(off, bound, name)

    def test_nets_like_the_examples_give_cairns_outputs(self):
        nn = torch.nn

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6))
                self.past = nn.Sequential(nn.Conv2d(4, 6, 1, 2, bias=False), nn.BatchNorm2d(6))

            def forward(self, x):
                return torch.relu(self.body(x) + self.past(x))

        class Mixer(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(12)
                self.mlp = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))

            def forward(self, x):
                return x + self.mlp(self.norm(x))

        nets = {"resnet": nn.Sequential(nn.Conv2d(1, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), Block(),
                                        nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(6, 6)),
                "encoder": nn.Sequential(nn.Linear(5, 12),
                                         nn.TransformerEncoderLayer(12, 3, 24, 0, "gelu", batch_first=True,
                                                                    norm_first=True),
                                         Mixer(), nn.LayerNorm(12), nn.Linear(12, 6))}
        run_tool("save", self.folder)
        for name, net in nets.items():
            io = safetensors.torch.load_file(self.below(name + "_io.safetensors"))
            net.load_state_dict(safetensors.torch.load_file(self.below(name + ".safetensors")), strict=True)
            with torch.no_grad():
                y = net.eval()(io["x"])
            self.assertEqual(y.shape, io["y"].shape)
            self.assertGreater(io["y"].std().item(), 0.1, name)
            self.assertLess((y - io["y"]).abs().max().item(), 1e-5, name)

    def test_tied_weights_are_loaded_by_torch(self):
        run_tool("save", self.folder)
        net = torch.nn.Module()
        net.embedding = torch.nn.Parameter(torch.zeros(2, 3))
        net.decoder = net.embedding
        missing, unexpected = safetensors.torch.load_model(net, self.below("tied.safetensors"), strict=True)
        self.assertEqual((list(missing), list(unexpected)), ([], []))
        self.assertEqual(net.decoder.tolist(), [[1, 2, 3], [4, 5, 6]])


if __name__ == "__main__":
    if not safetensors:
        go_on_with_another()
    print(f"with safetensors {safetensors.__version__} and torch {torch.__version__ if torch else 'none'} "
          f"({sys.executable})", flush=True)
    unittest.main(argv=sys.argv[:1])
