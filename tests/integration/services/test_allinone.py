"""nova-allinone: all services in one process, without root, broker and hypervisor."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.integration.allinone import start_allinone
from tests.integration.client import Client
from tests.integration.processes import eventually


@pytest.fixture(name="client")
def running(tmp_path: pathlib.Path) -> Iterator[Client]:
    (tmp_path / "hosts.yaml").write_text("groups: [{name: rack, hosts: 2}]\n")
    with start_allinone(tmp_path, f"[fake]\nscenario = {tmp_path}/hosts.yaml\n") as (process, url, image_id):
        client = Client(f"{url}/v2.1", user="admin", project="admin")
        client.image_id = image_id
        yield client
    assert "Traceback" not in process.log.read_text()


def test_allinone_migrates_a_server_between_its_fake_hosts(client: Client) -> None:
    services = client.get("/os-services")["services"]
    assert {(each["binary"], each["host"]) for each in services if each["binary"] == "nova-compute"} == {
        ("nova-compute", "rack-000"), ("nova-compute", "rack-001")}
    client.post("/flavors", {"flavor": {"name": "tiny", "id": "tiny", "vcpus": 1, "ram": 128, "disk": 1}})
    server = client.boot("traveller", networks="none")
    before = client.wait(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"]
    client.action(server, "migrate")
    after = client.wait(server, "VERIFY_RESIZE")["OS-EXT-SRV-ATTR:host"]
    assert {before, after} == {"rack-000", "rack-001"}
    client.action(server, "confirmResize")
    client.wait(server, "ACTIVE")
    client.delete(f"/servers/{server}")
    client.wait_gone([server])


def test_allinone_refuses_another_database_in_one_line(tmp_path: pathlib.Path) -> None:
    with start_allinone(tmp_path, "") as (process, _url, _image):
        pass
    for file in (tmp_path / "state").glob("nova.sqlite*"):
        file.unlink()
    process.start()
    eventually(lambda: not process.running(), 60, "nova-allinone has exited")
    *_, last = process.log.read_text().splitlines()
    assert re.fullmatch(r"nova-allinone: The service of host \S+ must not start: it belongs to deployment .*", last)
    assert "Traceback" not in process.log.read_text()
