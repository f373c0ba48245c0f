"""NOVA_HOSTS=2 of devstack/stack.sh: the second host as the scripts create it, without a cloud."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import pathlib
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import psutil
import pytest

from tests.integration.hosts.two_hosts import needs_hosts
from tests.integration.processes import Process, eventually
from tests.paths import ROOT
from tools.hosts.site import Site

pytestmark = [needs_hosts, pytest.mark.root]

_DEVSTACK = ROOT / "devstack"
# The parts of stack.sh that the tests need. The tests start the programs themselves, and there is no broker.
_SCRIPT = """
for file in common config supervisor nova hosts; do . "$DEVSTACK_DIR/lib/$file.sh"; done
load_options
prepare_data_dir
supervisorctl() { # it knows what to stop by files of the test
    local pid
    [ "$1" = stop ] && pid=$(cat "$DATA_DIR/run/$2.pid" 2> /dev/null) || return 0
    kill "$pid" 2> /dev/null || return 0
    while [ -d "/proc/$pid" ] && ! grep -q '^State:.Z' "/proc/$pid/status"; do sleep 0.1; done
}
host_rabbit_url() { echo "rabbit://nova-host-$1:secret@127.0.0.1:5672/nova"; }
VIRT_TYPE=qemu
"""
_CONFIGURED = """
import json, sys
from nova import conf
from nova.conf import CONF
import oslo_messaging
conf.load(["--config-file", sys.argv[1]])
print(json.dumps([CONF.host, CONF.my_ip, oslo_messaging.TransportURL.parse(CONF).hosts[0].hostname,
                  CONF.vnc.server_listen, CONF.rpc.key_file]))
"""


class Stack:
    """A DATA_DIR, and networks that no other interface of this machine uses."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        taken = {address.address.rpartition(".")[0] for card in psutil.net_if_addrs().values() for address in card}
        self.network, outside = random.SystemRandom().sample(
            [net for number in range(256) if (net := f"10.213.{number}") not in taken], 2)
        self._env = {
            **os.environ, "DATA_DIR": str(directory), "DEVSTACK_DIR": str(_DEVSTACK), "REPO": str(_DEVSTACK.parent),
            "PYTHON": sys.executable, "HOST_NAME": "stack", "LOCAL_CONF": "/dev/null",
            "HOSTS_NETWORK": self.network, "HOSTS_OUTSIDE": outside}

    def run(self, functions: str, hosts: int = 2) -> None:
        subprocess.run(["bash", "-euc", _SCRIPT + functions], env={**self._env, "NOVA_HOSTS": str(hosts)}, check=True,
                       timeout=120, cwd="/")

    def on_second(self, *command: str) -> str:
        """Run a command on the second host and return its output, "" after a failure."""
        done = subprocess.run([_DEVSTACK / "stackctl", "on", "2", *command], env=self._env, timeout=60, check=False,
                              capture_output=True, text=True, cwd="/")
        return done.stdout.strip() if done.returncode == 0 else ""

    def programs(self) -> dict[str, str]:
        """Return the supervisor's programs: name -> command, in the order of their start."""
        found = {}
        for file in (self.directory / "etc/supervisor.d").glob("*.conf"):
            parser = configparser.RawConfigParser()
            parser.read(file)
            [section] = parser.sections()
            found[section.removeprefix("program:")] = parser[section]
        return {name: found[name]["command"] for name in sorted(found, key=lambda name: int(found[name]["priority"]))}


@pytest.fixture
def stack() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="nova-stack-", dir="/var/tmp") as directory:
        made = Stack(pathlib.Path(directory))
        yield made
        made.run("remove_hosts")


def test_second_devstack_host_is_isolated_and_removed_completely(stack: Stack) -> None:
    stack.run("prepare_hosts_network; prepare_hosts")
    programs = stack.programs()
    assert next(iter(programs)) == "host2"  # the host must be powered on before its programs
    assert programs.keys() == {"host2", "host2-virtlogd", "host2-libvirtd", "host2-nova-compute",
                               "host2-nova-metadata"}
    bridge = Site(stack.directory / "hosts").switch.bridge
    with contextlib.ExitStack() as ends:
        running = {name: Process(name, shlex.split(command), stack.directory / f"logs/{name}.log")
                   for name, command in programs.items() if "nova" not in name}
        for name, process in running.items():
            ends.callback(process.kill)
            process.start()
            (stack.directory / f"run/{name}.pid").write_text(str(process.pid))
            if name == "host2":
                eventually(lambda: stack.on_second("hostname") == "stack-host2", 60, "the host has booted")
        eventually(lambda: "QEMU" in stack.on_second("virsh", "-c", "qemu:///system", "version"), 60,
                   "libvirtd of the host responds")
        assert stack.on_second("ping", "-c", "1", "-W", "5", f"{stack.network}.1")
        # The host has its own files at the paths of this machine, and nova-compute runs with those files.
        stack.on_second("touch", f"{stack.directory}/nova/of-host2")
        assert not (stack.directory / "nova/of-host2").exists()
        enter = programs["host2-nova-compute"].partition(str(stack.directory / "venv"))[0]
        seen = subprocess.run([*shlex.split(enter), "ls", f"{stack.directory}/nova"], check=True, capture_output=True,
                              text=True, timeout=60)
        assert seen.stdout.split() == ["of-host2"]
        stack.run("prepare_hosts_network; prepare_hosts")  # a second run of stack.sh
        assert stack.programs() == programs
        assert stack.on_second("hostname") == "stack-host2"
        stack.run("prepare_hosts", hosts=1)
        assert stack.programs() == {}
        assert not [name for name, process in running.items() if process.running()]
    assert not (stack.directory / "etc/nova/host2.conf").exists()
    assert os.path.exists(f"/sys/class/net/{bridge}")
    stack.run("remove_hosts")
    assert not [name for name in os.listdir("/sys/class/net") if name.startswith(bridge)]


def test_second_devstack_host_has_its_own_addresses_and_key(stack: Stack) -> None:
    stack.run("prepare_hosts_network; prepare_hosts")
    own = stack.directory / "etc/nova/host2.conf"
    assert own.stat().st_mode & 0o077 == 0
    assert f"--config-file {own}" in stack.programs()["host2-nova-compute"]
    read = subprocess.run([sys.executable, "-c", _CONFIGURED, own], check=True, capture_output=True, text=True,
                          timeout=120)
    assert json.loads(read.stdout) == [
        "stack-host2", f"{stack.network}.2", f"{stack.network}.1", f"{stack.network}.2",
        str(stack.directory / "etc/nova/hosts/stack-host2.key")]
