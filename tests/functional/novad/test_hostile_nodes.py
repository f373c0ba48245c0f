"""Compromised nodes, and unauthenticated hosts on the network of a control node."""

import concurrent.futures
import contextlib
import json
import pathlib
import socket
import threading

import grpc
import pytest

from nova.novad import server
from nova.novad.api import novad_pb2 as pb
from nova.novad.mdns import Announcement, Instance
from nova.novad.nodes import coordinator
from nova.novad.nodes.participant import Assignment
from nova.novad.signing import node_secret
from tests.certificates import authority
from tests.functional.cli.conftest import run
from tests.functional.client import wait_for
from tests.functional.novad import test_nodes as module
from tests.functional.novad.test_nodes import SECRET, Node

TEXT = module.TEXT + """
[secrets.admin]
[secrets.host]
[components.keystone]
image = "registry/db"
version = "1"
roles = ["control"]
env = {ADMIN = "${secret:admin}"}
health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}
[components.agent]
image = "registry/compute"
version = "1"
roles = ["compute"]
env = {HOST = "${secret:host}"}
health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}
"""
OPERATIONS = [("nodes", "list"), ("plan",), ("deploy",), ("platform-info",), ("health",), ("deploy", "db=2"),
              ("secrets", "rotate", "admin"), ("secrets", "rotate", "host", "db"), ("rollback",), ("rollback", "db"),
              ("deploy", "keystone=2"), ("history",), ("remove", "--yes", "--remove-secrets")]


class Compromised:
    """A compromised node that implements the protocol, lies about itself, and records all requests."""

    def __init__(self, pair, **lies):
        self.lies, self.bearers, self.shares, self.calls = lies, set(), [], []
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), interceptors=[_Keeping(self)])
        self._server.add_generic_rpc_handlers([
            server.handler(service, self) for service in ("Daemon", "Platform", "Nodes")])
        read = [pathlib.Path(path).read_bytes() for path in (pair.key, pair.certificate)]
        self.port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([tuple(read)]))
        self.url = f"tls://127.0.0.1:{self.port}"
        self._server.start()

    def Daemon_Show(self, request, context):
        return pb.DaemonAnswer(**{"version": "1", "node": "n2", "roles": ["compute"], "id": "n2", "steered": True,
                                  **self.lies})

    def Platform_Show(self, request, context):
        return pb.PlatformAnswer(name="suite", components=[
            pb.ComponentState(name=name, state="running", node="n1") for name in ("db", "keystone", "agent")])

    def Nodes_Plan(self, request, context):
        self.shares.append(Assignment.decode(request.share))
        return pb.PlanAnswer()

    def Nodes_Prepare(self, request, context):
        self.shares.append(Assignment.decode(request.share))
        yield pb.Progress(component="db", message="is mine \x1b[2J", changed=["db", "keystone"])

    Nodes_Apply = Nodes_Prepare

    def Nodes_Settle(self, request, context):
        yield pb.Progress(message="of course")

    # Calls that no control node makes.
    Nodes_Accept = Nodes_Forget = Nodes_List = Nodes_Secret = None
    Platform_Deploy = Platform_History = Platform_Plan = Platform_Remove = Platform_Restart = Platform_Rollback = None

    def stop(self):
        self._server.stop(0).wait()


class _Keeping(grpc.ServerInterceptor):
    def __init__(self, node):
        self._node = node

    def intercept_service(self, continuation, details):
        self._node.calls.append(details.method)
        self._node.bearers |= {value for key, value in details.invocation_metadata if key == "authorization"}
        return continuation(details)


class World:
    """A control node (n1, created by ``control(...)``), an honest node (n3), and the certificates of both."""

    def __init__(self, directory, patch, ca, stack):
        self.directory, self.ca, self.stack, self.patch = directory, ca, stack, patch
        self.n3 = self.node("n3", "compute")

    def node(self, name, *roles, **more):
        pair = self.ca.issue(name)
        made = Node(self.directory, name, roles, tls_cert=pair.certificate, tls_key=pair.key, nodes_ca=self.ca.file,
                    **more)
        self.stack.callback(made.stop)
        return made

    def control(self, **more):
        self.n1 = self.node("n1", "control", node_address="192.0.2.1", **more)
        for variable, value in (("NOVA_ADDR", self.n1.url), ("NOVA_CACERT", self.ca.file),
                                ("NOVA_SHARED_SECRET", SECRET)):
            self.patch.setenv(variable, value)

    def compromised(self, **lies):
        found = Compromised(self.ca.issue("n2"), **lies)
        self.stack.callback(found.stop)
        return found

    def nova(self, *words):
        ended = run(*words)
        assert ended.code == 0, (words, ended.err)
        return ended.out


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TEXT", TEXT)
    with authority() as ca, contextlib.ExitStack() as stack:
        yield World(tmp_path, monkeypatch, ca, stack)


def member(node, name, *roles):
    return module.options.Node(address=node.url, node=name, roles=roles)


LIES = {"its role": {"roles": ["control", "compute", "storage"]}, "the name of the control node": {"node": "n1"},
        "the name of another node": {"node": "n3"}, "the id of the control node": {"id": "n1"},
        "that it has a platform": {"steered": False}}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.replace(" ", "-"))
def test_lying_node_gets_only_secrets_of_its_own_components(world, lie):
    thief = world.compromised(**LIES[lie])
    world.control(nodes=(member(thief, "n2", "compute"), world.n3.as_member("compute")))
    if "id" in thief.lies:
        thief.lies["id"] = world.n1.daemon.ident
    values = {name: set() for name in ("admin", "db", "host")}
    for words in OPERATIONS:
        run(*words)  # The operation may be refused, since the node lies.
        for name in values:
            with contextlib.suppress(Exception):
                values[name].add(world.n1.secret(name))
    got = {value for share in thief.shares for value in share.values.values()}
    components = {name for share in thief.shares for name in share.platform.components}
    print(f"{len(OPERATIONS)} operations, {len(thief.calls)} calls of the node, {len(thief.shares)} shares with "
          f"{sorted(components)}")
    assert components <= {"compute", "agent"}
    assert got <= values["db"] | values["host"]
    assert not any(value in str(thief.shares) for value in values["admin"])
    if lie == "its role":
        assert got, "an honest node must receive the secrets of its components"
    assert thief.bearers == {f"Bearer {node_secret(SECRET, 'n2')}"}
    for other in (world.n1, world.n3):
        ended = run("--addr", other.url, "--secret", node_secret(SECRET, "n2"), "platform-info")
        assert (ended.code, "secret is missing or wrong" in ended.err) == (4, True)


def test_configured_node_with_the_certificate_of_another_node_is_refused_and_receives_nothing(world):
    """The operator exchanged two addresses, or a node took the address of another one."""
    thief = world.compromised(node="n3")  # Its certificate names n2.
    world.control(nodes=(member(thief, "n3", "compute"), module.options.Node(
        address="tls://127.0.0.1:1", node="n2", roles=("compute",))))
    for words in OPERATIONS:
        run(*words)
    assert (thief.calls, thief.bearers) == ([], set())
    assert f"Node n3 ({thief.url}) presents the certificate of node n2" in run("deploy").err
    [row] = [row for row in json.loads(world.nova("nodes", "list", "-f", "json")) if row["Node"] == "n3"]
    assert "certificate of node n2" in str(row)


def test_configured_node_with_a_certificate_for_its_address_alone_is_used(world):
    pair = world.ca.issue("a machine")
    node = Node(world.directory, "n2", ("compute",), tls_cert=pair.certificate, tls_key=pair.key,
                nodes_ca=world.ca.file)
    world.stack.callback(node.stop)
    world.control(nodes=(node.as_member("compute"), world.n3.as_member("compute")))
    world.nova("deploy")
    assert node.runs() == {"agent": "1", "compute": "1"}


def test_component_reports_of_a_node_are_shown_under_its_name(world):
    thief = world.compromised()
    world.control(nodes=(member(thief, "n2", "compute"),))
    assert "n2/db: is mine [2J" in world.nova("deploy")
    shown = json.loads(world.nova("platform-info", "-f", "json"))
    assert {one["Node"] for one in shown if one["Component"] == "agent"} == {"n2"}


class Loud(Compromised):
    """A node whose texts have terminal sequences, and whose reply to ``fails`` is an error with such a text."""

    fails, text = "", "done \x1b[2J\x1b]0;x\x07 \u202e\r\nnova: \u2028"

    def Daemon_Show(self, request, context):
        return context.abort(grpc.StatusCode.ABORTED, self.text) if self.fails == "Show" else super().Daemon_Show(
            request, context)

    def Platform_Show(self, request, context):
        return pb.PlatformAnswer(components=[pb.ComponentState(**dict.fromkeys(
            ("name", "version", "state", "health", "image", "digest"), self.text)) for _number in range(10)])

    def Nodes_Plan(self, request, context):
        if self.fails == "Plan":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.text)
        return pb.PlanAnswer(changes=[pb.PlannedChange(**dict.fromkeys(
            ("component", "action", "before", "reference", "digest", "fetched"), self.text))])

    def Nodes_Prepare(self, request, context):
        if self.fails == "Prepare":
            context.abort(grpc.StatusCode.ABORTED, self.text)
        yield pb.Progress(component=self.text, message=self.text, changed=[self.text])

    Nodes_Apply = Nodes_Settle = Nodes_Prepare


@pytest.mark.parametrize("fails", ["", "Show", "Plan", "Prepare"])
def test_texts_of_a_node_contain_no_control_characters(world, fails):
    loud = Loud(world.ca.issue("n2"))
    world.stack.callback(loud.stop)
    loud.fails = fails
    world.control(nodes=(member(loud, "n2", "compute"), world.n3.as_member("compute")))
    shown = [run(*words) for words in (("deploy",), ("plan",), ("platform-info",), ("health",), ("history",),
                                       ("nodes", "list"), ("rollback",), ("remove", "--yes"))]
    assert sum("done [2J]0;x" in ended.out + ended.err for ended in shown) >= 3
    for ended in shown:
        assert all(letter.isprintable() or letter == "\n" for letter in ended.out + ended.err), ended
        assert "\nnova: " not in ended.out


class Large(Compromised):
    def Platform_Show(self, request, context):
        return pb.PlatformAnswer(components=[
            pb.ComponentState(name=f"c{number}", state="running", image="x" * 3900) for number in range(1000)])


def test_large_replies_of_nodes_do_not_hide_other_nodes(world):
    nodes = [Large(world.ca.issue(name), node=name) for name in ("n2", "n4")]
    for node in nodes:
        world.stack.callback(node.stop)
    world.control(nodes=(*(member(node, node.lies["node"], "compute") for node in nodes),
                         world.n3.as_member("compute")))
    shown = json.loads(world.nova("platform-info", "-f", "json"))
    assert {"n2", "n4"} <= {row["Node"] for row in shown}


class Endless(Compromised):
    """A node whose replies to the calls in ``endless`` never end; with ``flood`` it reports progress continuously."""

    def __init__(self, pair, endless, flood=False):
        self.endless, self.flood, self.over = endless, flood, threading.Event()
        super().__init__(pair)

    def _answered(self, verb):
        yield pb.Progress(component="agent", message="begins")
        while verb in self.endless and not self.over.wait(0.0 if self.flood else 0.2):
            if self.flood:
                yield pb.Progress(component="agent", message="x" * 4000)

    def Nodes_Prepare(self, request, context):
        return self._answered("prepare")

    def Nodes_Apply(self, request, context):
        return self._answered("apply")

    def Nodes_Settle(self, request, context):
        return self._answered("settle")

    def stop(self):
        self.over.set()
        super().stop()


@pytest.mark.parametrize("flood", [False, True], ids=["silent", "flood"])
@pytest.mark.parametrize("endless", [("prepare",), ("apply",), ("settle",), ("apply", "settle")], ids="-".join)
def test_hanging_node_does_not_block_the_platform(world, endless, flood, monkeypatch):
    thief = Endless(world.ca.issue("n2"), endless, flood)
    world.stack.callback(thief.stop)
    monkeypatch.setattr(coordinator, "_longest", lambda _share: 1.0)
    monkeypatch.setattr(coordinator, "_REPORTS", 50)
    monkeypatch.setattr(coordinator, "_TRY", 1.0)
    send = coordinator.Coordinator._send_decision
    monkeypatch.setattr(
        coordinator.Coordinator, "_send_decision", lambda self, one, done, progress, seconds, longest=1.0: (
            send(self, one, done, progress, seconds, min(longest, 1.0))))
    world.control(nodes=(member(thief, "n2", "compute"),))
    ended = run("deploy", "db", "agent")
    if endless == ("settle",):  # Only the decision is missing: the node receives it later.
        assert (ended.code, "n2 does not answer; it receives the decision" in ended.out) == (0, True), ended
        assert world.n1.runs() == {"db": "1"}
    else:
        assert (ended.code, "Node n2" in ended.err) == (1, True), ended
        assert world.n1.runs() == {}
    wait_for(lambda: world.n1.daemon.deployer.idle(0), 20, "the deployment has ended")
    if "settle" in endless:
        ended = run("deploy", "db")
        refused = "Node n2 has not received the outcome of deployment 1 yet" in ended.err
        assert (ended.code, refused) == (1, True), ended
        world.n1.stop()
        world.n1.start()  # The hanging node does not block a restart either.
        wait_for(lambda: not world.n1.daemon.journal.unfinished(), 20, "the deployment is rolled back")
    thief.endless = ()
    wait_for(lambda: not world.n1.daemon.journal.unsettled(), 20, "n2 has received the outcome")
    world.nova("deploy", "db")
    assert world.n1.runs() == {"db": "1"}


def test_novad_stops_while_a_node_hangs(world):
    thief = Endless(world.ca.issue("n2"), ("apply", "settle"))
    world.stack.callback(thief.stop)
    world.control(nodes=(member(thief, "n2", "compute"),))
    deploying = threading.Thread(target=run, args=("deploy", "db", "agent"))
    deploying.start()
    wait_for(lambda: any(call.endswith("/Apply") for call in thief.calls), 20, "n2 has received the request")
    daemon = world.n1.daemon
    world.n1.stop()
    assert daemon.deployer.idle(0)
    deploying.join(20)
    thief.endless = ()
    world.n1.start()
    wait_for(lambda: not world.n1.daemon.journal.unfinished(), 20, "the deployment is rolled back")
    assert (world.n1.states()[0], world.n1.runs()) == (("deploy", "undone"), {})


@contextlib.contextmanager
def announced(name, port):
    told = Instance(name="", node=name, version="1", roles=("control",), addresses=())
    made = Announcement(told, ["127.0.0.1"], port, tls=True)
    try:
        yield
    finally:
        made.withdraw()


def test_discovered_node_receives_no_calls_before_acceptance(world):
    """Check nodes with a valid certificate, role and name of another node."""
    world.control(discover_nodes=True)
    discovery = world.n1.daemon.coordinator.discovery
    for name in ("n2", "n3"):
        thief = Compromised(world.ca.issue(name), node=name)
        world.stack.callback(thief.stop)
        with announced(name, thief.port):
            wait_for(lambda thief=thief: thief.url in dict(map(reversed, discovery.trusted())), 60,
                     "the announcement is received")
            for words in OPERATIONS:
                run(*words)
            assert (thief.calls, thief.bearers) == ([], set())
        thief.stop()
        wait_for(lambda: not discovery.trusted(), 60, "the announcement has expired")


def tried(discovery, instances):
    """Return True if this number of instances was discovered and tried."""
    entries = list(discovery._entries.values())
    return len(entries) == instances and all(entry.turn or entry.address for entry in entries)


def test_node_that_announces_the_name_of_another_node_is_not_listed_and_receives_no_secret(world):
    world.control(discover_nodes=True)
    thief = world.compromised(node="n3")  # Its certificate names n2.
    with announced("n3", thief.port):
        wait_for(lambda: tried(world.n1.daemon.coordinator.discovery, 1), 60, "the announcement is received and tried")
        assert [one["Node"] for one in json.loads(world.nova("nodes", "list", "-f", "json"))] == ["n1"]
        for wanted in ("n3", thief.url):
            assert "was discovered" in run("nodes", "accept", wanted).err
    assert (thief.calls, thief.bearers) == ([], set())


@pytest.mark.parametrize("fact", ["accepted", "member"])
def test_node_whose_certificate_does_not_name_it_receives_no_secret_after_an_upgrade(world, fact):
    """An earlier release accepted the name that a node announced."""
    world.control(discover_nodes=True)
    thief = world.compromised(node="n3")
    world.n1.daemon.journal.set_fact(f"{fact} {thief.url}", "n3" if fact == "member" else json.dumps(
        {"address": thief.url, "node": "n3", "roles": ["compute"]}))
    for words in (("nodes", "accept", "n3"), *OPERATIONS):
        run(*words)
    assert (thief.calls, thief.bearers) == ([], set())
    assert "has a certificate for another node or address" in run("nodes", "accept", "n3").err


def test_announcement_of_a_node_address_under_another_name_does_not_block_its_acceptance(world):
    world.control(discover_nodes=True)
    discovery = world.n1.daemon.coordinator.discovery
    with announced("n3", world.n3.port), announced("stranger", world.n3.port):
        wait_for(lambda: tried(discovery, 2), 60, "both announcements are received and tried")
        assert discovery.trusted() == [("n3", world.n3.url)]
        world.nova("nodes", "accept", world.n3.url)
    world.nova("deploy")
    assert world.n3.runs() == {"agent": "1", "compute": "1"}


def test_node_with_several_names_at_one_address_is_accepted_by_name(world):
    world.control(discover_nodes=True)
    world.n1.daemon.coordinator.discovery.trusted = lambda: [("n3", world.n3.url), ("N3", world.n3.url)]
    assert f"Several nodes match {world.n3.url}: N3 at" in run("nodes", "accept", world.n3.url).err
    world.nova("nodes", "accept", "n3")


def test_node_address_without_roles_refuses_deployment_with_a_hint(world):
    world.control(nodes=(world.n3.url,))
    ended = run("deploy")
    assert (ended.code, f'address = "{world.n3.url}", node = "NAME", roles = ["compute"]' in ended.err) == (1, True)
    [row] = [one for one in json.loads(world.nova("nodes", "list", "-f", "json")) if one["Address"] == world.n3.url]
    assert row["State"] == "unaccepted"


def test_node_discovered_by_an_earlier_release_requires_acceptance(world):
    world.control(discover_nodes=True)
    world.n1.daemon.journal.set_fact(f"member {world.n3.url}", "n3")
    ended = run("deploy")
    assert (ended.code, "nova nodes accept n3, or nova nodes forget n3" in ended.err) == (1, True)
    assert world.n3.runs() == {}
    world.nova("nodes", "accept", "n3", "--role", "compute")
    world.nova("deploy")
    assert world.n3.runs() == {"agent": "1", "compute": "1"}
    world.nova("nodes", "forget", "n3")
    assert [one["Node"] for one in json.loads(world.nova("nodes", "list", "-f", "json"))] == ["n1"]


def test_node_with_a_different_secret_is_reported_with_a_hint(world):
    (world.directory / "n3.secret").write_text("of its own")
    world.n3.stop()
    world.n3.start()
    world.control(nodes=(world.n3.as_member("compute"),))
    assert "nova nodes secret n3" in run("deploy").err
    (world.directory / "n3.secret").write_text(world.nova("nodes", "secret", "n3"))
    world.n3.stop()
    world.n3.start()
    world.nova("deploy")


@pytest.mark.parametrize(("words", "code", "said"), [
    (("accept", "n9"), 3, "No node n9 was discovered"), (("accept", "n3", "--role", "../x"), 2, "roles"),
    (("forget", "n9"), 3, "No accepted node n9")])
def test_unknown_nodes_and_roles_are_refused(world, words, code, said):
    world.control(discover_nodes=True)
    world.n1.daemon.journal.set_fact(f"member {world.n3.url}", "n3")
    ended = run("nodes", *words)
    assert (ended.code, said in ended.err) == (code, True), ended.err


class Silent:
    """A server that accepts connections and never replies."""

    def __init__(self):
        self.connections = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                self.connections.append(self._listening.accept()[0])

    def close(self):
        self._listening.close()


def test_unauthenticated_announcements_delay_no_command_or_discovery(world):
    """Check that unauthenticated hosts are contacted in the background only, and commands add no attempts."""
    world.control(discover_nodes=True, nodes=(world.n3.as_member("compute"),))
    discovery = world.n1.daemon.coordinator.discovery
    with contextlib.closing(Silent()) as stranger, announced("s1", stranger.port), announced("s2", stranger.port):
        wait_for(lambda: len(discovery._entries) >= 2 and stranger.connections, 60, "the unknown nodes are discovered")
        thief = world.compromised()
        with announced("n2", thief.port):
            wait_for(lambda: "n2" in dict(discovery.trusted()), 60, "the node is discovered among unknown nodes")
        release, names = threading.Event(), discovery._names
        discovery._names = lambda *words: names(*words) if release.wait(120) else []
        attempts = len(stranger.connections)
        held = [attempts]
        for words in (("nodes", "list"), ("plan",), ("deploy",), ("platform-info",), ("remove", "--yes")):
            world.nova(*words)
            held.append(len(stranger.connections))
        release.set()
    print(f"connections to strangers: {held} after each of {len(held) - 1} commands")
    assert held[-1] - attempts <= 1  # The attempt in progress.
    thief.stop()
    wait_for(lambda: len(discovery._entries) == 0, 60, "the announcements have expired")
