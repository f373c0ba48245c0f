"""The description of a driver under test, which the contract suite uses."""

from __future__ import annotations

import abc
import contextlib
import inspect
import os
import pathlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from nova import exception
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF
from nova.objects.servers.guest import GuestStatus
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import VolumeConnection
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.driver import Driver
from tests.polling import poll
from tools.feature_matrix import ROLES

# Verbs that a driver need not override, since doing nothing, or returning nothing, is right.
OPTIONAL = frozenset({"guests.define", "guests.remove_orphan", "guests.device_addresses", "guests.traces",
                      "disks.exist", "disks.used_images", "snapshots.unquiesce", "cold_migration.check_resize",
                      "cold_migration.close_disks", "cold_migration.revert"})


def all_verbs() -> set[str]:
    """Return the verbs of all roles, as "role.verb"."""
    return {f"{role}.{verb}" for role, base in ROLES.items() for verb, _ in inspect.getmembers(base, inspect.isfunction)
            if not verb.startswith("_")}


COVERED: set[str] = set()


def covers(*verbs: str, optional: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Mark a test of the contract with the verbs that it tests. It is skipped for drivers without one of them.
    ``optional``: verbs that the test leaves out where the driver does not support them."""
    COVERED.update(verbs, optional)
    return pytest.mark.verbs(*verbs)


class Subject(abc.ABC):
    """A driver under test on this machine. ``events``: the reports of the driver."""

    # Seconds that a booted guest needs at most to shut down by itself.
    shutdown_seconds = 60
    # Verbs that are expensive to test here -> the file that tests them.
    elsewhere: Mapping[str, str] = {}
    # False if the driver reports no changes that a caller caused.
    reports_own_changes = True
    # True if guests are machines: their disks exist as long as the guest, new disks are booted, and the host itself has
    # no resources.
    bare_metal = False
    # False if the hypervisor has the present use of CPUs, but no CPU times.
    measures_cpu_time = True

    def __init__(self) -> None:
        self.events: list[GuestStatus] = []
        self.driver = self.make_driver()
        self.driver.start(self.events.append)

    @classmethod
    def missing(cls) -> str:
        """Return the reason why this machine cannot run the driver, or ""."""
        return ""

    @abc.abstractmethod
    def make_driver(self) -> Driver:
        """Return another driver object of the same host."""

    @abc.abstractmethod
    def server(self, **fields: Any) -> Instance:
        """Return a small server with a unique identity."""

    def files(self, instance: Instance) -> BootFiles:
        """Return the files from which the server boots."""
        return BootFiles()

    @abc.abstractmethod
    def volume(self, number: int) -> BlockDevice:
        """Return a connected volume of 64 MiB, always the same for a number."""

    @abc.abstractmethod
    def interface(self, number: int) -> VIF:
        """Return an interface that is plugged on this host."""

    def wait_until_booted(self, instance: Instance, times: int = 1) -> None:
        """Wait until the guest has booted ``times`` times, and obeys requests to shut down."""

    def close(self) -> None:
        """Remove all guests and stop the driver."""
        self.remove_guests()
        self.driver.stop()

    def remove_guests(self) -> None:
        for guest in self.driver.guests.traces():
            self.driver.guests.remove_orphan(guest)

    def restart(self) -> None:
        """Replace the driver as a restart of nova-compute does. Guests keep running."""
        self.driver.stop()
        self.events.clear()
        self.driver = self.make_driver()
        self.driver.start(self.events.append)

    # --- for all tests -----------------------------------------------------------------------------
    def boot(self, wait: bool = False, **fields: Any) -> Instance:
        """Return a server with a running guest; ``wait``: until it has booted."""
        instance = self.server(**fields)
        files = self.files(instance)
        self.driver.disks.prepare(instance, files)
        self.driver.guests.spawn(instance, files)
        if wait:
            self.wait_until_booted(instance)
        return instance

    def has_disks(self, instance: Instance) -> bool:
        return self.driver.disks.exist(instance)

    def state(self, instance: Instance) -> int:
        return self.driver.guests.power_state(instance.uuid)

    def arguments(self, verb: str, instance: Instance) -> dict[str, Any]:
        """Return arguments for a call of a verb about the server, by name."""
        role, name = verb.split(".")
        values: dict[str, Any] = {
            "instance": instance, "uuid": instance.uuid, "files": BootFiles(), "cancelled": threading.Event(),
            "device": self.volume(9), "old": self.volume(8), "new": self.volume(9), "vif": self.interface(9),
            "image_id": "5e6c1a0e-0000-4000-8000-000000000001", "image": Image(id="i"), "password": "secret",
            "flavor": instance.flavor, "size_gb": 1, "token": "t", "top": None, "base": None, "protocol": "vnc",
            "hard": True, "source": None, "target": None, "on_progress": lambda _progress: None}
        signature = inspect.signature(getattr(ROLES[role], name))
        return {parameter: values[parameter] for parameter, detail in signature.parameters.items()
                if parameter != "self" and detail.default is inspect.Parameter.empty}

    def call(self, verb: str, instance: Instance) -> Any:
        role, name = verb.split(".")
        return getattr(getattr(self.driver, role), name)(**self.arguments(verb, instance))


def file_volume(place: pathlib.Path, number: int) -> BlockDevice:
    """Return a volume of 64 MiB in a file of the directory."""
    path = place / f"volume-{number}"
    if not path.exists():
        path.touch(0o600)
        os.truncate(path, 64 << 20)
    identity = str(uuid.UUID(int=number))
    return BlockDevice(source="volume", destination="volume", volume_id=identity, uuid=str(uuid.UUID(int=99 + number)),
                       connection=VolumeConnection(volume_id=identity, path=str(path), serial=identity))


def wait_for(condition: Callable[[], Any], seconds: float, reason: str) -> Any:
    value = poll(condition, seconds)
    assert value, f"not within {seconds} s: {reason}"
    return value


@contextlib.contextmanager
def faster_than(seconds: float) -> Iterator[None]:
    """Fail a call that waited for a timeout which is longer than ``seconds``."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds, "the call waited for its timeout"


def refused(subject: Subject, verb: str, instance: Instance) -> bool:
    """Return True if the verb is refused as not supported."""
    try:
        subject.call(verb, instance)
    except exception.NotImplementedHere:
        return True
    return False
