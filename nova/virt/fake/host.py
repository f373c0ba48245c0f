"""The state of one virtual host, which all roles of its driver share."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import threading
import time
from typing import Any, ClassVar

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.virt.fake import disks as fake_disks
from nova.virt.fake import scenario as fake_scenario
from nova.virt.fake.consoles import ConsoleServers
from nova.virt.fake.guests import Guest, GuestStore


@dataclasses.dataclass
class Behaviour:
    """Latency in seconds and fraction of failing calls, by verb of [fake]latency ("*": all other verbs)."""

    latency: dict[str, float] = dataclasses.field(default_factory=dict)
    failure: dict[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def configured(cls, group: fake_scenario.Group | None = None) -> Behaviour:
        """Return the behaviour configured in [fake], overridden by the scenario's group of the host."""
        overrides: tuple[dict[Any, float], dict[Any, float]] = (group.latency, group.failure) if group else ({}, {})
        return cls(latency={**_floats(CONF.fake.latency), **overrides[0]},
                   failure={**_floats(CONF.fake.failure), **overrides[1]})

    def simulate(self, verb: fake_scenario.Verb) -> None:
        """Wait for the latency of the verb, then raise NovaException for the configured fraction of calls."""
        delay = self.latency_of(verb)
        if delay:
            time.sleep(delay)
        self.fail(verb)

    def latency_of(self, verb: fake_scenario.Verb) -> float:
        return self.latency.get(verb, self.latency.get("*", 0.0))

    def fail(self, verb: fake_scenario.Verb) -> None:
        fraction = self.failure.get(verb, self.failure.get("*", 0.0))
        if fraction and random.random() < fraction:  # noqa: S311
            raise exception.NovaException(f"The fake hypervisor is configured to fail at {verb}.")


def _floats(values: dict[str, str]) -> dict[str, float]:
    return {verb: float(value) for verb, value in values.items()}


class ArrivalSignal:
    """Signals to hosts that a guest has arrived: through files in ``directory``, or (None) within this process."""

    _of_process: ClassVar[set[tuple[str, str]]] = set()

    def __init__(self, directory: str | None) -> None:
        self._directory = os.path.join(directory, "arrived") if directory else None

    def signal(self, uuid: str, host: str) -> None:
        if self._directory is None:
            self._of_process.add((uuid, host))
            return
        os.makedirs(self._directory, exist_ok=True)
        with open(self._path(uuid, host), "w"):
            pass

    def has_arrived(self, uuid: str, host: str) -> bool:
        return (uuid, host) in self._of_process if self._directory is None else os.path.exists(self._path(uuid, host))

    def forget(self, uuid: str, host: str) -> None:
        self._of_process.discard((uuid, host))
        if self._directory is not None:
            files.remove(self._path(uuid, host))

    def _path(self, uuid: str, host: str) -> str:
        return os.path.join(self._directory or "", f"{uuid}.{host}")


class FakeHost:
    """The state of a virtual host: guests, disks, consoles and migrations."""

    def __init__(self, name: str, behaviour: Behaviour) -> None:
        self.name, self.behaviour = name, behaviour
        self.consoles = ConsoleServers()
        path = os.path.join(CONF.fake.directory, f"{name}.guests") if CONF.fake.directory else None
        self.guests = GuestStore(path, self.consoles.guest_changed, CONF.instance_name_template)
        self.disks = fake_disks.of_host(name, CONF.fake.directory, CONF.fake.shared_storage)
        self.arrivals = ArrivalSignal(CONF.fake.directory)
        # Live migrations in progress, by uuid; setting the event completes the migration immediately.
        self.migrations: dict[str, threading.Event] = {}
        # Servers whose disks this host serves to another host.
        self.serving: set[str] = set()
        # Passwords that guests received, and number of crash dumps triggered, by uuid. Only tests read these.
        self.passwords: dict[str, str] = {}
        self.crash_dumps: collections.Counter[str] = collections.Counter()
        # Guests with quiesced file systems, and guests without an agent that can quiesce them.
        self.quiesced: set[str] = set()
        self.without_agent: set[str] = set()

    def run(self, instance: Instance, power_state: int = states.RUNNING) -> None:
        """Start the guest. A guest whose definition is lost is started from its disks or its volume."""
        if self.disks.get(instance.uuid) is None and not instance.volume_backed:
            self.guests.get(instance.uuid)
        self.guests.define(instance, power_state, went=False)

    def remove(self, uuid: str, keep_disks: bool) -> None:
        self.serving.discard(uuid)
        self.passwords.pop(uuid, None)
        self.crash_dumps.pop(uuid, None)
        self.quiesced.discard(uuid)
        self.guests.remove(uuid)
        self.arrivals.forget(uuid, self.name)
        files.remove(fake_disks.file_of(self.name, uuid))
        if not keep_disks:
            self.disks.remove(uuid)

    def take_over(self, uuid: str) -> None:
        """Complete the arrival of a migrated guest."""
        guest = self.guests.find(uuid)
        if guest is not None and guest.incoming and self.arrivals.has_arrived(uuid, self.name):
            self.guests.change(uuid, incoming=False)
            self.arrivals.forget(uuid, self.name)


class FakeRole:
    """A role of the driver on the state of its host."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host

    def find(self, verb: fake_scenario.Verb, instance: Instance) -> Guest | None:
        """Simulate a call of the hypervisor. Return the state of the guest, or None if the guest is not on the host."""
        self.host.behaviour.simulate(verb)
        return self.host.guests.find(instance.uuid)

    def get(self, verb: fake_scenario.Verb, instance: Instance) -> Guest:
        """Return the same as find(), but raise GuestNotFound if the guest is not on the host."""
        self.host.behaviour.simulate(verb)
        return self.host.guests.get(instance.uuid)
