"""The gRPC server: authentication of clients, calls of the daemon, conversion of errors to gRPC statuses."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import hmac
import logging
import os
import pathlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from nova import __version__
from nova.common.errors import Invalid, NotKnown, Refused, ReportedError, os_error_text
from nova.novad import signing
from nova.novad.api import novad_pb2 as pb
from nova.novad.client import ANSWERED
from nova.novad.daemon import Daemon
from nova.novad.deployment.containers import Progress
from nova.novad.deployment.history import former_digest
from nova.novad.deployment.journal import Backup, Change, JournalFault
from nova.novad.errors import Busy, Cancelled, Failed, ImageFault, RuntimeFault, shortened
from nova.novad.nodes.coordinator import Away, Coordinator
from nova.novad.nodes.participant import Assignment
from nova.novad.platform import Bind, Volume
from nova.novad.release.updates import Updates
from nova.novad.secrets import MASK, MaskedStream

LOG = logging.getLogger(__name__)

_THREADS = 32
_READERS = 24  # Maximum number of concurrent log readers, so that other calls get threads.
_TAIL, _MOST_TAIL = 100, 10_000  # Number of past lines of a log: default, maximum.
_MESSAGE = 1 << 18  # Maximum number of characters of log lines in a message.
_STREAMS, _CALLS = 64, 512  # Maximum number of concurrent calls: per connection, in total.
_REQUEST = 2 << 20  # Maximum size of a request in bytes: a control node sends a whole platform.
_CODES: dict[type[ReportedError], grpc.StatusCode] = {
    Invalid: grpc.StatusCode.INVALID_ARGUMENT, NotKnown: grpc.StatusCode.NOT_FOUND, Away: grpc.StatusCode.UNAVAILABLE,
    Busy: grpc.StatusCode.ABORTED, Failed: grpc.StatusCode.ABORTED, Refused: grpc.StatusCode.FAILED_PRECONDITION,
    ImageFault: grpc.StatusCode.FAILED_PRECONDITION, JournalFault: grpc.StatusCode.DATA_LOSS,
    RuntimeFault: grpc.StatusCode.UNAVAILABLE, Cancelled: grpc.StatusCode.UNAVAILABLE}


class Server:
    """Listens on the address of the options, and on local sockets, which need no secret: only root can open them."""

    def __init__(self, daemon: Daemon, updates: Updates | None = None, launcher: str = "") -> None:
        self.daemon = daemon
        calls = _Calls(daemon, updates or Updates(daemon.options, daemon.deployer, lambda: None))
        options = daemon.options
        self._health = grpc_health.HealthServicer()
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="grpc")
        self._handlers = [handler(service, calls) for service in pb.DESCRIPTOR.services_by_name if service != "Login"]
        self._network = self._made([_Login(daemon.shared_secret(), bool(options.tls_cert), self._health)])
        self._local = self._made([])
        self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        where = options.listen.removeprefix("tcp://")
        self.port = 0
        with contextlib.suppress(RuntimeError):
            if options.tls_cert:
                key, certificate, authority = (pathlib.Path(path).read_bytes() if path else None
                                               for path in (options.tls_key, options.tls_cert, options.client_ca))
                credentials = grpc.ssl_server_credentials([(key, certificate)], authority, bool(options.client_ca))
                self.port = self._network.add_secure_port(where, credentials)
            else:
                self.port = self._network.add_insecure_port(where)
        if not self.port:
            raise Refused(f"{options.listen} is in use or not an address of this machine"
                          f"{', or tls_cert, tls_key or client_ca cannot be used' if options.tls_cert else ''}.")
        for path in (str(options.socket), *([launcher] if launcher else [])):
            self._listen_locally(path)

    def _made(self, interceptors: list[grpc.ServerInterceptor]) -> grpc.Server:
        made = grpc.server(self._pool, interceptors=interceptors, options=[
            ("grpc.keepalive_time_ms", 60000), ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 10000), ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", _REQUEST), ("grpc.max_concurrent_streams", _STREAMS)],
            maximum_concurrent_rpcs=_CALLS)
        made.add_generic_rpc_handlers(self._handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, made)
        names = [service.full_name for service in pb.DESCRIPTOR.services_by_name.values()]
        reflection.enable_server_reflection((*names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
                                             reflection.SERVICE_NAME), made)
        return made

    def _listen_locally(self, path: str) -> None:
        """Listen on a socket in a directory of mode 0700. A socket of a novad that was killed is replaced."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        try:
            self._local.add_insecure_port(f"unix:{path}")
            os.chmod(path, 0o600)
        except (RuntimeError, OSError) as error:
            LOG.warning("Cannot listen on socket %s: %s. Local clients use %s.", path, error,
                        self.daemon.options.listen)

    def start(self) -> None:
        self._network.start()
        self._local.start()

    def stop(self, seconds: float = 2) -> None:
        """Stop accepting calls; cancel running calls after ``seconds``."""
        self._health.enter_graceful_shutdown()
        for ended in [self._network.stop(seconds), self._local.stop(seconds)]:
            ended.wait()


class _Login(grpc.ServerInterceptor):
    """Admits clients that have the shared secret: they send it over TLS, and otherwise sign calls with it. Health
    checks need no secret. Other clients are refused before their request arrives, and occupy no thread."""

    def __init__(self, secret: str, tls: bool, health: grpc_health.HealthServicer) -> None:
        self._expected = f"Bearer {secret}".encode()
        self._tls, self._warned = tls, False
        self._verifier = signing.Verifier(secret)
        self._refuse = _refusal("The shared secret is missing or wrong: set --secret or $NOVA_SHARED_SECRET.")
        self._check = grpc.stream_stream_rpc_method_handler(  # Reports the health of novad as a whole.
            lambda _requests, context: iter([health.Check(health_pb2.HealthCheckRequest(), context)]),
            response_serializer=health_pb2.HealthCheckResponse.SerializeToString)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        metadata = {key: value if isinstance(value, str) else value.decode("latin-1")
                    for key, value in details.invocation_metadata or ()}
        if hmac.compare_digest(metadata.get("authorization", "").encode("latin-1", "replace"), self._expected):
            if not self._tls and not self._warned:
                self._warned = True
                LOG.warning("A client sent the shared secret over TCP without TLS, as earlier releases of nova do. "
                            "Upgrade it: the next release of novad refuses such calls.")
            return continuation(details)
        if not self._tls and details.method == signing.CHALLENGE and signing.is_nonce(metadata.get(signing.NONCE, "")):
            return self._challenge(metadata[signing.NONCE])
        if not self._tls and (digest := self._verifier.verified(details.method, metadata.get(signing.SIGNATURE, ""))):
            return _of_request(continuation(details), digest)
        return self._check if details.method == "/grpc.health.v1.Health/Check" else self._refuse

    def _challenge(self, ours: str) -> Any:
        def answered(_requests: Any, _context: grpc.ServicerContext) -> Iterator[pb.ChallengeAnswer]:
            nonce, proof = self._verifier.challenge(ours)
            yield pb.ChallengeAnswer(nonce=nonce, proof=proof)
        return grpc.stream_stream_rpc_method_handler(answered, response_serializer=pb.ChallengeAnswer.SerializeToString)


def _refusal(why: str) -> grpc.RpcMethodHandler:
    return grpc.stream_stream_rpc_method_handler(
        lambda _requests, context: context.abort(grpc.StatusCode.UNAUTHENTICATED, why))


def _of_request(handler: Any, digest: str) -> Any:
    """Return a handler that refuses a request with another SHA-256 than ``digest``, or a stream of requests."""
    if handler is None or handler.request_streaming:
        return handler and _refusal("Streams of requests need TLS or novad's local socket.")
    def checked(request: bytes, context: grpc.ServicerContext) -> Any:
        if hashlib.sha256(request).hexdigest() != digest:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "The request is not the one that was signed.")
        return (handler.unary_stream or handler.unary_unary)(handler.request_deserializer(request), context)
    made = grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
    return made(checked, None, handler.response_serializer)


def handler(service: str, servicer: object) -> grpc.GenericRpcHandler:
    """Return the handler of a service of novad.proto; its calls are the methods SERVICE_CALL(request, context) of
    ``servicer``."""
    def handled(method: Any) -> grpc.RpcMethodHandler:
        act = getattr(servicer, f"{service}_{method.name}")
        def responses(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                if method.server_streaming:
                    yield from act(request, context)
                else:  # gRPC transmits a single response like a stream of one message.
                    yield act(request, context)
            except ReportedError as error:
                code = next((code for kind, code in _CODES.items() if isinstance(error, kind)),
                            grpc.StatusCode.INTERNAL)
                context.set_trailing_metadata(((ANSWERED, type(error).__name__),))
                context.abort(code, shortened(error.message))
            except OSError as error:  # For example, a full disk.
                LOG.exception("A request failed; the client receives the error")
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, shortened(f"{os_error_text(error)}."))
        return grpc.unary_stream_rpc_method_handler(responses, getattr(pb, method.input_type.name).FromString,
                                                    getattr(pb, method.output_type.name).SerializeToString)
    described = pb.DESCRIPTOR.services_by_name[service]
    return grpc.method_handlers_generic_handler(
        described.full_name, {method.name: handled(method) for method in described.methods})


def _stream(act: Callable[[_Calls, Any, Progress], list[str] | None]) -> Callable[
        [Any, Any, grpc.ServicerContext], Iterator[pb.Progress]]:
    """Return the method of a servicer that yields the progress of ``act``, which continues without the client."""
    def method(calls: _Calls, request: Any, context: grpc.ServicerContext) -> Iterator[pb.Progress]:
        reports = queue.SimpleQueue[pb.Progress | BaseException | None]()
        def work() -> None:
            try:
                changed = act(calls, request,
                              lambda name, what: reports.put(pb.Progress(component=name, message=what)))
                if changed:
                    reports.put(pb.Progress(changed=changed))
                reports.put(None)
            except BaseException as error:  # For the client; the deployer has logged the error and rolled back.
                reports.put(error)
        threading.Thread(target=work, name="change", daemon=True).start()
        if not context.add_callback(lambda: reports.put(None)):  # The client is gone.
            return
        for report in iter(reports.get, None):
            if isinstance(report, ReportedError | OSError):
                raise report
            if isinstance(report, BaseException):
                LOG.error("Unexpected error in a deployment", exc_info=report)
                context.abort(grpc.StatusCode.INTERNAL, shortened(
                    f"{type(report).__name__}: {report}") + " (a bug; novad's log shows where)")
            yield report
    return method


class _Calls:
    """The calls of novad.proto."""

    def __init__(self, daemon: Daemon, updates: Updates) -> None:
        self.daemon = daemon
        self.updates = updates
        self._readers = threading.BoundedSemaphore(_READERS)

    Platform_Deploy = _stream(lambda self, request, progress: self.daemon.deploy(_versions(request), progress))
    Platform_Rollback = _stream(lambda self, request, progress: self.daemon.rollback(
        list(request.components), request.to or None, progress))
    Platform_Restart = _stream(lambda self, request, progress: self.daemon.restart(list(request.components), progress))
    Platform_Remove = _stream(lambda self, request, progress: self.daemon.remove(
        request.volumes, request.secrets, progress))

    def Platform_Plan(self, request: pb.DeployRequest, context: grpc.ServicerContext) -> pb.PlanAnswer:
        changes, elsewhere = self.daemon.plan(_versions(request))
        return pb.PlanAnswer(changes=[*_planned(self.daemon, changes), *elsewhere])

    def Platform_Show(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.PlatformAnswer:
        answer = pb.PlatformAnswer(name=self.daemon.deployer.platform.name, components=self.daemon.states())
        if self.daemon.coordinator is not None:
            peers, silent = self.daemon.coordinator.query_nodes()
            answer.components.extend(state for peer in peers if peer.steered for state in peer.components)
            answer.components.extend(pb.ComponentState(node=node, state="unreachable", health=why)
                                     for node, why in silent.items())
        return answer

    def Platform_History(self, request: pb.HistoryRequest, context: grpc.ServicerContext) -> pb.HistoryAnswer:
        journal = self.daemon.journal
        deployments = journal.deployments(min(max(request.limit, 0) or 20, 1000))
        idents = [deployment.id for deployment in deployments]
        parts, origins = journal.participations(idents), journal.origins(idents)
        return pb.HistoryAnswer(deployments=[pb.DeploymentEntry(
            id=deployment.id, kind=deployment.kind, state=deployment.state, started=deployment.started,
            ended=deployment.ended or 0.0, error=deployment.error,
            components=[pb.ComponentVersion(component=change.name, version=(
                change.after.version or change.after.component.tag) if change.after else "")
                for change in deployment.changes],
            nodes=[pb.NodePart(node=part.node, components=part.components, settled=part.settled)
                   for part in parts.get(deployment.id, ())],
            control=(f"{origins[deployment.id].node} {origins[deployment.id].number}"
                     if deployment.id in origins else ""))
            for deployment in deployments])

    Nodes_Prepare = _stream(lambda self, request, progress: self.daemon.participant.prepare(
        Assignment.decode(request.share), progress))
    Nodes_Apply = _stream(lambda self, request, progress: self.daemon.participant.apply(
        Assignment.decode(request.share), progress))
    Nodes_Settle = _stream(lambda self, request, progress: self.daemon.settle(
        request.coordinator, request.number, request.done, progress))

    def Nodes_Plan(self, request: pb.ShareRequest, context: grpc.ServicerContext) -> pb.PlanAnswer:
        changes = self.daemon.participant.plan(Assignment.decode(request.share))
        return pb.PlanAnswer(changes=_planned(self.daemon, changes))

    def Nodes_List(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.NodesAnswer:
        options, coordinator = self.daemon.options, self.daemon.coordinator
        here = pb.NodeEntry(node=options.name, address=options.listen, roles=options.roles, state="this one")
        return pb.NodesAnswer(nodes=[here, *(coordinator.listed() if coordinator is not None else [])])

    def Nodes_Accept(self, request: pb.AcceptRequest, context: grpc.ServicerContext) -> pb.NodeEntry:
        return self._coordinator().accept(request.node, request.roles)

    def Nodes_Secret(self, request: pb.NodeRequest, context: grpc.ServicerContext) -> pb.NodeSecret:
        if not self.daemon.options.tls_cert and not context.peer().startswith("unix:"):
            raise Refused("Secrets are not sent over TCP without TLS: use novad's local socket (--addr unix://"
                          f"{self.daemon.options.socket}).")
        return pb.NodeSecret(secret=self._coordinator().secret_of(request.node))

    def Nodes_Forget(self, request: pb.NodeRequest, context: grpc.ServicerContext) -> pb.Empty:
        self._coordinator().forget(request.node)
        return pb.Empty()

    def _coordinator(self) -> Coordinator:
        if self.daemon.coordinator is None:
            raise NotKnown("This novad is not a control node: nodes and discover_nodes are not set in novad.toml.")
        return self.daemon.coordinator

    def Services_Show(self, request: pb.ServiceRequest, context: grpc.ServicerContext) -> pb.ServiceAnswer:
        deployed = self.daemon.journal.components().get(request.name)
        component = deployed.component if deployed else self.daemon.deployer.platform.component(request.name)
        directories: list[tuple[str, Volume | Bind]] = [*((volume.name, volume) for volume in component.volumes),
                                                        *((bind.source, bind) for bind in component.binds)]
        # The mount options of the runtime: the access mode, "rbind", then the propagation.
        return pb.ServiceAnswer(
            name=request.name, image=component.reference(), cmd=component.command,
            version_cmd=component.version_command,
            env={name: MASK if "${secret:" in value else value for name, value in component.env.items()},
            volumes=[*(pb.VolumeEntry(type="bind", name=name, destination=mount.destination,
                                      options=["ro" if "ro" in mount.options else "rw", "rbind", *(
                                          option for option in mount.options if option not in ("ro", "rw"))])
                       for name, mount in directories),
                     *(pb.VolumeEntry(type="file", destination=path, options=["ro"]) for path in component.files)])

    def Logs_Read(self, request: pb.LogsRequest, context: grpc.ServicerContext) -> Iterator[pb.LogLine]:
        if request.name not in self.daemon.journal.components():
            raise NotKnown(f"Component {request.name} is not deployed.")
        if not 0 <= request.tail <= _MOST_TAIL:
            raise Invalid(f"tail: {request.tail} is not a number of lines from 0 (the default, {_TAIL}) to "
                          f"{_MOST_TAIL}.")
        if not self._readers.acquire(blocking=False):
            raise Refused(f"{_READERS} clients are already reading logs.")
        try:
            lines = self.daemon.runtime.logs(self.daemon.deployer.containers.name(request.name), request.follow,
                                             request.tail or _TAIL)
            # A silent component must not hold the thread of a client that disconnected.
            if not context.add_callback(lines.close):
                lines.close()
            secrets = self.daemon.secrets
            version, stream = secrets.version, MaskedStream(secrets.masker())
            for some in lines.batches():
                if version != secrets.version:  # A secret is stored here before its components start.
                    version = secrets.version
                    stream.use(secrets.masker())
                for text in _messages(stream.lines(some)):
                    yield pb.LogLine(text=text)
        finally:
            self._readers.release()

    Backups_Create = _stream(lambda self, request, progress: self.daemon.back_up(request.component, progress))
    Backups_Restore = _stream(lambda self, request, progress: self.daemon.restore(request.id, progress))

    def Backups_List(self, request: pb.BackupsRequest, context: grpc.ServicerContext) -> pb.BackupsAnswer:
        return _backups(self.daemon.journal.backups(request.component or None))

    def Backups_Prune(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.BackupsAnswer:
        return _backups(self.daemon.prune())

    SecretStore_Rotate = _stream(lambda self, request, progress: self.daemon.rotate(list(request.names), progress))

    def SecretStore_List(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.SecretsAnswer:
        components = self.daemon.deployer.platform.components
        return pb.SecretsAnswer(secrets=[pb.SecretEntry(name=name, used_by=sorted(
            component_name for component_name, component in components.items() if name in component.secrets()))
            for name in self.daemon.secrets.names()])

    Updates_Update = _stream(lambda self, request, progress: self.updates.update(progress))

    def Updates_Show(self, request: pb.UpdatesRequest, context: grpc.ServicerContext) -> pb.UpdatesAnswer:
        latest = self.updates.latest() if request.ask else None
        releases = self.updates.releases
        failed, why = releases.failure()
        return pb.UpdatesAnswer(version=__version__, trial=bool(releases.trial()), failed=failed, why=why,
                                latest=latest.version if latest else "")

    def Daemon_Show(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.DaemonAnswer:
        options = self.daemon.options
        return pb.DaemonAnswer(
            version=__version__, address=options.listen, started=self.daemon.started, node=options.name,
            roles=options.roles, runtime=self.daemon.runtime.version(), platform=self.daemon.deployer.platform.name,
            id=self.daemon.ident, steered=self.daemon.participant.steered)


def _versions(request: pb.DeployRequest) -> dict[str, str]:
    return {wanted.component: wanted.version for wanted in request.components}


def _planned(daemon: Daemon, changes: list[Change]) -> list[pb.PlannedChange]:
    planned = []
    for change in changes:
        row = pb.PlannedChange(component=change.name, node=daemon.options.name, action="create")
        if before := change.before:
            row.before, row.digest = before.version or before.component.tag, before.digest
            row.backup = daemon.data.size(change.name, before.component.volumes)
        if after := change.after:
            row.reference = after.component.reference()
            row.fetched = after.component.digest or daemon.runtime.resolve(row.reference)
            row.refused = bool(former_digest(daemon.journal, after.component, row.fetched))
        if before:
            row.action = ("remove" if not after else "replace" if before.component != after.component else
                          "keep, unless its image is another")
        planned.append(row)
    return planned


def _messages(lines: list[str]) -> Iterator[str]:
    """Yield messages of as many lines as a message may have."""
    some: list[str] = []
    length = 0
    for line in lines:
        if some and length + len(line) > _MESSAGE:
            yield "\n".join(some)
            some, length = [], 0
        some.append(line)
        length += len(line) + 1
    if some:
        yield "\n".join(some)


def _backups(backups: list[Backup]) -> pb.BackupsAnswer:
    return pb.BackupsAnswer(backups=[pb.BackupEntry(
        id=backup.id, component=backup.component, deployment=backup.deployment, version=backup.version,
        size=backup.size, made=backup.made) for backup in backups])
