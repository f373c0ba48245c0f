"""Endpoints of flavors, key pairs, quotas, usage and EC2 ids."""

import sqlalchemy as sa

from nova import exception
from nova.conductor.endpoints import notifications
from nova.conductor.endpoints.derived import Endpoint, notifying, reads, writes
from nova.conductor.resources import certificates as issuing
from nova.context import RequestContext
from nova.db.accounts import certificates, ec2_ids, flavors, keypairs, quotas, usages
from nova.objects.accounts.certificate import Certificate
from nova.objects.accounts.ec2_id import Ec2Id
from nova.objects.accounts.keypair import Keypair
from nova.objects.accounts.usage import Quotas as QuotaSet
from nova.rpcapi import accounts as accounts_api


class Flavors(Endpoint, accounts_api.Flavors):
    index = reads(flavors.index)
    get = reads(flavors.get)
    create = writes(flavors.create, notify=notifications.flavor_created)
    update = writes(flavors.update, notify=notifications.flavor_changed)
    delete = writes(flavors.delete, notify=notifications.flavor_deleted)
    set_extra_specs = writes(flavors.set_extra_specs, notify=notifications.flavor_changed)
    delete_extra_spec = writes(flavors.delete_extra_spec, notify=notifications.flavor_changed)
    access = reads(flavors.access)
    add_access = writes(flavors.add_access, notify=notifications.flavor_changed)
    remove_access = writes(flavors.remove_access, notify=notifications.flavor_changed)


class Keypairs(Endpoint, accounts_api.Keypairs):
    index = reads(keypairs.index)
    get = reads(keypairs.get)
    delete = writes(keypairs.delete, notify=notifications.key_deleted)

    def create(self, ctx: RequestContext, keypair: Keypair, imported: bool = False) -> Keypair:
        def transaction(connection: sa.Connection) -> Keypair:
            # Key pairs belong to users, not to projects. The limit is that of the caller's project.
            most = quotas.limits(connection, ctx.project_id or "", keypair.user_id)["key_pairs"]
            return create(connection, keypair, most)

        notify = notifications.key_imported if imported else notifications.key_created
        create = notifying(self.core, ctx, keypairs.create, notify)
        return self.core.db.write(transaction)


class Certificates(Endpoint, accounts_api.Certificates):
    def root(self, ctx: RequestContext, project_id: str) -> Certificate:
        root = self.core.db.read(lambda connection: certificates.current_root(connection, project_id))
        if root is None:
            raise exception.CertificateNotFound(project_id=project_id)
        return Certificate(data=root.data)

    def create(self, ctx: RequestContext, project_id: str, user_id: str) -> Certificate:
        return issuing.create(self.core, project_id, user_id)


class Quotas(Endpoint, accounts_api.Quotas):
    def get(self, ctx: RequestContext, project_id: str, user_id: str | None = None, usage: bool = False) -> QuotaSet:
        return self.core.db.read(lambda connection: QuotaSet(
            limits=quotas.limits(connection, project_id, user_id),
            in_use=quotas.usage(connection, project_id, user_id) if usage else {}))

    def defaults(self, ctx: RequestContext) -> QuotaSet:
        return self.core.db.read(lambda connection: QuotaSet(limits=quotas.class_limits(connection, "default")))

    def set(self, ctx: RequestContext, project_id: str, limits: dict[str, int], user_id: str | None = None,
            force: bool = False) -> QuotaSet:
        if project_id.startswith("class:"):
            raise exception.InvalidInput(reason=f"{project_id} is not a project")

        def transaction(connection: sa.Connection) -> QuotaSet:
            _check(connection, project_id, user_id, limits, force)
            quotas.set_limits(connection, project_id, user_id, limits)
            return QuotaSet(limits=quotas.limits(connection, project_id, user_id))

        return self.core.db.write(transaction)

    def reset(self, ctx: RequestContext, project_id: str, user_id: str | None = None) -> None:
        if not project_id.startswith("class:"):
            self.core.db.write(lambda connection: quotas.reset(connection, project_id, user_id))

    def get_class(self, ctx: RequestContext, name: str) -> QuotaSet:
        return self.core.db.read(lambda connection: QuotaSet(limits=quotas.class_limits(connection, name)))

    def set_class(self, ctx: RequestContext, name: str, limits: dict[str, int]) -> QuotaSet:
        return self.core.db.write(lambda connection: QuotaSet(limits=quotas.set_class_limits(connection, name, limits)))


def _check(connection: sa.Connection, project_id: str, user_id: str | None, limits: dict[str, int],
           force: bool) -> None:
    """Check new limits against the usage and the limits of the project. Raises QuotaBelowUsage, QuotaAboveProject."""
    used = {} if force else quotas.usage(connection, project_id, user_id)
    of_project = quotas.limits(connection, project_id) if user_id else {}
    for name, limit in limits.items():
        if 0 <= limit < used.get(name, 0):
            raise exception.QuotaBelowUsage(limit=limit, key=name, minimum=used[name])
        most = of_project.get(name, -1)
        if most >= 0 and (limit < 0 or limit > most):
            raise exception.QuotaAboveProject(limit=limit, key=name, maximum=most)


class Usages(Endpoint, accounts_api.Usages):
    index = reads(usages.index)


class Ec2Ids(Endpoint, accounts_api.Ec2Ids):
    resolve = reads(ec2_ids.resolve)

    def assign(self, ctx: RequestContext, kind: str, uuids: list[str]) -> list[Ec2Id]:
        # Most ids exist, and a read needs no write lock.
        existing = self.core.db.lookup(lambda connection: ec2_ids.existing(connection, kind, uuids))
        if existing is not None:
            return existing
        try:
            return self.core.db.write(lambda connection: ec2_ids.assign(connection, kind, uuids))
        except exception.ServiceUnavailable:
            # While the database accepts no changes, existing ids are still returned.
            existing = self.core.db.lookup(lambda connection: ec2_ids.existing(connection, kind, uuids, outdated=True))
            if existing is None:
                raise
            return existing
