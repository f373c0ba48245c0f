"""Ids of the EC2 API."""

from nova.objects.base import Object

# Kinds of objects: the prefixes of their ids. The number of a server is the one that the metadata service shows.
INSTANCE = "i"
KINDS = frozenset({INSTANCE, "ami", "aki", "ari", "vol", "snap", "sg", "eipalloc"})
MOST = 1000  # maximum number of ids per request


class Ec2Id(Object, kw_only=True):
    """The number of an object. The fields after ``number`` are set for servers only."""

    uuid: str
    number: int
    reservation_id: str = ""
    launch_index: int = 0
    root_device_name: str = ""
