"""A loop device on a file in memory, whose room can run out beneath it."""

import os
import subprocess

from .wait import until


def run(*command):
    out = subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return out.stdout.decode().strip()


def attach(test, image):
    """A loop device over an image; gone with the test."""
    path = run("losetup", "--find", "--show", image)
    test.addCleanup(run, "losetup", "--detach", path)
    return path


def unmount(folder):
    """Waits until nobody holds it: what a killed process had in its rings is let go of a little after
    the process is gone."""

    def is_unmounted():
        line = ["umount", folder]
        return subprocess.run(line, capture_output=True, check=False).returncode == 0

    until(is_unmounted, what=f"unmounting {folder}")


class LoopDevice:
    """`path` is the device, `image` what is behind it, in the folder `mount`.

    Goes away with the test; the test is skipped where none can be made.
    """

    def __init__(self, test, mount, size, memory_size):
        if os.geteuid() != 0:
            test.skipTest("a loop device needs root")
        self.mount, self.size = mount, size
        os.makedirs(mount)
        test.addCleanup(os.rmdir, mount)
        self.image = os.path.join(mount, "image")
        try:
            run("mount", "-t", "tmpfs", "-o", f"size={memory_size}", "slimio-test", mount)
            test.addCleanup(run, "umount", "-l", mount)
            with open(self.image, "wb") as file:
                file.truncate(size)
            self.path = attach(test, self.image)
        except (OSError, subprocess.CalledProcessError) as error:
            test.skipTest(f"no loop device can be made here: {getattr(error, 'stderr', error)}")

    def take_memory_away(self):
        """Nothing is stored behind the device any more, and there is no memory to store it again.

        Blocks written from now on get an I/O error. What was there reads as zeros.
        """
        run("fallocate", "--punch-hole", "--offset", "0", "--length", str(self.size), self.image)
        with open(os.path.join(self.mount, "ballast"), "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass
