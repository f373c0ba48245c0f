"""One module per operation: its whole story, step by step. See :mod:`nova.operations.base`."""

from nova.operations.base import Operation
from nova.operations.build import Build
from nova.operations.delete import Delete
from nova.operations.power import (
    ForceStop,
    Pause,
    RebootHard,
    RebootSoft,
    Resume,
    Start,
    Stop,
    Suspend,
    Unpause,
)

REGISTRY: dict[str, type[Operation]] = {
    operation.name: operation
    for operation in (Build, Delete, Start, Stop, ForceStop, RebootSoft, RebootHard, Pause, Unpause, Suspend, Resume)
}
