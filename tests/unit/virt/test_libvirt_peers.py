"""Addresses from the destination of a migration must not run programs on the source."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nova import conf, exception
from nova.conf import CONF
from nova.objects.servers.moves import DiskSource, MigrationTarget
from nova.virt.guest_files import peers
from nova.virt.guest_files.disk_server import fetch
from nova.virt.libvirt.live_migration import LiveMigrationSource
from tests.unit.virt.guests import server


@pytest.fixture(autouse=True)
def options(tmp_path: pathlib.Path) -> Iterator[None]:
    conf.register()
    CONF.set_override("state_path", str(tmp_path))
    yield
    CONF.clear_override("state_path")
    CONF.clear_override("live_migration_uri", group="libvirt")


class Off:
    """A fake of the guests of a host with a guest that is off, so that the destination is queried."""

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


def test_migration_uri_from_the_destination_runs_no_program(tmp_path: pathlib.Path) -> None:
    """libvirt can run any program named in a connection URI, as root."""
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
def test_invalid_migration_address_is_refused(said: str) -> None:
    with pytest.raises(exception.MigrationError, match="reported no valid address"):
        peers.uri(said)
    with pytest.raises(exception.MigrationError, match="reported no valid address"):
        fetch(server().uuid, DiskSource(host="other", address=said, port=49300, key="key"), "disk", 512,
              "/nonexistent/disk")


@pytest.mark.parametrize(("said", "uri"), [
    ("192.0.2.1", "qemu+tcp://192.0.2.1/system"), ("fd00::1", "qemu+tcp://[fd00::1]/system"),
    ("host-1.example.org", "qemu+tcp://host-1.example.org/system")])
def test_valid_host_names_and_addresses_are_accepted(said: str, uri: str) -> None:
    assert peers.uri(said) == uri
