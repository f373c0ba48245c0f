"""Client stubs and server handlers of the services in novad.proto, made from their descriptors."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import grpc

from nova.novad.api import novad_pb2 as pb

_SERVICES = pb.DESCRIPTOR.services_by_name


def stub(channel: grpc.Channel, service: str) -> SimpleNamespace:
    """Return an object with a function for each call of a service."""
    functions = {}
    for method in _SERVICES[service].methods:
        made = channel.unary_stream if method.server_streaming else channel.unary_unary
        functions[method.name] = made(
            f"/{_SERVICES[service].full_name}/{method.name}", getattr(pb, method.input_type.name).SerializeToString,
            getattr(pb, method.output_type.name).FromString)
    return SimpleNamespace(**functions)


def handler(service: str, servicer: object,
            errors: Callable[[grpc.ServicerContext], AbstractContextManager[Any]]) -> grpc.GenericRpcHandler:
    """Return the handler of a service, whose calls are the methods (request, context) of ``servicer``. Each call runs
    within ``errors``."""
    def handled(method: Any) -> grpc.RpcMethodHandler:
        act = getattr(servicer, method.name)

        def responses(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with errors(context):
                if method.server_streaming:
                    yield from act(request, context)
                else:  # gRPC transmits a single response like a stream of one message.
                    yield act(request, context)

        return grpc.unary_stream_rpc_method_handler(responses, getattr(pb, method.input_type.name).FromString,
                                                    getattr(pb, method.output_type.name).SerializeToString)

    return grpc.method_handlers_generic_handler(
        _SERVICES[service].full_name, {method.name: handled(method) for method in _SERVICES[service].methods})
