"""A small file system on a loop device. It can be filled up, and has no reserved blocks."""

import errno
import os
import shutil
import subprocess

from .loop_device import run

# XFS can't be made on a smaller device.
SIZE = 320 << 20

MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-m", "0"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-m", "reflink=1"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}


def mount_kind(test, kind, mount, image):
    """Makes a file system in `image`, a file or device, and mounts the file system until the end of
    the test. If this machine can't do that, the test is skipped."""
    if os.geteuid() != 0:
        test.skipTest("mounting a file system needs root")
    if shutil.which(MAKE[kind][0]) is None:
        test.skipTest(f"there is no {MAKE[kind][0]}: install {PACKAGES[kind]}")
    with open("/proc/filesystems", encoding="utf-8") as file:
        if kind not in file.read().split():
            test.skipTest(f"this kernel has no {kind}")
    try:
        run(*MAKE[kind], image)
        how = [] if image.startswith("/dev/") else ["-o", "loop"]
        run("mount", *how, image, mount)
    except (OSError, subprocess.CalledProcessError) as error:
        test.skipTest(f"no {kind} can be mounted on this machine: {getattr(error, 'stderr', error)}")
    test.addCleanup(subprocess.run, ["umount", "-l", mount], check=False)


class SmallFileSystem:
    """`mount` is the mount point."""

    def __init__(self, test, kind, mount):
        self.kind, self.mount = kind, mount
        image = mount + ".image"
        os.makedirs(mount)
        test.addCleanup(os.rmdir, mount)
        with open(image, "wb") as file:
            file.truncate(SIZE)
        test.addCleanup(os.remove, image)
        mount_kind(test, kind, mount, image)
        self.ballast = os.path.join(mount, "ballast")

    def write_back(self):
        """Writes back dirty pages. They are clean afterwards, so the next store to a mapped page
        makes the kernel ask the file system for space."""
        run("sync", "--file-system", self.mount)

    def fill(self):
        """Fills the file system, until no block is free."""
        descriptor = os.open(self.ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for step in (16 << 20, 1 << 20, 64 << 10, 4 << 10):
                try:
                    while True:
                        at = os.fstat(descriptor).st_size
                        os.posix_fallocate(descriptor, at, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_room(self):
        os.remove(self.ballast)
        self.write_back()

    def make_folder(self, name):
        """Returns the path of a folder that `copy` can copy once the folder has contents. On btrfs,
        makes the folder, as a subvolume. On other file systems, the folder does not exist yet."""
        folder = os.path.join(self.mount, name)
        if self.kind == "btrfs":
            run("btrfs", "-q", "subvolume", "create", folder)
        return folder

    def copy(self, folder, to):
        """Copies a folder by reflink: no data is copied, and the folder and its copy share each
        block."""
        target = os.path.join(self.mount, to)
        if self.kind == "btrfs":
            # The volume's files are overwritten in place. With such files, btrfs shares blocks only
            # between a subvolume and its snapshot.
            run("btrfs", "-q", "subvolume", "snapshot", folder, target)
        else:
            run("cp", "-r", "--reflink=always", folder, target)
        self.write_back()
