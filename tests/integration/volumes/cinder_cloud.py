"""Fixtures for a small cloud with real guests and volumes of a real Cinder."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.integration.hosts.two_hosts import RealHosts, real_hosts
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import RealCloud, real_cloud
from tests.integration.volumes.real_cinder import RealCinder


@pytest.fixture(scope="module", name="hosts")
def hosts_fixture() -> Iterator[RealHosts]:
    with real_hosts(1) as made:
        yield made


@pytest.fixture(name="cloud")
def cloud_fixture(rabbitmq: Rabbit, hosts: RealHosts, guest_image: pathlib.Path,
                  cinder: RealCinder) -> Iterator[RealCloud]:
    with cinder_cloud(rabbitmq, hosts, guest_image, cinder) as made:
        yield made


@contextlib.contextmanager
def cinder_cloud(rabbit: Rabbit, hosts: RealHosts, image: pathlib.Path, cinder: RealCinder,
                 **more: Mapping[str, Any]) -> Iterator[RealCloud]:
    """Start a cloud whose hosts can mount the exports of Cinder, and register Nova with Cinder. ``more``: further
    sections of nova.conf."""
    for host in hosts.hosts:
        if not host.host.run(["find", "/usr/sbin", "-name", cinder.HELPER]):  # a new host, or one that was switched off
            host.host.run(cinder.helper())
    options = {
        "volume": {"driver": "cinder"}, "cinder": cinder.options(), "api": {"auth_strategy": "keystone"},
        "keystone_authtoken": cinder.middleware(), **more}
    with real_cloud(rabbit, hosts, image, options=options, token=cinder.token()) as made:
        cinder.introduce_nova(made.api.url)
        yield made
