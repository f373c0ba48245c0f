"""The engine and its world: with nothing in it yet, or with one server that runs."""

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
    """Boot a server; after the test it must be settled and the audit must find nothing."""
    machine.boot(1, twice=False)
    machine.calm_down()
    yield machine
    machine.calm_down()
    machine.books_balance_at_every_moment()
