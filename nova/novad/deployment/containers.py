"""Containers of deployed components: creation, start, health, version, dumps, and restoration of a former state. Also
deferred cleanup: removals that run after a change is committed. They are stored with it and cannot be undone."""

import contextlib
import dataclasses
import http.client
import logging
import os
import pathlib
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

from nova.common.errors import NotKnown, ReportedError, os_error_text
from nova.novad.deployment.data import WORDS, Data
from nova.novad.deployment.journal import Change, CleanupTask, Deployed, Deployment, Journal
from nova.novad.errors import Cancelled, Failed, ImageFault, RuntimeFault
from nova.novad.platform import Health, fill
from nova.novad.runtime.podman import COMPONENT, CONFINED, DEPLOYMENT, PLATFORM, Image, Mount, Podman, Wanted
from nova.novad.secrets import MaskedStream, Secrets

LOG = logging.getLogger(__name__)

_POLL_INTERVAL = 0.25  # Seconds between two checks of a starting container.
_SETTLED = 1.0  # Seconds after which a running component without a health check counts as healthy.
_LONGEST_DUMP = 6 * 3600.0  # Timeout of a dump or restore command in seconds.

# Kinds of cleanup tasks, as stored in the journal and shown to users.
BACKUP, FILES, DATA, NETWORK, SECRETS, OLD_SECRETS = "backup", "files", "data", "network", "secrets", "kept secrets"
VOLUME = "podman volume"
UNNAMED = "unnamed "  # Prefix of journal facts: anonymous podman volumes, which a removal of data deletes.

# (component, progress): called for clients that follow a change.
Progress = Callable[[str, str], None]


class Unhealthy(ReportedError):
    """A health check failed; the message has its result."""


@dataclasses.dataclass(frozen=True)
class Containers:
    """The containers of the platform named by ``platform()``. Methods can be repeated. ``ending``: set to end waits."""

    platform: Callable[[], str]
    journal: Journal
    runtime: Podman
    data: Data
    secrets: Secrets
    ending: threading.Event

    def name(self, name: str) -> str:
        return f"{self.platform()}-{name}"

    def running(self, name: str) -> bool:
        state = self.runtime.find(self.name(name))
        return state is not None and state.running

    def stop(self, deployed: Deployed) -> None:
        self._remove_renamed(deployed)
        self.runtime.stop(self.name(deployed.name), deployed.component.stop_timeout)

    def _remove_renamed(self, deployed: Deployed) -> None:
        """Remove containers of a component that an operator renamed: two of them would write to the same data."""
        name = self.name(deployed.name)
        for container in self.runtime.containers(self.platform()):
            if container.labels.get(COMPONENT) == deployed.name and container.name != name:
                LOG.warning("Removing container %s: it was renamed, and component %s gets a new container %s",
                            container.name, deployed.name, name)
                self.runtime.stop(container.name, deployed.component.stop_timeout)
                self.runtime.remove(container.name)

    def remove(self, deployed: Deployed) -> None:
        self.stop(deployed)
        self.runtime.remove(self.name(deployed.name))

    def fetch(self, reference: str, digest: str) -> Image:
        """Return the image with this name and digest ("": any digest), pulled if necessary. Raises ImageFault."""
        image = self.runtime.fetch(reference)
        if digest and image.digest != digest:
            raise ImageFault(f"{reference} has digest {image.digest} instead of the expected {digest}.")
        return image

    def have_image(self, deployed: Deployed, progress: Progress = lambda _name, _what: None) -> None:
        """Pull the image of a deployed component if this node has lost it. Raises ImageFault."""
        if self.runtime.has_image(deployed.image):
            return
        if not deployed.digest:
            raise ImageFault(f"The image {deployed.image} of {deployed.name} is missing, and its digest is unknown.")
        progress(deployed.name, f"fetching {deployed.digest}")
        image = self.fetch(f"{deployed.component.image}@{deployed.digest}", deployed.digest)
        if image.ident != deployed.image:
            raise ImageFault(f"{deployed.component.image}@{deployed.digest} is not the image that was deployed.")

    def make(self, deployed: Deployed) -> None:
        """Create the container of a component as it was deployed, in place of an existing one."""
        name, component = deployed.name, deployed.component
        self.have_image(deployed)
        self._remove_renamed(deployed)
        for network in component.networks:
            self.runtime.make_network(f"{self.platform()}-{network}")
        self.data.prepare(name, component)
        secrets = self.secrets.values(component.secrets())
        files = self.data.write_files(name, component, secrets)
        self.runtime.create(Wanted(
            name=self.name(name), image=deployed.image, component=component,
            env={key: fill(value, secrets) for key, value in component.env.items()},
            mounts=(*(Mount(self.data.volume(name, volume.name), volume.destination, (*volume.options, *CONFINED))
                      for volume in component.volumes),
                    *(Mount(file, destination, ("ro", *CONFINED)) for destination, file in files.items()),
                    *(Mount(pathlib.Path(bind.source), bind.destination, bind.options) for bind in component.binds)),
            networks=tuple(f"{self.platform()}-{name}" for name in component.networks),
            labels={PLATFORM: self.platform(), COMPONENT: name, DEPLOYMENT: str(deployed.deployment)}))

    def begin(self, deployed: Deployed) -> None:
        """Start a component in its container, which is created if it does not exist. Masks secrets in errors."""
        try:
            if self.runtime.find(self.name(deployed.name)) is None:
                self.make(deployed)
            self.runtime.start(self.name(deployed.name))
        except RuntimeFault as error:
            raise type(error)(self.secrets.masker().text(error.message)) from None

    def wait(self, deployed: Deployed) -> None:
        """Wait until a component is healthy. Raises Failed after ``start`` seconds or if it exits, and Cancelled."""
        how = deployed.component.health
        begun = time.monotonic()
        while not self.ending.is_set():
            passed = time.monotonic() - begun
            try:
                self.check(deployed)
                if how is not None or passed >= _SETTLED:
                    return
            except Unhealthy as error:
                if passed >= (how.start if how else _SETTLED) or not self.running(deployed.name):
                    raise Failed(f"Component {deployed.name} does not become healthy: {error.message}"
                                 f"{self._last_words(deployed.name)}.") from None
            time.sleep(_POLL_INTERVAL)
        raise Cancelled("novad is stopping")

    def check(self, deployed: Deployed) -> None:
        """Run the health check of a component once. Raises RuntimeFault, Unhealthy."""
        name, how = self.name(deployed.name), deployed.component.health
        state = self.runtime.find(name)
        if state is None:
            raise Unhealthy("the container does not exist")
        if not state.running:
            raise Unhealthy(f"the container exited with code {state.exit_code}")
        if how is not None and how.command:
            try:
                code, output = self.runtime.execute(name, how.command, how.timeout)
            except RuntimeFault:
                if self.running(deployed.name):
                    raise
                raise Unhealthy("the container exited during the health check") from None
            if code:  # Secrets are masked before the output is shortened.
                end = self.secrets.masker().text(output).strip()[-WORDS:]
                raise Unhealthy(f"the health command exited with code {code}: {' | '.join(end.splitlines())}")
        elif how is not None and how.http:
            _get(how)
        elif how is not None:
            host, _colon, port = how.tcp.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=how.timeout).close()
            except OSError as error:
                raise Unhealthy(f"{how.tcp} does not accept connections: {error}") from None

    def _last_words(self, name: str) -> str:
        """Return the end of the log of a component for an error, or ""."""
        stream = MaskedStream(self.secrets.masker())
        try:
            batches = self.runtime.logs(self.name(name), False, 5).batches()
            lines = [line for some in batches for line in stream.lines(some)]
        except ReportedError:
            return ""
        text = " | ".join(line.strip() for line in lines)[-500:]
        printable = "".join(character if character.isprintable() else "?" for character in text)
        return f"; the end of its log: {printable}" if lines else ""

    def version(self, deployed: Deployed) -> str:
        """Return the output of the version command; without a command, or if it fails, the name of the version."""
        component = deployed.component
        if component.version_command:
            try:
                code, output = self.runtime.execute(self.name(deployed.name), component.version_command, 10.0)
            except RuntimeFault as error:
                LOG.warning("The version command of component %s failed: %s", deployed.name, error.message)
                return component.tag
            if code == 0 and (lines := self.secrets.masker().text(output).strip().splitlines()):
                return "".join(character for character in lines[0] if character.isprintable())[:200]
        return component.tag

    def dump(self, deployed: Deployed, place: str) -> int:
        """Write the dump of a component to the place of a backup; return its size. Raises Failed, OSError."""
        path = self.data.dump(place)
        path.parent.mkdir(parents=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # for root only
            self._pipe(deployed, "dump", None, file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        if not size:
            raise Failed(f"The dump command of {deployed.name} wrote no data.")
        return size

    def restore_dump(self, deployed: Deployed, place: str) -> None:
        """Send a dump to the restore command of a component, which runs with empty volumes. Raises Failed."""
        with self.data.dump(place).open("rb") as file:
            self._pipe(deployed, "restore", file, None)

    def _pipe(self, deployed: Deployed, verb: str, source: BinaryIO | None, target: BinaryIO | None) -> None:
        command = getattr(deployed.component, verb)
        code, words = self.runtime.pipe(self.name(deployed.name), command, _LONGEST_DUMP, source, target)
        if code:  # Secrets are masked before the output is shortened.
            raise Failed(f"The {verb} command of {deployed.name} failed with exit code {code}: "
                         f"{self.secrets.masker().text(words).strip()[-WORDS:]}")

    # --- restoration of the state before a change ---------------------------------------------------
    def restore_backup(self, change: Change) -> str:
        """Restore the volumes from the backup of a change. A dump is read later, by the running component: return the
        path of its backup, or "". Raises NotKnown."""
        backup = self.journal.backup(change.restore)
        path = backup.path if backup else ""
        if change.restore and not path:
            raise NotKnown(f"Backup {change.restore} of {change.name} does not exist.")
        self._restore_volumes(change, path)
        return path if path and self.data.dump(path).exists() else ""

    def _restore_volumes(self, change: Change, path: str) -> None:
        """Restore the volumes in the backup at ``path`` ("": no backup); clear volumes that are not in the backup."""
        restored = self.data.restore(change.name, path) if path else set()
        for volume in change.volumes:
            if volume.backup and volume.name not in restored:
                self.data.clear(change.name, volume.name)

    def restore_data(self, ident: int, changes: Sequence[Change], progress: Progress) -> None:
        """Stop the components and restore the data that deployment ``ident`` backed up."""
        paths = {backup.component: backup.path for backup in self.journal.backups() if backup.deployment == ident}
        for change in reversed(changes):
            if (stopping := change.after or change.before) is not None:
                progress(change.name, "undo: stopping")
                self.remove(stopping)
        for change in changes:
            if change.name in paths:
                progress(change.name, "undo: restoring its data")
            self._restore_volumes(change, paths.get(change.name, ""))

    def restore_containers(self, changes: Sequence[Change], progress: Progress) -> None:
        """Start the previous containers and wait for their health checks. Raises an error after all were tried."""
        previous = [change.before for change in changes if change.before is not None]
        with contextlib.ExitStack() as starts:  # Runs all calls in reverse order, and raises an error at the end.
            for before in reversed(previous):
                starts.callback(self.begin, before)
                starts.callback(progress, before.name, "undo: starting the previous version")
        for before in previous:
            try:
                self.wait(before)
            except Failed as error:
                LOG.warning("The restored version of component %s is running, but not healthy: %s", before.name, error)

    def remove_partial_backups(self, deployment: Deployment) -> None:
        """Remove backups of a deployment that were not completed."""
        complete = {backup.path for backup in self.journal.backups()}
        for change in deployment.changes:
            if (path := self.data.place(change.name, label(deployment))) not in complete:
                self.data.drop_backup(path)

    # --- deferred cleanup ---------------------------------------------------------------------------
    def removal_tasks(self, volumes: bool, secrets: bool) -> list[CleanupTask]:
        """Return the removal tasks of all data and all secrets on this node."""
        return [*(CleanupTask(kind=DATA, name=name) for name in self.data.components() if volumes),
                *(CleanupTask(kind=VOLUME, name=name) for name in self.journal.facts(UNNAMED) if volumes),
                *([CleanupTask(kind=SECRETS, name="")] if secrets else [])]

    def tasks_after(self, changes: Sequence[Change], undone: bool = False) -> list[CleanupTask]:
        """Return the cleanup tasks after these changes or their undo: files, unused networks, old secret values."""
        deployed = {**self.journal.components(),
                    **{change.name: change.before if undone else change.after for change in changes}}
        touched = _networks([state for change in changes for state in (change.before, change.after)])
        return [*(CleanupTask(kind=FILES, name=name) for name in sorted(deployed) if deployed[name] is None),
                *(CleanupTask(kind=NETWORK, name=name) for name in sorted(touched - _networks(deployed.values()))),
                CleanupTask(kind=OLD_SECRETS, name="")]

    def clean_up(self, progress: Progress = lambda _name, _what: None) -> list[str]:
        """Execute all cleanup tasks, within the lock of changes. A task that fails is retried at the next call. Return
        the data and secrets that could not be removed, with the reasons."""
        left: list[str] = []
        for task in self.journal.cleanup_tasks():
            try:
                self._execute(task, progress)
            except (RuntimeFault, OSError) as error:
                LOG.warning("Cannot remove %s %s, retrying later: %s", task.kind, task.name, error)
                why = os_error_text(error) if isinstance(error, OSError) else error
                progress(task.name, f"cannot remove its {task.kind}, retrying later: {why}")
                if task.kind in (DATA, SECRETS):
                    left.append(f"{task.kind} of {task.name or self.platform()}: {why}")
            else:
                self.journal.cleanup_done(task.id)
        return left

    def _execute(self, task: CleanupTask, progress: Progress) -> None:
        current = self.journal.components()
        if task.kind == BACKUP:
            self.data.drop_backup(task.name)
        elif task.kind == FILES and task.name not in current:
            self.data.remove_files(task.name)
        elif task.kind == DATA and task.name not in current:
            progress(task.name, "removing its data")
            self.data.remove(task.name)
        elif task.kind == VOLUME:
            self.runtime.remove_volume(task.name)
            self.journal.drop_fact(f"{UNNAMED}{task.name}")
        elif task.kind == NETWORK and task.name not in _networks(current.values()):
            self.runtime.remove_network(f"{self.platform()}-{task.name}")
        elif task.kind == SECRETS and not current:
            progress("", "removing secrets")
            self.secrets.remove()
        elif task.kind == OLD_SECRETS:
            self.secrets.forget()


def _get(health: Health) -> None:
    url = urllib.parse.urlsplit(health.http)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    late = threading.Event()
    try:
        with contextlib.closing(kind(url.hostname or "", url.port, timeout=health.timeout)) as connection:
            connection.connect()
            sock = connection.sock
            def end() -> None:
                late.set()
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            # The timeout covers the whole response, so that a response byte by byte cannot take longer.
            timer = threading.Timer(health.timeout, end)
            timer.start()
            try:
                connection.request("GET", (url.path or "/") + (f"?{url.query}" if url.query else ""))
                status = connection.getresponse().status
            finally:
                timer.cancel()
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = f"no answer in {health.timeout:g} seconds" if late.is_set() else str(error) or type(error).__name__
        raise Unhealthy(f"{health.http} does not answer: {why}") from None
    if status >= 500:
        raise Unhealthy(f"{health.http} answers {status}")


def _networks(components: Iterable[Deployed | None]) -> set[str]:
    return {network for deployed in components if deployed is not None for network in deployed.component.networks}


def label(deployment: Deployment) -> str:
    """Return the name of the backups of a deployment, with its time, since a new journal counts from 1 again."""
    return f"{deployment.id}-{int(deployment.started * 1000)}"
