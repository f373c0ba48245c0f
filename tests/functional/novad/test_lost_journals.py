"""Control nodes and nodes that lose their journal, or get an older copy of it, or decide without the others."""

import shutil
import threading

import msgspec
import pytest

from nova.novad.nodes import coordinator as module
from nova.novad.platform import Place
from nova.novad.signing import node_secret
from tests.functional.client import wait_for
from tests.functional.novad import test_nodes
from tests.functional.novad.conftest import free_port
from tests.functional.novad.test_nodes import MOMENTS, ONE, SECRET, kill_at, run

nodes = test_nodes.nodes
TWO = [{"db": "1"}, {"compute": "2"}, {"compute": "2"}]


def replace_journal(node, copy=None):
    """Replace the journal of a stopped node by a copy, or remove it."""
    for path in node.data.glob("journal.sqlite*"):
        path.unlink()
    for path in copy.glob("journal.sqlite*") if copy else ():
        shutil.copy(path, node.data)


def copied(node, directory):
    node.stop()
    directory.mkdir()
    for path in node.data.glob("journal.sqlite*"):
        shutil.copy(path, directory)
    node.start()
    return directory


@pytest.fixture
def undecided(nodes, monkeypatch):
    """Nodes of which n3 ended before it received the decision on deployment 2, which updates compute."""
    nodes.nova("deploy")
    coordinator, send = nodes.n1.daemon.coordinator, nodes.n1.daemon.coordinator._send_decision

    def kill_and_send(participation, *rest):
        if participation.node == "n3" and nodes.n3.alive:
            nodes.n3.kill()
        return send(participation, *rest)
    with monkeypatch.context() as patch:
        patch.setattr("nova.novad.nodes.coordinator._TRY", 0.1)
        patch.setattr(coordinator, "_send_decision", kill_and_send)
        assert "n3 does not answer" in nodes.nova("deploy", "compute=2").out
    return nodes


def test_node_without_its_journal_does_not_block_later_deployments(undecided):
    replace_journal(undecided.n3)
    undecided.n3.start()
    undecided.settled()
    undecided.nova("deploy", "compute=2")
    assert undecided.run() == TWO


@pytest.mark.parametrize("changed", ["address", "name"])
def test_node_that_returns_with_another_address_or_name_receives_the_decision(undecided, changed):
    n1, n2, n3 = undecided.all
    if changed == "address":
        n3.port = free_port()
        n3.options = msgspec.structs.replace(n3.options, listen=f"tcp://127.0.0.1:{n3.port}")
    else:
        n3.name = "n4"
        n3.data.with_name("n3.secret").write_text(node_secret(SECRET, "n4"))
        n3.options = msgspec.structs.replace(n3.options, node="n4")
    n3.start()
    n1.stop()
    n1.options = msgspec.structs.replace(n1.options, nodes=(n2.as_member("compute"), n3.as_member("compute")))
    n1.start()
    undecided.settled()
    assert n3.states()[0] == ("deploy", "done")
    undecided.nova("deploy", "compute=3")
    assert undecided.run()[2] == {"compute": "3"}


def test_node_that_was_freed_does_not_block_the_control_node_that_returns(nodes):
    nodes.nova("deploy")
    done = kill_at(nodes.n1, nodes.n3, MOMENTS[-1])
    run("deploy", "compute=2")
    assert done.wait(20)
    wait_for(lambda: nodes.n3.daemon.journal.pending(), 20, "n3 waits for the decision")
    nodes.ask(nodes.n3, "remove", "--yes")
    nodes.n1.start()
    nodes.settled()
    assert nodes.run() == [*ONE[:2], {}]
    nodes.nova("deploy")
    assert nodes.run() == ONE


def test_control_node_with_an_older_journal_deploys_after_its_numbers_are_new(nodes, tmp_path):
    nodes.nova("deploy")
    copy = copied(nodes.n1, tmp_path / "copy")
    for version in "23":
        nodes.nova("deploy", f"compute={version}")
    nodes.n1.stop()
    replace_journal(nodes.n1, copy)
    nodes.n1.start()
    for number in (2, 3):
        assert f"Deployment {number} of n1 has ended already" in nodes.nova("deploy", "compute=2", code=1).err
    nodes.nova("deploy", "compute=2")
    assert nodes.run() == TWO


def test_control_node_without_its_journal_takes_over_its_components(nodes):
    nodes.nova("deploy")
    nodes.n1.stop()
    replace_journal(nodes.n1)
    nodes.n1.start()
    nodes.nova("deploy", "db", "compute=2")
    assert nodes.run() == TWO


def test_commands_do_not_wait_for_a_forgotten_node_without_the_decision(undecided, monkeypatch):
    """Check that only the background thread sends the decision to a node that no longer exists."""
    n1, n2, _n3 = undecided.all
    n1.stop()
    n1.options = msgspec.structs.replace(n1.options, nodes=(n2.as_member("compute"),))
    n1.start()
    sent, coordinator = [], n1.daemon.coordinator
    send = coordinator._send_decision

    def record(participation, done, progress, seconds, longest=None):
        sent.append((participation.node, longest))
        return send(participation, done, progress, seconds, longest or module._SETTLE)
    monkeypatch.setattr(coordinator, "_send_decision", record)
    undecided.nova("deploy", "compute=3")
    wait_for(lambda: "n3" in dict(sent), 20, "the decision is sent in the background")
    assert {longest for node, longest in sent if node == "n3"} == {module._SETTLE}


def test_nodes_are_queried_at_the_same_time(nodes, monkeypatch):
    """Check that many nodes that do not respond delay a command as long as a single one."""
    places = {f"tls://127.0.0.1:{number}": Place(node=f"n{number}", address="127.0.0.1", roles=("compute",))
              for number in range(1, 101)}
    barrier = threading.Barrier(len(places))

    def wait(_accepted):
        barrier.wait(20)
        raise module.Away("does not respond")
    coordinator = nodes.n1.daemon.coordinator
    monkeypatch.setattr(coordinator, "_accepted", lambda: places)
    monkeypatch.setattr(coordinator, "_ask", wait)
    assert len(coordinator.query_nodes()[1]) == len(places)
