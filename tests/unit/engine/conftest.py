"""The engine and its world, with nothing in it yet."""

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
