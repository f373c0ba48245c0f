"""Fetched releases of novad, and the choice of the running one. Only the standard library is needed.

    releases/VERSION/      content of the wheels of a release
    releases/current       a link to the running release; without it, or if it is older, the installed package runs
    releases/trial         {"version", "previous"}: the running release is on trial: it was not found healthy yet
    releases/failed        {"version", "why"}: the last release that failed its trial

``trial`` is written before the link is changed, and the link is restored before ``trial`` is removed. A process that is
killed in between leaves a link to one of the two releases.
"""

import json
import os
import pathlib
import re
import shutil

from nova.common import files

_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){0,3}")


def number(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison. Raises ValueError for a text that is not a version."""
    if not _VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is not a version of a release (numbers separated by dots)")
    return tuple(map(int, re.sub(r"(\.0+)+\Z", "", version).split(".")))


def import_path(place: pathlib.Path) -> str:
    """Return the PYTHONPATH of a process that runs the release in a directory."""
    return os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])


class Releases:
    """The releases in a data directory."""

    def __init__(self, data_dir: str | pathlib.Path) -> None:
        self.place = pathlib.Path(data_dir) / "releases"

    def directory(self, version: str) -> pathlib.Path:
        return self.place / version

    def current(self, installed: str) -> str:
        """Return the version of the release to run, or "" for the installed package, whose version is ``installed``."""
        version = self._linked()
        try:
            return version if number(version) > number(installed) and (self.place / version).is_dir() else ""
        except ValueError:
            return ""

    def begin(self, version: str, previous: str) -> None:
        """Start this release on trial at the next start. ``previous``: the current release."""
        self._write("trial", {"version": version, "previous": previous})
        self._link(version)

    def trial(self) -> str:
        """Return the version of the running release if it is on trial, or ""."""
        version = self._read("trial").get("version", "")
        return version if version == self._linked() else ""

    def succeeded(self) -> None:
        """End the trial; keep the release and the previous one, remove others."""
        retained = {self._linked(), self._read("trial").get("previous", "")}
        self._drop("failed")
        self._drop("trial")
        for place in self.place.iterdir():
            if place.is_dir() and not place.is_symlink() and place.name not in retained:
                shutil.rmtree(place, ignore_errors=True)

    def failed(self, why: str) -> None:
        """Return to the previous release at the next start."""
        trial = self._read("trial")
        self._write("failed", {"version": trial.get("version", ""), "why": why})
        if before := trial.get("previous", ""):
            self._link(before)
        else:
            self._drop("current")
        self._drop("trial")

    def failure(self) -> tuple[str, str]:
        """Return (version, reason) of the last release that did not become healthy."""
        failed = self._read("failed")
        return failed.get("version", ""), failed.get("why", "")

    def _linked(self) -> str:
        try:
            return os.readlink(self.place / "current")
        except OSError:
            return ""

    def _link(self, version: str) -> None:
        fresh = self.place / ".current.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(version)
        fresh.replace(self.place / "current")
        files.sync_directory(self.place)

    def _read(self, name: str) -> dict[str, str]:
        try:
            content = json.loads((self.place / name).read_text())
        except (OSError, ValueError):
            return {}
        items = content.items() if isinstance(content, dict) else ()
        return {key: value for key, value in items if isinstance(value, str)}

    def _write(self, name: str, what: dict[str, str]) -> None:
        files.replace(self.place / name, json.dumps(what), mode=0o644, sync=True)

    def _drop(self, name: str) -> None:
        (self.place / name).unlink(missing_ok=True)
        if self.place.is_dir():
            files.sync_directory(self.place)
