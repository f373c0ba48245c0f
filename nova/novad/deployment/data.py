"""The data of components: directories of this node, their backups, and the files that containers read.

The data directory and the directories below have mode 0700, whoever owns the files in them. Other accounts of the node
cannot reach a set-uid program in a volume or a file that belongs to a container's user.

    volumes/COMPONENT/VOLUME    volumes that containers mount
    backups/COMPONENT/N/VOLUME  copies of volumes, made before a deployment
    files/COMPONENT/NUMBER      configuration, written whenever the container is created
"""

import contextlib
import errno
import logging
import os
import pathlib
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from nova.common.errors import Refused, ReportedError
from nova.common.files import private_directory, replace
from nova.novad.platform import Component, Volume, fill

LOG = logging.getLogger(__name__)

_DUMP = ".dump"  # Not a valid name of a volume.
# Bytes that stay free on the file system, since a full disk stops the whole node.
_MARGIN = 64 * 1024 * 1024
_SLACK = 1024 * 1024  # Maximum number of bytes that a copy takes in addition to the size of its original.
WORDS = 300  # Maximum number of characters of a command's output in an error.


class Data:
    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        for name in ("volumes", "backups", "files"):
            private_directory(root / name, owned=True)

    def volume(self, component: str, volume: str) -> pathlib.Path:
        return self.root / "volumes" / component / volume

    def prepare(self, name: str, component: Component) -> None:
        """Give empty volumes to the user of the component."""
        for volume in component.volumes:
            place = self.volume(name, volume.name)
            place.mkdir(parents=True, exist_ok=True)
            if not any(stat.S_IMODE(parent.stat().st_mode) & 0o001 == 0 for parent in place.resolve().parents):
                LOG.warning("Volume %s of component %s is at %s, where other accounts of this node can run set-uid "
                            "programs that the component leaves there. Move it below a directory of mode 0700.",
                            volume.name, name, place.resolve())
            if not any(place.iterdir()):
                _give(place, component)

    def components(self) -> list[str]:
        """Return the components that have data on this node, deployed or not."""
        return sorted(place.name for place in (self.root / "volumes").iterdir())

    def remove(self, name: str) -> None:
        """Remove all volumes of a component, also those moved to another disk. Raises OSError."""
        place = self.root / "volumes" / name
        for volume in (*place.iterdir(), place) if place.is_dir() else ():
            _remove(volume.resolve())
            if volume.is_symlink():
                volume.unlink()

    def clear(self, name: str, volume: str) -> None:
        """Remove the data of one volume. Raises OSError."""
        _remove(self.volume(name, volume).resolve())
        with contextlib.suppress(OSError):  # The directory contains unrelated files.
            self.volume(name, volume).parent.rmdir()

    def holds(self, name: str, volumes: Iterable[Volume]) -> bool:
        """Return True if the volumes have data to back up, possibly of an earlier deployment of the component."""
        places = [self.volume(name, volume.name) for volume in volumes if volume.backup]
        return any(place.is_dir() and any(place.iterdir()) for place in places)

    def size(self, name: str, volumes: Iterable[Volume]) -> int:
        """Return the maximum size of a backup of the component in bytes."""
        return sum(_size(self.volume(name, volume.name)) for volume in volumes if volume.backup)

    def check_room(self, sizes: Sequence[int]) -> None:
        """Raise Refused if backups of this size and the restoration of one of them would fill the disk."""
        wanted = sum(sizes) + max(sizes, default=0)
        free = shutil.disk_usage(self.root).free
        if wanted and free < wanted + _MARGIN:
            raise Refused(f"Backups and their restoration need up to {wanted} bytes, and {free} are free in "
                          f"{self.root}. Nothing was changed. Free space with nova backup prune.")

    def back_up(self, name: str, volumes: Iterable[Volume], deployment: str | int) -> tuple[str, int]:
        """Copy the directories of a stopped component to its backup ``deployment``; return the path and the size."""
        place = self.place(name, deployment)
        target = self.root / place
        _remove(target)
        target.mkdir(parents=True)
        for volume in volumes:
            # An administrator may have moved the volume to another disk.
            source = self.volume(name, volume.name).resolve()
            if volume.backup and source.is_dir():
                _copy(source, target / volume.name)
        return place, _size(target)

    @staticmethod
    def place(name: str, deployment: str | int) -> str:
        """Return the path of a backup below the data directory."""
        return f"backups/{name}/{deployment}"

    def dump(self, place: str) -> pathlib.Path:
        """Return the path of the dump by a component's own command; most backups have none."""
        return self.root / place / _DUMP

    def restore(self, name: str, place: str) -> set[str]:
        """Restore and return the volumes of a backup. The call may be repeated after an interruption at any point. The
        current data are removed before the copy if the disk has no room for both. Raises ReportedError, OSError."""
        source = self.root / place
        if not source.is_dir():
            raise ReportedError(f"The backup {source} does not exist.")
        copies = [path for path in sorted(source.iterdir()) if path.name != _DUMP]
        for copy in copies:
            target = self.volume(name, copy.name).resolve()
            if not _run("mountpoint", "--quiet", str(target)):  # A mount point cannot be replaced.
                for path in target.iterdir():
                    _remove(path)
                _copy(copy, target)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            # Only leftovers of this copy: a moved volume may have unrelated files beside it.
            leftover = re.compile(rf"\.{re.escape(copy.name)}\.(?:[0-9a-f]{{8}}\.restored|replaced)")
            for former in target.parent.iterdir():
                if leftover.fullmatch(former.name):
                    _remove(former)
            # The copy command of a killed novad must never write to the directory of the current one.
            fresh = target.with_name(f".{copy.name}.{os.urandom(4).hex()}.restored")
            old = target.with_name(f".{copy.name}.replaced")
            if shutil.disk_usage(target.parent).free < _size(copy) + _SLACK:
                _remove(target)  # not lost: the backup contains this volume
            _copy(copy, fresh)
            if target.exists():
                target.rename(old)
            fresh.rename(target)
            _remove(old)
        return {copy.name for copy in copies}

    def drop_backup(self, place: str) -> None:
        """Delete the directory of a backup. Refuses any other path, whatever the journal contains."""
        target = self.root / place
        if (self.root / "backups") in target.parents:
            _remove(target)

    def write_files(self, name: str, component: Component, secrets: Mapping[str, str]) -> dict[str, pathlib.Path]:
        """Write the files of a component with the values of secrets; return {path in the container: path here}."""
        place = self.root / "files" / name
        _remove(place)
        place.mkdir(parents=True)
        files = {destination: place / str(number) for number, destination in enumerate(sorted(component.files))}
        for destination, file in files.items():
            replace(file, fill(component.files[destination], secrets), sync=True)
            _give(file, component)
        return files

    def remove_files(self, name: str) -> None:
        _remove(self.root / "files" / name)


def _give(place: pathlib.Path, component: Component) -> None:
    """Change the owner to the component's user, if that is a number: names are valid within the image only."""
    user = component.user.partition(":")[0]
    if user.isdigit():
        os.chown(place, int(user), -1)


def _size(place: pathlib.Path) -> int:
    """Return the bytes that the files below a directory occupy, without files that are too deep to be copied."""
    total = 0
    linked: set[tuple[int, int]] = set()
    waiting = [str(place)]
    while waiting:
        # A running component may change the directory during the scan.
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
                    elif (file := (status.st_dev, status.st_ino)) not in linked:
                        total += status.st_blocks * 512
                        linked.update([file] if status.st_nlink > 1 else [])
    return total


def _remove(place: pathlib.Path) -> None:
    """Remove a file or a directory of any depth (shutil.rmtree cannot); empty a mount point. Raises OSError."""
    if os.path.lexists(place) and (why := _run("rm", "-rf", "--", str(place))) and not (
            place.is_dir() and not any(place.iterdir())):
        raise OSError(errno.EIO, why, str(place))


def _run(*command: str) -> str:
    """Run a command. Return the reason of a failure without paths of the component, which may be very long, or ""."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or ["no error message"]
    return lines[-1].rpartition(": ")[2][:WORDS] if done.returncode else ""


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy with owners, times, links and holes; without copying blocks where the file system supports it."""
    # The copy command ends with novad; otherwise the next novad would find it still writing.
    if why := _run("setpriv", "--pdeathsig", "KILL", "cp", "-a", "--reflink=auto", "--sparse=auto", "-T", str(source),
                   str(target)) or _run("sync", "-f", str(target)):
        raise ReportedError(f"{source} could not be copied to {target}: {why}")
