"""The fake driver as a subject of the contract suite."""

from __future__ import annotations

import pathlib
import uuid
from typing import Any

from nova.conf import CONF, register
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import VolumeConnection
from nova.virt.fake.driver import FakeDriver
from tests.integration.drivers.subject import Subject
from tests.integration.libvirt_fixtures import server


class FakeSubject(Subject):
    reports_own_changes = False

    def __init__(self, place: pathlib.Path) -> None:
        register(CONF)
        CONF.set_override("directory", str(place), "fake")
        self._host = f"fake-{uuid.uuid4().hex[:8]}"
        super().__init__()

    def make_driver(self) -> FakeDriver:
        return FakeDriver(self._host)

    def server(self, **fields: Any) -> Instance:
        return server(**fields)

    def volume(self, number: int) -> BlockDevice:
        identity = str(uuid.UUID(int=number))
        connection = VolumeConnection(volume_id=identity, path=f"/volumes/{number}")
        return BlockDevice(source="volume", destination="volume", volume_id=identity,
                           uuid=str(uuid.UUID(int=99 + number)),
                           attachment_id=str(uuid.UUID(int=999 + number)), connection=connection)

    def interface(self, number: int) -> VIF:
        return VIF(id=str(uuid.UUID(int=number)), network_id="n", label="l", mac=f"fa:16:3e:00:00:{number:02x}",
                   devname=f"tap{number}", bridge="br")

    def close(self) -> None:
        super().close()
        CONF.clear_override("directory", "fake")
