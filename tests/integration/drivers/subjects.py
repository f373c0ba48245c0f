"""The drivers that the contract suite tests."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from tests.integration.drivers.fake_subject import FakeSubject
from tests.integration.drivers.ironic_subject import IronicSubject
from tests.integration.drivers.libvirt_subject import LibvirtSubject
from tests.integration.drivers.lxc_subject import LxcSubject
from tests.integration.drivers.subject import Subject
from tests.integration.drivers.uml_subject import UmlSubject
from tests.integration.drivers.vmware_subject import VmwareSubject
from tests.integration.libvirt_fixtures import needs_libvirt


def _fake(_request: pytest.FixtureRequest, place: pathlib.Path) -> Subject:
    return FakeSubject(place)


def _uml(request: pytest.FixtureRequest, place: pathlib.Path) -> Subject:
    if reason := UmlSubject.missing():
        pytest.skip(reason)
    return UmlSubject(place, request.getfixturevalue("guest_image"))


def _libvirt(request: pytest.FixtureRequest, place: pathlib.Path) -> Subject:
    if needs_libvirt.args[0]:
        pytest.skip(str(needs_libvirt.kwargs["reason"]))
    daemon = request.getfixturevalue("libvirt_daemon")
    return LibvirtSubject(place, request.getfixturevalue("guest_image"), daemon)


def _lxc(_request: pytest.FixtureRequest, place: pathlib.Path) -> Subject:
    if reason := LxcSubject.missing():
        pytest.skip(reason)
    return LxcSubject(place)


def _ironic(_request: pytest.FixtureRequest, place: pathlib.Path) -> Subject:
    return IronicSubject(place)


def _vmware(_request: pytest.FixtureRequest, place: pathlib.Path) -> Subject:
    if reason := VmwareSubject.missing():
        pytest.skip(reason)
    return VmwareSubject(place)


# Called with the request of the fixture and an empty directory that every user may enter.
SUBJECTS: dict[str, Callable[[pytest.FixtureRequest, pathlib.Path], Subject]] = {
    "fake": _fake, "uml": _uml, "libvirt": _libvirt, "lxc": _lxc, "vmware": _vmware, "ironic": _ironic}
