"""fp8 of Cairn against PyPI's ml_dtypes: codes and values of every bf16 and f16, and of ten million f32.

usage: fp8_ml_dtypes.py fp8_codes

NaN may have another code there: it is compared as NaN."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import with_modules

with_modules.go_on_with("numpy", "ml_dtypes")
import ml_dtypes
import numpy as np

FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def of_cairn(name, dtype, x):
    """Codes and values."""
    done = subprocess.run([TOOL, name, dtype], input=x.tobytes(), capture_output=True, check=True, timeout=120).stdout
    n = len(x)
    assert len(done) == 5 * n
    return np.frombuffer(done[:n], np.uint8), np.frombuffer(done[n:], np.float32)


class Peer(unittest.TestCase):
    def compare(self, dtype, x):
        for name, theirs in FORMATS.items():
            codes, values = of_cairn(name, dtype, x)
            with np.errstate(all="ignore"):
                want = x.astype(theirs)
            wide = want.astype(np.float32)
            is_nan = np.isnan(wide)
            self.assertGreater(int(np.sum(~is_nan)), len(x) // 8)
            np.testing.assert_array_equal(np.isnan(values), is_nan)
            np.testing.assert_array_equal(codes[~is_nan], want.view(np.uint8)[~is_nan])
            np.testing.assert_array_equal(values[~is_nan].view(np.uint32), wide[~is_nan].view(np.uint32))

    def test_every_bf16(self):
        self.compare("bf16", np.arange(0x10000, dtype=np.uint16).view(ml_dtypes.bfloat16))

    def test_every_f16(self):
        self.compare("f16", np.arange(0x10000, dtype=np.uint16).view(np.float16))

    def test_ten_million_f32(self):
        """Half of them of any magnitude; half within the formats', ties among them."""
        random = np.random.default_rng(26)
        n = 5_000_000
        anything = random.integers(0, 1 << 32, n, dtype=np.uint32)
        near = (random.integers(100 << 23, 145 << 23, n, dtype=np.uint32) |
                random.integers(0, 2, n, dtype=np.uint32) << 31)
        near[::3] &= np.uint32(0xfff80000)  # ties and values of E4M3
        near[1::3] &= np.uint32(0xfff00000)  # and of E5M2
        self.compare("f32", np.concatenate([anything, near]).view(np.float32))


if __name__ == "__main__":
    TOOL = sys.argv[1]
    unittest.main(argv=sys.argv[:1], verbosity=2)
