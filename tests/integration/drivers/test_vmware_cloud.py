"""Servers over the REST API on a compute with ``compute_driver = vmware`` and a simulated vCenter."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.integration.allinone import start_allinone
from tests.integration.client import Client
from tests.integration.drivers import vcsim_server
from tests.integration.drivers.vcsim_server import Vcsim
from tests.integration.processes import eventually

pytestmark = pytest.mark.skipif(bool(vcsim_server.missing()), reason=vcsim_server.missing() or "-")
_OPTIONS = """
[DEFAULT]
compute_driver = vmware
reserved_host_memory_mb = 0
shutdown_timeout = 30
allow_resize_to_same_host = true
[vmware]
host_ip = 127.0.0.1
host_port = {port}
host_username = user
host_password = pass
cluster_name = DC0_C0
ca_file = {ca_file}
cache_prefix = nova
task_poll_interval = 0.1
"""


@pytest.fixture(name="place")
def place_fixture() -> Iterator[pathlib.Path]:
    place = pathlib.Path(tempfile.mkdtemp(prefix="nova-vmware."))
    yield place
    shutil.rmtree(place)


def test_server_on_vmware(place: pathlib.Path) -> None:
    vcsim = Vcsim(place)
    try:
        with start_allinone(place, _OPTIONS.format(port=vcsim.port, ca_file=vcsim.ca_file)) as (process, url, image):
            api = Client(f"{url}/v2.1", user="admin", project="admin")
            api.image_id = image
            for name, disk in (("tiny", 1), ("small", 2)):
                api.post("/flavors", {"flavor": {"name": name, "id": name, "vcpus": 1, "ram": 64, "disk": disk}})
            node = api.get("/os-hypervisors/detail")["hypervisors"][0]
            assert node["hypervisor_type"] == "VMware vCenter Server"
            server = api.boot("web")
            api.wait(server, "ACTIVE", 60)
            for action, body, status in (("os-stop", None, "SHUTOFF"), ("os-start", None, "ACTIVE"),
                                         ("suspend", None, "SUSPENDED"), ("resume", None, "ACTIVE"),
                                         ("reboot", {"type": "HARD"}, "ACTIVE"), ("rescue", {}, "RESCUE"),
                                         ("unrescue", None, "ACTIVE"), ("rebuild", {"imageRef": image}, "ACTIVE")):
                api.action(server, action, body)
                eventually(lambda status=status: api.show(server)["status"] == status
                           and api.show(server)["OS-EXT-STS:task_state"] is None, 60, f"{action} ends")
            # An operation that the driver does not support changes nothing.
            assert api.request("POST", f"/servers/{server}/action", {"pause": None}).status_code == 202
            eventually(lambda: any(action["action"] == "pause" and action["message"] == "Error" for action in api.get(
                f"/servers/{server}/os-instance-actions")["instanceActions"]), 30, "the pause fails")
            assert api.show(server)["status"] == "ACTIVE"

            api.action(server, "createImage", {"name": "copy"})
            eventually(lambda: any(item["name"] == "copy" and item["status"] == "ACTIVE"
                                   for item in api.get("/images/detail", "2.35")["images"]), 60, "the image is made")
            eventually(lambda: api.show(server)["OS-EXT-STS:task_state"] is None, 60, "the snapshot ends")
            api.action(server, "resize", {"flavorRef": "small"})
            api.wait(server, "VERIFY_RESIZE", 60)
            api.action(server, "revertResize")
            api.wait(server, "ACTIVE", 60)
            copies = [item["id"] for item in api.get("/images/detail", "2.35")["images"] if item["name"] == "copy"]
            api.image_id = copies[0]
            second = api.boot("from-copy")
            api.wait(second, "ACTIVE", 60)
            for uuid in (server, second):
                api.delete(f"/servers/{uuid}")
            api.wait_gone([server, second])
            assert sorted(path.name for path in (place / "state/instances").iterdir()) == ["_base"]
        assert "Traceback" not in process.log.read_text()
    finally:
        vcsim.stop()
