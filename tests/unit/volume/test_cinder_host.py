"""Cinder's volumes as a host connects them."""

import pytest

from nova import conf, exception
from nova.volume.cinder_host import CinderVolumes

UUID = "49e6966f-dddf-47db-8448-b8c9c41b073b"
RBD = {"driver_volume_type": "rbd", "name": f"volumes/volume-{UUID}", "hosts": ["10.0.0.1", "10.0.0.2"],
       "ports": ["6789", "6790"], "auth_enabled": True, "auth_username": "cinder", "secret_uuid": "457eb676",
       "discard": True, "qos_specs": {"total_iops_sec": "500", "vendor:trick": "on"}, "access_mode": "ro",
       "encrypted": False, "volume_id": UUID}
NFS = {"driver_volume_type": "nfs", "export": "127.0.0.1:/export", "name": f"volume-{UUID}", "options": None,
       "format": "raw", "qos_specs": None, "access_mode": "rw", "encrypted": False, "volume_id": UUID}


@pytest.fixture
def volumes():
    conf.register()
    return CinderVolumes()


def test_an_image_of_rbd_is_reached_by_the_hypervisor(volumes):
    found = volumes.connect(RBD)
    assert (found.protocol, found.path, found.hosts) == (
        "rbd", f"volumes/volume-{UUID}", [("10.0.0.1", "6789"), ("10.0.0.2", "6790")])
    assert (found.auth_user, found.secret_uuid, found.serial) == ("cinder", "457eb676", UUID)
    assert (found.read_only, found.discard, found.limits) == (True, True, {"total_iops_sec": 500})
    volumes.disconnect(RBD)


@pytest.mark.parametrize(("info", "reason"), [
    ({**RBD, "encrypted": True}, "encrypted"), ({**RBD, "driver_volume_type": "iscsi"}, "iscsi"), ({}, "None"),
    ({"driver_volume_type": "rbd", "volume_id": UUID}, "name"),
    ({**RBD, "qos_specs": {"total_iops_sec": "many"}}, "many"),
    ({**NFS, "name": "../../etc/shadow"}, "name"), ({**NFS, "format": "vmdk"}, "format"),
    ({"driver_volume_type": "nfs", "volume_id": UUID}, "name")])
def test_what_cannot_be_used_is_said(volumes, info, reason):
    with pytest.raises(exception.VolumeUnusable) as refused:
        volumes.connect(info)
    assert reason in refused.value.message


def test_a_host_tells_how_it_reaches_volumes(volumes):
    volumes.start()
    told = volumes.connector("host-1")
    assert (told["host"], told["multipath"], bool(told["ip"])) == ("host-1", False, True)
