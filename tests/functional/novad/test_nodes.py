"""A control node and its peers, each with a novad, over gRPC; the runtimes have no containers."""

import contextlib
import json
import threading

import msgspec
import pytest

from nova.common.errors import Refused, ReportedError
from nova.novad import options
from nova.novad.daemon import Daemon
from nova.novad.errors import Busy, RuntimeFault
from nova.novad.mdns import Announcement, Instance
from nova.novad.nodes.discovery import Announcer
from nova.novad.nodes.participant import Assignment
from nova.novad.options import Options
from nova.novad.server import Server
from nova.novad.signing import node_secret
from tests.certificates import authority
from tests.functional.cli.conftest import run
from tests.functional.client import wait_for
from tests.functional.novad.conftest import free_port
from tests.unit.novad.platforms import parse
from tests.unit.novad.runtimes import FakeRuntime, Killed, content

TEXT = """
name = "suite"
[secrets.db]
length = 12
[secrets.elsewhere]
[components.db]
image = "registry/db"
version = "1"
roles = ["control"]
env = {PASSWORD = "${secret:db}"}
health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}
volumes = [{name = "rows", destination = "/rows"}]
[components.compute]
image = "registry/compute"
version = "1"
depends = ["db"]
roles = ["compute"]
env = {URL = "db://user:${secret:db}@${address:db}/"}
health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}
volumes = [{name = "instances", destination = "/instances"}]
[components.volumes]
image = "registry/volumes"
roles = ["storage"]
"""
REGISTRY = {f"registry/{name}:{version}": "good" for name in ("db", "compute") for version in "123"} | {
    f"registry/{name}:sick": "sick" for name in ("db", "compute")}


SECRET = "of the control node"


class Node:
    """A novad that can be killed and restarted: only its data and its containers remain."""

    def __init__(self, directory, name, roles, **more):
        self.name, self.port, self.runtime = name, free_port(), FakeRuntime(dict(REGISTRY))
        self.text = TEXT if more.get("nodes") or more.get("discover_nodes") else None
        (directory / f"{name}.secret").write_text(SECRET if name == "n1" else node_secret(SECRET, name))
        self.options = Options(data_dir=str(directory / name), listen=f"tcp://127.0.0.1:{self.port}", node=name,
                               roles=roles, interval=0.1, secret_file=str(directory / f"{name}.secret"),
                               **{"platform": "" if self.text is None else "x", **more})
        self.data = directory / name
        self.alive = False
        self.start()

    @property
    def url(self):
        return f"tls://127.0.0.1:{self.port}"

    def as_member(self, *roles):
        """Return the entry of the node in a control node's options."""
        return options.Node(address=self.url, node=self.name, roles=roles)

    def start(self):
        self.runtime.before = lambda _verb, _name: None
        self.runtime.away = False
        self.daemon = Daemon(self.options, parse(self.text, "toml") if self.text else None, self.runtime)
        self.server = Server(self.daemon)
        self.daemon.start()
        self.server.start()
        self.alive = True

    def kill(self):
        """Simulate SIGKILL of novad: no further effect, no reply."""
        def dead(_verb, _name):
            raise Killed
        self.alive = False
        self.runtime.before = dead
        self.daemon.deployer.ending.set()
        self.server.stop(0)
        self.daemon.journal.close()

    def stop(self):
        if self.alive:
            self.server.stop()
            self.daemon.stop()
            self.alive = False

    def runs(self):
        """Return {component: version} from the runtime."""
        return {name.removeprefix("suite-"): self.runtime.images[self.runtime.made[name].image][0].rpartition(":")[2]
                for name in sorted(self.runtime.running)}

    def states(self):
        return [(one.kind, one.state) for one in self.daemon.journal.deployments()]

    def secret(self, name):
        return self.daemon.secrets.values([name])[name]


class Nodes:
    def __init__(self, directory, patch, ca):
        def node(name, *roles, **more):
            pair = ca.issue(name)
            return Node(directory, name, roles, tls_cert=pair.certificate, tls_key=pair.key, nodes_ca=ca.file, **more)

        self.make = node
        self.n2, self.n3 = node("n2", "compute"), node("n3", "compute")
        self.n1 = node("n1", "control", nodes=(self.n2.as_member("compute"), self.n3.as_member("compute")),
                       node_address="192.0.2.1")
        self.all = [self.n1, self.n2, self.n3]
        self.patch = patch
        patch.setenv("NOVA_ADDR", self.n1.url)
        patch.setenv("NOVA_CACERT", ca.file)
        patch.setenv("NOVA_SHARED_SECRET", SECRET)

    def nova(self, *words, code=0):
        ended = run(*words)
        assert ended.code == code, f"{words}: {ended.code}\n{ended.out}\n{ended.err}"
        return ended

    def ask(self, node, *words, code=0):
        """Run a command against a node other than the control node, with the secret of that node."""
        with self.patch.context() as patch:
            patch.setenv("NOVA_SHARED_SECRET", node_secret(SECRET, node.name))
            return self.nova("--addr", node.url, *words, code=code)

    def listed(self, *words):
        return json.loads(self.nova(*words, "-f", "json").out)

    def states(self):
        """Return the states of nodes as listed by the control node."""
        return {one["Node"]: one["State"] for one in self.listed("nodes", "list")}

    def discovered(self):
        return self.states().get("n2") == "discovered"

    def run(self):
        return [node.runs() for node in self.all]

    def settled(self):
        """Wait until all nodes have received the outcome."""
        wait_for(lambda: not any(node.daemon.journal.unfinished() or node.daemon.journal.pending()
                                 for node in self.all) and not self.n1.daemon.journal.unsettled()
                 # The journal records the end of a deployment before novad has finished it.
                 and all(node.daemon.deployer.idle(0) for node in self.all), 30, "all nodes have received the outcome")


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    with authority() as ca:
        made = Nodes(tmp_path, monkeypatch, ca)
        yield made
        for node in made.all:
            with contextlib.suppress(ReportedError):
                node.stop()


ONE = [{"db": "1"}, {"compute": "1"}, {"compute": "1"}]


def test_deployment_starts_components_on_all_nodes_by_role(nodes):
    out = nodes.nova("deploy").out
    assert "n2/compute: runs version 1" in out
    assert "is done: db, compute on n2, compute on n3" in out
    assert nodes.run() == ONE
    shown = nodes.listed("platform-info")
    assert [(one["Component"], one["Node"], one["State"]) for one in shown] == [
        ("db", "n1", "running"), ("compute", "n2", "running"), ("compute", "n3", "running")]
    assert nodes.nova("platform-info").out == "Services\n" + "".join(
        f"  - Name: {one['Component']}\n    Version: {one['Version']}\n    Node: {one['Node']}\n" for one in shown)
    assert [one["Nodes"] for one in nodes.listed("history")] == ["n2: compute; n3: compute"]
    planned = nodes.listed("plan", "compute=2")
    assert {one["Node"]: one["Action"] for one in planned} == {"n2": "replace", "n3": "replace"}
    assert {one["Node"]: one["State"] for one in nodes.listed("nodes", "list")} == {
        "n1": "this one", "n2": "ready", "n3": "ready"}
    assert "there was nothing to do" in nodes.nova("deploy").out


def test_node_gets_only_required_secrets_and_peer_addresses(nodes):
    nodes.nova("deploy")
    password = nodes.n1.secret("db")
    made = nodes.n2.runtime.made["suite-compute"]
    assert made.env == {"URL": f"db://user:{password}@192.0.2.1/"}
    assert nodes.n2.daemon.secrets.names() == ["db"]
    for node in nodes.all:
        journal = b"".join(path.read_bytes() for path in node.data.glob("journal.sqlite*"))
        assert password.encode() not in journal
    nodes.nova("secrets", "rotate", "db")
    assert nodes.n1.secret("db") == nodes.n3.secret("db") != password
    assert nodes.n3.secret("db") in nodes.n3.runtime.made["suite-compute"].env["URL"]


def test_deployment_changes_only_named_components_on_their_nodes(nodes):
    nodes.nova("deploy")
    nodes.nova("deploy", "compute=2")
    assert nodes.run() == [{"db": "1"}, {"compute": "2"}, {"compute": "2"}]
    assert [len(node.states()) for node in nodes.all] == [2, 2, 2]
    nodes.nova("deploy", "db=2")
    assert [len(node.states()) for node in nodes.all] == [3, 2, 2]
    assert "Component dbb does not exist" in nodes.nova("deploy", "dbb", code=3).err
    assert "no node has one of the roles of volumes: storage" in nodes.nova("deploy", "volumes", code=1).err.lower()
    assert "compute is not deployed on this node" in nodes.nova("restart", "compute", code=3).err


@pytest.mark.parametrize("wanted", [("compute=sick",), ("db=2", "compute=sick"), ("db=sick", "compute=2")])
def test_failed_deployment_is_rolled_back_on_all_nodes(nodes, wanted):
    nodes.nova("deploy")
    before = [content(node.data / "volumes") for node in nodes.all]
    err = nodes.nova("deploy", *wanted, code=1).err
    assert "does not become healthy" in err
    assert "The previous state was restored." in err
    nodes.settled()
    assert nodes.run() == ONE
    for node, written in zip(nodes.all, before, strict=True):  # The previous version has started again on the data.
        assert {line for text in content(node.data / "volumes").values() for line in text.split()} == {
            line for text in written.values() for line in text.split()}


def test_unhealthy_component_on_a_node_rolls_back_all_nodes(nodes):
    nodes.nova("deploy")
    nodes.n3.runtime.registry["registry/compute:2"] = "sick"
    assert "Node n3: Component compute does not become healthy" in nodes.nova("deploy", "db=2", "compute=2", code=1).err
    nodes.settled()
    assert nodes.run() == ONE
    assert {one.state for one in nodes.n2.daemon.journal.deployments(1)} == {"undone"}
    assert nodes.n2.daemon.journal.components()["compute"].component.tag == "1"
    nodes.n3.runtime.registry["registry/compute:2"] = "good"
    nodes.nova("deploy", "db=2", "compute=2")
    assert nodes.run() == [{"db": "2"}, {"compute": "2"}, {"compute": "2"}]


def test_all_nodes_prepare_before_any_component_stops(nodes):
    nodes.nova("deploy")
    del nodes.n3.runtime.registry["registry/compute:2"]
    done = []
    for node in nodes.all:
        node.runtime.before = lambda verb, name: done.append(verb) if verb != "fetch" else None
    assert "Node n3: registry/compute:2 cannot be fetched" in nodes.nova("deploy", "db=2", "compute=2", code=1).err
    assert set(done) <= {"start"}  # Rollback starts the previous versions.
    assert nodes.run() == ONE


def test_deployment_with_an_unreachable_node_is_refused(nodes):
    nodes.nova("deploy")
    nodes.n3.stop()
    for verb in (("deploy",), ("plan",), ("rollback",), ("remove", "--yes")):
        assert f"Node n3 ({nodes.n3.url}) does not respond" in nodes.nova(*verb, code=1).err
    assert [node.runs() for node in nodes.all] == ONE
    assert nodes.nova("platform-info").out.endswith("  - Node: n3\n    State: unreachable\n")
    assert ("unreachable", "n3") in [(one["State"], one["Node"]) for one in nodes.listed("health")]
    nodes.n3.start()
    nodes.nova("deploy", "db=2", "compute=2")


def test_rollback_restores_versions_and_data_on_all_nodes(nodes):
    nodes.nova("deploy")
    nodes.nova("deploy", "db=2")
    nodes.nova("deploy", "compute=2")
    nodes.nova("deploy", "db=3", "compute=3")
    nodes.nova("rollback", "compute")
    assert nodes.run() == [{"db": "3"}, {"compute": "2"}, {"compute": "2"}]
    nodes.nova("rollback", "--to", "1")
    assert nodes.run() == ONE
    for node, name in ((nodes.n1, "db"), (nodes.n2, "compute")):
        assert "3" not in "".join(content(node.data / "volumes" / name).values()).replace("registry", "")
    assert "not deployed" in nodes.nova("rollback", "dbb", code=3).err


def test_remove_removes_components_on_all_nodes(nodes):
    nodes.nova("deploy")
    nodes.nova("remove", "--yes", "--remove-volumes", "--remove-secrets")
    assert nodes.run() == [{}, {}, {}]
    assert [content(node.data / "volumes") for node in nodes.all] == [{}, {}, {}]
    assert [node.daemon.secrets.names() for node in nodes.all] == [[], [], []]
    assert [node.states()[0] for node in nodes.all] == [("remove", "done")] * 3
    nodes.nova("deploy")
    assert nodes.run() == ONE


def test_failed_removal_keeps_the_data_of_a_node_without_components(nodes):
    nodes.nova("deploy")
    nodes.nova("remove", "--yes")
    nodes.nova("deploy", "db")
    before = content(nodes.n2.data / "volumes")
    done = []

    def fail(verb, name):
        if (verb, name) == ("remove", "suite-db") and not done:
            done.append(name)
            raise RuntimeFault("podman: container suite-db cannot be removed")
    nodes.n1.runtime.before = fail
    assert "cannot be removed" in nodes.nova("remove", "--yes", "--remove-volumes", code=1).err
    nodes.settled()
    assert (nodes.n1.runs(), content(nodes.n2.data / "volumes")) == ({"db": "1"}, before)
    nodes.nova("remove", "--yes", "--remove-volumes")
    assert [content(node.data / "volumes") for node in nodes.all] == [{}, {}, {}]


def test_all_nodes_remove_old_backups_after_a_deployment(nodes):
    for node in nodes.all:
        node.daemon.options = msgspec.structs.replace(node.daemon.options, keep_backups=1, keep_days=0)
    for version in "12312":
        nodes.nova("deploy", f"compute={version}", f"db={version}")
    for node, name in zip(nodes.all, ("db", "compute", "compute"), strict=True):
        wait_for(lambda node=node: not node.daemon.journal.cleanup_tasks(), 20, "the removal has ended")
        assert (node.name, len(list((node.data / "backups" / name).iterdir()))) == (node.name, 1)


def test_decision_is_sent_again_to_a_busy_node(nodes, monkeypatch):
    settle, calls = nodes.n2.daemon.participant.settle, []

    def busy_once(*args):
        calls.append(args)
        if len(calls) == 1:
            raise Busy("Another deployment is in progress (settle); see nova history.")
        settle(*args)

    monkeypatch.setattr(nodes.n2.daemon.participant, "settle", busy_once)
    assert "does not answer" not in nodes.nova("deploy").out
    assert len(calls) > 1
    assert nodes.n2.states()[0] == ("deploy", "done")


def test_a_node_accepts_assignments_of_one_control_node_only(nodes, tmp_path):
    nodes.nova("deploy")
    for verb in (("deploy",), ("rollback",), ("secrets", "rotate", "db"), ("plan",)):
        assert "control node, which assigns the components" in nodes.ask(nodes.n2, *verb, code=1).err
    other = nodes.make("n9", "control", nodes=(nodes.n2.as_member("compute"),))
    other.daemon.coordinator._secret = SECRET
    try:
        assert "another control node (n1)" in nodes.ask(other, "deploy", code=1).err
        alone = nodes.make("n8", "control", nodes=(other.as_member("compute"),))
        alone.daemon.coordinator._secret = SECRET
        try:
            assert "has a platform file of its own" in nodes.ask(alone, "deploy", code=1).err
        finally:
            alone.stop()
    finally:
        other.stop()
    assert nodes.run() == ONE


@pytest.fixture
def found(tmp_path, monkeypatch):
    """A control node without configured nodes and an announced node; both have certificates."""
    with authority() as ca, contextlib.ExitStack() as stack:
        made = []
        for name, roles, more in (("n2", ("compute",), {}), ("n1", ("control",), {
                "discover_nodes": True, "nodes_ca": ca.file, "platform": "x"})):
            pair = ca.issue(name)
            node = Node(tmp_path, name, roles, tls_cert=pair.certificate, tls_key=pair.key, **more)
            stack.callback(node.stop)
            made.append(node)
        nodes = Nodes.__new__(Nodes)
        nodes.n2, nodes.n1 = made
        nodes.all = [nodes.n1, nodes.n2]
        nodes.announcer = Announcer(nodes.n2.options)
        own = Announcer(nodes.n1.options)  # The control node receives its own announcement.
        for announcer in (own, nodes.announcer):
            announcer.start()
            stack.callback(announcer.stop)
        for variable, value in (("NOVA_ADDR", nodes.n1.url), ("NOVA_CACERT", ca.file), ("NOVA_SHARED_SECRET", SECRET)):
            monkeypatch.setenv(variable, value)
        yield nodes


def test_announced_node_needs_acceptance_and_a_valid_certificate(found):
    stranger = Instance(name="", node="stranger", version="1", roles=("compute",), addresses=())
    with authority() as others:
        pair = others.issue("stranger")
        strange = Node(found.n1.data.parent, "stranger", ("compute",), tls_cert=pair.certificate, tls_key=pair.key)
        announced = Announcement(stranger, ["127.0.0.1"], strange.port, tls=True)
        try:
            wait_for(lambda: len(found.n1.daemon.coordinator.discovery._entries) >= 3 and found.discovered(), 60, "all")
            assert found.states() == {"n1": "this one", "n2": "discovered"}
            found.nova("deploy")
            assert found.n2.runs() == {}, "an announcement alone starts no components"
            assert "n2 at " in found.nova("nodes", "accept", "n2").out
            assert found.states() == {"n1": "this one", "n2": "ready"}
            found.nova("deploy")
        finally:
            announced.withdraw()
            strange.stop()
    assert (found.run(), strange.runs()) == ([{"db": "1"}, {"compute": "1"}], {})


def test_unreachable_accepted_node_blocks_deployments_until_forgotten(found):
    wait_for(found.discovered, 60, "the other node is discovered")
    found.nova("nodes", "accept", "n2")
    found.nova("deploy")
    found.announcer.stop()
    found.n2.stop()
    assert "does not respond" in found.nova("deploy", code=1).err
    assert "No accepted node n9" in found.nova("nodes", "forget", "n9", code=3).err
    found.nova("nodes", "forget", "n2")
    found.nova("deploy", "db=2")
    assert found.n1.runs() == {"db": "2"}


MOMENTS = [("fetch", "registry/compute:2"), ("stop", "suite-compute"), ("create", "suite-compute"),
           ("start", "suite-compute")]


def kill_at(victim, node, moment):
    """Kill a node when a node first reaches the given moment; the returned event is set afterwards."""
    begun, done = threading.Event(), threading.Event()

    def before(verb, name):
        if (verb, name) == moment and not begun.is_set():
            begun.set()
            victim.kill()
            done.set()
            if victim is node:
                raise Killed
    node.runtime.before = before
    return done


@pytest.mark.parametrize("moment", MOMENTS, ids="-".join)
def test_node_killed_during_a_deployment_rolls_back_like_its_peers(nodes, moment, monkeypatch):
    monkeypatch.setattr("nova.novad.nodes.coordinator._TRY", 1.0)
    nodes.nova("deploy")
    done = kill_at(nodes.n3, nodes.n3, moment)
    nodes.nova("deploy", "db=2", "compute=2", code=1)
    assert done.wait(20)
    assert nodes.n1.runs() == ONE[0]
    nodes.n3.start()
    nodes.settled()
    wait_for(lambda: nodes.run() == ONE, 20, "the previous versions are running")
    nodes.nova("deploy", "db=2", "compute=2")
    assert nodes.run() == [{"db": "2"}, {"compute": "2"}, {"compute": "2"}]


@pytest.mark.parametrize("moment", MOMENTS, ids="-".join)
def test_control_node_killed_during_a_deployment_rolls_back_all_nodes(nodes, moment, monkeypatch):
    monkeypatch.setattr("nova.novad.nodes.coordinator._TRY", 1.0)
    nodes.nova("deploy")
    done = kill_at(nodes.n1, nodes.n3, moment)
    run("deploy", "db=2", "compute=2")
    assert done.wait(20)
    wait_for(lambda: not nodes.n3.daemon.journal.unfinished(), 20, "n3 has finished its part")
    nodes.n1.start()
    nodes.settled()
    wait_for(lambda: nodes.run() == ONE, 20, "the previous versions are running")
    nodes.nova("deploy", "db=2", "compute=2")
    assert nodes.run() == [{"db": "2"}, {"compute": "2"}, {"compute": "2"}]


def test_node_that_was_unreachable_receives_the_decision_later(nodes, monkeypatch):
    nodes.nova("deploy")
    coordinator, send = nodes.n1.daemon.coordinator, nodes.n1.daemon.coordinator._send_decision
    monkeypatch.setattr("nova.novad.nodes.coordinator._TRY", 0.1)

    def away(one, *rest):
        if (one.node, one.deployment) == ("n3", 2) and nodes.n3.alive:
            nodes.n3.kill()  # The node has applied its assignment, but has not received the decision.
        return send(one, *rest)
    monkeypatch.setattr(coordinator, "_send_decision", away)
    out = nodes.nova("deploy", "compute=2").out
    assert "n3 does not answer; it receives the decision when it answers again" in out
    assert "n3: compute (has not received the outcome yet)" in nodes.listed("history")[0]["Nodes"]
    monkeypatch.setattr(coordinator, "_send_decision", send)
    nodes.n3.start()
    nodes.settled()
    assert nodes.run() == [{"db": "1"}, {"compute": "2"}, {"compute": "2"}]
    assert nodes.n3.states()[0] == ("deploy", "done")
    assert json.loads(nodes.ask(nodes.n3, "history", "-f", "json").out)[0]["Nodes"] == "for n1 2"


def test_assignment_that_arrives_after_its_deployment_was_abandoned_is_refused(nodes):
    """A delayed request must not leave changes that wait for a decision which the control node has already sent."""
    nodes.nova("deploy")
    daemon, coordinator = nodes.n3.daemon, nodes.n1.daemon.ident
    daemon.participant.settle(coordinator, 2, False, lambda _name, _what: None)
    late = Assignment(coordinator=coordinator, control="n1", number=2, kind="deploy",
                      platform=daemon.deployer.platform, versions={"compute": "2"})
    for number in (1, 2):
        with pytest.raises(Refused, match=f"Deployment {number} of n1 has ended already"):
            daemon.participant.apply(msgspec.structs.replace(late, number=number), lambda _name, _what: None)
    assert nodes.run() == ONE
    assert daemon.participant.apply(msgspec.structs.replace(late, number=3), lambda _name, _what: None) == ["compute"]
    assert daemon.journal.pending() is not None


def test_remove_frees_a_node_whose_control_node_is_lost(nodes):
    nodes.nova("deploy")
    done = kill_at(nodes.n1, nodes.n3, MOMENTS[-1])
    run("deploy", "compute=2")
    assert done.wait(20)
    wait_for(lambda: nodes.n3.daemon.journal.pending(), 20, "n3 waits for the outcome")
    assert "waits for the control node n1" in nodes.ask(nodes.n3, "restart", code=1).err
    nodes.ask(nodes.n3, "remove", "--yes")
    assert nodes.n3.runs() == {}
