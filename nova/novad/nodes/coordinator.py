"""The other nodes of a control node, and their assignments.

A deployment of several nodes has two phases. First, all nodes fetch and check their images; no component stops before
all nodes succeed. Then this node changes its components, then the other nodes change theirs and keep the changes
``pending``. The journal of this node decides: "done" there commits the deployment on all nodes; a failure, or the end
of this novad, before that undoes it on all nodes. A node that does not respond receives the decision when it responds
again.
"""

import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grpc
import msgspec

from nova.common.errors import Invalid, NotKnown, Refused, ReportedError
from nova.novad import signing
from nova.novad.api import novad_pb2 as pb
from nova.novad.client import ANSWERED, Client, Unreachable, was_lost
from nova.novad.deployment.containers import Progress
from nova.novad.deployment.journal import DONE, UNDONE, Journal, Participation
from nova.novad.errors import Busy, Cancelled, Failed
from nova.novad.mdns import printable
from nova.novad.nodes.discovery import Discovery, certificate_names
from nova.novad.nodes.participant import Assignment
from nova.novad.options import Node, Options
from nova.novad.platform import Place
from nova.novad.secrets import Secrets

LOG = logging.getLogger(__name__)

_ANSWER = 10.0  # timeout in seconds of a query of a node's state
_AT_ONCE, _QUERIES = 16, 256  # Maximum number of concurrent assignments, and of other calls to nodes.
_TRY = 10.0  # Seconds in which the decision is sent to a node repeatedly; after that a background thread continues.
_PAUSE = 0.5
_WORDS = 4096  # maximum number of characters of a report that the journal stores
_REPORTS = 10_000  # maximum number of reports of a node per call; a deployment has a few per component
_SETTLE = 120.0  # timeout in seconds of a call with the decision; the node continues without its caller
_FETCH, _OTHER = 1800.0, 600.0  # Seconds that a node has to pull an image, and for the other steps of a component.
# Prefixes of journal facts by address: accepted nodes, and the names of nodes that an earlier release discovered.
_ACCEPTED, _EARLIER = "accepted ", "member "
# Reconnect to a returning node immediately, and detect a vanished node within half a minute.
_CHANNEL = [("grpc.keepalive_time_ms", 15000), ("grpc.keepalive_timeout_ms", 15000),
            ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 4 << 20)]
_ERRORS: dict[grpc.StatusCode, type[ReportedError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: Invalid, grpc.StatusCode.FAILED_PRECONDITION: Refused,
    grpc.StatusCode.NOT_FOUND: NotKnown}
_SILENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class Away(ReportedError):
    """A node does not respond."""


class Peer(msgspec.Struct, frozen=True):
    """An accepted node that responds. ``place``: accepted name and roles; ``steered``: it has a control node."""

    url: str
    place: Place
    steered: bool
    components: tuple[Any, ...] = ()

    @property
    def node(self) -> str:
        return self.place.node

    def entry(self) -> pb.NodeEntry:
        return pb.NodeEntry(node=self.node, address=self.url, roles=self.place.roles,
                            state="ready" if self.steered else "independent")


NodeAssignment = tuple[Peer, Assignment]


class Coordinator:
    """Implements :class:`nova.novad.deployment.deploy.Others`. ``ended``: set when novad stops."""

    def __init__(self, options: Options, ident: str, secret: str, journal: Journal, secrets: Secrets,
                 ended: threading.Event) -> None:
        self.options, self.ident, self._secret = options, ident, secret
        self._journal, self._secrets, self._ended = journal, secrets, ended
        self._files = {"NOVA_CACERT": options.nodes_ca or options.client_ca, "NOVA_CERT": options.tls_cert,
                       "NOVA_KEY": options.tls_key}
        self._configured = {node.address: node for node in options.nodes if isinstance(node, Node)}
        self.discovery = Discovery(self._files, ended, expected=lambda: {
            place.node for place in self._accepted().values()}) if options.discover_nodes else None
        self._clients: set[Client] = set()  # Connections in use.
        self._thread = threading.Thread(target=self._keep, name="settle", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self.discovery is not None:
            self.discovery.start()

    def stop(self) -> None:
        """Cancel calls to other nodes and wait for the threads. Called after ``ended`` was set."""
        for client in list(self._clients):
            client.close()
        if self._thread.is_alive():
            self._thread.join(5)
        if self.discovery is not None:
            self.discovery.stop()

    def survey(self) -> list[Peer]:
        """Return the nodes of the platform. Raises Refused, with nodes that do not respond or refuse assignments."""
        peers, silent = ([], {}) if (pending := self._unaccepted()) else self.query_nodes()
        if lacking := pending or silent:
            raise Refused(f"{'; '.join(lacking.values()).removesuffix('.')}. Nothing was changed.")
        names = [self.options.name, *(peer.node for peer in peers)]
        here = {*names, *(peer.url for peer in peers)}
        self._settle_all([entry for entry in self._journal.unsettled() if {entry.node, entry.address} & here], _ANSWER)
        left = {participation.address: participation for participation in self._journal.unsettled()}
        for peer in peers:
            if not peer.steered:
                raise Refused(f'Node {peer.node} ({peer.url}) has a platform file of its own; with platform = "" in '
                              "its novad.toml a control node assigns its components. Nothing was changed.")
            if peer.url in left:
                raise Refused(f"Node {peer.node} has not received the outcome of deployment "
                              f"{left[peer.url].deployment} yet. Nothing was changed. Repeat the command later.")
        if len(set(names)) < len(names):
            raise Refused(f"Two nodes have the same name: {', '.join(sorted(names))} (node in novad.toml).")
        return peers

    def query_nodes(self) -> tuple[list[Peer], dict[str, str]]:
        """Return the accepted nodes that respond, by name, and {name: reason} for the others."""
        accepted = list(self._accepted().items())
        answers = self._concurrently(accepted, self._ask)
        silent = {place.node: str(answer) for (_url, place), answer in zip(accepted, answers, strict=True)
                  if not isinstance(answer, Peer)}
        return sorted((peer for peer in answers if isinstance(peer, Peer)), key=lambda peer: peer.node), silent

    def listed(self) -> list[pb.NodeEntry]:
        """Return the accepted nodes, the nodes without roles, and the discovered nodes."""
        peers, silent = self.query_nodes()
        accepted, pending = self._accepted(), self._unaccepted()
        return [
            *(peer.entry() for peer in peers),
            *(pb.NodeEntry(node=place.node, address=url, roles=place.roles, state="unreachable",
                           error=silent[place.node]) for url, place in accepted.items() if place.node in silent),
            *(pb.NodeEntry(address=url, state="unaccepted", error=why) for url, why in pending.items()),
            *(pb.NodeEntry(node=name, address=url, state="discovered", error=f"nova nodes accept {name}")
              for name, url in self._discovered() if url not in accepted and url not in pending)]

    def accept(self, wanted: str, roles: Sequence[str]) -> pb.NodeEntry:
        """Accept a node for deployments. ``wanted``: its name or address; ``roles``: compute by default. The name is
        bound to the address: a node that moves must be accepted again. Raises NotKnown, Refused, Invalid."""
        candidates = {(url, name) for name, url in self._discovered()} | {*self._journal.facts(_EARLIER).items()} | {
            (url, stored.node) for url, stored in self._stored().items()}
        chosen = sorted(candidate for candidate in candidates if wanted in candidate)
        if not chosen:
            raise NotKnown(f"No node {wanted} was discovered. Name it in nodes of novad.toml, with its address.")
        if len(chosen) > 1:
            raise Refused(f"Several nodes match {wanted}: {', '.join(f'{name} at {url}' for url, name in chosen)}. "
                          "Use a name or an address that only one of them has.")
        [(url, name)] = chosen
        if name == self.options.name or any(stored.node == name and other != url
                                            for other, stored in self._accepted().items()):
            raise Refused(f"Another node has the name {name}. If that node no longer exists: nova nodes forget {name}.")
        try:
            node = msgspec.convert({"address": url, "node": name, "roles": list(roles) or ["compute"]}, Node)
        except msgspec.ValidationError as error:
            raise Invalid(f"node {name!r}, roles {list(roles)}: {error}") from None
        peer = self._ask((url, _place(node)))
        self._journal.set_fact(f"{_ACCEPTED}{url}", msgspec.json.encode(node).decode())
        self._journal.drop_fact(f"{_EARLIER}{url}")
        LOG.info("Node %s at %s was accepted with roles %s", name, url, ", ".join(node.roles))
        return peer.entry()

    def forget(self, node: str) -> None:
        """Remove an accepted node from deployments. Raises NotKnown."""
        removed = [*(f"{_ACCEPTED}{url}" for url, stored in self._stored().items() if node in (stored.node, url)),
                   *(f"{_EARLIER}{url}" for url, name in self._journal.facts(_EARLIER).items() if node in (name, url))]
        if not removed:
            raise NotKnown(f"No accepted node {node}. Edit novad.toml to remove a node of the option nodes.")
        for fact in removed:
            self._journal.drop_fact(fact)

    def secret_of(self, node: str) -> str:
        """Return the shared secret that this control node expects a node to have."""
        return signing.node_secret(self._secret, node)

    def _accepted(self) -> dict[str, Place]:
        """Return {address: name and roles} of the nodes that this control node deploys to."""
        return {url: _place(node) for url, node in {**self._stored(), **self._configured}.items()}

    def _stored(self) -> dict[str, Node]:
        """Return the nodes that were accepted by commands."""
        names = {node.node for node in self._configured.values()}
        accepted = [msgspec.json.decode(text, type=Node) for text in self._journal.facts(_ACCEPTED).values()]
        return {node.address: node for node in accepted if node.node not in names}

    def _unaccepted(self) -> dict[str, str]:
        """Return {address: required action} of nodes without roles, which a deployment would skip silently."""
        accepted = self._accepted()
        bare = {url: f'Node {url} has no name and roles: write {{address = "{url}", node = "NAME", roles = '
                     '["compute"]}} into nodes of novad.toml' for url in self.options.nodes if isinstance(url, str)}
        earlier = {url: f"Node {name} ({url}) was discovered by an earlier release and has no roles: nova nodes accept "
                        f"{name}, or nova nodes forget {name}" for url, name in self._journal.facts(_EARLIER).items()}
        return {url: why for url, why in {**earlier, **bare}.items() if url not in accepted}

    def _discovered(self) -> list[tuple[str, str]]:
        """Return (name, address) of the nodes that announce themselves with a certificate, without this node."""
        trusted = self.discovery.trusted() if self.discovery is not None else []
        return [(name, url) for name, url in trusted if name != self.options.name]

    def _ask(self, accepted: tuple[str, Place]) -> Peer:
        """Query the state of a node. Raises Refused if it reports another name. Roles that it reports are ignored."""
        url, place = accepted
        with self._client(url, place.node, f"{place.node} ({url})") as client:
            daemon = client.ask(client.daemon.Show, pb.Empty(), _ANSWER)
            if daemon.node != place.node:
                raise Refused(f"The node at {url} reports the name {daemon.node[:64]!r}, but this control node "
                              f"expects {place.node} (node in its novad.toml)")
            # A node with a platform file of its own is not queried: it may be a control node that queries this node.
            shown = client.ask(client.platform.Show, pb.Empty(), _ANSWER) if daemon.steered else pb.PlatformAnswer()
        return Peer(url=url, place=place, steered=daemon.steered,
                    components=tuple(_attributed(shown.components, place.node)))

    def plan(self, assignments: Sequence[NodeAssignment]) -> list[pb.PlannedChange]:
        """Return the changes of other nodes."""
        def ask(node_assignment: NodeAssignment) -> list[pb.PlannedChange]:
            peer, assignment = node_assignment
            with self._client(peer.url, peer.node) as client:
                request = pb.ShareRequest(share=msgspec.json.encode(assignment))
                answer = client.ask(client.nodes.Plan, request)
            return _attributed(answer.changes, peer.node)
        return [change for changes in self._all(assignments, ask) for change in changes]

    def prepare(self, ident: int, assignments: Sequence[NodeAssignment], progress: Progress) -> None:
        self._all(assignments, lambda item: self._do("Prepare", ident, item, progress))

    def apply(self, ident: int, assignments: Sequence[NodeAssignment], progress: Progress) -> None:
        """Apply the assignments of nodes with the role control first, then those of all other nodes concurrently."""
        first = [item for item in assignments if "control" in item[0].place.roles]
        last = [item for item in assignments if item not in first]
        removal = any(assignment.kind == "remove" for _peer, assignment in assignments)
        for rank in ([last, first] if removal else [first, last]):
            for peer, _assignment in rank:
                self._journal.add_participant(ident, peer.url, peer.node)
            self._all(rank, lambda item: self._do("Apply", ident, item, progress))

    def settle(self, ident: int, done: bool, progress: Progress) -> list[str]:
        waiting = [entry for entry in self._journal.participations([ident]).get(ident, ()) if not entry.settled]
        answers = self._concurrently(waiting, lambda entry: self._send_decision(entry, done, progress, _TRY))
        return [entry.node for entry, answer in zip(waiting, answers, strict=True) if answer is not None]

    def _do(self, verb: str, ident: int, node_assignment: NodeAssignment, progress: Progress) -> None:
        peer, assignment = node_assignment
        components = assignment.platform.components.values()
        values = self._secrets.values(sorted({name for component in components for name in component.secrets()}))
        share = msgspec.json.encode(msgspec.structs.replace(assignment, number=ident, values=values))
        try:
            for report in self._follow(peer.url, peer.node, verb, pb.ShareRequest(share=share), _longest(assignment),
                                       progress):
                if report.changed:
                    self._journal.record_changes(ident, peer.url, printable(" ".join(report.changed), _WORDS))
        except Away:
            if self._ended.is_set():
                raise Cancelled("novad is stopping; the deployment is rolled back when novad starts again.") from None
            raise

    def _send_decision(self, participation: Participation, done: bool, progress: Progress, seconds: float,
                       longest: float = _SETTLE) -> None:
        """Send the decision on a deployment to a node; retry for ``seconds`` seconds. Raises ReportedError."""
        end = time.monotonic() + seconds
        places = self._accepted()  # The address or name of the node may have changed since the deployment.
        url = next((url for url, place in places.items() if place.node == participation.node), participation.address)
        node = places[url].node if url in places else participation.node
        request = pb.SettleRequest(coordinator=self.ident, number=participation.deployment, done=done)
        while True:
            try:
                for _report in self._follow(url, node, "Settle", request, longest, progress):
                    pass
                break
            except (Away, Busy):
                if time.monotonic() > end or self._ended.wait(_PAUSE):
                    raise
        self._journal.mark_informed(participation.deployment, participation.address)

    def _keep(self) -> None:
        while not self._ended.wait(self.options.interval):
            try:
                self._settle_all(self._journal.unsettled())
            except Exception:  # The next attempt may succeed, whatever the error is.
                LOG.exception("Cannot send the outcome of a deployment to its nodes, retrying")

    def _settle_all(self, pending: Sequence[Participation], longest: float = _SETTLE) -> None:
        """Send decisions to nodes concurrently, since each node may be slow."""
        def settle(participation: Participation) -> None:
            node, ident, done = participation.node, participation.deployment, participation.done
            if self._ended.is_set():
                return
            try:
                self._send_decision(
                    participation, done, lambda name, what: LOG.info(
                        "Applying the outcome of deployment %d on %s: %s", ident, name, what), 0.0, longest)
                LOG.info("Node %s received the outcome of deployment %d: %s", node, ident, DONE if done else UNDONE)
            except ReportedError as error:
                LOG.debug("Cannot send node %s the outcome of deployment %d, retrying: %s", node, ident, error)
        self._concurrently(pending, settle)

    def _follow(self, url: str, node: str, verb: str, request: Any, longest: float,
                progress: Progress) -> Iterator[pb.Progress]:
        """Make a call of a node. Forwards the printable characters of its progress, and yields it. Raises Failed."""
        with self._client(url, node) as client, contextlib.closing(  # type: ignore[type-var]
                client.follow(getattr(client.nodes, verb), request, longest)) as reports:
            for number, report in enumerate(reports):
                if number >= _REPORTS:
                    raise Failed(f"Node {node} sent more than {_REPORTS} messages in one call.")
                if report.message:
                    component = printable(report.component, 63)
                    progress(f"{node}/{component}" if component else node, printable(report.message, _WORDS))
                yield report

    @contextlib.contextmanager
    def _client(self, url: str, node: str, shown: str = "") -> Iterator[Client]:
        """Connect to a node with the secret of that node, and raise the errors that it reports. An address in the
        option nodes is trusted, unless the server there has the certificate of another node. At every other address,
        only a server whose certificate contains the name of the node receives the secret."""
        named = [] if url in self._configured else [("grpc.ssl_target_name_override", node)]
        if not named and (other := self._certified_as(url, node)):
            raise Away(f"Node {node} ({url}) presents the certificate of node {other}, and receives nothing. Exchange "
                       "the addresses in nodes of novad.toml, or issue a certificate for this node.")
        try:
            client = Client(url, self.secret_of(node), self._files, [*_CHANNEL, *named])
        except Unreachable as error:
            raise Away(str(error)) from None
        with contextlib.closing(client):
            self._clients.add(client)
            try:
                yield client
            except grpc.RpcError as error:
                raise _peer_error(error, shown or node, node) from None
            finally:
                self._clients.discard(client)

    def _certified_as(self, url: str, node: str) -> str:
        """Return the other node that the certificate at the address of a configured node names, or ""."""
        others = {self.options.name, *(place.node for place in self._accepted().values())}
        names = certificate_names(url, self._files) if url.startswith("tls://") else []
        return "" if node in names else min(others.intersection(names), default="")

    def _concurrently(self, items: Sequence[Any], act: Callable[[Any], Any]) -> list[Any]:
        """Run ``act`` for all items concurrently; return the result or the error of each."""
        def safely(item: Any) -> Any:
            try:
                return act(item)
            except ReportedError as error:
                return error
        return self._all(items, safely, _QUERIES)

    def _all(self, items: Sequence[Any], act: Callable[[Any], Any], at_once: int = _AT_ONCE) -> list[Any]:
        """Run ``act`` for all items concurrently; return the results. Raises the error of the first failed item."""
        with concurrent.futures.ThreadPoolExecutor(at_once, thread_name_prefix="nodes") as pool:
            return [future.result() for future in [pool.submit(act, item) for item in items]]


def _longest(assignment: Assignment) -> float:
    """Return the timeout of a node's assignment in seconds: a compromised node might never finish."""
    components = assignment.platform.components.values()
    return _OTHER + sum(_FETCH + _OTHER + 3.0 * component.stop_timeout + 2.0 * (
        component.health.start if component.health else 0.0) for component in components)


def _place(node: Node) -> Place:
    return Place(node=node.node, address=node.address.partition("://")[2].rpartition(":")[0], roles=node.roles)


def _attributed(rows: Iterable[Any], node: str) -> list[Any]:
    """Return the rows of a node's reply with the name of the node, and without control characters in their texts."""
    for row in rows:
        for field, value in row.ListFields():
            if isinstance(value, str):
                setattr(row, field.name, printable(value, _WORDS))
        row.node = node
    return list(rows)


def _peer_error(error: grpc.RpcError, node: str, name: str) -> ReportedError:
    """Return the error that another node reports. ``node``: its name, or its name with its address."""
    code, details = error.code(), printable(error.details(), _WORDS)
    words = f"Node {node}: {details.removesuffix(' The previous state was restored.')}"
    if was_lost(error) and "Hostname Verification Check failed" in details:
        return Away(f"Node {node} has a certificate for another node or address, and receives nothing: the "
                    "certificate of an accepted node must contain the name of the node, that of a node in the option "
                    "nodes must contain its address.")
    if was_lost(error) or code in _SILENT:
        return Away(f"Node {node} does not respond: {details}")
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return Refused(f"Node {node} refuses the secret of this control node. Write the output of nova nodes secret "
                       f"{name} (on the control node) to the file that secret_file in the node's novad.toml names.")
    busy = dict(error.trailing_metadata() or ()).get(ANSWERED) == Busy.__name__
    return (Busy if busy else _ERRORS.get(code, Failed))(words)
