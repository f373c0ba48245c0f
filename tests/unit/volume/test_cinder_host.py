"""Connection of Cinder volumes on a host."""

import os
import pathlib

import pytest
from os_brick.initiator.connectors.remotefs import RemoteFsConnector

from nova import conf, exception
from nova.compute.disk_tools import QemuTools
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.volume import VolumeConnection, VolumeKey
from nova.virt.images import qemuimg
from nova.volume.cinder.host import CinderVolumes
from tests.unit.virt.test_image_formats import qcow2

UUID = "49e6966f-dddf-47db-8448-b8c9c41b073b"
FIRST, SECOND = "0c8b5f3e-3f0a-4d2e-9a55-1f2e3d4c5b6a", "1d9c604f-4a1b-4e3f-8b66-20312e4d5c6b"
NAME = f"volume-{UUID}"
LUKS = b"LUKS\xba\xbe"
KEY = VolumeKey(key_id="of it", passphrase="hush")
RBD = {"driver_volume_type": "rbd", "name": f"volumes/volume-{UUID}", "hosts": ["10.0.0.1", "10.0.0.2"],
       "ports": ["6789", "6790"], "auth_enabled": True, "auth_username": "cinder", "secret_uuid": "457eb676",
       "discard": True, "qos_specs": {"total_iops_sec": "500", "vendor:trick": "on"}, "access_mode": "ro",
       "encrypted": False, "volume_id": UUID}
NFS = {"driver_volume_type": "nfs", "export": "127.0.0.1:/export", "name": f"volume-{UUID}", "options": None,
       "format": "raw", "qos_specs": None, "access_mode": "rw", "encrypted": False, "volume_id": UUID}


@pytest.fixture
def volumes():
    conf.register()
    return CinderVolumes(QemuTools())


@pytest.fixture
def share(tmp_path, monkeypatch):
    """Return the directory that is mounted as an NFS share."""
    monkeypatch.setattr(RemoteFsConnector, "connect_volume", lambda _self, info: {"path": f"{tmp_path}/{info['name']}"})
    (tmp_path / "secret").write_bytes(b"of the host")
    return tmp_path


def snapshot(share: pathlib.Path, name: str, below: str, below_format: str = "qcow2") -> str:
    """Create a qcow2 file whose backing file has no directory, in the same way as the NFS driver of Cinder."""
    path = str(share / name)
    qemuimg.create_overlay(path, str(share / below), below_format, 1 << 20)
    qemuimg.rebase(path, below, below_format)
    return path


def test_qos_limits_supported_by_the_hypervisor_are_passed_on(volumes):
    rates = [f"{which}_{what}_sec" for which in ("read", "write", "total") for what in ("bytes", "iops")]
    limits = {name: number for number, name in enumerate(
        [*rates, *(f"{rate}_max" for rate in rates), "size_iops_sec"], 1)}
    specs = {**{name: str(value) for name, value in limits.items()}, "read_iops_sec_per_gb": "5", "vendor:trick": "on"}
    assert volumes.connect({**RBD, "qos_specs": specs}).limits == limits


def test_vmdk_volume_is_connected_by_the_hypervisor(volumes):
    connection = volumes.connect({"driver_volume_type": "vmdk", "volume": "vm-17", "volume_id": UUID,
                                  "name": f"volume-{UUID}", "access_mode": "rw", "encrypted": False})
    assert (connection.protocol, connection.path, connection.volume_id) == ("vmdk", "vm-17", UUID)


def test_rbd_volume_is_connected_by_the_hypervisor(volumes):
    connection = volumes.connect(RBD)
    assert (connection.protocol, connection.path, connection.hosts) == (
        "rbd", f"volumes/volume-{UUID}", [("10.0.0.1", "6789"), ("10.0.0.2", "6790")])
    assert (connection.auth_user, connection.secret_uuid, connection.serial) == ("cinder", "457eb676", UUID)
    assert (connection.read_only, connection.discard, connection.limits) == (True, True, {"total_iops_sec": 500})
    volumes.disconnect(RBD)


@pytest.mark.parametrize(("info", "reason"), [
    ({**RBD, "encrypted": True}, "encrypted"), ({**RBD, "driver_volume_type": "iscsi"}, "iscsi"), ({}, "None"),
    ({"driver_volume_type": "rbd", "volume_id": UUID}, "name"),
    ({"driver_volume_type": "vmdk", "volume_id": UUID}, "volume"),
    ({**RBD, "qos_specs": {"total_iops_sec": "many"}}, "many"),
    ({**NFS, "name": "../../etc/shadow"}, "name"), ({**NFS, "format": "vmdk"}, "format"),
    ({"driver_volume_type": "nfs", "volume_id": UUID}, "name")])
def test_unsupported_connection_info_is_refused_with_the_reason(volumes, info, reason):
    with pytest.raises(exception.VolumeUnusable) as refused:
        volumes.connect(info)
    assert reason in refused.value.message


@pytest.mark.parametrize("info", [RBD, NFS])
def test_encrypted_volume_is_connected_with_its_key(volumes, share, info):
    (share / NAME).write_bytes(LUKS + b"0" * 100)
    connection = volumes.connect({**info, "encrypted": True}, key=KEY)
    assert (connection.key, connection.format, connection.below) == (KEY, "raw", [])


@pytest.mark.parametrize("reported", ["raw", "qcow2"])
@pytest.mark.parametrize(("content", "disk_format"), [(LUKS + b"0" * 100, "raw"), (qcow2(crypt=2), "qcow2")])
def test_format_of_an_encrypted_volume_is_read_from_its_header(volumes, share, reported, content, disk_format):
    """Cinder reports the format of unencrypted volumes."""
    (share / NAME).write_bytes(content)
    connection = volumes.connect({**NFS, "format": reported, "encrypted": True}, key=KEY)
    assert (connection.key, connection.format, connection.below) == (KEY, disk_format, [])


@pytest.mark.parametrize("content", [
    b"", b"plain", b"LUKS", qcow2(), qcow2(crypt=1), qcow2(crypt=2, features=4),
    qcow2(crypt=2, backing=b"/etc/shadow"), qcow2(crypt=2, backing=NAME.encode())])
def test_unencrypted_or_redirecting_file_of_an_encrypted_volume_is_refused(volumes, share, content):
    (share / NAME).write_bytes(content)
    with pytest.raises(exception.VolumeUnusable, match=UUID):
        volumes.connect({**NFS, "encrypted": True}, key=KEY)


def test_encrypted_file_with_snapshots_or_multiattach_is_refused(volumes, share):
    (share / NAME).write_bytes(qcow2(crypt=2))
    with pytest.raises(exception.VolumeUnusable, match="must be raw files"):
        volumes.connect({**NFS, "encrypted": True, "multiattach": True}, key=KEY)
    top = share / f"{NAME}.{FIRST}"
    qemuimg.create(str(top), "qcow2", 1 << 20)
    qemuimg.rebase(str(top), NAME, "qcow2")
    with pytest.raises(exception.VolumeUnusable, match="LUKS"):
        volumes.connect({**NFS, "name": top.name, "format": "qcow2", "encrypted": True}, key=KEY)
    content = bytearray(top.read_bytes())
    content[32:36] = (2).to_bytes(4, "big")
    top.write_bytes(content)
    with pytest.raises(exception.VolumeUnusable, match="with snapshots are not supported"):
        volumes.connect({**NFS, "name": top.name, "format": "qcow2", "encrypted": True}, key=KEY)


def test_volume_key_text_contains_no_passphrase():
    connection = VolumeConnection(volume_id=UUID, key=KEY)
    device = BlockDevice(source="volume", connection=connection)
    for text in (repr(KEY), str(KEY), f"{KEY}", repr([KEY]), repr(connection), repr(device), str(KEY.__rich_repr__())):
        assert "of it" in text
        assert "hush" not in text


def test_host_reports_its_connector(volumes):
    volumes.start()
    connector = volumes.connector("host-1")
    assert (connector["host"], connector["multipath"], bool(connector["ip"])) == ("host-1", False, True)


@pytest.mark.parametrize("content", [b"", b"data", qcow2(backing=b"/etc/shadow"), qcow2(features=4)])
def test_raw_volume_format_is_never_probed(volumes, share, content):
    (share / NAME).write_bytes(content)
    connection = volumes.connect(NFS)
    assert (connection.protocol, connection.path) == ("file", str(share / NAME))
    assert (connection.format, connection.below) == ("raw", [])


def test_qcow2_volume_without_backing_files_is_connected(volumes, share):
    (share / NAME).write_bytes(qcow2())
    connection = volumes.connect({**NFS, "format": "qcow2"})
    assert (connection.path, connection.format, connection.below) == (str(share / NAME), "qcow2", [])


def test_multiattach_volume_must_be_raw(volumes, share):
    assert volumes.connect({**RBD, "multiattach": True}).shareable
    (share / NAME).write_bytes(qcow2())
    assert volumes.connect({**NFS, "multiattach": True}).shareable
    with pytest.raises(exception.VolumeUnusable) as refused:
        volumes.connect({**NFS, "format": "qcow2", "multiattach": True})
    assert "qcow2" in refused.value.message


@pytest.mark.parametrize("kind", ["raw", "qcow2"])
def test_volume_with_snapshots_is_connected_with_its_backing_files(volumes, share, kind):
    qemuimg.create(str(share / NAME), kind, 1 << 20)
    middle = snapshot(share, f"{NAME}.{FIRST}", NAME, kind)
    top = snapshot(share, f"{NAME}.{SECOND}", f"{NAME}.{FIRST}")
    connection = volumes.connect({**NFS, "name": os.path.basename(top), "format": "qcow2"})
    assert (connection.path, connection.format) == (top, "qcow2")
    assert connection.below == [(middle, "qcow2"), (str(share / NAME), kind)]


@pytest.mark.parametrize("refers", [
    {"backing": b"/etc/shadow"}, {"backing": b"../../../etc/shadow"}, {"backing": b"secret"}, {"features": 4},
    {"backing": f"volume-{FIRST}".encode()}, {"backing": f"{NAME}.{FIRST}".encode()}, {"backing": NAME.encode()},
    {"backing": b'json:{"driver":"file","filename":"/etc/shadow"}'}, {"backing": b"nbd://192.0.2.1/x"},
    {"backing": f"./{NAME}.{FIRST}".encode()}], ids=str)
def test_volume_with_a_foreign_backing_file_is_refused(volumes, share, refers):
    """Backing files of the same volume are refused too if their format is missing and would be probed."""
    (share / f"volume-{FIRST}").write_bytes(b"of another tenant")
    (share / f"{NAME}.{FIRST}").write_bytes(b"data")
    (share / NAME).write_bytes(qcow2(**refers))
    with pytest.raises(exception.VolumeUnusable, match="file") as refused:
        volumes.connect({**NFS, "format": "qcow2"})
    assert UUID in refused.value.message


def test_foreign_backing_file_of_a_backing_file_is_refused(volumes, share):
    (share / NAME).write_bytes(qcow2(backing=b"/etc/shadow"))
    top = share / f"{NAME}.{FIRST}"
    qemuimg.create(str(top), "qcow2", 1 << 20)
    qemuimg.rebase(str(top), NAME, "qcow2")
    with pytest.raises(exception.VolumeUnusable, match="does not belong to the volume"):
        volumes.connect({**NFS, "name": top.name, "format": "qcow2"})


def test_loop_of_backing_files_is_refused(volumes, share):
    first, second = NAME, f"{NAME}.{FIRST}"
    for name, below in ((first, second), (second, first)):
        qemuimg.create(str(share / name), "qcow2", 1 << 20)
        qemuimg.rebase(str(share / name), below, "qcow2")
    with pytest.raises(exception.VolumeUnusable, match="does not belong to the volume"):
        volumes.connect({**NFS, "format": "qcow2"})


@pytest.mark.parametrize("kind", ["raw", "qcow2"])
def test_volume_that_is_no_regular_file_is_refused(volumes, share, kind):
    with pytest.raises(exception.VolumeUnusable, match="not a regular file"):
        volumes.connect({**NFS, "format": kind})
    (share / NAME).symlink_to(share / "secret")
    with pytest.raises(exception.VolumeUnusable, match="not a regular file"):
        volumes.connect({**NFS, "format": kind})
    (share / NAME).unlink()
    (share / NAME).write_bytes(b"of another format")
    if kind == "qcow2":
        with pytest.raises(exception.VolumeUnusable, match="not in the format qcow2"):
            volumes.connect({**NFS, "format": kind})
