"""Shares of a server, for the steps of its operations: in the server's row and in the share service."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.conductor.core import StepTransaction
from nova.db.servers import servers
from nova.db.volumes import share_accesses
from nova.objects.volumes.share import ERROR, ShareAccess, ShareMapping
from nova.operations.framework.base import Wait

LOG = logging.getLogger(__name__)

# Maximum number of waits, of _PAUSE seconds each, for another server that is releasing its access; then the step fails.
_MAX_CHECKS = 60
_PAUSE = 1.0


class ServerShares:
    """A :class:`nova.operations.framework.resource_contexts.ServerShares`."""

    def __init__(self, transaction: StepTransaction) -> None:
        self._transaction = transaction

    def add(self, mapping: ShareMapping) -> None:
        self._transaction.set(shares=[*(self._transaction.instance.shares or ()), mapping])

    def become(self, mapping: ShareMapping, status: str) -> None:
        self._change(lambda item: msgspec.structs.replace(item, status=status) if item.uuid == mapping.uuid else item)

    def remove(self, mapping: ShareMapping) -> None:
        self._change(lambda item: None if item.uuid == mapping.uuid else item)

    def _change(self, changed: Callable[[ShareMapping], ShareMapping | None]) -> None:
        """Change the shares of the instance in the transaction of the step, as a request may add shares before that."""
        def renewed(given: list[ShareMapping] | None) -> list[ShareMapping] | None:
            return [now for item in given or () if (now := changed(item)) is not None] or None

        transaction = self._transaction
        transaction.effects.append(lambda connection: servers.change(
            connection, transaction.instance, "shares", renewed))  # type: ignore[arg-type] # a column that may be null
        transaction.instance.shares = renewed(transaction.instance.shares)


class OutsideShares:
    """A :class:`nova.operations.framework.resource_contexts.OutsideShares` that records accesses first."""

    def __init__(self, transaction: StepTransaction) -> None:
        self._transaction = transaction
        self._db = transaction.core.db
        self._service = transaction.core.shares

    def allow(self, host: str, checks: int, *share_ids: str) -> None:
        for share_id in share_ids or [mapping.share_id for mapping in self._transaction.instance.usable_shares]:
            self._allow(share_id, host, checks)

    def _allow(self, share_id: str, host: str, checks: int) -> None:
        uuid = self._transaction.instance.uuid
        if not self._db.write(lambda connection: share_accesses.want(connection, share_id, host, uuid)):
            if checks >= _MAX_CHECKS:
                raise exception.ShareAccessGrantError(
                    share_id=share_id, reason=f"the access of host {host} is still being revoked")
            raise Wait(seconds=_PAUSE)
        self._service.allow(self._transaction.ctx, share_id, host, self._transaction.connector(host) or {}, uuid)

    def deny(self, host: str, *share_ids: str) -> None:
        for access in self._accesses():
            if host in ("", access.host) and (not share_ids or access.share_id in share_ids):
                self._deny(access.share_id, access.host)

    def leave(self, *hosts: str) -> None:
        for access in self._accesses():
            with self._suppressed():
                self._settle(access, hosts)

    def reconcile(self, *hosts: str) -> None:
        for access in self._accesses():
            self._settle(access, hosts)

    def _settle(self, access: ShareAccess, hosts: tuple[str, ...]) -> None:
        self._deny(access.share_id, access.host, functools.partial(self._needs, access, hosts))
        if access.leaving and self._db.read(lambda connection: self._needs(access, hosts, connection)):
            # The access is being revoked, but the server still needs it: grant it again.
            with contextlib.suppress(Wait):  # another server's access is being revoked: grant it later
                self._allow(access.share_id, access.host, 0)

    def _needs(self, access: ShareAccess, hosts: tuple[str, ...], connection: sa.Connection) -> bool:
        """Return True if the server has the share, and the host of the access is in ``hosts`` (or a possible host)."""
        uuid = self._transaction.instance.uuid
        now = servers.get(connection, uuid, deleted=True)
        has = not now.deleted and any(
            mapping.share_id == access.share_id and mapping.status != ERROR for mapping in now.shares or ())
        return has and access.host in (hosts or servers.places(connection, [uuid]).get(uuid, set()))

    def release(self) -> None:
        for access in self._accesses():
            with self._suppressed():
                self._deny(access.share_id, access.host)

    @contextlib.contextmanager
    def _suppressed(self) -> Iterator[None]:
        """Log failures to grant or revoke an unneeded access, which must not delay or fail the operation."""
        try:
            yield
        except (exception.ShareAccessRemovalError, exception.ShareAccessGrantError) as error:
            LOG.warning("[instance: %s] Cannot revoke an unused share access, will retry: %s",
                        self._transaction.instance.uuid, error)

    def _deny(self, share_id: str, host: str, unless: Callable[[sa.Connection], bool] | None = None) -> None:
        uuid = self._transaction.instance.uuid
        if self._db.write(lambda connection: share_accesses.leave(connection, share_id, host, uuid, unless)):
            connector = self._transaction.connector(host) or {}
            self._service.deny(self._transaction.ctx, share_id, host, connector)
            if self._db.write(lambda connection: share_accesses.removed(connection, share_id, host, uuid)):
                self._service.allow(self._transaction.ctx, share_id, host, connector, uuid)

    def _accesses(self) -> list[ShareAccess]:
        uuid = self._transaction.instance.uuid
        return self._db.read(lambda connection: share_accesses.of_instance(connection, uuid))
