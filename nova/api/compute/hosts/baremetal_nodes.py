"""os-baremetal-nodes (before 2.36): Ironic's nodes, which Nova does not support."""

from __future__ import annotations

from nova import exception
from nova.api.request import Request
from nova.api.router import Handler, accepts
from nova.api.validation.types import ANY_QUERY


@accepts(query=ANY_QUERY, errors=(501,))
def not_available(req: Request) -> None:
    """Answer that bare metal nodes are not supported."""
    raise exception.NotImplementedHere("Ironic client unavailable, cannot access Ironic.")


def _refusing(command: str) -> Handler:
    def handler(req: Request) -> None:
        raise exception.Invalid(f"Command Not supported. Please use Ironic command {command} to perform this action.")

    handler.__doc__ = f"Never served: {command} is Ironic's."
    return handler


create = _refusing("node-create")
delete = _refusing("node-delete")
add_interface = _refusing("port-create")
remove_interface = _refusing("port-delete")
