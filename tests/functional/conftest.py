"""Fixtures of the whole suite in this process, over HTTP. All tests share it, and each ends with an audit."""

import contextlib
import os
import tempfile
import time

import pytest
import sqlalchemy as sa

from nova import bus, conf, context
from nova.bus.message_signing import text_of
from nova.cmd import allinone
from nova.compute.service import ComputeService
from nova.conf import CONF
from nova.console import server as console_server
from nova.db import audit
from nova.db.volumes import volumes
from nova.image.directory import DirectoryStore
from nova.objects.base import new_uuid
from nova.objects.images.image import Image
from nova.rpcapi.networks import Networks
from nova.rpcapi.volumes import Volumes
from tests.functional.client import Client, Failed, wait_for
from tests.functional.several_hosts import SECOND, Held, Pair, nothing_used, service_of, usage_now, wait_scheduler
from tests.statement_counter import StatementCounter
from tests.unit.databases import unfinished

# Files with tests of more than 50 s in total, the longest first.
_LONG = ("test_cinder_moves", "test_cinder", "test_cinder_swaps", "test_volume_images", "test_live_moves",
         "test_assisted_snapshots", "test_neutron", "test_costs_of_many", "test_faults_compute", "test_volumes",
         "test_cinder_extend", "test_drains", "test_shares", "test_swaps", "test_nodes", "test_memory")


def pytest_collection_modifyitems(items):
    """Run the files with long tests first, so that no process of pytest-xdist has one of them left at the end."""
    ranks = {name: rank for rank, name in enumerate(_LONG)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


def make_master_key(directory):
    """Create the master key. All messages are signed, and each compute service has only the key of its host."""
    path = os.path.join(directory, "master.key")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(text_of(os.urandom(32)))
    return path


class Changes:
    """An observer of all databases of this process. ``any``: True if a statement other than the periodic ones of
    services has changed rows since it was last set to False."""

    _PERIODIC = ("UPDATE services ", "DELETE FROM external_events ", "UPDATE versions ")

    def __init__(self):
        self.any = True
        sa.event.listen(sa.engine.Engine, "before_cursor_execute", self._executed)

    def _executed(self, _connection, _cursor, statement, *_rest):
        if not statement.startswith(("SELECT", "WITH", "BEGIN", "PRAGMA", *self._PERIODIC)):
            self.any = True


@pytest.fixture(scope="session")
def suite():
    with tempfile.TemporaryDirectory() as directory:
        allinone.set_defaults()
        conf.load([], default_files=[])
        CONF.set_override("state_path", directory)
        CONF.set_override("port", 0, group="api")
        CONF.set_override("key_file", make_master_key(directory), group="rpc")
        CONF.set_override("require_seals", True, group="rpc")
        CONF.set_override("report_interval", 1)
        CONF.set_override("service_down_time", 60)
        CONF.set_override("lease", 4, group="conductor")
        CONF.set_override("recovery_interval", 1, group="conductor")
        CONF.set_override("enabled_filters", [
            *CONF.filter_scheduler.enabled_filters, "NUMATopologyFilter", "PciPassthroughFilter"],
            group="filter_scheduler")
        CONF.set_override("enabled", True, group="vnc")
        CONF.set_override("novncproxy_host", "127.0.0.1", group="vnc")
        CONF.set_override("novncproxy_port", 0, group="vnc")
        CONF.set_override("enabled", True, group="spice")
        CONF.set_override("html5proxy_host", "127.0.0.1", group="spice")
        CONF.set_override("html5proxy_port", 0, group="spice")
        CONF.set_override("enabled", True, group="serial_console")
        CONF.set_override("serialproxy_host", "127.0.0.1", group="serial_console")
        CONF.set_override("serialproxy_port", 0, group="serial_console")
        CONF.set_override("web", directory)
        console_server.CHECK_INTERVAL = 1.0
        running = allinone.Suite()
        running.start()
        assert len(running.scheduler.fleet), "the scheduler received no report of the host"
        unlimited = {"instances": -1, "cores": -1, "ram": -1}
        Client(running.url).put("/os-quota-class-sets/default", {"quota_class_set": unlimited})
        running.statements = StatementCounter(running.conductor.core.db, running.conductor._beats_db)
        running.changes = Changes()
        try:
            yield running
        finally:
            running.stop()


@pytest.fixture
def admin(suite):
    return Client(suite.url)


@pytest.fixture
def member(suite):
    return Client(suite.url, roles="member,reader", user="m")


@pytest.fixture(scope="session")
def image_id(suite):
    path = os.path.join(CONF.state_path, "tiny.raw")
    with open(path, "wb") as file:
        file.write(b"\0" * 1024)
    return DirectoryStore().add(path, Image(id="11111111-2222-3333-4444-555555555555", name="tiny",
                                            disk_format="raw", container_format="bare", visibility="public")).id


@pytest.fixture
def networks(suite):
    """The conductor's networks, as nova-manage sees them."""
    return bus.client(suite.transport, Networks)


@pytest.fixture(scope="session")
def flavor(suite):
    return Client(suite.url).flavor()


@pytest.fixture
def driver(suite):
    """The fake hypervisor; its behaviour is reset after the test."""
    yield suite.compute.machine.driver
    suite.compute.machine.driver.behaviour.latency.clear()
    suite.compute.machine.driver.behaviour.failure.clear()


@pytest.fixture
def hold(driver, monkeypatch):
    """``hold("ROLE.METHOD")``: calls of this method of the fake driver block until released or the test ends."""
    made = []

    def hold(verb):
        role, method = verb.split(".")
        made.append(Held(getattr(driver, role), method, monkeypatch))
        return made[-1]

    yield hold
    for held in made:
        held.let_go()


@pytest.fixture
def second(suite, admin, flavor, image_id):
    """Start another compute host with a fake driver; both hosts are equally suitable."""
    # a host whose last build failed would be avoided
    forgiven = admin.boot(flavor, image_id)
    admin.wait(forgiven, "ACTIVE")
    admin.delete(f"/servers/{forgiven}")
    admin.wait_gone(forgiven)
    transport = bus.connect(CONF, SECOND)
    service = ComputeService(transport, host=SECOND)
    service.start()
    wait_scheduler(suite, SECOND, True)
    wait_for(lambda: nothing_used(suite), reason=lambda: (
        f"the scheduler has received empty usage of both hosts; usage now: {usage_now(suite)}"))
    yield service
    service.machine.driver.behaviour.failure.clear()
    service.machine.driver.behaviour.latency.clear()
    for shown in admin.get("/servers", all_tenants=1)["servers"]:
        with contextlib.suppress(Failed):
            admin.delete(f"/servers/{shown['id']}")
        admin.wait_gone(shown["id"])
    service.stop()
    admin.delete(f"/os-services/{service_of(admin, SECOND)['id']}")


@pytest.fixture
def pair(suite, admin, second, flavor, image_id):
    yield Pair(suite, admin, second, flavor, image_id)
    for service in (suite.compute, second):
        service.machine.driver.behaviour.failure.clear()
        service.machine.driver.behaviour.latency.clear()


@pytest.fixture(autouse=True)
def balanced_books(request):
    """Check after every test that changed rows that no operation stays unfinished, no volume remains, and all
    invariants hold. (These checks took a quarter of the CPU time of all tests; most tests of the API change nothing.)
    """
    yield
    if "suite" not in request.fixturenames:
        return
    suite = request.getfixturevalue("suite")
    if not suite.changes.any:
        return
    remove_servers(Client(suite.url))
    remove_volumes(suite)
    db = suite.conductor.core.db
    end = time.monotonic() + 15
    while db.read(unfinished) and time.monotonic() < end:
        time.sleep(0.05)
    assert not db.read(unfinished)
    assert [str(finding) for finding in audit.audit(db)] == []
    suite.changes.any = False


def remove_images(kept):
    """Delete all images but this one, which tests created from servers."""
    store = DirectoryStore()
    for found in store.index(None, {}):
        if found.id != kept:
            store.delete(None, found.id)


def remove_volumes(suite):
    """Delete the embedded volumes that a test has left; the next test may count volumes."""
    db = suite.conductor.core.db
    for volume in db.read(volumes.index):
        if volume.status in ("available", "error"):
            bus.client(suite.transport, Volumes).delete(context.admin(), volume.uuid)
    wait_for(lambda: not db.read(volumes.index), reason="all volumes are deleted")


def remove_servers(admin):
    """A test that failed in the middle must not fail the next one."""
    left = admin.get("/servers", all_tenants=1)["servers"]
    for server in left:
        with contextlib.suppress(Failed):
            admin.delete(f"/servers/{server['id']}")
    for server in left:
        admin.wait_gone(server["id"])


@pytest.fixture
def new_image(suite, tmp_path):
    """Adds an image; returns its id."""
    made = []

    def new_image(size=1024, owner=None, visibility="public", disk_format="raw", min_disk=0, min_ram=0, **properties):
        path = tmp_path / f"{len(made)}"
        path.write_bytes(bytes(size))
        image = Image(id=new_uuid(), name="another", disk_format=disk_format, visibility=visibility,
                      owner=owner, min_disk=min_disk, min_ram=min_ram, properties=properties)
        made.append(DirectoryStore().add(str(path), image).id)
        return made[-1]

    yield new_image
    for ident in made:
        DirectoryStore().delete(context.admin(), ident)
