"""A set-user-ID program of root, started by the user nobody: the environment variables can neither run code with root's
privileges nor create files.

usage: test_rights.py rights_user librights_module.so ddp_program

rights_user looks for installed modules in ./installed."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

USER, MODULE, DDP = map(os.path.abspath, sys.argv[1:4])
NOBODY = 65534
REFUSED = "device 'loot' is not opened in a program with more rights than its user: "
MUST = "; its files and folders must belong to root or to the program's owner, and be writable by them alone\n"


class Rights(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.chmod(self.folder, 0o755)
        self.user, self.ddp = (shutil.copy(program, self.folder) for program in (USER, DDP))
        self.installed, self.evil = self.make_folder("installed"), self.make_folder("evil")
        self.loot = self.make_folder("drop") + "/loot"
        os.chmod(os.path.dirname(self.loot), 0o777)

    def make_folder(self, name):
        os.mkdir(os.path.join(self.folder, name))
        return os.path.join(self.folder, name)

    def place(self, folder, owner=0):
        path = shutil.copy(MODULE, folder + "/libcairn_loot.so")
        os.chmod(path, 0o755)
        os.chown(path, owner, owner)

    def attack(self, *command, mode=0o4755, **variables):
        """What the program says, and who owns the file that it left, None where there is none."""
        os.chmod(command[0], mode)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CAIRN", "TORCH"))}
        done = subprocess.run(command, env={**environment, "LOOT": self.loot, **variables}, cwd=self.folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False,
                              user=NOBODY, group=NOBODY, extra_groups=[])
        owner = os.stat(self.loot).st_uid if os.path.exists(self.loot) else None
        if owner is not None:
            os.remove(self.loot)
        self.assertEqual(os.listdir(os.path.dirname(self.loot)), [])
        return done.stdout, owner

    def attack_by_module_path(self, mode):
        self.place(self.evil, NOBODY)
        return self.attack(self.user, "module", "loot", mode=mode, CAIRN_MODULE_PATH=self.evil)

    def test_module_of_the_user_is_opened_with_his_own_rights_alone(self):
        self.assertEqual(self.attack_by_module_path(0o755)[1], NOBODY)
        said, owner = self.attack_by_module_path(0o4755)
        self.assertEqual((said, owner), ("device 'loot' is not in this build of Cairn (meson option 'loot'); use "
                                         "another\n", None))

    def test_installed_module_of_root_is_opened(self):
        self.place(self.installed)
        said, owner = self.attack(self.user, "module", "loot")
        self.assertEqual(owner, 0, said)

    def test_installed_module_that_others_can_write_is_not_opened(self):
        self.place(self.installed)
        path = self.installed + "/libcairn_loot.so"
        for writable, mode in (path, 0o777), (path, 0o775), (self.installed, 0o777), (self.installed, 0o1777), (
                self.folder, 0o777):
            before = os.stat(writable).st_mode & 0o7777
            os.chmod(writable, mode)
            os.chown(path, 0, NOBODY)
            said, owner = self.attack(self.user, "module", "loot")
            os.chmod(writable, before)
            real = os.path.realpath(writable)
            shown = mode & 0o777 if writable == self.installed else mode
            self.assertEqual((said, owner), (f"{REFUSED}{real} can be written by other users (mode {shown:04o}){MUST}",
                                             None))

    def test_installed_module_of_another_user_is_not_opened(self):
        self.place(self.installed, NOBODY)
        said, owner = self.attack(self.user, "module", "loot")
        path = os.path.realpath(self.installed) + "/libcairn_loot.so"
        self.assertEqual((said, owner), (f"{REFUSED}{path} belongs to user {NOBODY}{MUST}", None))

    def test_no_error_file_is_made(self):
        for mode, owner in (0o755, NOBODY), (0o4755, None):
            self.assertEqual(self.attack(self.user, "fail", mode=mode, TORCHELASTIC_ERROR_FILE=self.loot)[1], owner)

    def test_no_ddp_log_is_made(self):
        for mode, owner in (0o755, NOBODY), (0o4755, None):
            said, found = self.attack(self.ddp, "--steps", "3", mode=mode, CAIRN_DDP_LOG=self.loot)
            self.assertIn("step 1  loss", said)
            self.assertEqual(found, owner)

    def test_links_at_foreseeable_names_are_not_written_through(self):
        victim = self.folder + "/victim"
        for program, variable, name in (((self.user, "fail"), "TORCHELASTIC_ERROR_FILE", ".cairn-error-$$"),
                                        ((self.ddp, "--steps", "3"), "CAIRN_DDP_LOG", "loot.0.$$.tmp")):
            for link in "ln", "ln -s":
                with open(victim, "w", encoding="ascii") as f:
                    f.write("mine")
                subprocess.run(["sh", "-c", f'{link} {victim} {os.path.dirname(self.loot)}/{name}; exec "$@"', "sh",
                                *program], env={**os.environ, variable: self.loot}, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, timeout=60, check=False)
                with open(victim, encoding="ascii") as f:
                    self.assertEqual(f.read(), "mine", (variable, link))
                self.assertEqual(os.listdir(os.path.dirname(self.loot)), ["loot"], (variable, link))
                os.remove(self.loot)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("this needs root: it makes a set-user-ID program and starts it as another user")
        sys.exit(77)
    if os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOSUID:
        print(f"{tempfile.gettempdir()} is mounted nosuid; set TMPDIR to a folder where set-user-ID programs work")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
