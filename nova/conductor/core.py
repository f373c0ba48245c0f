"""The objects that all parts of a conductor process share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import sqlalchemy as sa
from stevedore import driver as stevedore_driver

from nova import bus, context
from nova.conductor.feeds.deltas import FleetAnnouncer
from nova.conductor.feeds.feed import FiltersFeed, NamesFeed, PeersFeed, UsageFeed
from nova.conductor.feeds.host_rates import HostRates
from nova.conductor.feeds.outbox import Outbox
from nova.conductor.secret_cipher import SecretCipher
from nova.conf import CONF
from nova.db.sql.engine import Database
from nova.network.base import Allocator
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeRemoval
from nova.rpcapi.compute import Compute
from nova.rpcapi.scheduler import Scheduler
from nova.share.base import ShareService
from nova.volume.base import Attachments

if TYPE_CHECKING:
    import oslo_messaging as messaging


_HOSTS = 1000  # number of hosts whose proxies are cached


@dataclasses.dataclass
class Core:
    """The database, the clients of other services, and the name of this process (the owner of leases)."""

    name: str
    db: Database
    transport: messaging.RPCTransport
    scheduler: Scheduler
    compute: Compute
    fleet: FleetAnnouncer
    usage: UsageFeed
    # Notifications, stored in the transaction of the change that they report.
    outbox: Outbox = dataclasses.field(default_factory=Outbox)
    # Rate limits of the notifications about reports of hosts.
    host_rates: HostRates = dataclasses.field(default_factory=HostRates)
    peers: PeersFeed = dataclasses.field(init=False)  # publishes to hosts the other hosts of their networks
    names: NamesFeed = dataclasses.field(init=False)  # publishes to hosts the DNS names of floating addresses
    filters: FiltersFeed = dataclasses.field(init=False)  # publishes to hosts the rules and members of security groups
    # Cached proxies for hosts: creating one costs as much as sending a message.
    _proxies: Callable[[str], Compute] = dataclasses.field(init=False)

    @functools.cached_property
    def allocator(self) -> Allocator:
        """Return the conductor side of the network back end. Raises stevedore's NoMatches for a bad [network]driver."""
        return cast(Allocator, self._back_end("nova.network.allocators", CONF.network.driver))

    @functools.cached_property
    def cipher(self) -> SecretCipher:
        """Return the cipher of stored passwords and volume keys."""
        return SecretCipher(CONF.conductor.secret_key_file)

    @functools.cached_property
    def attachments(self) -> Attachments:
        """Return the conductor side of the volume back end. Raises stevedore's NoMatches for a bad [volume]driver."""
        return cast(Attachments, self._back_end("nova.volume.attachments", CONF.volume.driver))

    @functools.cached_property
    def shares(self) -> ShareService:
        """Return the conductor side of the share back end. Raises stevedore's NoMatches for a bad [share]driver."""
        return cast(ShareService, self._back_end("nova.share.services", CONF.share.driver))

    def _back_end(self, namespace: str, name: str) -> object:
        return stevedore_driver.DriverManager(namespace, name, invoke_on_load=True, invoke_args=(self.db,)).driver

    def __post_init__(self) -> None:
        self._proxies = functools.lru_cache(_HOSTS)(lambda host: bus.at(self.compute, host))
        self.peers = PeersFeed(self.db, self.compute_at)
        self.names = NamesFeed(self.db, self.compute_at)
        self.filters = FiltersFeed(self.db, self.compute_at)

    def compute_at(self, host: str) -> Compute:
        return self._proxies(host)


class StepTransaction(Protocol):
    """The context of a step: its instance, and the effects of its transaction."""

    core: Core
    ctx: context.RequestContext
    instance: Instance
    effects: list[Callable[[sa.Connection], object]]
    removals: list[VolumeRemoval]  # sent to their hosts after the commit
    filters: set[str]  # changed security groups, published to the hosts whose rules name them as remote groups

    def set(self, **changes: Any) -> None: ...
    def connector(self, host: str) -> dict[str, Any] | None: ...
