"""Helpers of tests of bad requests: failing requests, and comparison of row counts before and after."""

import contextlib
import functools

import pytest
import sqlalchemy as sa

from nova.db import tables
from tests.functional.client import Client, Failed

NIL = "00000000-0000-0000-0000-000000000000"
LONG = "x" * 256
HUGE = "9" * 30
FIELD = "Invalid input for field/attribute {}."
UNEXPECTED = "Additional properties are not allowed ('{}' was unexpected)"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGRtZGtzbGRrc2xka3NsZGtzbGRrc2xka3NsZGtzbGRr c"
# Routes that change state shared by all tests: hosts and default quotas.
SHARED = frozenset({("DELETE", "/os-services/{id}"), ("PUT", "/os-services/{id}"),
                    ("PUT", "/os-quota-class-sets/{id}")})

# Tables that services write independent of the requests of a test.
_BACKGROUND = {"services", "compute_nodes", "inventories", "alembic_version"}


@functools.cache
def _counts():
    return sa.select(*(sa.select(sa.func.count()).select_from(table).scalar_subquery().label(name)
                       for name, table in tables.metadata.tables.items() if name not in _BACKGROUND))


def rows(suite):
    """Return the number of rows of each table."""
    return suite.conductor.core.db.read(lambda connection: connection.execute(_counts()).one()._asdict())


@contextlib.contextmanager
def no_rows(suite):
    before = rows(suite)
    yield
    assert rows(suite) == before


def raw(client, method, path, data=None, version="2.96", prefix="/v2.1", **headers):
    """Send a request that a well-behaved client would not send; return the response."""
    sent = {"OpenStack-API-Version": f"compute {version}", "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()}}
    return client.session.request(method, f"{client.url}{prefix}{path}", data=data, headers=sent, timeout=60)


def refused(client, method, path, code, text, body=None, **options):
    """Assert that the request fails with this status and a message that contains the text."""
    with pytest.raises(Failed) as failed:
        client.call(method, path, body, **options)
    assert (failed.value.code, text) == (code, text if text in (failed.value.message or "") else failed.value.message)


@pytest.fixture(name="nothing_left")
def nothing_left_fixture(suite):
    with no_rows(suite):
        yield


@pytest.fixture(name="shelf", scope="module")
def shelf_fixture(suite, image_id, flavor):
    """Create one resource of each kind in project p, as targets of the requests."""
    admin = Client(suite.url)
    old = Client(suite.url, version="2.1")
    made = {
        "flavor": flavor, "image": image_id,
        "group": admin.post("/os-server-groups", {"server_group": {
            "name": "g", "policy": "affinity"}})["server_group"]["id"],
        "security_group": old.post("/os-security-groups", {"security_group": {
            "name": "s", "description": "d"}})["security_group"]["id"],
        "aggregate": admin.post("/os-aggregates", {"aggregate": {"name": "shelf"}})["aggregate"]["id"],
    }
    yield made
    admin.delete(f"/os-server-groups/{made['group']}")
    old.delete(f"/os-security-groups/{made['security_group']}")
    admin.delete(f"/os-aggregates/{made['aggregate']}")


@pytest.fixture(name="server")
def server_fixture(admin, shelf):
    uuid = admin.boot(shelf["flavor"], shelf["image"])
    admin.wait(uuid, "ACTIVE")
    return uuid
