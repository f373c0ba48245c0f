"""A server over the REST API on a compute with ``compute_driver = uml``: a real guest on a real network."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.integration.allinone import start_allinone
from tests.integration.client import Client
from tests.integration.drivers.subject import wait_for
from tests.integration.network.linuxnet_lab import needs_root
from tests.integration.port_relay import InwardRelay
from tests.integration.processes import eventually

pytestmark = [needs_root, pytest.mark.root,
              pytest.mark.skipif(not shutil.which("linux.uml"), reason="needs user-mode-linux")]
_CIDR = "10.95.0"
_OPTIONS = """
[DEFAULT]
compute_driver = uml
reserved_host_memory_mb = 0
shutdown_timeout = 30
[network]
driver = linuxnet
nat = false
[uml]
wait_soft_reboot_seconds = 60
"""
_SETUP = ("mount -t sysfs sysfs /sys; mkdir -p /run/netns; mount -t tmpfs tmpfs /run/netns; ip link set lo up; "
          "exec sleep infinity")


class Lab:
    """A machine in network and mount namespaces of its own, with nova-allinone."""

    def __init__(self, place: pathlib.Path) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", _SETUP])
        self.inside = ["nsenter", "-t", str(self._holder.pid), "--net", "--mount"]
        wait_for(lambda: pathlib.Path(f"/proc/{self._holder.pid}/comm").read_text() == "sleep\n", 30, "the lab starts")
        self.place = place

    def api(self, url: str) -> Client:
        """Return a client of the API in the namespace."""
        port = int(url.rpartition(":")[2])
        self._relay = InwardRelay(f"/proc/{self._holder.pid}/ns/net", "127.0.0.1", "127.0.0.1", port)
        return Client(f"{url}/v2.1", user="admin", project="admin")

    def run(self, *command: str) -> str:
        done = subprocess.run([*self.inside, *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def guests(self) -> list[int]:
        """Return the ids of the processes of all guests: supervisors, kernels and their helpers."""
        instances = str(self.place / "state/instances")
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(instances):
                    found.append(int(path.parent.name))
        return found

    def close(self) -> None:
        for pid in self.guests():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._holder.kill()
        self._holder.wait()


@pytest.fixture(name="lab")
def lab_fixture() -> Iterator[Lab]:
    place = pathlib.Path(tempfile.mkdtemp(prefix="nova-uml."))
    place.chmod(0o755)
    made = Lab(place)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(place)


def manage(lab: Lab, *arguments: str) -> str:
    program = pathlib.Path(sys.executable).with_name("nova-manage")
    return lab.run(str(program), "--config-file", str(lab.place / "nova.conf"), *arguments).strip()


def console(api: Client, server: str) -> str:
    return str(api.action(server, "os-getConsoleOutput", {})["output"])


def wait_ready(api: Client, server: str, times: int = 1) -> str:
    """Wait until the guest has booted ``times`` times; return its last message."""
    def ready() -> list[str]:
        lines = re.findall(r"nova guest ready: .*", console(api, server))
        return lines if len(lines) >= times else []

    return str(eventually(ready, 90, f"the guest boots\n{console(api, server)}")[-1])


def test_server_on_user_mode_linux(lab: Lab, guest_image: pathlib.Path) -> None:
    with start_allinone(lab.place, _OPTIONS, lab.inside) as (process, url, _blank):
        api = lab.api(url)
        api.post("/flavors", {"flavor": {"name": "tiny", "id": "tiny", "vcpus": 1, "ram": 64, "disk": 1}})
        api.image_id = manage(lab, "image", "import", str(guest_image / "rootfs.img"), "--name", "guest",
                              "--disk-format", "raw")
        network = manage(lab, "network", "create", "--name", "lab", "--cidr", f"{_CIDR}.0/24")
        node = api.get("/os-hypervisors/detail")["hypervisors"][0]
        assert node["hypervisor_type"] == "uml"

        server = api.boot("penguin", networks=[{"uuid": network}])
        api.wait(server, "ACTIVE", 60)
        ready = wait_ready(api, server)
        address = next(iter(api.show(server)["addresses"].values()))[0]["addr"]
        assert f"hostname=penguin ip={address} " in ready
        assert "source=metadata-service" in ready

        group = next(group for group in api.get("/os-security-groups", "2.35")["security_groups"]
                     if group["name"] == "default")
        api.post("/os-security-group-rules", {"security_group_rule": {
            "parent_group_id": group["id"], "ip_protocol": "icmp", "from_port": -1, "to_port": -1,
            "cidr": "0.0.0.0/0"}}, "2.35")

        def answers(wait: str = "2") -> bool:
            ping = ["ip", "netns", "exec", f"nova-{network[:12]}", "ping", "-c", "1", "-W", wait, address]
            return subprocess.run([*lab.inside, *ping], capture_output=True, timeout=30).returncode == 0

        eventually(answers, 30, "the guest answers a ping")

        # nova-compute dies and returns; the guest continues.
        supervisor = min(lab.guests())  # started first; programs of the guest are processes, too, and may end
        process.kill()
        assert min(lab.guests()) == supervisor
        assert answers()
        process.start()
        eventually(lambda: process.tail().count("Nova is at") >= 1 and process.running(), 60, "nova-allinone is back")
        eventually(lambda: api.show(server)["status"] == "ACTIVE", 60, "the API answers")
        assert min(lab.guests()) == supervisor

        api.action(server, "pause")
        api.wait(server, "PAUSED")
        assert not answers("1")
        api.action(server, "unpause")
        api.wait(server, "ACTIVE")
        eventually(answers, 30, "the guest answers after unpause")

        api.action(server, "reboot", {"type": "SOFT"})
        api.wait(server, "ACTIVE", 90)
        wait_ready(api, server, 2)
        api.action(server, "os-stop")
        api.wait(server, "SHUTOFF", 60)
        assert lab.guests() == []
        api.action(server, "os-start")
        api.wait(server, "ACTIVE", 60)
        wait_ready(api, server, 3)

        volume = api.post("/os-volumes", {"volume": {"size": 1}}, "2.35")["volume"]["id"]
        eventually(lambda: api.get(f"/os-volumes/{volume}", "2.35")["volume"]["status"] == "available", 30, "a volume")
        api.post(f"/servers/{server}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume}})
        eventually(lambda: api.get(f"/os-volumes/{volume}", "2.35")["volume"]["status"] == "in-use", 30, "attached")
        diagnostics = api.get(f"/servers/{server}/diagnostics")
        assert (diagnostics["driver"], diagnostics["num_disks"], diagnostics["state"]) == ("uml", 2, "running")
        assert diagnostics["nic_details"][0]["rx_octets"] > 0

        # An operation that the driver does not support changes nothing.
        assert api.request("POST", f"/servers/{server}/action", {"suspend": None}).status_code == 202
        eventually(lambda: any(action["action"] == "suspend" and action["message"] == "Error" for action in api.get(
            f"/servers/{server}/os-instance-actions")["instanceActions"]), 30, "the suspend fails")
        api.wait(server, "ACTIVE")
        assert answers()

        api.delete(f"/servers/{server}")
        api.wait_gone([server])
        assert lab.guests() == []
        assert sorted(path.name for path in (lab.place / "state/instances").iterdir()) == ["_base"]
        assert "tap" not in lab.run("ip", "-o", "link")
    assert "Traceback" not in process.log.read_text()
