"""Deployments over the containers and data of a journal that was lost."""

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
