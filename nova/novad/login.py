"""Admission of clients over the network: the shared secret with TLS, signed calls without TLS."""

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from nova.novad import signing
from nova.novad.api import novad_pb2 as pb

LOG = logging.getLogger(__name__)


class Login(grpc.ServerInterceptor):
    """Admits clients with the shared secret: in the metadata with TLS, else as a signature. Health checks need none. A
    client without the secret is refused before its request arrives, and occupies no thread."""

    def __init__(self, secret: str, tls: bool, health: Callable[[], Any]) -> None:
        self._expected = f"Bearer {secret}".encode()
        self._tls, self._warned = tls, False
        self._verifier = signing.Verifier(secret)
        self._health = health
        self._refuse = grpc.stream_stream_rpc_method_handler(self._refused)
        self._check = grpc.stream_stream_rpc_method_handler(
            self._checked, response_serializer=health_pb2.HealthCheckResponse.SerializeToString)

    @staticmethod
    def _refused(_requests: Any, context: grpc.ServicerContext) -> Any:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "The shared secret is missing or another one: --secret, "
                                                       "$NOVA_SHARED_SECRET.")

    def _checked(self, _requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """Answer a health check of novad as a whole."""
        yield self._health().Check(health_pb2.HealthCheckRequest(), context)

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


def _of_request(handler: Any, digest: str) -> Any:
    """Return a handler that refuses a request with another SHA-256 than ``digest``, or a stream of requests."""
    if handler is None:
        return None

    def checking(behavior: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def checked(request: bytes, context: grpc.ServicerContext) -> Any:
            if hashlib.sha256(request).hexdigest() != digest:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "The request is not the one that was signed.")
            return behavior(handler.request_deserializer(request), context)

        return checked

    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(checking(handler.unary_unary), None, handler.response_serializer)
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(checking(handler.unary_stream), None, handler.response_serializer)
    return grpc.stream_stream_rpc_method_handler(
        lambda _requests, context: context.abort(
            grpc.StatusCode.UNAUTHENTICATED, "Streams of requests need TLS or novad's local socket."))
