"""Data of the destination of a move are addresses, and run nothing on the source."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nova import conf, exception
from nova.conf import CONF
from nova.objects.servers.moves import MigrationTarget
from nova.virt.libvirt.files import peers
from nova.virt.libvirt.files.disk_server import Served, fetch
from nova.virt.libvirt.live_source import LiveMigrationSource
from tests.unit.virt.guests import server


@pytest.fixture(autouse=True)
def options(tmp_path: pathlib.Path) -> Iterator[None]:
    conf.register()
    CONF.set_override("state_path", str(tmp_path))
    yield
    CONF.clear_override("state_path")
    CONF.clear_override("live_migration_uri", group="libvirt")


class Off:
    """The guests of a host one of which is off, nobody knows why: the destination is asked whether it runs there."""

    def __init__(self) -> None:
        self.locks = self

    def hold(self, _uuid: str) -> Any:
        return contextlib.nullcontext()

    def on_domain(self, _uuid: str, look: Any) -> Any:
        return look(self)

    def isActive(self) -> int:
        return 0

    def state(self) -> tuple[int, int]:
        return 5, 0


def test_a_destination_has_no_program_run_on_the_source(tmp_path: pathlib.Path) -> None:
    """libvirt opens a connection by any program that a URI names, as root."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    CONF.set_override("live_migration_uri", f"qemu+unix:///system?socket={tmp_path}/none-of-%s", group="libvirt")
    hostile = MigrationTarget(host="there", uri=f"qemu+ext:///system?command={program}", address="192.0.2.1")
    with pytest.raises(exception.MigrationError):
        LiveMigrationSource(Off()).migrate(server(), hostile, lambda _progress: None, threading.Event())  # type: ignore[arg-type]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("said", ["", "host/system?command=x", "a,driver=file", "host:16509/x", "-oProxyCommand=x",
                                  "a b", "[::1]", "host\n", "ä", "a@b", "x" * 300])
def test_what_is_no_address_is_refused(said: str) -> None:
    with pytest.raises(exception.MigrationError, match="reported no valid address"):
        peers.uri(said)
    with pytest.raises(exception.MigrationError, match="reported no valid address"):
        fetch(server().uuid, Served(said, 49300, "key"), "disk", 512, "/nonexistent/disk")


@pytest.mark.parametrize(("said", "uri"), [
    ("192.0.2.1", "qemu+tcp://192.0.2.1/system"), ("fd00::1", "qemu+tcp://[fd00::1]/system"),
    ("host-1.example.org", "qemu+tcp://host-1.example.org/system")])
def test_names_and_addresses_of_hosts_are_taken(said: str, uri: str) -> None:
    assert peers.uri(said) == uri
