"""Sites: directories with hosts, their switch, and shared storage."""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

from tools.hosts import kernel
from tools.hosts.host import Host
from tools.hosts.running import HostError
from tools.hosts.switch import Switch

# Parent directory of test sites; accessible to the user of the guests.
PARENT = pathlib.Path("/var/tmp")  # noqa: S108
_PREFIX = "nova-hosts."


class Site:
    """A site with its hosts and files in ``directory``.

    ``state``: a path at which every host mounts its own directory, as on machines with equal configurations;
    ``shared``: a path at which all hosts see the same directory.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.switch = Switch.load(directory / "switch")
        self.state = directory / "state"
        self.shared = directory / "shared"

    @classmethod
    def create(cls, directory: pathlib.Path, **switch: Any) -> Site:
        """Create a site without hosts, or keep an existing one. ``switch``: settings of its :class:`Switch`."""
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        Switch(directory / "switch", **switch).save()
        for place in ("state", "shared"):
            (directory / place).mkdir(exist_ok=True)
        return cls(directory)

    @classmethod
    def temporary(cls) -> Site:
        """Create a site owned by this process: :func:`sweep` removes the site after the process ended."""
        directory = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=PARENT))
        (directory / "owner").write_text(f"{os.getpid()} {kernel.started(os.getpid())}")
        return cls.create(directory)

    def add(self, number: int, name: str, *, kvm: bool = False, binds: list[tuple[str, str]] | None = None) -> Host:
        """Add a host, switched off; an existing disk is kept."""
        directory = self.directory / f"host-{number}"
        host = Host(directory, number, name, self.switch.address_of(number), kvm,
                    [(str(directory / "disk/state"), str(self.state))] if binds is None else binds)
        host.prepare()
        outside = "outside" if self.switch.own else socket.gethostname()
        names = {self.switch.address: outside, **{other.address: other.name for other in self.hosts()}}
        for other in self.hosts():
            other.write_hosts_file(names)
        return host

    def hosts(self) -> list[Host]:
        return [Host.load(path.parent) for path in sorted(self.directory.glob("host-*/host.json"))]

    def host(self, number: int) -> Host:
        return Host.load(self.directory / f"host-{number}")

    def remove(self) -> None:
        """Remove the site: processes, devices, cgroups and files."""
        for host in self.hosts():
            host.remove()
        self.switch.take_down()
        shutil.rmtree(self.directory)


def abandoned(parent: pathlib.Path = PARENT) -> Iterator[Site]:
    """Yield the sites whose owner process has ended."""
    for owner in parent.glob(f"{_PREFIX}*/owner"):
        number, start = owner.read_text().split()
        if kernel.started(int(number)) != start:
            yield Site(owner.parent)


def sweep(parent: pathlib.Path = PARENT) -> list[str]:
    """Remove abandoned sites; return an error message for each site that could not be removed."""
    errors = []
    for site in abandoned(parent):
        try:
            site.remove()
        except (HostError, OSError) as error:
            errors.append(f"{site.directory}: {error}")
    return errors
