"""A small cloud with real guests whose volumes a real Cinder keeps: fixtures."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.rabbit import Rabbit
from tests.integration.real_cinder import RealCinder
from tests.integration.real_cloud import RealCloud, real_cloud
from tests.integration.two_hosts import RealHosts, real_hosts


@pytest.fixture(scope="module", name="hosts")
def hosts_fixture(cinder: RealCinder) -> Iterator[RealHosts]:
    with real_hosts(1) as made:
        # As systemd leaves it: what is mounted while a guest runs shows in the room of mounts that libvirt made for it.
        made.hosts[0].host.run(["mount", "--make-rshared", "/"])
        made.hosts[0].host.run(cinder.helper())
        yield made


@pytest.fixture(name="cloud")
def cloud_fixture(rabbitmq: Rabbit, hosts: RealHosts, guest_image: pathlib.Path,
                  cinder: RealCinder) -> Iterator[RealCloud]:
    options: dict[str, dict[str, Any]] = {
        "volume": {"driver": "cinder"}, "cinder": cinder.options(), "api": {"auth_strategy": "keystone"},
        "keystone_authtoken": cinder.middleware()}
    with real_cloud(rabbitmq, hosts, guest_image, options=options, token=cinder.token()) as made:
        yield made
