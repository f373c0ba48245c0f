"""Health check of a novad: ``python -m nova.novad.probe SOCKET START STEADY``.

novad must become healthy (gRPC health service) within START seconds and stay healthy for STEADY seconds. Exit code 0;
otherwise 1, with the reason on standard output.
"""

import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_PAUSE = 0.2


def check(socket: str) -> str:
    """Return the reason why novad is not healthy, or ""."""
    with grpc.insecure_channel(f"unix:{socket}", [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.RpcError as error:
            return f"no response ({error.code().name.lower()})"
    return "" if answer.status == health_pb2.HealthCheckResponse.SERVING else "novad reports that it is not serving"


def watch(socket: str, start: float, steady: float) -> str:
    """Return the result of a check after these seconds."""
    limit, since = time.monotonic() + start, 0.0
    while True:
        why, now = check(socket), time.monotonic()
        if why and (since or now > limit):
            return why
        since = (since or now) if not why else 0.0
        if since and now >= since + steady:
            return ""
        time.sleep(_PAUSE)


if __name__ == "__main__":
    failure = watch(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
    print(failure)
    sys.exit(1 if failure else 0)
