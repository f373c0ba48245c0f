"""The other nodes of a control node: who they are, and their shares of a deployment.

A deployment of several nodes has two phases. All have fetched and checked what they need before anything stops on any;
then this node changes its components, then the others theirs, and keep them ``pending``. The journal of this node alone
decides: when it says "done" they are told so; whatever fails before that, or ends this novad, undoes it on all. A node
that does not answer then is told when it does.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import msgspec

from nova.novad import errors
from nova.novad.api import novad_pb2 as pb
from nova.novad.client import Client, Unreachable, was_lost
from nova.novad.containers import Progress
from nova.novad.errors import Busy, Cancelled, Failed, Invalid, NovadError, Refused
from nova.novad.journal import DONE, UNDONE, Journal
from nova.novad.mdns import Watch
from nova.novad.options import Options
from nova.novad.platform import Place
from nova.novad.secrets import Secrets
from nova.novad.shares import Share

LOG = logging.getLogger(__name__)

_MOST_STRANGERS = 32  # addresses that were announced, and are asked who they are
_ANSWER = 10.0  # seconds that a node has to say who it is
_AT_ONCE = 16  # nodes that are spoken to at a time
_TRY = 10.0  # seconds in which a node is told again and again how a deployment ended, before that is left for later
_PAUSE = 0.5
_AS_BEFORE = " All is as it was before."
# A node that returns is spoken to at once, and one that vanishes is noticed in half a minute.
_CHANNEL = [("grpc.keepalive_time_ms", 15000), ("grpc.keepalive_timeout_ms", 15000),
            ("grpc.use_local_subchannel_pool", 1)]
_ERRORS: dict[grpc.StatusCode, type[NovadError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: Invalid, grpc.StatusCode.FAILED_PRECONDITION: Refused,
    grpc.StatusCode.UNAUTHENTICATED: Refused, grpc.StatusCode.NOT_FOUND: errors.NotKnown}
_SILENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class Away(NovadError):
    """A node does not answer."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another node. ``components``: what is deployed there; ``steered``: it is told by others what to run."""

    url: str
    ident: str
    place: Place
    steered: bool
    components: tuple[Any, ...] = ()

    @property
    def node(self) -> str:
        return self.place.node


Part = tuple[Peer, Share]


class Fleet:
    """Implements :class:`nova.novad.deploy.Others`. ``ident``: of this novad; ``ended``: whether it ends."""

    def __init__(self, options: Options, ident: str, secret: str, journal: Journal, secrets: Secrets,
                 ended: threading.Event) -> None:
        self.options = options
        self.ident = ident
        self._secret = secret
        self._journal = journal
        self._secrets = secrets
        self._ended = ended
        self._files = {"NOVA_CACERT": options.nodes_ca or options.client_ca, "NOVA_CERT": options.tls_cert,
                       "NOVA_KEY": options.tls_key}
        self._heard: dict[str, tuple[str, ...]] = {}
        self._threads = [threading.Thread(target=work, name=work.__name__.strip("_"), daemon=True)
                         for work in (self._keep, *([self._listen] if options.discover_nodes else []))]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Behind ``ended``."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(5)

    # --- who there is ------------------------------------------------------------------------------
    def survey(self) -> list[Peer]:
        """The nodes that have a part in what is deployed. Raises Refused, naming those that do not answer or may not be
        told what to run."""
        found, silent = self.look()
        if silent:
            raise Refused(f"{'; '.join(silent.values()).removesuffix('.')}. Nothing was changed.")
        self._settle_all()
        left = {one.address: one for one, _done in self._journal.unsettled()}
        for peer in found:
            if not peer.steered:
                raise Refused(f'Node {peer.node} ({peer.url}) has a platform file of its own; with platform = "" in '
                              "its novad.toml it is told by others what to run. Nothing was changed.")
            if peer.url in left:
                raise Refused(f"Node {peer.node} could not be told yet how deployment {left[peer.url].deployment} "
                              "ended. Nothing was changed.")
        names = [self.options.name, *(peer.node for peer in found)]
        if len(set(names)) < len(names):
            raise Refused(f"Two nodes have the same name: {', '.join(sorted(names))} (node in novad.toml).")
        return found

    def look(self) -> tuple[list[Peer], dict[str, str]]:
        """Those that answer, by name, and those that do not, with why."""
        given = list(dict.fromkeys(self.options.nodes))
        heard = [one for urls in list(self._heard.values()) for one in urls if one not in given][:_MOST_STRANGERS]
        members = [one for one in self._members() if one not in given]
        found: dict[str, Peer] = {}
        silent: dict[str, str] = {}
        asked = list(dict.fromkeys([*given, *members, *heard]))
        for url, answer in zip(asked, self._each(asked, self._ask), strict=True):
            if isinstance(answer, Peer):
                if answer.ident != self.ident and (url not in heard or url in members or answer.steered):
                    found.setdefault(answer.ident, answer)
            elif url in heard and url not in members:
                # A stranger may announce anything; it counts when it has shown its certificate and taken the secret.
                LOG.debug("%s was announced, and is none of ours: %s", url, answer)
            else:
                silent[url] = str(answer)
        names = {peer.node for peer in found.values()}
        for url in [one for one in silent if self._members().get(one) in names]:
            self._journal.drop_fact(f"member {url}")  # it has another address now
            del silent[url]
        peers = sorted(found.values(), key=lambda peer: peer.node)
        for peer in peers:
            if peer.url not in given and peer.url not in members:
                self._journal.set_fact(f"member {peer.url}", peer.node)
        return peers, silent

    def forget(self, node: str) -> None:
        """A node that was discovered, and is none of ours any more. Raises NotKnown."""
        gone = [url for url, name in self._members().items() if node in (name, url)]
        if not gone:
            raise errors.NotKnown(f"No node {node} was discovered; those of nodes in novad.toml are changed there.")
        for url in gone:
            self._journal.drop_fact(f"member {url}")
            self._heard = {name: urls for name, urls in self._heard.items() if url not in urls}

    def _members(self) -> dict[str, str]:
        """Nodes that were discovered, and have answered once."""
        return {name.removeprefix("member "): node for name, node in self._journal.facts("member ").items()} \
            if self.options.discover_nodes else {}

    def _ask(self, url: str) -> Peer:
        with self._client(url) as client, _told(url):
            one = client.ask(client.daemon.Show, pb.Empty(), _ANSWER)
            # of others it is no business of ours, and they might ask us in turn
            shown = client.ask(client.platform.Show, pb.Empty(), _ANSWER) if one.steered else pb.PlatformAnswer()
            host = url.partition("://")[2].rpartition(":")[0]
            return Peer(url=url, ident=one.id, place=Place(node=one.node, address=host, roles=tuple(one.roles)),
                        steered=one.steered, components=tuple(shown.components))

    # --- what they do ------------------------------------------------------------------------------
    def plan(self, parts: Sequence[Part]) -> list[tuple[str, Any]]:
        """(node, what would be done there)."""
        def ask(part: Part) -> Any:
            with self._client(part[0].url) as client, _told(part[0].node):
                return client.ask(client.nodes.Plan, pb.ShareRequest(share=part[1].packed())).changes
        return [(peer.node, change) for (peer, _share), changes in zip(parts, self._all(parts, ask), strict=True)
                for change in changes]

    def prepare(self, ident: int, shares: Sequence[Part], progress: Progress) -> None:
        self._all(shares, lambda part: self._do("Prepare", ident, part, progress))

    def apply(self, ident: int, shares: Sequence[Part], progress: Progress) -> None:
        """Those with the role control first; the rest at the same time."""
        first = [part for part in shares if "control" in part[0].place.roles]
        last = [part for part in shares if part not in first]
        removal = any(share.kind == "remove" for _peer, share in shares)
        for rank in ([last, first] if removal else [first, last]):
            for peer, _share in rank:
                self._journal.ask(ident, peer.url, peer.node)
            self._all(rank, lambda part: self._do("Apply", ident, part, progress))

    def settle(self, ident: int, done: bool, progress: Progress) -> list[str]:
        waiting = [one for one in self._journal.asked(ident) if not one.settled]
        return [one.node for one, told in zip(waiting, self._each(
            waiting, lambda one: self._tell(one, done, progress, _TRY)), strict=True) if told is not None]

    def _do(self, verb: str, ident: int, part: Part, progress: Progress) -> None:
        peer, share = part
        values = self._secrets.values(sorted({name for one in share.platform.components.values()
                                              for name in one.secrets()}))
        request = pb.ShareRequest(share=msgspec.structs.replace(share, number=ident, values=values).packed())
        with self._client(peer.url) as client, _told(peer.node):
            for one in client.follow(getattr(client.nodes, verb), request):
                if self._ended.is_set():
                    raise Cancelled("novad ends; the deployment is put back when it starts again.")
                if one.message:
                    progress(f"{peer.node}/{one.component}" if one.component else peer.node, one.message)
                if one.changed:
                    self._journal.answered(ident, peer.url, " ".join(one.changed))

    def _tell(self, one: Any, done: bool, progress: Progress, seconds: float) -> None:
        """Raises NovadError when it cannot be told now."""
        end = time.monotonic() + seconds
        while True:
            try:
                with self._client(one.address) as client, _told(one.node):
                    for told in client.follow(client.nodes.Settle, pb.SettleRequest(
                            coordinator=self.ident, number=one.deployment, done=done)):
                        progress(f"{one.node}/{told.component}" if told.component else one.node, told.message)
                break
            except (Away, Busy):
                if time.monotonic() > end or self._ended.wait(_PAUSE):
                    raise
        self._journal.settle(one.deployment, one.address)

    def _keep(self) -> None:
        while not self._ended.wait(self.options.interval):
            try:
                self._settle_all()
            except Exception:  # whatever it was, the next round may succeed
                LOG.exception("Nodes could not be told how a deployment ended")

    def _settle_all(self) -> None:
        for one, done in self._journal.unsettled():
            if self._ended.is_set():
                return
            try:
                self._tell(one, done, lambda name, what: LOG.info("%s: %s", name, what), 0.0)
                LOG.info("Node %s knows that deployment %d is %s", one.node, one.deployment, DONE if done else UNDONE)
            except NovadError as error:
                LOG.debug("Node %s cannot be told how deployment %d ended: %s", one.node, one.deployment, error.message)

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                with contextlib.closing(Watch()) as watch:
                    self._hear(watch)
            except Exception as error:  # the network may come back
                LOG.warning("Nodes cannot be discovered: %s", error or type(error).__name__)
                self._ended.wait(_ANSWER)

    def _hear(self, watch: Watch) -> None:
        """Which novads announce themselves. Without TLS none is asked: it could be anybody."""
        while not self._ended.is_set():
            for there, one in watch.events(1.0):
                urls = tuple(url for url in one.addresses if url.startswith("tls://"))
                others = {name: known for name, known in self._heard.items() if name != one.name}
                self._heard = {**others, one.name: urls} if there and urls else others

    # --- helpers -----------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _client(self, url: str) -> Iterator[Client]:
        try:
            client = Client(url, self._secret, self._files, _CHANNEL)
        except Unreachable as error:
            raise Away(str(error)) from None
        with contextlib.closing(client):
            yield client

    def _each(self, items: Sequence[Any], act: Callable[[Any], Any]) -> list[Any]:
        """What came of each, at the same time: an answer, or the error."""
        def safely(item: Any) -> Any:
            try:
                return act(item)
            except (NovadError, Cancelled) as error:
                return error

        if not items:
            return []
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="nodes") as pool:
            return list(pool.map(safely, items))

    def _all(self, items: Sequence[Any], act: Callable[[Any], Any]) -> list[Any]:
        """The answers, when all have answered. Raises the first error."""
        answers = self._each(items, act)
        for answer in answers:
            if isinstance(answer, NovadError):
                raise answer
        return answers


@contextlib.contextmanager
def _told(node: str) -> Iterator[None]:
    """What another node refuses, in its words."""
    try:
        yield
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or ""
        words = f"Node {node}: {details.removesuffix(_AS_BEFORE)}"
        if was_lost(error) or code in _SILENT:
            raise Away(f"Node {node} does not answer: {details}") from None
        if code == grpc.StatusCode.ABORTED and "under way" in details:
            raise Busy(words) from None
        raise _ERRORS.get(code, Failed)(words) from None

