"""The error file: its contents for each kind of failure, and when it is not written.

usage: test_error_file.py error_file_user error_file_plugin libcairn.so"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

USER, PLUGIN, LIBCAIRN = map(os.path.abspath, sys.argv[1:4])
LAST_ERROR = "CAIRN_EINVAL: cairn_set_num_threads: -5 threads; 1 to 1024 are allowed"


class ErrorFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(self.folder, "error.json")

    def run_program(self, *command, path=None, **kwargs):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "CAIRN"))}
        path = self.path if path is None else path
        self.begin = int(time.time() - 0.1)  # time(2) is some milliseconds late
        done = subprocess.run(command, env=dict(environment, TORCHELASTIC_ERROR_FILE=path), capture_output=True,
                              text=True, timeout=60, check=False, **kwargs)
        self.end = int(time.time())
        self.assertNotEqual(done.returncode, 100, done.stderr)
        return done

    def run_case(self, case, *arguments, **kwargs):
        return self.run_program(USER, case, *arguments, **kwargs)

    def written(self, late=0):
        """The file's message and call stack; nothing else may be in its folder."""
        self.assertEqual(os.listdir(self.folder), ["error.json"])
        with open(self.path, "rb") as f:
            text = f.read().decode("ascii")
        content = json.loads(text)
        self.assertEqual(list(content), ["message"])
        self.assertEqual(sorted(content["message"]), ["extraInfo", "message"])
        extra = content["message"]["extraInfo"]
        self.assertEqual(sorted(extra), ["py_callstack", "timestamp"])
        self.assertIsInstance(extra["timestamp"], str)
        self.assertTrue(self.begin + late <= int(extra["timestamp"]) <= self.end + late)
        return content["message"]["message"], extra["py_callstack"]

    def assert_nothing_written(self):
        self.assertEqual(os.listdir(self.folder), [])

    def test_return_from_main_leaves_the_last_error(self):
        self.assertEqual(self.run_case("return_after_an_error").returncode, 3)
        self.assertEqual(self.written(), (LAST_ERROR, LAST_ERROR + "\n(exit code 3)"))

    def test_exit_leaves_the_last_error(self):
        self.assertEqual(self.run_case("exit_after_an_error").returncode, 3)
        self.assertEqual(self.written(), (LAST_ERROR, LAST_ERROR + "\n(exit code 3)"))

    def test_exit_without_an_error_leaves_its_code(self):
        self.assertEqual(self.run_case("exit_silently").returncode, 7)
        self.assertEqual(self.written(), ("exit code 7, and no call of Cairn had failed",) * 2)

    def test_code_is_what_the_launcher_sees(self):
        self.assertEqual(self.run_case("exit_with_300").returncode, 44)
        self.assertEqual(self.written(), ("exit code 44, and no call of Cairn had failed",) * 2)

    def test_success_leaves_nothing(self):
        self.assertEqual(self.run_case("succeed_after_an_error").returncode, 0)
        self.assert_nothing_written()

    def test_consequence_of_another_ranks_end_is_dated_after_it(self):
        self.assertEqual(self.run_case("fail_for_a_peer").returncode, 1)
        self.assertEqual(self.written(late=1)[0], "CAIRN_EPEER: rank 1 has ended")

    def test_message_is_kept_but_for_control_characters_and_invalid_utf8(self):
        self.run_case("fail_in_many_letters")
        self.assertEqual(self.written()[0], 'CAIRN_EINVAL: "\\/\n\t\\x01 \\x7f é € 𝄞 | \ufffd \ufffd( \ufffd\ufffd '
                         '\ufffd\ufffd\ufffd \ufffd\ufffd\ufffd\ufffd |')

    def test_long_message_is_cut_and_stays_json(self):
        self.run_case("fail_at_length")
        self.assertEqual(self.written()[0], "CAIRN_EINVAL: " + 511 * "é" + "\ufffd")

    def test_fault_leaves_signal_address_and_backtrace(self):
        self.assertEqual(self.run_case("write_to_nowhere").returncode, -signal.SIGSEGV)
        message, stack = self.written()
        self.assertEqual(message, "SIGSEGV: Segmentation fault at address 0x10")
        lines = stack.split("\n")
        self.assertEqual(lines[:2], [message, "Backtrace:"])
        self.assertGreater(len(lines), 4)
        for line in lines[2:]:
            self.assertRegex(line, r"^  \S+\(\S*\+0x[0-9a-f]+\)$")
        self.assertIn("/error_file_user(", stack)

    def test_abort_leaves_the_last_error_too(self):
        self.assertEqual(self.run_case("abort_after_an_error").returncode, -signal.SIGABRT)
        message, stack = self.written()
        self.assertEqual(message, "SIGABRT: Aborted")
        self.assertEqual(stack.split("\n")[1], "Cairn's last error before: " + LAST_ERROR)

    def test_signal_that_was_sent_still_kills(self):
        self.assertEqual(self.run_case("be_sent_sigfpe").returncode, -signal.SIGFPE)
        self.assertEqual(self.written()[0], "SIGFPE: Floating point exception")

    def test_stack_overflow_is_named(self):
        self.assertEqual(self.run_case("overflow_the_stack").returncode, -signal.SIGSEGV)
        self.assertRegex(self.written()[0], "^SIGSEGV: Segmentation fault at address 0x7")

    def test_end_by_the_launchers_signal_is_no_failure(self):
        self.assertEqual(self.run_case("be_sent_sigterm").returncode, -signal.SIGTERM)
        self.assert_nothing_written()

    def test_handler_of_the_program_stays(self):
        self.assertEqual(self.run_case("keep_a_handler").returncode, 42)
        self.assert_nothing_written()

    def test_recording_can_be_switched_off(self):
        self.assertEqual(self.run_case("return_after_an_error", "off").returncode, 3)
        self.assertEqual(self.run_case("write_to_nowhere", "off").returncode, -signal.SIGSEGV)
        self.assert_nothing_written()

    def test_child_of_a_rank_does_not_write_its_file(self):
        self.assertEqual(self.run_case("fail_in_a_child_only").returncode, 0)
        self.assert_nothing_written()

    def test_child_that_becomes_the_rank_writes(self):
        self.assertEqual(self.run_case("abort_in_a_child_that_became_a_rank").returncode, 0)
        self.assertEqual(self.written()[0], "SIGABRT: Aborted")

    def test_file_of_the_program_is_not_overwritten(self):
        self.assertEqual(self.run_case("write_a_file_of_its_own").returncode, 1)
        self.assertEqual(os.listdir(self.folder), ["error.json"])
        with open(self.path, encoding="ascii") as f:
            self.assertEqual(f.read(), '{"message": "mine"}')

    def test_relative_path_means_the_folder_at_the_start(self):
        self.assertEqual(self.run_case("fail_in_another_folder", path="error.json", cwd=self.folder).returncode, 1)
        self.written()

    def test_name_may_be_as_long_as_names_can_be(self):
        name = 255 * "n"
        self.assertEqual(self.run_case("exit_silently", path=os.path.join(self.folder, name)).returncode, 7)
        self.assertEqual(os.listdir(self.folder), [name])

    def test_unwritable_path_is_a_warning_and_changes_nothing_else(self):
        plain = os.path.join(self.folder, "plain")
        with open(plain, "w", encoding="ascii"):
            pass
        for path, reason in ((os.path.join(self.folder, "missing", "error.json"), "No such file or directory"),
                             (os.path.join(plain, "error.json"), "Not a directory"),
                             ("/proc/error.json", "No such file|Permission|Operation not permitted|Read-only")):
            done = self.run_case("return_after_an_error", path=path)
            self.assertEqual(done.returncode, 3)
            self.assertRegex(done.stderr, f"the error file '{path}' .TORCHELASTIC_ERROR_FILE. could not be written: "
                             f"({reason})")
            self.assertEqual(self.run_case("write_to_nowhere", path=path).returncode, -signal.SIGSEGV)
        self.assertEqual(os.listdir(self.folder), ["plain"])

    @unittest.skipIf(os.geteuid() == 0, "root may write into any folder")
    def test_folder_without_permission_is_a_warning(self):
        os.chmod(self.folder, 0o500)
        done = self.run_case("return_after_an_error")
        self.assertEqual(done.returncode, 3)
        self.assertIn("could not be written: Permission denied", done.stderr)

    def test_path_that_is_too_long_is_a_warning_at_creation(self):
        done = self.run_case("return_after_an_error", path="/" + 5000 * "p")
        self.assertEqual(done.returncode, 3)
        self.assertIn("pp...' is no path that can be written to", done.stderr)

    def test_empty_name_means_no_file(self):
        done = self.run_case("return_after_an_error", path="", cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (3, ""))
        self.assert_nothing_written()

    def test_library_that_was_closed_still_writes(self):
        self.assertEqual(self.run_program(PLUGIN, LIBCAIRN, "exit").returncode, 3)
        self.assertEqual(self.written()[0], "exit code 3, and no call of Cairn had failed")
        os.remove(self.path)
        self.assertEqual(self.run_program(PLUGIN, LIBCAIRN, "signal").returncode, -signal.SIGABRT)
        self.assertEqual(self.written()[0], "SIGABRT: Aborted")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
