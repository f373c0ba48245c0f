"""POST /os-aggregates/{id}/images: hosts cache images, and nova-manage shows the progress."""

import json
import os

import pytest

from nova.cmd import manage
from nova.conf import CONF
from nova.virt.images.imagecache import ImageCache
from tests.functional.client import wait_for
from tests.functional.several_hosts import SECOND, set_service


@pytest.fixture
def status(suite, capsys):
    """Return the exit code and host -> (state, message) of nova-manage image cache_status."""
    def ask(name):
        capsys.readouterr()
        code = manage.main(["image", "cache_status", "--aggregate", name, "--json"])
        return code, {each["host"]: (each.get("state", "waiting"), each.get("message", ""))
                      for each in json.loads(capsys.readouterr().out)}

    return ask


@pytest.fixture
def rack(admin, pair):
    ident = admin.post("/os-aggregates", {"aggregate": {"name": "rack"}})["aggregate"]["id"]
    hosts = [pair.first.host, SECOND]
    for host in hosts:
        admin.post(f"/os-aggregates/{ident}/action", {"add_host": {"host": host}})
    yield ident
    for host in hosts:
        admin.post(f"/os-aggregates/{ident}/action", {"remove_host": {"host": host}})
    admin.delete(f"/os-aggregates/{ident}")


@pytest.fixture
def caching(pair, tmp_path):
    """Enable the image cache on the second host."""
    machine = pair.second.machine
    machine.driver.needs_images, before = True, machine.cache
    machine.cache = ImageCache(str(tmp_path))
    yield tmp_path
    del machine.driver.needs_images
    machine.cache = before


def test_hosts_cache_the_image_and_report_the_result(admin, rack, status, caching, image_id, pair):
    admin.post(f"/os-aggregates/{rack}/images", {"cache": [{"id": image_id}]}, expect=202)
    wait_for(lambda: status("rack")[0] != 3, reason="all hosts have replied")
    code, told = status("rack")
    assert (code, told[SECOND]) == (1, ("cached", ""))
    assert told[pair.first.host][0] == "unsupported"  # The guests of this host use no image cache.
    assert any(name.startswith(image_id) for name in os.listdir(caching))


def test_cache_failures_of_down_hosts_and_missing_images_are_reported(admin, rack, status, caching, image_id, pair):
    set_service(admin, pair.first.host, forced_down=True)
    path = os.path.join(CONF.image.directory, image_id)
    os.rename(path, path + ".away")
    try:
        admin.post(f"/os-aggregates/{rack}/images", {"cache": [{"id": image_id}]}, expect=202)
        wait_for(lambda: status("rack")[0] != 3, reason="all hosts have replied")
        code, told = status("rack")
    finally:
        os.rename(path + ".away", path)
        set_service(admin, pair.first.host, forced_down=False)
    assert (code, told[pair.first.host]) == (1, ("failed", "the host is down"))
    assert told[SECOND][0] == "failed"
    assert told[SECOND][1]


def test_cache_status_of_an_unknown_aggregate_is_refused(suite, capsys):
    assert manage.main(["image", "cache_status", "--aggregate", "nowhere"]) == 127
    assert "nowhere" in capsys.readouterr().err
