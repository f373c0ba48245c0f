"""RPC endpoints of conductors.

mypy compares the types of an endpoint's methods with those of its interface, but not the names of parameters. The bus
passes arguments by name.
"""

import collections
import importlib
import inspect
import pkgutil

from nova import rpcapi
from nova.rpcapi import Interface


def test_conductors_implement_every_method_of_their_interfaces(suite):
    declared = {value for module in pkgutil.iter_modules(rpcapi.__path__, "nova.rpcapi.")
                for value in vars(importlib.import_module(module.name)).values()
                if isinstance(value, type) and issubclass(value, Interface) and value is not Interface}
    of_conductors = {interface for interface in declared if interface.topic.startswith(rpcapi.CONDUCTOR)}
    served = collections.Counter(interface for interface, _endpoint in suite.conductor.endpoints)
    assert served == dict.fromkeys(of_conductors, 1)
    assert [f"{interface.__name__}.{name}" for interface, endpoint in suite.conductor.endpoints
            for name in interface.methods()
            if getattr(type(endpoint), name) is getattr(interface, name)] == []


def test_endpoints_accept_the_parameters_of_their_interfaces_by_name(suite):
    for interface, endpoint in suite.conductor.endpoints:
        for name, method in interface.methods().items():
            inspect.signature(getattr(endpoint, name)).bind(None, **dict.fromkeys(method.parameters))
