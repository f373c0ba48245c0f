"""Deployments over the containers and data of a lost journal, and rollbacks that cannot finish: the components that can
run do run, and keep their data."""

import pytest

from nova.common.errors import ReportedError
from nova.novad.errors import Failed
from tests.unit.novad.runtimes import content
from tests.unit.novad.test_deploy import Node


@pytest.fixture
def deployed(tmp_path):
    node = Node(tmp_path)
    node.deploy()
    return node


def test_partial_backup_is_deleted_and_backups_of_a_lost_journal_are_retained(deployed, monkeypatch):
    deployed.deploy(db="2")
    deployed.deployer.journal.path.unlink()
    before = content(deployed.directory / "backups")
    assert before
    node = deployed
    node.start()
    whole = node.deployer.data.back_up

    def half(name, volumes, deployment):
        if name == "api":
            return whole(name, volumes, deployment)
        whole(name, volumes, deployment)
        raise ReportedError("no space left")

    for _number in range(3):
        monkeypatch.setattr(node.deployer.data, "back_up", half)
        with pytest.raises(Failed, match="no space left"):
            node.deploy(db="2")
        assert content(node.directory / "backups") == before
    monkeypatch.undo()
    node.deploy(db="2")
    assert before.items() < content(node.directory / "backups").items()


def test_running_components_of_a_lost_journal_are_stopped_before_their_data_are_copied(deployed, monkeypatch):
    deployed.deployer.journal.path.unlink()
    deployed.start()
    whole, running = deployed.deployer.data.back_up, []

    def watched(*arguments):
        running.append([name for name in ("suite-db", "suite-conductor") if name in deployed.runtime.running])
        return whole(*arguments)
    monkeypatch.setattr(deployed.deployer.data, "back_up", watched)
    deployed.deploy()
    assert (running, deployed.versions()["db"]) == ([[]], "1")


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
