"""The command ``nova top``, which shows the status page in a terminal."""

import pytest

from nova.conf import CONF


@pytest.fixture
def served():
    CONF.set_override("status_page", True, group="api")
    yield
    CONF.clear_override("status_page", group="api")


@pytest.mark.usefixtures("served")
def test_top_shows_hosts_and_failed_operations(nova, project, suite, server, image_id):
    flavor = project.flavor()
    project.post(f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"resources:CUSTOM_NOWHERE": "1"}})
    failed = project.boot(flavor, image_id, name="never")
    project.wait(failed, "ERROR")
    out = nova("top").out
    hosts = out.partition("\nHosts\n")[2].splitlines()
    assert hosts[0].split()[:2] == ["HOST", "STATE"]
    assert next(line for line in hosts if line.split()[0] == suite.compute.host).split()[1] == "up"
    assert "No valid host" in out
    assert "never" in out
    assert "In progress: 0\n  nothing" in out


def test_top_without_a_status_page_names_the_option(nova):
    assert "[api]status_page" in nova("top", "--once", code=1).err
