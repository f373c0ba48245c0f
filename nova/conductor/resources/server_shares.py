"""The shares of one server, for the steps of its operations: in its row, and at the service that keeps them."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.conductor.resources.server_volumes import Wishes
from nova.db import servers, services, share_accesses
from nova.objects.share import ADDRESS, ERROR, ShareAccess, ShareMapping
from nova.operations.base import Wait

LOG = logging.getLogger(__name__)

# How often, with pauses of so many seconds, to wait for another server that just gives an access up.
_MAX_LOOKS = 60
_PAUSE = 1.0


class ServerShares:
    """A :class:`nova.operations.resource_contexts.ServerShares`."""

    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes

    def add(self, mapping: ShareMapping) -> None:
        self._wishes.set(shares=[*(self._wishes.instance.shares or ()), mapping])

    def become(self, mapping: ShareMapping, status: str) -> None:
        self._change(lambda each: msgspec.structs.replace(each, status=status) if each.uuid == mapping.uuid else each)

    def remove(self, mapping: ShareMapping) -> None:
        self._change(lambda each: None if each.uuid == mapping.uuid else each)

    def _change(self, changed: Callable[[ShareMapping], ShareMapping | None]) -> None:
        """Of what the row has when this is written: others may have come to it meanwhile."""
        def renewed(given: list[ShareMapping] | None) -> list[ShareMapping] | None:
            return [now for each in given or () if (now := changed(each)) is not None] or None

        wishes = self._wishes
        wishes.effects.append(lambda connection: servers.change(
            connection, wishes.instance, "shares", renewed))  # type: ignore[arg-type] # a column that may be null
        wishes.instance.shares = renewed(wishes.instance.shares)


class OutsideShares:
    """A :class:`nova.operations.resource_contexts.OutsideShares`.

    What is to be asked for is written before it is asked for.
    """

    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._db = wishes.core.db
        self._service = wishes.core.shares

    def allow(self, host: str, looks: int, *share_ids: str) -> None:
        for share_id in share_ids or [mapping.share_id for mapping in self._wishes.instance.usable_shares]:
            self._allow(share_id, host, looks)

    def _allow(self, share_id: str, host: str, looks: int) -> None:
        uuid = self._wishes.instance.uuid
        if not self._db.write(lambda connection: share_accesses.want(connection, share_id, host, uuid)):
            if looks >= _MAX_LOOKS:
                raise exception.ShareAccessGrantError(
                    share_id=share_id, reason=f"the access of host {host} is being taken away, and that does not end")
            raise Wait(seconds=_PAUSE)
        self._service.allow(self._wishes.ctx, share_id, host, self._connector(host), uuid)

    def deny(self, host: str, *share_ids: str) -> None:
        for access in self._known():
            if host in ("", access.host) and (not share_ids or access.share_id in share_ids):
                self._deny(access.share_id, access.host)

    def leave(self, *hosts: str) -> None:
        for access in self._known():
            with self._suppressed():
                self._settle(access, hosts)

    def reconcile(self, *hosts: str) -> None:
        for access in self._known():
            self._settle(access, hosts)

    def _settle(self, access: ShareAccess, hosts: tuple[str, ...]) -> None:
        self._deny(access.share_id, access.host, functools.partial(self._needs, access, hosts))
        if access.leaving:
            self._renew(access, hosts)

    def _renew(self, access: ShareAccess, hosts: tuple[str, ...]) -> None:
        """What was to be taken away, perhaps is, and is needed all the same, is given once more."""
        if self._db.read(lambda connection: self._needs(access, hosts, connection)):
            with contextlib.suppress(Wait):  # another server's is being taken away: it is looked at again
                self._allow(access.share_id, access.host, 0)

    def _needs(self, access: ShareAccess, hosts: tuple[str, ...], connection: sa.Connection) -> bool:
        """Whether the server has the share, and may be there (or ``hosts`` are), as the rows say now."""
        uuid = self._wishes.instance.uuid
        now = servers.get(connection, uuid, deleted=True)
        has = not now.deleted and any(
            mapping.share_id == access.share_id and mapping.status != ERROR for mapping in now.shares or ())
        return has and access.host in (hosts or servers.places(connection, [uuid]).get(uuid, set()))

    def release(self) -> None:
        for access in self._known():
            with self._suppressed():
                self._deny(access.share_id, access.host)

    @contextlib.contextmanager
    def _suppressed(self) -> Iterator[None]:
        """Nobody's server waits for what is not needed any more, or is given up for it."""
        try:
            yield
        except (exception.ShareAccessRemovalError, exception.ShareAccessGrantError) as error:
            LOG.warning("[instance: %s] An access that nobody needs stays for now: %s", self._wishes.instance.uuid,
                        error)

    def _deny(self, share_id: str, host: str, unless: Callable[[sa.Connection], bool] | None = None) -> None:
        uuid = self._wishes.instance.uuid
        if self._db.write(lambda connection: share_accesses.leave(connection, share_id, host, uuid, unless)):
            connector = self._connector(host)
            self._service.deny(self._wishes.ctx, share_id, host, connector)
            if self._db.write(lambda connection: share_accesses.gone(connection, share_id, host, uuid)):
                self._service.allow(self._wishes.ctx, share_id, host, connector, uuid)

    def _known(self) -> list[ShareAccess]:
        uuid = self._wishes.instance.uuid
        return self._db.read(lambda connection: share_accesses.of_instance(connection, uuid))

    def _connector(self, host: str) -> dict[str, str]:
        """What the host told of itself that is about shares; of one that has been deleted nothing."""
        found = self._db.read(lambda connection: services.connector(connection, host)) or {}
        return {name: str(value) for name, value in found.items() if name == ADDRESS}
