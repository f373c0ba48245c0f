"""RPC interfaces of the services, with a class for each resource."""

from inspect import isfunction
from typing import Any

from nova import bus

CONDUCTOR = "conductor"
# Further topics of conductors, each with its own queue and threads, so that requests of users never delay hosts.
HEARTBEATS = "conductor-heartbeats"
REPORTS = "conductor-reports"
SCHEDULER = "scheduler"
COMPUTE = "compute"


class Interface(bus.Interface):
    """The base class of the interfaces. Every public method without a decorator for another kind is a call."""

    def __init_subclass__(cls, **declared: Any) -> None:
        super().__init_subclass__(**declared)
        for method in vars(cls).values() if declared else ():  # classes that implement an interface declare nothing
            if isfunction(method) and not hasattr(method, "__bus__"):
                bus.call(method)
