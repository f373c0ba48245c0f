"""The drivers that the contract suite tests."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from tests.integration.drivers.fake_subject import FakeSubject
from tests.integration.drivers.subject import Subject
from tests.integration.drivers.uml_subject import UmlSubject


def _fake(_request: pytest.FixtureRequest, place: pathlib.Path) -> Subject:
    return FakeSubject(place)


def _uml(request: pytest.FixtureRequest, place: pathlib.Path) -> Subject:
    if reason := UmlSubject.missing():
        pytest.skip(reason)
    return UmlSubject(place, request.getfixturevalue("guest_image"))


# Called with the request of the fixture and an empty directory that every user may enter.
SUBJECTS: dict[str, Callable[[pytest.FixtureRequest, pathlib.Path], Subject]] = {"fake": _fake, "uml": _uml}
