"""Records of volumes: exclusive attachment, host of the data, and removal of data."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable

import msgspec
import pytest
import sqlalchemy as sa

from nova import exception
from nova.conductor.endpoints.by_hosts import Heartbeat
from nova.conductor.endpoints.volumes import Volumes
from nova.conductor.resources import volume_removals
from nova.db import tables
from nova.db.servers import servers
from nova.db.volumes import volumes
from nova.objects.base import new_uuid, utcnow
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.volume import AttachmentChanges, LocalConnection, Volume, VolumeRemoval
from tests.unit.conductor.books import Books, ctx, server, set_columns

Settings = Callable[..., None]
IMAGE = Image(id="i1", name="cirros", properties={"hw_disk_bus": "virtio"})


def volume(core: Books, **changes: object) -> Volume:
    return Volumes(core).create(ctx(), Volume(
        **{"uuid": new_uuid(), "project_id": "p1", "size_gb": 1, **changes}))  # type: ignore[arg-type]


def reserve(core: Books, made: Volume, attachment: str = "a1", instance: str = "s1") -> Volume:
    return core.db.write(lambda connection: volumes.reserve(
        connection, made.uuid, "p1", instance, attachment, "/dev/vdb"))


def bind(core: Books, made: Volume, host: str) -> Volume:
    return core.db.write(lambda connection: volumes.bind(connection, volumes.lock(connection, made.uuid), host))


def attached(core: Books, host: str = "h1", **changes: object) -> Volume:
    made = volume(core, **changes)
    reserve(core, made)
    bind(core, made, host)
    core.db.write(lambda connection: volumes.complete(connection, made.uuid, "a1"))
    return now(core, made)


def now(core: Books, made: Volume) -> Volume:
    return Volumes(core).get(ctx(), made.uuid)


def release(core: Books, made: Volume, attachment: str = "a1", delete: bool = False) -> VolumeRemoval | None:
    return core.db.write(lambda connection: volumes.release(connection, made.uuid, attachment, delete))


def there(core: Books, made: Volume) -> bool:
    return any(found.uuid == made.uuid for found in Volumes(core).index(ctx()))


# --- creation ----------------------------------------------------------------------------------------
def test_volume_data_created_at_unshelve_are_recorded_as_written(core: Books) -> None:
    """The volume was attached to a shelved offloaded server, so its data had no host."""
    made = volume(core)
    reserve(core, made)
    core.db.write(lambda connection: volumes.complete(connection, made.uuid, "a1"))
    assert (now(core, made).status, now(core, made).written_at) == (volume_states.IN_USE, None)
    bind(core, made, "h1")
    core.db.write(lambda connection: volumes.complete(connection, made.uuid, "a1"))
    written = now(core, made)
    assert written.written_at is not None
    core.db.write(lambda connection: volumes.complete(connection, made.uuid, "a1"))
    assert now(core, made) == written
    assert core.db.write(lambda connection: volumes.unbind(connection, volumes.lock(connection, made.uuid))) is None


def test_volume_is_visible_only_in_its_project(core: Books) -> None:
    made = volume(core, name="data", metadata={"a": "b"})
    assert (made.status, made.host, made.generation, made.written_at) == (volume_states.AVAILABLE, None, 0, None)
    assert Volumes(core).get(ctx(), made.uuid, "p1") == made
    assert Volumes(core).index(ctx(), "p1") == [made]
    assert Volumes(core).index(ctx(), "p2") == []
    with pytest.raises(exception.VolumeNotFound):
        Volumes(core).get(ctx(), made.uuid, "p2")


def test_volumes_are_listed_newest_first_and_paged(core: Books) -> None:
    made = [volume(core).uuid for _ in range(5)][::-1]
    assert [found.uuid for found in Volumes(core).index(ctx(), "p1", 2, 1)] == made[1:3]


def test_repeated_creation_of_a_volume_creates_it_once(core: Books) -> None:
    uuid = new_uuid()
    assert volume(core, uuid=uuid) == volume(core, uuid=uuid)
    assert len(Volumes(core).index(ctx())) == 1


def test_volume_quotas_limit_number_and_size(core: Books, settings: Settings) -> None:
    settings("quota_volumes", 3, "volume")
    settings("quota_gigabytes", 10, "volume")
    volume(core, size_gb=4)
    with pytest.raises(exception.QuotaLimit, match="10 GiB"):
        volume(core, size_gb=7)
    volume(core, size_gb=6)
    volume(core, project_id="p2", size_gb=10)
    settings("quota_gigabytes", -1, "volume")
    volume(core, size_gb=100)
    with pytest.raises(exception.QuotaLimit, match="3 volumes"):
        volume(core)


def test_volume_quota_holds_for_concurrent_requests(core: Books, settings: Settings) -> None:
    settings("quota_volumes", 4, "volume")
    threads = [threading.Thread(target=lambda: _quietly(lambda: volume(core))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Volumes(core).index(ctx())) == 4


def _quietly(function: Callable[[], object]) -> None:
    try:
        function()
    except exception.QuotaLimit:
        return


@pytest.mark.parametrize(("changes", "message"), [
    ({"size_gb": 0}, "size"), ({"size_gb": 16385}, "size"), ({"size_gb": 2**63 - 1}, "size"),
    ({"availability_zone": "moon"}, "moon")])
def test_invalid_volume_size_or_zone_is_refused(core: Books, changes: dict[str, object], message: str) -> None:
    with pytest.raises(exception.InvalidInput, match=message):
        volume(core, **changes)


def test_volume_is_created_in_an_existing_availability_zone(core: Books) -> None:
    Heartbeat(core).register(ctx(), "h1", "nova-compute", "compute", 1)
    assert volume(core, availability_zone="nova").availability_zone == "nova"


# --- attachment ------------------------------------------------------------------------------------------
def test_concurrent_attachments_of_a_volume_one_succeeds(core: Books) -> None:
    made, outcomes = volume(core), []

    def want(number: int) -> None:
        try:
            reserve(core, made, f"a{number}", f"s{number}")
            outcomes.append("has it")
        except exception.InvalidVolume as error:
            outcomes.append(error.message)

    threads = [threading.Thread(target=want, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("has it") == 1
    others = {outcome for outcome in outcomes if outcome != "has it"}
    assert others == {f"Invalid volume: volume {made.uuid} is already attached to instances: "
                      f"{now(core, made).instance_uuid}"}


def test_repeated_reservation_of_an_attachment_changes_nothing(core: Books) -> None:
    made = volume(core)
    reserve(core, made)
    reserve(core, made)
    assert now(core, made).status == volume_states.ATTACHING


def test_reservation_of_a_volume_of_another_project_is_not_found(core: Books) -> None:
    with pytest.raises(exception.VolumeNotFound):
        reserve(core, volume(core, project_id="p2"))


@pytest.mark.parametrize("status", [volume_states.DELETING, volume_states.ERROR])
def test_reservation_of_an_unavailable_volume_is_refused_with_status(core: Books, status: str) -> None:
    made = volume(core, status=status)
    with pytest.raises(exception.InvalidVolume, match=status):
        reserve(core, made)


def test_detached_volume_is_available_and_keeps_its_data(core: Books) -> None:
    made = attached(core)
    assert (made.status, made.device_name) == (volume_states.IN_USE, "/dev/vdb")
    assert made.attached_at is not None
    assert made.attached_at == made.written_at
    core.db.write(lambda connection: volumes.begin_detaching(connection, made.uuid, "a1"))
    assert now(core, made).status == volume_states.DETACHING
    assert release(core, made) is None
    after = now(core, made)
    assert (after.status, after.instance_uuid, after.attachment_id, after.device_name, after.attached_at) == (
        volume_states.AVAILABLE, None, None, None, None)
    assert (after.host, after.generation, after.written_at) == ("h1", 1, made.written_at)


def test_volume_detachment_starts_once_and_can_be_rolled_back(core: Books) -> None:
    made = attached(core)
    core.db.write(lambda connection: volumes.begin_detaching(connection, made.uuid, "a1"))
    with pytest.raises(exception.InvalidVolume, match="in-use"):
        core.db.write(lambda connection: volumes.begin_detaching(connection, made.uuid, "a1"))
    core.db.write(lambda connection: volumes.roll_detaching(connection, made.uuid, "a1"))
    assert now(core, made).status == volume_states.IN_USE


def test_ended_attachment_cannot_change_the_volume(core: Books) -> None:
    made = attached(core)
    release(core, made)
    reserve(core, made, "a2", "s2")
    release(core, made, "a1")
    core.db.write(lambda connection: volumes.complete(connection, made.uuid, "a1"))
    core.db.write(lambda connection: volumes.roll_detaching(connection, made.uuid, "a1"))
    after = now(core, made)
    assert (after.status, after.instance_uuid) == (volume_states.ATTACHING, "s2")


def test_release_of_a_missing_volume_is_ignored(core: Books) -> None:
    assert core.db.write(lambda connection: volumes.release(connection, new_uuid(), "a1", True)) is None


# --- host of the data ------------------------------------------------------------------------------------
def test_volume_is_bound_to_a_single_host(core: Books) -> None:
    made = volume(core)
    assert (bind(core, made, "h1").host, bind(core, made, "h1").generation) == ("h1", 1)
    with pytest.raises(exception.InvalidVolume, match="cannot be reached"):
        bind(core, made, "h2")


def test_unwritten_volume_moves_to_another_host_and_old_data_are_removed(core: Books) -> None:
    made = volume(core)
    reserve(core, made)
    bind(core, made, "h1")
    removal = core.db.write(lambda connection: volumes.unbind(connection, volumes.lock(connection, made.uuid)))
    assert removal == VolumeRemoval(volume_uuid=made.uuid, generation=1, host="h1")
    bound = bind(core, made, "h2")
    assert (bound.host, bound.generation) == ("h2", 2)
    core.db.write(lambda connection: volumes.complete(connection, made.uuid, "a1"))
    Volumes(core).removed(ctx(), [removal])
    assert now(core, made).status == volume_states.IN_USE


def test_written_volume_stays_bound_to_its_host(core: Books) -> None:
    made = attached(core)
    assert core.db.write(lambda connection: volumes.unbind(connection, volumes.lock(connection, made.uuid))) is None
    assert now(core, made).host == "h1"


def test_connection_info_flags_volumes_without_data_as_fresh(core: Books) -> None:
    made = volume(core, size_gb=7, image=IMAGE)
    bind(core, made, "h1")
    told = now(core, made).connection_info()
    assert told["driver_volume_type"] == "local"
    assert msgspec.convert(told, LocalConnection) == LocalConnection(
        volume_id=made.uuid, generation=1, size_gb=7, fresh=True, image=IMAGE)
    reserve(core, made)
    core.db.write(lambda connection: volumes.complete(connection, made.uuid, "a1"))
    assert msgspec.convert(now(core, made).connection_info(), LocalConnection) == LocalConnection(
        volume_id=made.uuid, generation=1, size_gb=7)


def test_volume_of_a_shared_pool_is_bound_to_no_host(core: Books, settings: Settings) -> None:
    settings("shared", True, "volume")
    made = attached(core, "h1")
    release(core, made)
    bound = bind(core, made, "h2")
    assert (bound.host, bound.generation) == (None, 1)
    Volumes(core).delete(ctx(), made.uuid)
    assert now(core, made).status == volume_states.DELETING
    Volumes(core).removed(ctx(), [VolumeRemoval(volume_uuid=made.uuid, generation=1, host="")])
    assert not there(core, made)


# --- deletion --------------------------------------------------------------------------------------------
def test_volume_without_data_is_deleted_at_once(core: Books) -> None:
    made = volume(core)
    Volumes(core).delete(ctx(), made.uuid, "p1")
    assert not there(core, made)
    with pytest.raises(exception.VolumeNotFound):
        Volumes(core).delete(ctx(), made.uuid, "p1")


def test_attached_volume_cannot_be_deleted(core: Books) -> None:
    made = attached(core)
    with pytest.raises(exception.InvalidVolume, match="attached"):
        Volumes(core).delete(ctx(), made.uuid)
    with pytest.raises(exception.VolumeNotFound):
        Volumes(core).delete(ctx(), made.uuid, "p2")


def test_deleted_volume_exists_until_its_host_has_removed_the_data(core: Books) -> None:
    Heartbeat(core).register(ctx(), "h1", "nova-compute", "compute", 1)
    made = attached(core)
    release(core, made)
    Volumes(core).delete(ctx(), made.uuid)
    removal = VolumeRemoval(volume_uuid=made.uuid, generation=1, host="h1")
    assert core.sent.volumes == [("h1", [removal])]
    assert now(core, made).status == volume_states.DELETING
    with pytest.raises(exception.InvalidVolume, match="deleting"):
        Volumes(core).delete(ctx(), made.uuid)
    for _again in range(2):
        Volumes(core).removed(ctx(), [removal])
    assert not there(core, made)


def test_delete_on_termination_removes_the_volume_with_its_server(core: Books) -> None:
    made = attached(core)
    removal = release(core, made, delete=True)
    assert removal == VolumeRemoval(volume_uuid=made.uuid, generation=1, host="h1")
    after = now(core, made)
    assert (after.status, after.instance_uuid) == (volume_states.DELETING, None)


def test_volume_removal_is_sent_again_to_a_returned_host(core: Books) -> None:
    made = attached(core)
    release(core, made, delete=True)
    volume_removals.send(core, ctx(), [VolumeRemoval(volume_uuid=made.uuid, generation=1, host="h1")])
    assert core.sent.volumes == []
    Heartbeat(core).register(ctx(), "h1", "nova-compute", "compute", 1)
    volume_removals.remind(core)
    assert core.sent.volumes == []  # the removal was sent a moment ago
    set_columns(core, tables.volume_removals, tables.volume_removals.c.host == "h1",
                created_at=utcnow() - datetime.timedelta(minutes=1))
    volume_removals.remind(core)
    assert [host for host, _removals in core.sent.volumes] == ["h1"]


def test_volume_removals_of_a_missing_host_do_not_delay_other_hosts(core: Books) -> None:
    for host in ("gone", "h1"):
        core.db.write(lambda connection, host=host: connection.execute(sa.insert(tables.volume_removals).values(
            volume_uuid=new_uuid(), generation=1, host=host, created_at=utcnow() - datetime.timedelta(minutes=1))))
    Heartbeat(core).register(ctx(), "h1", "nova-compute", "compute", 1)
    [found] = core.db.read(lambda connection: volumes.forgotten(connection, utcnow(), 1))
    assert found.host == "h1"


def test_volume_removal_in_a_shared_pool_is_sent_to_any_host(core: Books, settings: Settings) -> None:
    settings("shared", True, "volume")
    made = attached(core)
    release(core, made)
    Heartbeat(core).register(ctx(), "h7", "nova-compute", "compute", 1)
    Volumes(core).delete(ctx(), made.uuid)
    assert [host for host, _removals in core.sent.volumes] == ["h7"]


# --- attachments -----------------------------------------------------------------------------------------
def test_delete_on_termination_of_an_attachment_is_updated(core: Books) -> None:
    devices = [BlockDevice(source="volume", destination="volume", volume_id=name, delete_on_termination=False)
               for name in ("v1", "v2")]
    made = server(core, block_devices=devices, launched_at=utcnow())
    for changes in (AttachmentChanges(), AttachmentChanges(delete_on_termination=True)):
        Volumes(core).update_attachment(ctx(), made.uuid, "v2", changes, "p1")
    after = core.db.read(lambda connection: servers.get(connection, made.uuid))
    assert [device.delete_on_termination for device in after.volumes] == [False, True]
    with pytest.raises(exception.VolumeNotAttached):
        Volumes(core).update_attachment(ctx(), made.uuid, "v3", AttachmentChanges(), "p1")
    with pytest.raises(exception.InstanceNotFound):
        Volumes(core).update_attachment(ctx(), made.uuid, "v2", AttachmentChanges(), "p2")


def test_volume_in_error_can_be_deleted(core: Books) -> None:
    made = volume(core)
    set_columns(core, tables.volumes, tables.volumes.c.uuid == made.uuid, status=volume_states.ERROR)
    Volumes(core).delete(ctx(), made.uuid)
    assert not there(core, made)
