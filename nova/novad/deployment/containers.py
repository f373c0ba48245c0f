"""Containers of deployed components: creation, start, health, version and dumps."""

import contextlib
import dataclasses
import logging
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

from nova.novad.deployment import health
from nova.novad.deployment.data import Data
from nova.novad.deployment.journal import Deployed
from nova.novad.errors import Failed, ImageFault, RuntimeFault
from nova.novad.platform import fill
from nova.novad.runtime.base import COMPONENT, CONFINED, DEPLOYMENT, PLATFORM, Image, Mount, Runtime, Wanted
from nova.novad.secrets import Secrets

LOG = logging.getLogger(__name__)

_LONGEST_DUMP = 6 * 3600.0  # Timeout of a dump or restore command in seconds.
_WORDS = 300  # Maximum number of characters of its output in an error.

# (component, progress): called for clients that follow a change.
Progress = Callable[[str, str], None]


@dataclasses.dataclass(frozen=True)
class Containers:
    """The containers of a platform. ``platform``: returns its current name; ``ending``: set when waiting must stop."""

    platform: Callable[[], str]
    runtime: Runtime
    data: Data
    secrets: Secrets
    ending: threading.Event

    def name(self, name: str) -> str:
        return f"{self.platform()}-{name}"

    def running(self, name: str) -> bool:
        return health.runs(self.runtime, self.name(name))

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

    @contextlib.contextmanager
    def _masking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeFault as error:
            error.message = self.secrets.masker().text(error.message)
            raise

    def fetch(self, reference: str, digest: str) -> Image:
        """Return the image with this name and digest ("": any digest), pulled if necessary. Raises ImageFault."""
        image = self.runtime.fetch(reference)
        if digest and image.digest != digest:
            raise ImageFault(f"{reference} has digest {image.digest} instead of the expected {digest}.")
        return image

    def have_image(self, deployed: Deployed, progress: Progress | None = None) -> None:
        """Pull the image of a deployed component if this node has lost it. Raises ImageFault."""
        if self.runtime.has_image(deployed.image):
            return
        if not deployed.digest:
            raise ImageFault(f"The image {deployed.image} of {deployed.name} is missing, and its digest is unknown.")
        if progress is not None:
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
        wanted = Wanted(
            name=self.name(name), image=deployed.image, component=component,
            env={key: fill(value, secrets) for key, value in component.env.items()},
            mounts=(*(Mount(self.data.volume(name, volume.name), volume.destination, (*volume.options, *CONFINED))
                      for volume in component.volumes),
                    *(Mount(file, destination, ("ro", *CONFINED)) for destination, file in files.items()),
                    *(Mount(pathlib.Path(bind.source), bind.destination, bind.options) for bind in component.binds)),
            networks=tuple(f"{self.platform()}-{name}" for name in component.networks),
            labels={PLATFORM: self.platform(), COMPONENT: name, DEPLOYMENT: str(deployed.deployment)})
        with self._masking():
            self.runtime.create(wanted)

    def begin(self, deployed: Deployed) -> None:
        """Start a component in its container, which is created if it does not exist."""
        if self.runtime.find(self.name(deployed.name)) is None:
            self.make(deployed)
        with self._masking():
            self.runtime.start(self.name(deployed.name))

    def wait(self, deployed: Deployed) -> None:
        """Wait until a component is healthy. Raises Failed."""
        try:
            health.wait(self.runtime, self.name(deployed.name), deployed.component, self.ending.is_set,
                        self.secrets.masker)
        except health.Unhealthy as error:
            raise Failed(f"Component {deployed.name} does not become healthy: {error.message}.") from None

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
            self._pipe(deployed, "dump", deployed.component.dump, None, file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        if not size:
            raise Failed(f"The dump command of {deployed.name} wrote no data.")
        return size

    def restore_dump(self, deployed: Deployed, place: str) -> None:
        """Send a dump to the restore command of a component, which runs with empty volumes. Raises Failed."""
        with self.data.dump(place).open("rb") as file:
            self._pipe(deployed, "restore", deployed.component.restore, file, None)

    def _pipe(self, deployed: Deployed, verb: str, command: tuple[str, ...], source: BinaryIO | None,
              target: BinaryIO | None) -> None:
        code, words = self.runtime.pipe(self.name(deployed.name), command, _LONGEST_DUMP, source, target)
        if code:  # Secrets are masked before the output is shortened.
            raise Failed(f"The {verb} command of {deployed.name} failed with exit code {code}: "
                         f"{self.secrets.masker().text(words).strip()[-_WORDS:]}")
