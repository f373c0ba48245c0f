"""What steps may touch: the conductor's side and a host's side, as interfaces.

An operation tells its story without importing a database or a hypervisor; the conductor and the
compute inject the real thing, a unit test a fake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from nova.objects.action import Failure
from nova.objects.instance import Instance
from nova.objects.network import FilterRule
from nova.objects.scheduling import RequestSpec, Selection


class Control(Protocol):
    """The conductor's side. Everything here is written together, when the step ends, or not at all."""

    instance: Instance

    def set(self, **changes: Any) -> None:
        """Change columns of the instance (they show in ``instance`` at once)."""

    def fault(self, failure: Failure) -> None:
        """Record why, for the user; marks the action's message as Error."""

    def select(self, spec: RequestSpec) -> list[list[Selection]]:
        """Ask a scheduler. Raises NoValidHost."""

    def group_hosts(self, spec: RequestSpec) -> None:
        """Fill in where the members of the server group and the hinted servers are now."""

    def claim(self, selection: Selection, resources: dict[str, int]) -> None:
        """Take the resources for the instance; ClaimLost fails the step if they are gone."""

    def release_claim(self) -> None:
        """Give back whatever the instance holds on any host."""

    def take_addresses(self) -> None:
        """Give the instance its interfaces and addresses; kept when it has them already."""

    def release_addresses(self) -> None: ...

    def release_quota(self) -> None:
        """The instance no longer counts against its project."""

    def finish_io(self, failed: bool | None, node_uuid: str | None = None) -> None:
        """The node (None: the one with the instance's claim) has one heavy operation less; ``failed``
        counts a failed build (False clears the count, None leaves it)."""


class GuestDriver(Protocol):
    """The verbs of a hypervisor driver that steps use (nova/virt/driver.py describes them)."""

    def destroy(self, instance: Instance, keep_disks: bool = False) -> None: ...
    def power_on(self, instance: Instance) -> None: ...
    def power_off(self, instance: Instance, timeout: int = 0) -> None: ...
    def reboot(self, instance: Instance, hard: bool, timeout: int = 0) -> None: ...
    def pause(self, instance: Instance) -> None: ...
    def unpause(self, instance: Instance) -> None: ...
    def suspend(self, instance: Instance) -> None: ...
    def resume(self, instance: Instance) -> None: ...
    def power_state(self, uuid: str) -> int: ...


class HostNetwork(Protocol):
    """The verbs of the host's network back end that steps use."""

    def plug(self, instance: Instance, rules: Sequence[FilterRule]) -> None: ...
    def unplug(self, instance: Instance) -> None: ...


class Host(Protocol):
    """A compute host's side."""

    instance: Instance
    driver: GuestDriver
    network: HostNetwork
    rules: Sequence[FilterRule]
    shutdown_timeout: int

    def set(self, **changes: Any) -> None:
        """Report changed columns of the instance with the step's end."""

    def prepare_disks(self) -> None:
        """Fetch the images into the cache, make the config drive, make the guest's disks."""

    def spawn(self) -> None:
        """Define and start the guest on what was prepared."""
