"""RPC interfaces for flavors, key pairs, quotas, usage and EC2 ids."""

import datetime

from nova.context import RequestContext
from nova.objects.accounts.certificate import Certificate
from nova.objects.accounts.ec2_id import Ec2Id
from nova.objects.accounts.flavor import Flavor, FlavorQuery
from nova.objects.accounts.keypair import Keypair
from nova.objects.accounts.usage import Quotas as QuotaSet
from nova.objects.accounts.usage import ServerUsage
from nova.rpcapi import CONDUCTOR, Interface


class Flavors(Interface, topic=CONDUCTOR, namespace="flavors"):
    """Management of flavors. Methods with a flavorid raise FlavorNotFound."""

    def index(self, ctx: RequestContext, query: FlavorQuery) -> list[Flavor]:
        """Return a page of flavors. Raises MarkerNotFound."""

    def get(self, ctx: RequestContext, flavorid: str, project_id: str | None = None) -> Flavor:
        """Return a flavor. ``project_id``: a private flavor is found only if this project has access to it."""

    def create(self, ctx: RequestContext, flavor: Flavor) -> Flavor:
        """Create a flavor. Raises FlavorExists (name) or FlavorIdExists."""

    def update(self, ctx: RequestContext, flavorid: str, description: str | None) -> Flavor: ...

    def delete(self, ctx: RequestContext, flavorid: str) -> None:
        """Delete a flavor. Existing servers keep a copy of it."""

    def set_extra_specs(self, ctx: RequestContext, flavorid: str, specs: dict[str, str]) -> dict[str, str]:
        """Merge the extra specs and return all of them."""

    def delete_extra_spec(self, ctx: RequestContext, flavorid: str, key: str) -> None:
        """Delete an extra spec of a flavor. Raises FlavorExtraSpecsNotFound."""

    def access(self, ctx: RequestContext, flavorid: str) -> list[str]:
        """Return the ids of the projects with access to a private flavor."""

    def add_access(self, ctx: RequestContext, flavorid: str, project_id: str) -> list[str]:
        """Grant a project access to a private flavor. Raises FlavorAccessExists."""

    def remove_access(self, ctx: RequestContext, flavorid: str, project_id: str) -> list[str]:
        """Revoke the access of a project to a private flavor. Raises FlavorAccessNotFound."""


class Keypairs(Interface, topic=CONDUCTOR, namespace="keypairs"):
    """Key pairs of users."""

    def index(self, ctx: RequestContext, user_id: str, limit: int | None = None,
              marker: str | None = None) -> list[Keypair]:
        """Return key pairs ordered by name. Raises MarkerNotFound ("Marker X could not be found.")."""

    def get(self, ctx: RequestContext, user_id: str, name: str) -> Keypair:
        """Return a key pair of a user. Raises KeypairNotFound."""

    def create(self, ctx: RequestContext, keypair: Keypair, imported: bool = False) -> Keypair:
        """Create a key pair; ``imported`` is True if the user supplied the public key. Raises KeyPairExists, QuotaLimit
        ("Quota exceeded, too many key pairs.")."""

    def delete(self, ctx: RequestContext, user_id: str, name: str) -> None: ...


class Certificates(Interface, topic=CONDUCTOR, namespace="certificates"):
    """X.509 certificates of users, signed by a root certificate of their project."""

    def root(self, ctx: RequestContext, project_id: str) -> Certificate:
        """Return the root certificate that signs new certificates of the project. Raises CertificateNotFound."""

    def create(self, ctx: RequestContext, project_id: str, user_id: str) -> Certificate:
        """Create a certificate with its private key, which is not stored, and first the project's root certificate if
        it has none. Raises InvalidInput (an id does not fit into a certificate), QuotaLimit, ServiceUnavailable (the
        key of the root cannot be decrypted)."""


class Quotas(Interface, topic=CONDUCTOR, namespace="quotas"):
    """Quotas by the resource names of quota sets; -1 means no limit."""

    def get(self, ctx: RequestContext, project_id: str, user_id: str | None = None, usage: bool = False) -> QuotaSet:
        """Return the effective limits. ``usage``: return the used amounts, too."""

    def defaults(self, ctx: RequestContext) -> QuotaSet: ...

    def set(self, ctx: RequestContext, project_id: str, limits: dict[str, int], user_id: str | None = None,
            force: bool = False) -> QuotaSet:
        """Set limits of a project or user. Raises QuotaBelowUsage (unless ``force``), QuotaAboveProject (of a user)."""

    def reset(self, ctx: RequestContext, project_id: str, user_id: str | None = None) -> None:
        """Reset the limits to the defaults."""

    def get_class(self, ctx: RequestContext, name: str) -> QuotaSet: ...

    def set_class(self, ctx: RequestContext, name: str, limits: dict[str, int]) -> QuotaSet: ...


class Usages(Interface, topic=CONDUCTOR, namespace="usages"):
    """Resource usage of servers."""

    def index(self, ctx: RequestContext, begin: datetime.datetime, end: datetime.datetime, limit: int,
              project_id: str | None = None, marker: str | None = None) -> list[ServerUsage]:
        """Return a page of the servers that existed between ``begin`` and ``end``, including deleted ones. Servers are
        ordered by project and uuid and start after ``marker``. Raises MarkerNotFound."""


class Ec2Ids(Interface, topic=CONDUCTOR, namespace="ec2_ids"):
    """Numbers in the ids of the EC2 API, by kind of object ("i", "ami", "vol" ...). Methods raise InvalidInput for more
    than 1,000 items."""

    def assign(self, ctx: RequestContext, kind: str, uuids: list[str]) -> list[Ec2Id]:
        """Return the ids of objects, which are created if necessary. Servers that do not exist are omitted."""

    def resolve(self, ctx: RequestContext, kind: str, numbers: list[int]) -> list[Ec2Id]:
        """Return the ids with these numbers that were assigned. The caller must check the rights to the objects."""
