"""Audit of volumes: violations are reported, and repaired if no decision of an operator is needed."""

from __future__ import annotations

from typing import Any

import pytest

from nova.conductor.endpoints.volumes import Volumes
from nova.db import audit, tables
from nova.db.audit.volumes import Devices
from nova.db.audit.volumes import Volumes as Check
from nova.db.servers import servers
from nova.db.volumes import volumes
from nova.objects.base import new_uuid
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import Volume
from tests.unit.conductor.books import Books, ctx, server, set_columns

TABLE = tables.volumes


@pytest.fixture
def owned(core: Books) -> tuple[Volume, Instance]:
    """Return a volume in use and the server that it is attached to."""
    made = Volumes(core).create(ctx(), Volume(uuid=new_uuid(), project_id="p1", size_gb=1))
    instance = server(core, block_devices=[BlockDevice(
        source="volume", destination="volume", volume_id=made.uuid, attachment_id="a1")])
    core.db.write(lambda connection: volumes.reserve(connection, made.uuid, "p1", instance.uuid, "a1", "/dev/vdb"))
    core.db.write(lambda connection: volumes.complete(connection, made.uuid, "a1"))
    return made, instance


def found(core: Books, repair: bool = False) -> list[str]:
    checks = {id(check) for check in audit.CHECKS if isinstance(check, Check | Devices)}
    assert len(checks) == 2
    return [str(finding) for finding in audit.audit(core.db, repair=repair) if finding.kind == "volume"]


def change(core: Books, volume: Volume, **values: Any) -> None:
    set_columns(core, TABLE, TABLE.c.uuid == volume.uuid, **values)


def test_audit_of_consistent_volumes_reports_nothing(core: Books, owned: tuple[Volume, Instance]) -> None:
    assert found(core) == []


@pytest.mark.parametrize(("values", "says"), [
    ({"instance_uuid": None}, "status is in-use, but no server has it"),
    ({"attachment_id": "a2"}, "which does not have it"),
    ({"instance_uuid": "nobody"}, "belongs to server nobody, which does not have it"),
    ({"status": "deleting", "instance_uuid": None}, "status is deleting, but no host is to remove the data")])
def test_audit_repairs_a_volume_attached_to_no_server(core: Books, owned: tuple[Volume, Instance],
                                                      values: dict[str, Any], says: str) -> None:
    volume, instance = owned
    core.db.write(lambda connection: servers.update(connection, instance.uuid, {
        "block_devices": [] if "attachment_id" not in values else instance.block_devices}))
    change(core, volume, **values)
    assert any(says in finding for finding in found(core))
    found(core, repair=True)
    after = core.db.read(lambda connection: volumes.get(connection, volume.uuid))
    assert after.status == ("error" if values.get("status") == "deleting" else "available")
    assert after.instance_uuid is None


@pytest.mark.parametrize(("values", "says"), [
    ({"status": "available"}, "but its status is available"), ({"instance_uuid": None}, "but it belongs to no server")])
def test_audit_reports_a_volume_that_contradicts_its_server(core: Books, owned: tuple[Volume, Instance],
                                                            values: dict[str, Any], says: str) -> None:
    change(core, owned[0], **values)
    assert any(says in finding for finding in found(core))


def test_audit_detaches_volumes_of_a_deleted_server(core: Books, owned: tuple[Volume, Instance]) -> None:
    volume, instance = owned
    core.db.write(lambda connection: servers.update(connection, instance.uuid, {"deleted": True}))
    assert found(core, repair=True) == [
        f"volume: {volume.uuid}: belongs to server {instance.uuid}, which does not have it (repaired)"]
    assert found(core) == []


def test_audit_accepts_a_volume_that_waits_for_removal_by_its_host(core: Books) -> None:
    made = Volumes(core).create(ctx(), Volume(uuid=new_uuid(), project_id="p1", size_gb=1))
    core.db.write(lambda connection: volumes.bind(connection, volumes.lock(connection, made.uuid), "h1"))
    Volumes(core).delete(ctx(), made.uuid)
    assert found(core) == []
