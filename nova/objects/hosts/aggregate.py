"""A host aggregate."""

import datetime

from nova.objects.base import Object


class Aggregate(Object, kw_only=True):
    id: int = 0
    uuid: str
    name: str
    hosts: list[str] = []
    metadata: dict[str, str] = {}
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
