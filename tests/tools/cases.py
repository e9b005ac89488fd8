"""Shared by tests of tools: a folder for a test's files, and a check of a picture's labels."""
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def labels(root):
    """(left, top, right, bottom, text) of each label, a letter's width being about 0.57 of its height."""
    found, usual = [], root.get("font-size", 14)
    for text in root.iter(SVG + "text"):
        size = float(text.get("font-size", usual))
        x, y, width = float(text.get("x")), float(text.get("y")), 0.57 * size * len(text.text)
        if text.get("transform"):  # the name of an axis, from bottom to top
            found.append((x - 0.75 * size, y - width / 2, x + 0.2 * size, y + width / 2, text.text))
            continue
        x -= {"middle": width / 2, "end": width}.get(text.get("text-anchor"), 0)
        found.append((x, y - 0.75 * size, x + width, y + 0.2 * size, text.text))
    return found


class InFolder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, value):
        """Text, or what becomes JSON."""
        with open(self.path(name), "w", encoding="utf-8") as out:
            out.write(value if isinstance(value, str) else json.dumps(value))
        return self.path(name)

    def check_labels(self, root):
        """None overlaps another one or leaves the picture. Returns their texts."""
        boxes = labels(root)
        for i, (left, top, right, bottom, text) in enumerate(boxes):
            self.assertTrue(left >= 0 and top >= 0 and right <= float(root.get("width")) and
                            bottom <= float(root.get("height")), f"{text} leaves the picture")
            for other in boxes[:i]:
                self.assertTrue(right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top,
                                f"{text} and {other[4]} overlap")
        return [box[4] for box in boxes]

    def check_picture(self, file):
        root = ElementTree.parse(file).getroot()
        return root, self.check_labels(root)
