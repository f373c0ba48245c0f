"""Fixtures of the tests of the API."""

import pytest

from nova.api.service import ApiService
from nova.conf import CONF


@pytest.fixture(scope="module")
def legacy_url(suite):
    """Return the URL of an API service of the same suite with [api]legacy enabled."""
    CONF.set_override("legacy", True, group="api")
    service = ApiService(suite.transport)
    CONF.clear_override("legacy", group="api")
    service.start()
    yield service.url
    service.stop()
