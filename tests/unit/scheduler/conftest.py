"""Fixtures that restore the options changed by a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nova import conf


@pytest.fixture(autouse=True, scope="session")
def registered() -> None:
    conf.register()


@pytest.fixture
def settings() -> Iterator[Callable[..., None]]:
    """Return ``settings(group, name=value, ...)``, which overrides options until the end of the test."""
    changed: list[tuple[str, str]] = []

    def override(group: str, **values: object) -> None:
        for name, value in values.items():
            conf.CONF.set_override(name, value, group)
            changed.append((name, group))

    yield override
    for name, group in changed:
        conf.CONF.clear_override(name, group)
