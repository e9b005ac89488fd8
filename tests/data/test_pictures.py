"""Pictures as Pillow decodes, resizes and crops them, and folders as torchvision's ImageFolder lists them.

usage: test_pictures.py picture_tool

PNGs have Pillow's bits. So have JPEGs where both libjpegs upsample alike: versions of libjpeg-turbo may differ by one
in places, which is counted and said. Resized pictures have the bits of Pillow up to 12; Pillow 13 resizes the height
first where that is less work, and rounds another way in between."""
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import with_modules

with_modules.go_on_with("numpy", "PIL.Image")

import numpy as np
import PIL
from PIL import Image, features

TOOL = os.path.abspath(sys.argv[1])
ALWAYS_WIDTH_FIRST = int(PIL.__version__.split(".", maxsplit=1)[0]) < 13
EXTENSIONS = (".jpg", ".jpeg", ".png")


def rgb_of(path):
    """What torchvision's loader gives the transforms."""
    with Image.open(path) as picture:
        return picture.convert("RGB")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


class Pictures(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.rng = np.random.default_rng(1)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_tool(self, lines):
        done = subprocess.run([TOOL], input="".join(line + "\n" for line in lines), capture_output=True, text=True,
                              timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = done.stdout.splitlines()
        self.assertEqual(len(answers), len(lines))
        return answers

    def pixels(self, out, height, width):
        return np.fromfile(out, "u1").reshape(height, width, 3)

    def photo(self, height, width, channels=3):
        """Waves and edges, and a little noise."""
        y, x = np.mgrid[0:height, 0:width]
        planes = [120 + 80 * np.sin(x / (5 + 3 * c) + y / 9) + 40 * ((x // 11 + y // 7) % 2) for c in range(channels)]
        noisy = np.stack(planes, -1) + self.rng.normal(0, 6, (height, width, channels))
        return np.clip(noisy, 0, 255).astype("u1")

    def decoded(self, paths):
        """Yields each path with Cairn's pixels and Pillow's."""
        lines = [f"decode {p} {p}.raw" for p in paths]
        for path, answer in zip(paths, self.run_tool(lines)):
            pillow = np.asarray(rgb_of(path))
            self.assertEqual(answer, f"ok {pillow.shape[0]} {pillow.shape[1]}", path)
            yield path, self.pixels(path + ".raw", *pillow.shape[:2]), pillow

    def assert_resized_alike(self, ours, pillows, case):
        distance = np.abs(ours.astype(int).ravel() - pillows.astype(int).ravel())
        self.assertLessEqual(distance.max(), 0 if ALWAYS_WIDTH_FIRST else 1, case)

    def test_pngs_have_pillows_bits(self):
        photo = Image.fromarray(self.photo(61, 83))
        paths = []
        for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
            paths.append(self.path(mode + ".png"))
            photo.convert(mode).save(paths[-1])
        photo.quantize(5).save(self.path("five.png"), transparency=2)
        photo.save(self.path("several.png"), save_all=True, append_images=[photo.rotate(90), photo.rotate(180)])
        rows = self.rng.integers(0, 256, (13, 1 + 17 * 6)).astype("u1")
        rows[:, 0] = 0  # no filter
        with open(self.path("deep.png"), "wb") as f:  # RGB of 16 bits, which Pillow reads and does not write
            f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 17, 13, 16, 2, 0, 0, 0)) +
                    chunk(b"IDAT", zlib.compress(rows.tobytes())) + chunk(b"IEND", b""))
        paths += [self.path(name) for name in ("five.png", "several.png", "deep.png")]
        for path, ours, pillows in self.decoded(paths):
            self.assertTrue(np.array_equal(ours, pillows), path)

    def test_jpegs_have_pillows_bits_but_for_the_version(self):
        paths = []
        for height, width in ((1, 1), (7, 13), (64, 64), (121, 203)):
            photo = Image.fromarray(self.photo(height, width))
            for mode in ("L", "RGB", "CMYK"):
                for quality in (50, 90):
                    for subsampling in (0, 1, 2):
                        for progressive in (False, True):
                            name = f"{height}-{width}-{mode}-{quality}-{subsampling}-{progressive}.jpg"
                            paths.append(self.path(name))
                            photo.convert(mode).save(paths[-1], quality=quality, subsampling=subsampling,
                                                     progressive=progressive)
        other = total = 0
        for path, ours, pillows in self.decoded(paths):
            distance = np.abs(ours.astype(int) - pillows)
            self.assertLessEqual(distance.max(), 1, path)
            other += np.count_nonzero(distance)
            total += distance.size
        print(f"{len(paths)} JPEGs: {other} of {total} values are not those of Pillow {PIL.__version__} with "
              f"libjpeg-turbo {features.version('libjpeg_turbo')}", file=sys.stderr)
        self.assertLess(other, total / 100)

    def test_orientation_is_not_applied_as_pillow_does_not(self):
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(self.photo(20, 30)).save(self.path("turned.jpg"), exif=exif)
        for _, ours, pillows in self.decoded([self.path("turned.jpg")]):
            self.assertEqual(ours.shape, (20, 30, 3))
            self.assertLessEqual(np.abs(ours.astype(int) - pillows).max(), 1)

    def test_resizing_has_pillows_bits(self):
        path = self.path("a.png")
        photo = Image.fromarray(self.photo(97, 131))
        photo.save(path)
        dice = random.Random(3)
        cases = [(0, 0, 97, 131, h, w) for h, w in ((1, 1), (97, 131), (224, 224), (48, 131), (97, 20), (500, 3))]
        for _ in range(200):
            h, w = dice.randint(1, 97), dice.randint(1, 131)
            cases.append((dice.randint(0, 97 - h), dice.randint(0, 131 - w), h, w, dice.randint(1, 200),
                          dice.randint(1, 200)))
        lines = [f"resize {path} {path}.{i} " + " ".join(map(str, case)) for i, case in enumerate(cases)]
        for i, (case, answer) in enumerate(zip(cases, self.run_tool(lines))):
            top, left, h, w, new_h, new_w = case
            self.assertEqual(answer, f"ok {new_h} {new_w}")
            pillows = photo.crop((left, top, left + w, top + h)).resize((new_w, new_h), Image.BILINEAR)
            self.assert_resized_alike(self.pixels(f"{path}.{i}", new_h, new_w), np.asarray(pillows), case)

    def test_evaluation_is_torchvisions_resize_crop_and_normalize(self):
        mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
        shapes = (97, 131), (131, 97), (50, 50), (33, 201), (201, 34)
        cases = [(*shape, size, resize) for shape in shapes
                 for size, resize in ((32, 36), (31, 37), (64, 64), (56, 73))]
        lines, photos = [], []
        for i, (height, width, size, resize) in enumerate(cases):
            path = self.path(f"{i}.png")
            photos.append(Image.fromarray(self.photo(height, width)))
            photos[-1].save(path)
            lines += [f"eval {path} {path}.f32 {size} {resize} f32", f"eval {path} {path}.u8 {size} {resize} u8"]
        self.assertEqual(set(answer[:2] for answer in self.run_tool(lines)), {"ok"})
        for i, (height, width, size, resize) in enumerate(cases):
            # torchvision.transforms.functional: _compute_resized_output_size and center_crop
            short, long = sorted((height, width))
            new = (resize, int(resize * long / short))
            new_w, new_h = new if width <= height else new[::-1]
            top, left = int(round((new_h - size) / 2.0)), int(round((new_w - size) / 2.0))
            cut = photos[i].resize((new_w, new_h), Image.BILINEAR).crop((left, top, left + size, top + size))
            expected = np.asarray(cut).transpose(2, 0, 1)
            ours = np.fromfile(self.path(f"{i}.png.u8"), "u1").reshape(expected.shape)
            self.assert_resized_alike(ours, expected, cases[i])
            values = (ours.astype("f4") / np.float32(255) - mean[:, None, None]) / std[:, None, None]
            self.assertTrue(np.array_equal(np.fromfile(self.path(f"{i}.png.f32"), "f4"), values.ravel()), cases[i])

    def test_training_is_that_box_resized_and_mirrored(self):
        path = self.path("a.png")
        photo = Image.fromarray(self.photo(60, 90))
        photo.save(path)
        lines = [f"train {path} {path}.{i} 24 7 {i % 3} {i}" for i in range(100)]
        mirrored = 0
        for i, answer in enumerate(self.run_tool(lines)):
            word, top, left, h, w, is_mirrored = answer.split()
            self.assertEqual(word, "ok")
            top, left, h, w = map(int, (top, left, h, w))
            cut = photo.crop((left, top, left + w, top + h)).resize((24, 24), Image.BILINEAR)
            expected = np.asarray(cut).transpose(2, 0, 1)
            mirrored += int(is_mirrored)
            expected = expected[:, :, ::-1] if int(is_mirrored) else expected
            self.assert_resized_alike(np.fromfile(f"{path}.{i}", "u1"), expected, answer)
        self.assertTrue(30 <= mirrored <= 70, mirrored)

    def test_a_folder_is_listed_as_imagefolder_does(self):
        root = self.path("root")
        names = ["b/10.png", "b/2.png", "b/2.JPG", "a-b/x.jpeg", "a/z.png", "a/sub/a.png", "a/sub-b/a.png",
                 "a/sub/deep/a.PNG", "a/sub/notes.txt", "B/ä.png", "B/z.png", "c/a.png.txt", "c/one.jpg"]
        for name in names:
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            with open(os.path.join(root, name), "wb"):
                pass
        # torchvision.datasets.folder: find_classes and make_dataset
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        expected = []
        for number, name in enumerate(classes):
            for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
                expected += [f"{number} {os.path.join(folder, file)}" for file in sorted(files)
                             if file.lower().endswith(EXTENSIONS)]
        answer, = self.run_tool([f"list {root} {root}.txt"])
        self.assertEqual(answer, f"ok {len(expected)} {len(classes)}")
        with open(root + ".txt", encoding="utf-8") as f:
            self.assertEqual(f.read().splitlines(), expected)

    def test_what_pillow_refuses_cairn_refuses_with_the_path(self):
        Image.fromarray(self.photo(40, 40)).save(self.path("a.gif"))
        Image.fromarray(self.photo(40, 40)).save(self.path("whole.jpg"))
        with open(self.path("whole.jpg"), "rb") as f:
            whole = f.read()
        with open(self.path("cut.jpg"), "wb") as f:
            f.write(whole[:len(whole) // 2])
        with self.assertRaises(OSError):
            rgb_of(self.path("cut.jpg"))
        gif, cut = self.run_tool([f"decode {self.path(n)} {self.path('out')}" for n in ("a.gif", "cut.jpg")])
        self.assertIn(f"EINVAL {self.path('a.gif')}: a GIF", gif)
        self.assertIn(f"EINVAL {self.path('cut.jpg')}: a JPEG that ends before its last line", cut)


if __name__ == "__main__":
    print(f"Pillow {PIL.__version__}, libjpeg-turbo {features.version('libjpeg_turbo')}")
    unittest.main(argv=sys.argv[:1], verbosity=2)
