"""What steps may do with the shares of a server; see :mod:`nova.operations.contexts`."""

from __future__ import annotations

from typing import Protocol

from nova.objects.share import ShareMapping


class ServerShares(Protocol):
    """The shares in the server's row."""

    def add(self, mapping: ShareMapping) -> None:
        """The server is to have it; in its accepting transaction."""

    def become(self, mapping: ShareMapping, status: str) -> None:
        """That is its status from now on, if the server has it still."""

    def remove(self, mapping: ShareMapping) -> None:
        """The server has it no longer."""


class OutsideShares(Protocol):
    """The accesses of hosts to shares, for external steps, each as often as needed.

    All raise ShareServiceUnavailable and what the service refuses: ShareAccessGrantError, ShareAccessRemovalError.
    """

    def allow(self, host: str, looks: int, *share_ids: str) -> None:
        """The host may reach these shares (without ``share_ids`` all that the guest is to have), for this server.

        Raises Wait while another server gives up the same access; ``looks``: how often it has waited.
        """

    def deny(self, host: str, *share_ids: str) -> None:
        """The host ("": no host) may not reach these (without ``share_ids`` any), unless another server needs it."""

    def leave(self, *hosts: str) -> None:
        """As settle(); but what the service refuses to take away stays, and is looked at again later.

        Raises ShareServiceUnavailable.
        """

    def settle(self, *hosts: str) -> None:
        """What the server has may be reached from these hosts (without ``hosts`` from its places), and from no other.
        """

    def release(self) -> None:
        """The server has none any more; what the service refuses to take away is looked at again later.

        Raises ShareServiceUnavailable.
        """
