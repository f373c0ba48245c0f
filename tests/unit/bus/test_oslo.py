"""The private API of oslo.messaging that nova.bus.oslo uses: a release that changes it fails here first."""

from __future__ import annotations

import ast
import inspect
import pathlib

import oslo_messaging as messaging
import pytest
from oslo_config import cfg
from oslo_messaging._drivers import base

from nova import bus
from nova.bus import oslo

NOVA = pathlib.Path(bus.__file__).parent.parent


def private_imports(path: pathlib.Path) -> set[str]:
    """Return the private modules of oslo.messaging that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        modules = ([node.module or ""] if isinstance(node, ast.ImportFrom) else
                   [alias.name for alias in node.names] if isinstance(node, ast.Import) else [])
        names |= {name for name in modules if name.startswith("oslo_messaging._")}
    return names


def test_only_bus_oslo_imports_private_modules_of_oslo_messaging() -> None:
    users = {str(path.relative_to(NOVA)): names for path in NOVA.rglob("*.py") if (names := private_imports(path))}
    assert users == {"bus/oslo.py": {"oslo_messaging._drivers"}}


@pytest.mark.parametrize(("used", "methods"), [
    (base.BaseDriver, {"__init__", "send", "send_notification", "listen", "listen_for_notifications", "cleanup"}),
    (base.Listener, {"__init__", "start", "stop", "cleanup"}),
    (base.RpcIncomingMessage, {"__init__", "acknowledge", "requeue", "reply", "heartbeat"}),
])
def test_oslo_messaging_base_classes_have_the_implemented_methods(used: type, methods: set[str]) -> None:
    assert methods <= {name for name, _method in inspect.getmembers(used, inspect.isfunction)}
    assert used in (oslo.BaseDriver, oslo.BaseListener, oslo.BaseIncomingMessage)


def test_oslo_messaging_base_classes_have_no_unimplemented_abstract_method() -> None:
    abstract = base.BaseDriver.__abstractmethods__ | base.Listener.__abstractmethods__
    assert abstract <= {"send", "send_notification", "listen", "listen_for_notifications", "cleanup"}


def test_driver_of_returns_the_oslo_driver_of_a_transport() -> None:
    transport = bus.connect(cfg.CONF, url="nova-memory://oslo")
    assert isinstance(oslo.driver_of(transport), oslo.BaseDriver)
    assert bus.broker.broker_of(messaging.get_rpc_transport(cfg.CONF, url="fake://")) is None
