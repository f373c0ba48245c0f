"""The suite as one process, as somebody tries it who has neither root nor broker nor hypervisor."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.client import Client
from tests.integration.processes import Process, eventually, free_port

UUID = re.compile(r"[0-9a-f-]{36}")
_BIN = pathlib.Path(sys.executable).parent


@pytest.fixture(name="client")
def running(tmp_path: pathlib.Path) -> Iterator[Client]:
    (tmp_path / "hosts.yaml").write_text("groups: [{name: rack, hosts: 2}]\n")
    port = free_port()
    config = tmp_path / "nova.conf"
    config.write_text(f"[DEFAULT]\nstate_path = {tmp_path}/state\n[api]\nport = {port}\n"
                      f"[fake]\nscenario = {tmp_path}/hosts.yaml\n")
    (tmp_path / "image").write_bytes(bytes(1 << 20))
    image = subprocess.run([_BIN / "nova-manage", "--config-file", config, "image", "import", tmp_path / "image",
                            "--name", "blank", "--disk-format", "raw"], check=True, capture_output=True, text=True)
    process = Process("nova-allinone", [str(_BIN / "nova-allinone"), "--config-file", str(config)],
                      tmp_path / "nova.log", env={"HOME": str(tmp_path), "PATH": os.defpath})
    process.start()
    try:
        eventually(lambda: "Nova is at" in process.tail(), 60, "it says where it is")
        client = Client(f"http://127.0.0.1:{port}/v2.1", user="admin", project="admin")
        client.image_id = UUID.search(image.stdout)[0]  # type: ignore[index]
        yield client
        process.stop()
        assert "Traceback" not in process.log.read_text()
    finally:
        process.kill()


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
