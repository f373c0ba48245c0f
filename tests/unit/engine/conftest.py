"""Fixtures of engine tests: an empty deployment, or a deployment with one running server."""

import pytest

from tests.unit.engine.test_engine_properties import Machine


@pytest.fixture
def machine():
    made = Machine()
    try:
        made.furnish(0)
        yield made
    finally:
        made.close()


@pytest.fixture
def booted(machine):
    """Boot a server. After the test the machine must reach a settled state without audit findings."""
    machine.boot(1, twice=False)
    machine.calm_down()
    yield machine
    machine.calm_down()
    machine.books_balance_at_every_moment()
