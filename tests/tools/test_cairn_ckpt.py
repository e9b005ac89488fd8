"""cairn-ckpt beside checkpoints of the quick start, read here by the format's own description.

usage: test_cairn_ckpt.py cairn-ckpt 01_linear_regression"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

CKPT, PROGRAM = sys.argv[1:3]


def ckpt(*args):
    done = subprocess.run([CKPT, *args], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def tensors(path):
    """name: (type, shape, bytes)"""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()
            if name != "__metadata__"}


def write(path, arrays, texts=None):
    """arrays: as tensors() gives them"""
    header, data = {}, b""
    for name, (dtype, shape, elements) in arrays.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(elements)]}
        data += elements
    if texts:
        header["__metadata__"] = texts
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


class Ckpt(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keep = tempfile.TemporaryDirectory()
        cls.folder = cls.keep.name
        for name, seed in ("a", "0"), ("b", "1"):
            subprocess.run([PROGRAM, "--steps", "20", "--save-every", "10", "--opt-level", "O2", "--seed", seed,
                            "--checkpoint", f"{cls.folder}/{name}"], check=True, capture_output=True, timeout=60)

    @classmethod
    def tearDownClass(cls):
        cls.keep.cleanup()

    def step(self, name, step=20):
        return f"{self.folder}/{name}/step-{step:08}"

    def broken(self, file):
        """A copy of a checkpoint whose file has one bit changed."""
        copy = self.folder + "/broken"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder + "/a", copy)
        with open(f"{copy}/step-00000020/{file}", "r+b") as f:
            f.seek(-1, os.SEEK_END)
            last = f.read(1)[0]
            f.seek(-1, os.SEEK_END)
            f.write(bytes([last ^ 1]))
        return copy

    def test_list_names_each_checkpoint_and_its_ranks(self):
        code, out, _ = ckpt("list", self.folder + "/a")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"step-00000010 .* 1 rank\n.*step-00000020 .* 1 rank\n")

    def test_a_folder_without_checkpoints_is_said_to_have_none(self):
        self.assertEqual(ckpt("list", self.folder + "/nothing")[:2],
                         (0, f"{self.folder}/nothing has no checkpoints\n"))

    def test_a_changed_bit_is_found_by_list_and_check(self):
        for file in "shared.safetensors", "rank-00000.safetensors":
            copy = self.broken(file)
            code, out, _ = ckpt("list", copy)
            self.assertEqual(code, 1)
            self.assertRegex(out, "step-00000010 .* 1 rank\n.*step-00000020  not whole: .*checksum")
            code, _, errors = ckpt("check", copy + "/step-00000020")
            self.assertEqual(code, 1)
            self.assertIn(file + ": its checksum is not the one", errors)
        self.assertEqual(ckpt("check", self.step("a"))[0], 0)

    def test_show_lists_every_tensor(self):
        code, out, _ = ckpt("show", self.step("a"))
        want = tensors(self.step("a") + "/shared.safetensors")
        own = tensors(self.step("a") + "/rank-00000.safetensors")
        self.assertEqual(code, 0)
        for name, (dtype, shape, _) in want.items():
            text = ", ".join(map(str, shape))
            self.assertRegex(out, rf"(?m)^{re.escape(name)} +{dtype} +\[{text}\]")
        self.assertIn(f"{len(want) + len(own)} tensors", out)

    def test_compare_says_what_differs_and_how_far(self):
        self.assertEqual(ckpt("compare", self.step("a"), self.step("a"))[0], 0)
        code, out, _ = ckpt("compare", self.step("a"), self.step("b"))
        a, b = (tensors(self.step(name) + "/shared.safetensors")["model/bias"][2] for name in "ab")
        x, y = struct.unpack("<16f", a), struct.unpack("<16f", b)
        self.assertEqual(code, 1)
        self.assertIn(f"16 of 16 differ, by {max(abs(p - q) for p, q in zip(x, y)):.3g}", out)

    def test_compare_counts_ulps(self):
        write(self.folder + "/x", {"x": ("F32", [2], struct.pack("<2I", 0x00000003, 0x3f800000))})
        write(self.folder + "/y", {"x": ("F32", [2], struct.pack("<2I", 0x80000002, 0x3f800001))})
        code, out, _ = ckpt("compare", self.folder + "/x", self.folder + "/y")
        self.assertEqual(code, 1)
        self.assertRegex(out, r"x +2 of 2 differ, by 1.19e-07, 5 ulps at most")

    def test_compare_takes_types_without_numbers_as_bytes(self):
        for dtype, shape in ("U8", [4]), ("U16", [2]), ("F8_E4M3", [4]), ("F4", [8]):
            write(self.folder + "/x", {"x": (dtype, shape, b"abcd")})
            write(self.folder + "/y", {"x": (dtype, shape, b"abxy")})
            code, out, _ = ckpt("compare", self.folder + "/x", self.folder + "/y")
            self.assertEqual(code, 1)
            self.assertRegex(out, r"(?m)^x +2 of 4 bytes differ$")
            self.assertEqual(ckpt("compare", self.folder + "/x", self.folder + "/x")[0], 0)

    def test_names_in_files_send_no_commands_to_a_terminal(self):
        name = "a\x1b[31m\x07\n\u009b\u202e\u00e4\u4e16"
        shown = r"a\x1b[31m\x07\x0a\x9b\u202e" + "\u00e4\u4e16"
        write(self.folder + "/x", {name: ("F32", [1], bytes(4))})
        write(self.folder + "/y", {name: ("F32", [1], bytes(3) + b"\1")})
        write(self.folder + "/z", {name: ("F31", [1], bytes(4))})
        _, out, _ = ckpt("show", self.folder + "/x")
        self.assertIn(shown + " " * (57 - len(shown)) + "F32", out)
        _, out, _ = ckpt("compare", self.folder + "/x", self.folder + "/y")
        self.assertIn(shown + " " * (57 - len(shown)) + "1 of 1 differ", out)
        write(self.folder + "/y", {"b": ("F32", [1], bytes(4))})
        _, out, _ = ckpt("compare", self.folder + "/x", self.folder + "/y")
        self.assertIn(shown + " " * (57 - len(shown)) + "only in", out)
        _, _, errors = ckpt("show", self.folder + "/z")
        self.assertIn(f"'{shown}' has the type", errors)

    def two_ranks(self, owner):
        """A checkpoint of two ranks whose batch norm's buffers each rank has."""
        path = self.folder + "/two"
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        write(path + "/shared.safetensors", {"m/weight": ("F32", [1], b"wwww"), "m/requires_grad": ("U8", [1], b"1"),
              "m/ranks_differ": ("I64", [], b"1" * 8), "m/keeps_buffers": ("I64", [], b"1" * 8),
                                             "more/weight": ("F32", [1], b"xxxx")})
        for rank in 0, 1:
            write(f"{path}/rank-{rank:05}.safetensors",
                  {"m/running_mean": ("F32", [1], b"%d%d%d%d" % (4 * (rank,))), "env/seed": ("I64", [1], bytes(8))},
                  {"m/running_mean": owner, "env/seed": "rank"})
        self.write_manifest(path)
        return path

    def write_manifest(self, path):
        files = [{"name": name, "nbytes": os.path.getsize(f"{path}/{name}"), "xxh3": "0" * 16}
                 for name in sorted(os.listdir(path))]
        with open(path + "/checkpoint.json", "w", encoding="utf-8") as f:
            json.dump({"format": "cairn checkpoint", "version": 1, "step": 1, "ranks": 2, "files": files}, f)

    def test_export_takes_rank_0s_buffers_where_each_rank_has_its_own(self):
        out = self.folder + "/out.safetensors"
        code, said, errors = ckpt("export", self.two_ranks("rank or first"), "m", out)
        self.assertEqual((code, said, errors), (0, f"{out}: 2 tensors\n", ""))
        self.assertEqual(tensors(out), {"weight": ("F32", [1], b"wwww"), "running_mean": ("F32", [1], b"0000")})
        self.assertRegex(ckpt("show", self.two_ranks("rank"))[1], r"(?m)^rank 1: m/running_mean +F32")

    def test_export_puts_parts_of_a_model_together(self):
        path, out = self.folder + "/parts", self.folder + "/whole.safetensors"
        os.makedirs(path)
        write(path + "/shared.safetensors", {"step": ("I64", [1], bytes(8))})
        for rank in 0, 1:
            write(f"{path}/rank-{rank:05}.safetensors",
                  {f"m/{rank}.weight": ("F32", [1], b"%d%d%d%d" % (4 * (rank,))),
                   f"m/requires_grad.{rank}.weight": ("I64", [], bytes(8))},
                  {f"m/{rank}.weight": "part", f"m/requires_grad.{rank}.weight": "part"})
        self.write_manifest(path)
        self.assertEqual(ckpt("export", path, "m", out), (0, f"{out}: 2 tensors\n", ""))
        self.assertEqual(tensors(out), {"0.weight": ("F32", [1], b"0000"), "1.weight": ("F32", [1], b"1111")})

    def test_export_refuses_a_model_that_ranks_do_not_share(self):
        out = self.folder + "/refused.safetensors"
        for owner in "rank", "rows 0 of 2", "":
            code, _, errors = ckpt("export", self.two_ranks(owner), "m", out)
            self.assertEqual(code, 1)
            self.assertIn("'m/running_mean' is rank 0's alone", errors)
            self.assertFalse(os.path.exists(out))
        self.assertEqual(ckpt("export", self.two_ranks("rank"), "more", out)[0], 0)

    def test_convert_keeps_many_texts_without_delay(self):
        texts = {f"key {i}": "text" for i in range(80000)}
        write(self.folder + "/many", {"x": ("F32", [1], bytes(4))}, texts)
        begin = time.monotonic()
        self.assertEqual(ckpt("convert", self.folder + "/many", self.folder + "/more")[0], 0)
        self.assertLess(time.monotonic() - begin, 20)  # 0.3 s on a machine that does nothing else; it was 40 and more
        with open(self.folder + "/more", "rb") as f:
            self.assertEqual(json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))["__metadata__"], texts)

    def test_export_writes_weights_alone_in_the_type_asked_for(self):
        for dtype, name in ("f32", "F32"), ("bf16", "BF16"), ("f16", "F16"):
            out = f"{self.folder}/{dtype}.safetensors"
            self.assertEqual(ckpt("export", self.step("a"), "model", out, "--type", dtype)[0], 0)
            got, saved = tensors(out), tensors(self.step("a") + "/shared.safetensors")
            self.assertEqual(sorted(got), ["bias", "weight"])
            self.assertEqual([got[k][:2] for k in ("bias", "weight")], [(name, [16]), (name, [16, 1024])])
            if dtype == "f32":
                self.assertEqual(got["weight"][2], saved["model/weight"][2])
            if dtype == "bf16":  # rounded to nearest even
                bits = struct.unpack("<16I", saved["model/bias"][2])
                want = [(b + 0x7fff + (b >> 16 & 1)) >> 16 for b in bits]
                self.assertEqual(list(struct.unpack("<16H", got["bias"][2])), want)

    def test_convert_cuts_a_file_into_several_and_joins_them_again(self):
        whole, parts, again = (f"{self.folder}/{name}.safetensors" for name in ("whole", "parts", "again"))
        self.assertEqual(ckpt("export", self.step("a"), "model", whole)[0], 0)
        code, out, _ = ckpt("convert", whole, parts, "--max-file-size", "1kB")
        self.assertEqual((code, out), (0, f"{parts}: 2 tensors\n"))
        self.assertFalse(os.path.exists(parts))
        with open(parts + ".index.json", encoding="utf-8") as f:
            index = json.load(f)
        first, second = (f"parts-0000{i}-of-00002.safetensors" for i in (1, 2))
        self.assertEqual(index["weight_map"], {"bias": first, "weight": second})
        self.assertEqual(index["metadata"]["total_size"], 4 * (16 + 16 * 1024))
        self.assertEqual(list(tensors(f"{self.folder}/{first}")), ["bias"])
        for name in parts, parts + ".index.json":
            self.assertEqual(ckpt("compare", whole, name)[0], 0)
            self.assertEqual(ckpt("check", name)[:2], (0, f"{name} is whole: 2 tensors in 2 files\n"))
        self.assertEqual(ckpt("convert", parts, again, "--max-file-size", "1GiB")[0], 0)
        with open(whole, "rb") as a, open(again, "rb") as b:
            self.assertEqual(a.read(), b.read())  # metadata, too

    def test_convert_rounds_to_a_type_and_writes_in_place(self):
        path = self.folder + "/place.safetensors"
        for args in ("f16",), ("f32",):
            self.assertEqual(ckpt("export", self.step("a"), "model", path)[0], 0)
            before = tensors(path)
            self.assertEqual(ckpt("convert", path, path, "--type", *args)[0], 0)
            after = tensors(path)
            self.assertEqual(after["weight"][1], [16, 1024])
            x = struct.unpack("<16384f", before["weight"][2])
            self.assertEqual(after["weight"][2], struct.pack("<16384" + ("e" if args == ("f16",) else "f"), *x))

    def test_convert_refuses_a_checkpoint_and_a_folder_without_weights(self):
        code, _, errors = ckpt("convert", self.step("a"), self.folder + "/out")
        self.assertEqual(code, 1)
        self.assertIn("is a checkpoint: cairn-ckpt export", errors)
        os.makedirs(self.folder + "/empty/checkpoint", exist_ok=True)
        code, _, errors = ckpt("show", self.folder + "/empty")
        self.assertEqual(code, 1)
        self.assertIn("a folder without model.safetensors", errors)
        os.makedirs(self.folder + "/bare", exist_ok=True)
        with open(self.folder + "/bare/checkpoint.json", "w", encoding="utf-8") as f:
            json.dump({"format": "cairn checkpoint", "version": 1, "step": 1, "ranks": 1, "files": []}, f)
        code, _, errors = ckpt("show", self.folder + "/bare")
        self.assertEqual(code, 1)
        self.assertIn("lists no files", errors)

    def test_wrong_use_exits_with_2_and_what_is_missing_with_1(self):
        for args in ([], ["what"], ["show"], ["export", "a", "b", "c", "--type", "i32"], ["convert", "a"],
                     ["convert", "a", "b", "--max-file-size", "0"], ["convert", "a", "b", "--max-file-size", "1XB"]):
            code, _, errors = ckpt(*args)
            self.assertEqual(code, 2)
            self.assertIn("usage: cairn-ckpt", errors)
        code, _, errors = ckpt("show", self.folder + "/nothing")
        self.assertEqual(code, 1)
        self.assertIn("nothing: No such file", errors)
        code, _, errors = ckpt("export", self.step("a"), "net", self.folder + "/out")
        self.assertEqual(code, 1)
        self.assertIn("has no model 'net'", errors)
        self.assertFalse(os.path.exists(self.folder + "/out"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
