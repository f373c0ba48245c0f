"""Fields of requests to Cinder and of its responses: all are used, refused or listed."""

import types

import pytest
from keystoneauth1 import loading
from os_brick.remotefs.remotefs import RemoteFsClient

import nova.conf
from nova import context
from nova.compute.disk_tools import QemuTools
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import SnapshotRequest, Volume, VolumeKey
from nova.operations.framework.base import Wait
from nova.volume.cinder import api
from nova.volume.cinder.attachments import CinderAttachments
from nova.volume.cinder.host import CinderVolumes
from tests.cinder_service import cinder_fixture as cinder_fixture
from tests.service_recorder import Fields, Recorder, check_read, check_sent, senders
from tests.unit.volume.test_cinder_host import NFS, RBD

UUID = "0c8b5f3e-3f0a-4d2e-9a55-1f2e3d4c5b6a"
CONNECTOR = {"host": "host1", "ip": "127.0.0.1"}


@pytest.fixture
def service(cinder):
    """Return a Cinder that this process is configured for."""
    nova.conf.register()
    nova.conf.register_external_services()
    loading.register_auth_conf_options(CONF, "cinder")
    CONF.register_opts(loading.get_auth_plugin_conf_options("password"), group="cinder")
    for name, value in cinder.options().items():
        CONF.set_override(name, value, group="cinder")
    yield cinder
    for name in cinder.options():
        CONF.clear_override(name, group="cinder")


class Control:
    """The part of a step's context that volumes need: an instance in memory."""

    def __init__(self, devices):
        self.ctx = context.RequestContext(overwrite=False, project_id="p", user_id="m", auth_token="m:p")
        self.instance = Instance(
            uuid=UUID, project_id="p", user_id="u", display_name="n", hostname="n", created_at=utcnow(),
            flavor=Flavor(flavorid="1", name="m1", vcpus=1, memory_mb=512, root_gb=1), block_devices=devices)
        self.volumes = types.SimpleNamespace(record=self._record)

    def _record(self, devices):
        devices = {device.uuid: device for device in devices}
        self.instance.block_devices = [devices.get(device.uuid, device) for device in self.instance.block_devices]

    def connector(self, host):
        return CONNECTOR

    def key_of(self, volume):
        return None


def run_users_requests(service, core, ctx):
    """Call the methods of the proxies and checks, which use the token of the user."""
    encrypted = service.new("p", secret="secret", bootable=True, image={"image_id": "i", "image_name": "cirros"})
    assert core.validate(ctx, "p", encrypted).encrypted
    assert core.secret_of(ctx, encrypted) == "secret"
    assert not core.is_lost(ctx, encrypted)
    assert core.servers(ctx, encrypted) == set()
    snapshot = core.snapshots.create(ctx, SnapshotRequest(volume_id=encrypted, name="s", description="d"))
    assert core.volume_from_snapshot(ctx, "p", snapshot.uuid).origin == encrypted
    core.snapshots.index(ctx, 10)
    service.most_snapshots = 10
    core.snapshots.check_room(ctx, 1)
    service.most_snapshots = -1
    made = core.volumes.create(ctx, Volume(
        uuid="", project_id="p", size_gb=1, name="v", description="d", volume_type="t", availability_zone="nova",
        metadata={"a": "b"}, snapshot_id=snapshot.uuid))
    core.snapshots.delete(ctx, snapshot.uuid)
    core.volumes.get(ctx, made.uuid)
    core.volumes.index(ctx, 10)
    core.volumes.delete(ctx, made.uuid)


def run_operations(service, core):
    """Call all methods of the steps on the volumes of a server."""
    image, given = Image(id="image", name="i"), service.new("p", kind="nfs")
    source = service.create_snapshot("p", {"volume_id": service.new("p"), "force": False})["id"]
    control = Control([
        BlockDevice(source="image", destination="volume", uuid="d1", image_id="i", size_gb=1, volume_type="t"),
        BlockDevice(source="snapshot", destination="volume", uuid="d2", snapshot_id=source, size_gb=1),
        BlockDevice(source="volume", destination="volume", uuid="d3", volume_id=given, device_name="/dev/vdc")])
    volumes = core.of_server(control)
    with pytest.raises(Wait):
        volumes.make(0, {})
    volumes.make(1, {})
    devices = control.instance.block_devices
    volumes.reserve(devices[2], "p")
    volumes.connect("host1")
    devices = control.instance.block_devices
    volumes.complete()
    assert core.volumes.get(control.ctx, given).device_name == "/dev/vdc"
    volumes.connect_also("host2")
    volumes.reconcile("host1")
    service.extend(given, 3, waits=True)
    assert volumes.extended(devices[2]) == (3, True)
    volumes.end_extension(given, 3, done=True)
    swap(service, core, volumes, devices[0])
    volumes.begin_detaching(devices[2])
    volumes.roll_detaching(devices[2])
    volumes.take_snapshots(image)
    volumes.snapshots(image, 0)
    volumes.drop_snapshots(image)
    assisted = service.assist(given)
    volumes.check_assisted(devices[2], assisted, "creating")
    volumes.end_assisted(assisted, "creating", done=True)
    volumes.disconnect()
    volumes.reimage(control.instance.block_devices[0], image)
    service.volumes[control.instance.block_devices[0].volume_id].status = "reserved"
    volumes.release()


def swap(service, core, volumes, old):
    """Migrate the volume of a device."""
    new = BlockDevice(source="volume", destination="volume", uuid="new", volume_id=service.migrate(old.volume_id))
    ctx = context.RequestContext(overwrite=False, project_id="p")
    assert core.check_swap(ctx, "p", old.volume_id, new.volume_id)
    volumes.end_swap(old, volumes.begin_swap("host1", old, new), migrates=True, done=False)


def test_cinder_fields_are_used_or_listed(service, monkeypatch):
    recorder = Recorder(monkeypatch, api)
    core = CinderAttachments()
    run_users_requests(service, core, Control([]).ctx)
    run_operations(service, core)
    assert sorted(senders(api) - recorder.methods) == [], "run_users_requests() or run_operations() has to call these"
    for shape in (api._Volume, api._VolumeAttachment, api._Snapshot, api._Limits, api._Amounts, api.Encryption):
        assert recorder.read[shape.__name__.lstrip("_")] == set(shape.__annotations__)
    check_read("cinder attachment", recorder.read["Attachment"] | recorder.read["Connected"], api._Attachment)
    check_sent("cinder", recorder.requests("cinder"))


def test_fields_of_connection_info_are_used_or_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(RemoteFsClient, "mount", lambda _self, share, flags=None: None)
    monkeypatch.setattr(RemoteFsClient, "get_mount_point", lambda _self, share: str(tmp_path))
    (tmp_path / NFS["name"]).write_bytes(b"\0" * 512)
    nova.conf.register()
    read, volumes = set(), CinderVolumes(QemuTools())
    for info in (RBD, NFS, {**RBD, "encrypted": True, "multiattach": True}):
        volumes.connect(Fields(info, read), key=VolumeKey(key_id="k", passphrase="p") if info["encrypted"] else None)
    check_read("cinder connection_info", read)
