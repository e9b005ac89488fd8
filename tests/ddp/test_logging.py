"""CAIRN_DDP_LOG: the files that ranks write when their ddp context is destroyed.

usage: test_logging.py path/to/cairn-run path/to/01_linear_regression"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

RUN, EXAMPLE = sys.argv[1:3]
TEXTS = {"module_name": "Linear", "backend_name": "shm", "dtypes": "bf16", "bucket_sizes": "32832",
         "rebuilt_bucket_sizes": "32832", "prev_iteration_grad_ready_order_indices": "1, 0", "error": ""}
NUMBERS = {"world_size": 2, "num_parameter_tensors": 2, "total_parameter_size_bytes": 32800, "iteration": 20,
           "has_rebuilt_buckets": 1, "has_error": 0}
TIMES = ("avg_forward_compute_time", "avg_backward_compute_time", "avg_backward_comm_time",
         "avg_backward_compute_comm_overlap_time", "avg_backward_exposed_comm_time")


def train(path, **env):
    return subprocess.run([RUN, "--standalone", "--nproc_per_node", "2", EXAMPLE, "--opt-level", "O2", "--half", "bf16",
                           "--steps", "20"], capture_output=True, text=True, timeout=100, check=False,
                          env={**os.environ, "CAIRN_DDP_LOG": path, **env})


class Logging(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return json.load(file)

    def test_rank_0_leaves_a_file_and_every_rank_where_there_is_room_for_its_number(self):
        for name, files in ("ddp.json", ["ddp.json"]), ("%r of %r", ["0 of %r", "1 of %r"]):
            done = train(os.path.join(self.folder, name))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(os.listdir(self.folder)), files)
            for rank, file in enumerate(files):
                self.assertEqual(self.read(file)["rank"], rank)
                os.remove(os.path.join(self.folder, file))

    def test_the_file_has_torchs_names_and_is_a_profile(self):
        train(os.path.join(self.folder, "log"))
        told = self.read("log")
        self.assertEqual({name: told[name] for name in TEXTS}, TEXTS)
        self.assertEqual({name: told[name] for name in NUMBERS}, NUMBERS)
        for name in TIMES:
            self.assertGreaterEqual(told[name], 0, name)
        self.assertEqual((told["format"], told["version"]), ("cairn-profile", 1))
        self.assertEqual([(p["name"], p["elements"], p["dtype"], p["wire"]) for p in told["parameters"]],
                         [("weight", 16384, "bf16", "bf16"), ("bias", 16, "bf16", "bf16")])
        for p in told["parameters"]:
            self.assertGreater(p["ready_ns"], 0)
            self.assertLessEqual(p["ready_ns"], told["backward_ns"])
        self.assertGreater(told["forward_ns"], 0)
        self.assertGreater(told["optimizer_ns"], 0)

    def test_a_file_that_cannot_be_written_is_told_and_training_goes_on(self):
        done = train(os.path.join(self.folder, "no", "such", "log"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("could not be written: No such file or directory", done.stderr)
        self.assertIn("final loss = ", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
