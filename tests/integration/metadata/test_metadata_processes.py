"""nova-metadata started as root: its worker that reads requests of guests has no privileges."""

from __future__ import annotations

import os
import pathlib
import pwd
import shutil
import signal

import pytest

import nova
from nova.conf import CONF
from tests.integration.cluster import command_of, environment
from tests.integration.network.linuxnet_lab import Net, needs_root, rules
from tests.integration.processes import Process, eventually, free_port

pytestmark = [needs_root, pytest.mark.root]


def configured(directory, transport_url):
    config = directory / "nova.conf"
    config.write_text(f"[DEFAULT]\ntransport_url = {transport_url}\nstate_path = {CONF.state_path}\n"
                      f"rpc_response_timeout = 1\n[metadata]\nport = {free_port()}\nuser = nobody\n")
    config.chmod(0o600)
    return ["--config-file", str(config)]


@pytest.fixture
def service(lab, tmp_path):
    made = Process("metadata", [*command_of("metadata"), *configured(tmp_path, "kombu+memory://")], tmp_path / "log",
                   env=environment())
    made.start()
    yield made
    made.kill()


@pytest.fixture
def service_of_a_home(lab, tmp_path):
    """Start a service whose code only root can read, without a broker."""
    home = tmp_path / "home"
    shutil.copytree(pathlib.Path(nova.__file__).parent, home / "nova", ignore=shutil.ignore_patterns("__pycache__"))
    home.chmod(0o700)
    options = configured(tmp_path, f"rabbit://nova:nova@127.0.0.1:{free_port()}/")
    made = Process("metadata", [*command_of("metadata"), *options], tmp_path / "log",
                   env={**environment(), "PYTHONPATH": str(home)})
    made.start()
    yield made
    made.kill()


def children(pid):
    return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()]


def status(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _colon, value in (line.partition(":") for line in lines)}


def answered(guest, path=""):
    done = guest.run("curl", "-s", "-m", "5", "-w", "%{http_code}", "-o", "/dev/null", f"http://169.254.169.254/{path}")
    return done.stdout if done.stdout != "000" else ""


def test_metadata_worker_has_no_privileges(lab, service):
    instance = Net().instance(5)
    lab.driver.plug(instance, rules())
    guest = lab.guest(instance)
    guest.static()
    assert eventually(lambda: answered(guest), 60, "the metadata service responds") == "200"
    [answering] = children(service.pid)
    account = pwd.getpwnam("nobody")
    found = status(answering)
    assert found["Uid"] == [str(account.pw_uid)] * 4
    assert found["Gid"] == [str(account.pw_gid)] * 4
    assert (found["CapEff"], found["CapPrm"], found["NoNewPrivs"], found.get("Groups")) == (
        ["0000000000000000"], ["0000000000000000"], ["1"], [])
    service.stop()
    assert not pathlib.Path(f"/proc/{answering}").exists()


@pytest.mark.parametrize("which", ["root", "answering"])
def test_metadata_parent_and_worker_exit_together(lab, service, which):
    [answering] = eventually(lambda: children(service.pid), 60, f"the worker has started\n{service.tail()}")
    eventually(lambda: b"listens on" in service.log.read_bytes(), 60, "the service listens")
    os.kill(service.pid if which == "root" else answering, signal.SIGKILL)
    eventually(lambda: not service.running(), 30, "the parent process has exited")
    eventually(lambda: not pathlib.Path(f"/proc/{answering}").exists(), 30, "the worker has exited")


def test_metadata_worker_without_access_to_the_code_tries_the_broker(lab, service_of_a_home):
    instance = Net().instance(6)
    lab.driver.plug(instance, rules())
    guest = lab.guest(instance)
    guest.static()
    log = service_of_a_home.log
    eventually(lambda: answered(guest, "latest/meta-data/instance-id"), 60, "the metadata service responds")
    eventually(lambda: b"Connection refused" in log.read_bytes(), 30, "the service has tried to connect to the broker")
    assert b"No module named" not in log.read_bytes()
