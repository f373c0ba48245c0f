"""Allocation candidates, computed from the rows that claims change.

SQL selects trees by resources, traits and aggregates, a page of trees at a time; a pure function combines providers."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nova.db import tables
from nova.db.placement import names, providers
from nova.objects.hosts import candidates as pure
from nova.objects.hosts.placement import RESOURCE_CLASS, TRAIT, CandidateRequest, Candidates, ProviderView

PROVIDERS = tables.providers
INVENTORIES = tables.inventories

_PAGE = 100  # trees per page
_MOST_TREES = 3000  # maximum number of preselected trees per request
_MOST_PROVIDERS = 20_000  # number of providers in a response at which no further trees are added
_MOST_TRIES = 200_000  # maximum number of combinations tried per request, which take one or two seconds of CPU time


def find(connection: sa.Connection, request: CandidateRequest) -> Candidates:
    """Return up to ``request.limit`` candidates, by at most six statements per page of 100 trees. Raises Invalid for
    unknown names."""
    names.check(connection, RESOURCE_CLASS, {name for group in request.groups for name in group.resources})
    names.check(connection, TRAIT, {*request.root_required, *request.root_forbidden, *(
        trait for group in request.groups for trait in (
            *group.forbidden, *(trait for options in group.required for trait in options)))})
    result, after, budget = Candidates(), "", iter(range(_MOST_TRIES))
    conditions = _conditions(connection, request)
    for _ in range(_MOST_TREES // _PAGE):
        roots = list(connection.scalars(sa.select(_ROOT.c.uuid).where(_ROOT.c.uuid > after, *conditions)
                                        .order_by(_ROOT.c.uuid).limit(_PAGE)))
        for tree in _trees(connection, roots):
            for candidate in pure.of_tree(tree, request, budget):
                if len(result.candidates) >= request.limit:
                    return result
                if not result.candidates or result.providers[-1].root_uuid != tree[0].root_uuid:
                    result.providers += tree
                result.candidates.append(candidate)
            if len(result.providers) >= _MOST_PROVIDERS:
                return result
        if len(roots) < _PAGE:
            break
        after = roots[-1]
    return result


_ROOT = PROVIDERS.alias("root")


def _conditions(connection: sa.Connection, request: CandidateRequest) -> list[sa.ColumnElement[bool]]:
    """Return conditions that every tree with candidates fulfils. Each condition reads rows of one tree by an index."""
    in_tree = PROVIDERS.c.root_uuid == _ROOT.c.uuid
    conditions: list[sa.ColumnElement[bool]] = [_ROOT.c.parent_uuid.is_(None)]
    for group in request.groups:
        # Nested EXISTS, since databases may otherwise read all inventories of a resource class first.
        conditions += [sa.exists(sa.select(1).where(in_tree, sa.exists(sa.select(1).where(
            INVENTORIES.c.provider_uuid == PROVIDERS.c.uuid, providers.offers(name, amount)))))
            for name, amount in group.resources.items()]
        conditions += [sa.exists(sa.select(1).where(in_tree, sa.or_(*map(names.has_trait, options))))
                       for options in group.required]
        conditions += [sa.exists(sa.select(1).where(in_tree, providers.is_member(connection, options, PROVIDERS)))
                       for options in group.member_of]
        if group.in_tree is not None:
            conditions.append(_ROOT.c.uuid == (connection.scalar(sa.select(PROVIDERS.c.root_uuid).where(
                PROVIDERS.c.uuid == group.in_tree)) or ""))
    this = PROVIDERS.c.uuid == _ROOT.c.uuid
    conditions += [sa.exists(sa.select(1).where(this, names.has_trait(trait))) for trait in request.root_required]
    conditions += [~sa.exists(sa.select(1).where(this, names.has_trait(trait))) for trait in request.root_forbidden]
    return conditions


def _trees(connection: sa.Connection, roots: Sequence[str]) -> list[list[ProviderView]]:
    """Return the providers of these trees, by four statements."""
    if not roots:
        return []
    trees: dict[str, list[ProviderView]] = {root: [] for root in roots}
    provider_rows: Sequence[Any] = connection.execute(
        providers.SELECT.where(PROVIDERS.c.root_uuid.in_(roots)).order_by(PROVIDERS.c.uuid)).all()
    for provider in providers.views(connection, provider_rows):
        trees[provider.root_uuid].append(provider)
    return list(trees.values())
