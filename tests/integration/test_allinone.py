"""The suite as one process, as somebody tries it who has neither root nor broker nor hypervisor."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.integration.allinone import start_allinone
from tests.integration.client import Client


@pytest.fixture(name="client")
def running(tmp_path: pathlib.Path) -> Iterator[Client]:
    (tmp_path / "hosts.yaml").write_text("groups: [{name: rack, hosts: 2}]\n")
    with start_allinone(tmp_path, f"[fake]\nscenario = {tmp_path}/hosts.yaml\n") as (process, url, image_id):
        client = Client(f"{url}/v2.1", user="admin", project="admin")
        client.image_id = image_id
        yield client
    assert "Traceback" not in process.log.read_text()


def test_a_server_moves_between_the_hosts_that_one_process_plays(client: Client) -> None:
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
