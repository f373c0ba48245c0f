"""The bare metal driver as a subject of the contract suite, on a real Ironic (NOVA_TEST_IRONIC) or its stand-in."""

from __future__ import annotations

import functools
import pathlib
import time
import uuid
from typing import Any

from nova.conf import CONF, register, register_external_services
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework.guest_driver import GuestDriver, InProgress, repeated_step
from nova.virt.ironic.driver import IronicDriver
from tests.integration.drivers.subject import Subject, file_volume, wait_for
from tests.integration.libvirt_fixtures import server
from tests.ironic_service import start_ironic
from tools.feature_matrix import ROLES

_NODES = 3


def complete(role: Any, base: type) -> Any:
    """Return the role with verbs that are repeated until they end, as nova-compute does."""
    def repeated(name: str) -> Any:
        @functools.wraps(getattr(role, name))
        def verb(_self: Any, *args: Any, **kwargs: Any) -> Any:
            until, notes = time.monotonic() + 60, dict[str, int]()
            while True:
                try:
                    with repeated_step(notes):
                        return getattr(role, name)(*args, **kwargs)
                except InProgress as change:
                    if time.monotonic() > until:
                        raise
                    time.sleep(change.seconds)

        return verb

    own = {name: repeated(name) for name in vars(base) if not name.startswith("_")
           and getattr(type(role), name) is not getattr(base, name)}
    return type(type(role).__name__, (base,), own)()


class IronicSubject(Subject):
    reports_own_changes = False
    bare_metal = True
    elsewhere = dict.fromkeys(("interfaces.attach", "interfaces.detach"), "test_ironic_driver.py")

    def __init__(self, place: pathlib.Path) -> None:
        register(CONF)
        register_external_services()
        self.place = place
        self.ironic = start_ironic(place)
        CONF.set_override("state_path", str(place))
        CONF.set_override("auth_type", "none", "ironic")
        CONF.set_override("endpoint_override", self.ironic.url, "ironic")
        CONF.set_override("api_retry_interval", 0.05, "ironic")
        self.machines = [self.ironic.add_node() for _ in range(_NODES)]
        self._turn = 0
        super().__init__()

    def make_driver(self) -> IronicDriver:
        driver = IronicDriver("ironic-contract")
        driver.manage(driver.shared_nodes() or ())
        for name in GuestDriver.__dataclass_fields__:
            setattr(driver, name, complete(getattr(driver, name), ROLES[name]))
        return driver

    def server(self, **fields: Any) -> Instance:
        """Return a server on the node that was used least recently."""
        self._turn += 1
        return server(**{"node": self.machines[self._turn % _NODES], "image_ref": "http://127.0.0.1/image",
                         "admin_pass": "secret", **fields})

    def has_disks(self, instance: Instance) -> bool:
        return instance.uuid in self.driver.guests.traces()

    def remove_guests(self) -> None:
        """Undeploy all nodes, and wait until they are available."""
        super().remove_guests()
        wait_for(lambda: all(self.ironic.node(machine)["provision_state"] == "available" for machine in self.machines),
                 60, "all nodes are available")

    def volume(self, number: int) -> BlockDevice:
        return file_volume(self.place, number)

    def interface(self, number: int) -> VIF:
        return VIF(id=str(uuid.UUID(int=number)), network_id="n", label="l", mac=f"fa:16:3e:00:00:{number:02x}",
                   devname=f"tap{number}", bridge="br")

    def close(self) -> None:
        super().close()
        self.ironic.stop()
        CONF.clear_override("state_path")
        for option in ("auth_type", "endpoint_override", "api_retry_interval"):
            CONF.clear_override(option, "ironic")
