"""Updates of novad: the latest release is fetched, verified and started on trial (nova.novad.release.launcher).

``update_url`` is a directory with ``releases.json``, its signature ``releases.json.sig`` (Ed25519, base64), and wheels:

    {"expires": "2027-02-23T12:00:00Z",
     "releases": [{"version": "1.2", "wheels": [{"file": "nova-1.2-py3-none-any.whl", "sha256": "…", "size": 123}]}]}
"""

import base64
import binascii
import contextlib
import datetime
import hashlib
import http.client
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from nova import __version__
from nova.common.errors import Refused
from nova.novad.deployment.containers import Progress
from nova.novad.deployment.deploy import Deployer
from nova.novad.errors import Busy
from nova.novad.options import Options
from nova.novad.release.launcher import LAUNCHED, RELEASE, Releases, import_path, number

_UNPACKED = 1024 * 1024 * 1024  # Maximum number of bytes of a release.
_MARGIN = 64 * 1024 * 1024  # Bytes of the disk that stay free.
_TIMEOUT, _FETCHED = 30.0, 1800.0  # Timeouts in seconds: without data from the server, and of a whole download.
_NAMES = r"^[A-Za-z0-9_][A-Za-z0-9._+-]{0,200}\.whl\Z"


class Wheel(msgspec.Struct, frozen=True):
    file: Annotated[str, msgspec.Meta(pattern=_NAMES)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=1, le=_UNPACKED)]


class Release(msgspec.Struct, frozen=True):
    version: str
    wheels: Annotated[tuple[Wheel, ...], msgspec.Meta(min_length=1, max_length=200)]


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The list of releases. The expiry prevents an old list from hiding newer releases for ever."""

    expires: Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    releases: tuple[Release, ...] = ()


class Updates:
    """Updates of novad. ``restart``: makes novad exit and start again. Raises Refused, or Busy during a deployment."""

    def __init__(self, options: Options, deployer: Deployer, restart: Callable[[], None]) -> None:
        self.options = options
        self.deployer = deployer
        self.releases = Releases(options.data_dir)
        self._restart = restart
        self._single = threading.Lock()

    def latest(self) -> Release | None:
        """Return the newest release; pre-releases are ignored. Raises Refused."""
        self._check_options()
        data = b"".join(self._pieces("releases.json", 1024 * 1024))
        self._verify(data)
        try:
            index = msgspec.json.decode(data, type=Index)
        except msgspec.MsgspecError as error:
            raise _refusal(f"{self._url('releases.json')} is not a list of releases: {error}") from None
        now, expires = datetime.datetime.now(datetime.UTC), index.expires.astimezone(datetime.UTC)
        if expires <= now:
            raise _refusal(f"{self._url('releases.json')} expired at {expires:%Y-%m-%d %H:%M} UTC, and it is "
                           f"{now:%Y-%m-%d %H:%M} UTC on this node: sign it again")
        releases: dict[tuple[int, ...], Release] = {}
        for release in index.releases:
            with contextlib.suppress(ValueError):
                releases[number(release.version)] = release
        return releases[max(releases)] if releases else None

    def update(self, progress: Progress) -> None:
        """Install a newer release if there is one; it starts after the return."""
        if not self._single.acquire(blocking=False):
            raise Busy("Another update is in progress.")
        try:
            with self.deployer.changing("update"):
                pass  # Only raise Busy, before anything is downloaded.
            if self.releases.trial():
                raise Busy(f"novad {__version__} is still on trial.")
            self._check_options()
            progress("", f"requesting the list of releases from {self.options.update_url}")
            release = self.latest()
            if release is None or number(release.version) == number(__version__):
                progress("", f"novad {__version__} is the latest")
                return
            if number(release.version) < number(__version__):
                progress("", f"novad {__version__} is newer than the latest release, {release.version}")
                return
            if not os.environ.get(LAUNCHED):
                raise Refused("novad was started without update_url: restart novad, then repeat the command.")
            self._fetch(release, progress)
            self._try(release)
            with self.deployer.changing("update"):
                self.releases.begin(release.version, os.environ.get(RELEASE, ""))
                self.deployer.ending.set()
            progress("", f"starting novad {release.version} in place of {__version__}")
            self._restart()
        finally:
            self._single.release()

    def _check_options(self) -> None:
        if not self.options.update_url:
            raise Refused("update_url is not set in novad.toml: there is nothing to update from.")

    def _fetch(self, release: Release, progress: Progress) -> None:
        place = self.releases.place
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_room(5 * sum(wheel.size for wheel in release.wheels))  # Unpacked wheels are up to 4 times as large.
        fresh = place / f".{release.version}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir(mode=0o700)
            for wheel in release.wheels:
                progress("", f"fetching {wheel.file}")
                self._wheel(wheel, fresh)
            os.sync()
            shutil.rmtree(self.releases.place / release.version, ignore_errors=True)
            fresh.rename(self.releases.place / release.version)
        except OSError as error:
            raise _refusal(f"The release {release.version} cannot be stored: {error}") from None
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _wheel(self, wheel: Wheel, place: pathlib.Path) -> None:
        """Download a wheel, verify its checksum, and unpack it. Raises Refused, OSError."""
        target, digest = place / wheel.file, hashlib.sha256()
        with open(target, "wb") as file:
            for piece in self._pieces(wheel.file, wheel.size):
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != wheel.sha256:
            raise _refusal(f"{self._url(wheel.file)} does not have the checksum of releases.json")
        try:
            with zipfile.ZipFile(target) as archive:
                members = [member for member in archive.infolist() if not member.is_dir()]
                self._check_room(sum(member.file_size for member in members))
                for member in members:
                    path = pathlib.PurePosixPath(member.filename)
                    if path.is_absolute() or ".." in path.parts or "\\" in member.filename or stat.S_ISLNK(
                            member.external_attr >> 16):
                        raise _refusal(f"{wheel.file} has a file with a path outside of the wheel: {member.filename!r}")
                    archive.extract(member, place)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            raise _refusal(f"{wheel.file} is not a wheel: {error}") from None
        target.unlink()

    def _check_room(self, size: int) -> None:
        free = shutil.disk_usage(self.releases.place).free
        if size > _UNPACKED * 4 or free < size + _MARGIN:
            raise _refusal(f"The release needs up to {size} bytes, but only {free} are free in {self.releases.place}")

    def _try(self, release: Release) -> None:
        """Check that this node can import the release, and that it has the announced version."""
        place = self.releases.place / release.version
        environment = {**os.environ, "PYTHONPATH": import_path(place), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            result = subprocess.run([sys.executable, "-P", "-m", "nova.cmd.novad", "--version"], env=environment,
                                    capture_output=True, text=True, timeout=60.0, check=False)
            said = result.stdout.strip() if result.returncode == 0 else result.stderr.strip()[-300:]
        except subprocess.TimeoutExpired:
            said = "nothing"
        if said != f"novad {release.version}":
            shutil.rmtree(place, ignore_errors=True)
            raise _refusal(f"The release {release.version} cannot be used; its version command printed: {said}")

    def _url(self, name: str) -> str:
        return f"{self.options.update_url.rstrip('/')}/{name}"

    def _pieces(self, name: str, most: int) -> Iterator[bytes]:
        """Return the content of a file, at most ``most`` bytes. Raises Refused."""
        left, end = most, time.monotonic() + _FETCHED
        try:
            with urllib.request.urlopen(self._url(name), timeout=_TIMEOUT) as answer:  # noqa: S310 (options checks it)
                if self.options.update_url.startswith("https:") and not answer.geturl().startswith("https:"):
                    raise ValueError(f"redirected to an address without TLS: {answer.geturl()}")
                while piece := answer.read(1 << 20):
                    left -= len(piece)
                    if left < 0:
                        raise ValueError(f"the file is larger than the allowed {most} bytes")
                    if time.monotonic() > end:
                        raise ValueError(f"the transfer took longer than {_FETCHED:.0f} seconds")
                    yield piece
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            raise _refusal(f"{self._url(name)} cannot be fetched: {why}") from None

    def _verify(self, data: bytes) -> None:
        """Raise Refused unless the list was signed with update_key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(pathlib.Path(self.options.update_key).read_bytes())
        except (OSError, ValueError) as error:
            raise _refusal(f"update_key: {self.options.update_key} cannot be read: {error}") from None
        if not isinstance(key, Ed25519PublicKey):
            raise _refusal(f"update_key: {self.options.update_key} is not an Ed25519 key")
        try:
            signature = b"".join(self._pieces("releases.json.sig", 1024)).strip()
            key.verify(base64.b64decode(signature, validate=True), data)
        except (InvalidSignature, binascii.Error):
            raise _refusal(f"{self._url('releases.json')} was not signed with update_key") from None


def _refusal(why: str) -> Refused:
    return Refused(f"{why}. Nothing was changed.")
