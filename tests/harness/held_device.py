"""A loop device that can be told to hold up writes, and a place for a volume on this device."""

import os
import subprocess

from .held_writes import HeldWrites
from .loop_device import LoopDevice, run
from .server import Server

# About the smallest device that a volume fits on.
DEVICE_SIZE = 160 << 20
# The smallest device that mkfs.xfs accepts is larger.
XFS_SIZE = 320 << 20

MKFS_OPTIONS = {
    "ext4": ("-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("-q",),
}


class HeldDevice:
    """`path` is the device, and `held` holds up what is written to the device. `volume` is the
    device itself. If `file_system` is given, `volume` is a folder on such a file system on the
    device.

    The device goes away with the test. If no such device can be made, the test is skipped.
    """

    def __init__(self, test, file_system=None):
        with Server(start=False) as server:
            place = server.folder
        size = XFS_SIZE if file_system == "xfs" else DEVICE_SIZE
        memory = f"{(size >> 20) + 40}m"
        self.path = LoopDevice(test, place + "-memory", size, memory_size=memory).path
        self.held = HeldWrites(test, self.path)
        self.volume = self.path
        if file_system is not None:
            self.volume = os.path.join(self._mount(test, file_system, place + "-files"), "volume")

    def _mount(self, test, kind, folder):
        try:
            run(f"mkfs.{kind}", *MKFS_OPTIONS[kind], self.path)
        except (OSError, subprocess.CalledProcessError) as error:
            test.skipTest(f"no {kind} can be made on this machine: {getattr(error, 'stderr', error)}")
        os.makedirs(folder)
        test.addCleanup(os.rmdir, folder)
        run("mount", self.path, folder)
        test.addCleanup(run, "umount", "-l", folder)
        return folder
