"""A loop device whose image is in memory. A test can take this memory away."""

import os
import subprocess

from .wait import until


def run(*command):
    out = subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return out.stdout.decode().strip()


def attach(test, image):
    """Attaches a loop device to an image, until the end of the test. Returns the device's path."""
    path = run("losetup", "--find", "--show", image)
    test.addCleanup(run, "losetup", "--detach", path)
    return path


def unmount(folder):
    """Unmounts the folder as soon as nobody uses it. Files that a killed process had in its
    io_uring rings are closed a little after the process has ended."""

    def is_unmounted():
        line = ["umount", folder]
        return subprocess.run(line, capture_output=True, check=False).returncode == 0

    until(is_unmounted, what=f"unmounting {folder}")


class LoopDevice:
    """`path` is the device. `image` is the file behind the device, and lies in the folder `mount`.

    The device goes away with the test. If no such device can be made, the test is skipped.
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
            test.skipTest(f"no loop device can be made: {getattr(error, 'stderr', error)}")

    def take_memory_away(self):
        """Frees the memory behind the device, and uses this memory up, so that the device can no
        longer store anything.

        Writes from now on get an I/O error. Earlier contents read as zeros.
        """
        run("fallocate", "--punch-hole", "--offset", "0", "--length", str(self.size), self.image)
        with open(os.path.join(self.mount, "ballast"), "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass
