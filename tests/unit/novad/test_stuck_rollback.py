"""Rollbacks that cannot finish: the components that can run do run, and keep their data."""

import pytest

from nova.novad.errors import Failed
from tests.unit.novad.test_deploy import Node


@pytest.fixture
def stuck(tmp_path):
    """A node whose rollback is stuck: the previous image of the conductor exists nowhere."""
    node = Node(tmp_path)
    node.deploy()
    image = node.deployer.journal.components()["conductor"].image

    def lose(verb, name):
        if (verb, name) == ("create", "suite-conductor"):
            node.runtime.lost[image] = node.runtime.images.pop(image)
            node.runtime.away_images = node.runtime.lost
            node.runtime.lost = {}
            del node.runtime.registry["registry/conductor:1"]
            node.runtime.before = lambda _verb, _name: None
    node.runtime.before = lose
    with pytest.raises(Failed, match=r"The rollback is not finished: .*cannot be fetched.* novad keeps retrying"):
        node.deploy(db="2", conductor="sick", api="2")
    return node


def test_component_without_its_image_does_not_keep_others_stopped(stuck):
    assert set(stuck.runtime.running) == {"suite-db", "suite-api"}
    assert stuck.rows() == ["1", "1"]


def test_retries_of_a_stuck_rollback_restore_data_only_once(stuck):
    with (stuck.directory / "volumes/db/rows/written").open("a") as file:
        file.write("a row written meanwhile\n")
    started = dict(stuck.runtime.running)
    for _retry in range(2):
        with pytest.raises(Failed, match="The rollback is not finished"):
            stuck.recover()
        assert stuck.runtime.running == started
    stuck.runtime.lost = stuck.runtime.away_images
    assert [deployment.state for deployment in stuck.recover()] == ["stuck"]
    assert stuck.versions() == {"db": "1", "conductor": "1", "api": "1"}
    assert "a row written meanwhile" in stuck.rows()
    assert stuck.deployer.journal.unfinished() == []


def test_removal_of_the_journal_ends_a_rollback_whose_image_is_lost_for_good(stuck):
    before = stuck.rows()
    stuck.deployer.journal.close()
    for path in stuck.directory.glob("journal.sqlite*"):
        path.unlink()
    stuck.start()
    stuck.deploy(db="1", conductor="2", api="1")
    assert stuck.versions() == {"db": "1", "conductor": "2", "api": "1"}
    assert stuck.rows()[:len(before)] == before
