"""Random values of declared parameters: every request is served or refused, never with an internal error."""

import random

import pytest

from nova.ec2 import app
from nova.ec2.parameters import Address, Encoded, Flag, Identifier, Integer, Many, Struct
from tests.functional.conftest import remove_images, remove_servers
from tests.functional.ec2.test_hostile import SIGNED, send
from tests.unit.ec2.values import TEXTS

REQUESTS = 12  # of each action


def values(kind, name, source, ids, chance):
    """Yield random parameters of a type."""
    if isinstance(kind, Struct):
        for field, inner in kind.fields.items():
            if inner.required or source.random() < chance:
                yield from values(inner, f"{name}.{field}" if name else field, source, ids, chance)
    elif isinstance(kind, Many):
        for number in range(1, source.choice([1, 1, 2, 3]) + 1):
            yield from values(kind.inner, f"{name}.{number}", source, ids, chance)
    else:
        yield name, value(kind, source, ids)


def value(kind, source, ids):
    if isinstance(kind, Identifier):
        made = ids.get(kind.prefixes[0], f"{kind.prefixes[0]}-1")
        return made if source.random() < 0.8 else f"{kind.prefixes[0]}-{source.randrange(2**36):08x}"
    if isinstance(kind, Integer):
        return str(source.choice([kind.least, kind.most, 1, 2, 0, -1]))
    if isinstance(kind, Flag):
        return source.choice(["true", "false"])
    if isinstance(kind, Encoded):
        return source.choice(["QUFB", "", "!", "/v8="])
    if isinstance(kind, Address):
        return source.choice(["10.0.0.1", "::1", "x", "fe80::1%eth0"])
    return source.choice([*(kind.choices or TEXTS), *ids.values()])


@pytest.mark.parametrize("name", sorted(app.ACTIONS))
def test_random_requests_are_served_or_refused(service, ec2, cloud, admin, image_id, name):
    ids = {"ami": cloud.image, "sg": ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"],
           "vol": ec2.create_volume(Size=1)["VolumeId"], "i": cloud.run()[0], "zone": "nova", "type": cloud.type}
    source = random.Random(name)
    outcomes = []
    for _ in range(REQUESTS):
        parameters = dict(values(app.ACTIONS[name].struct, "", source, ids, source.random()))
        parameters.pop("DryRun", None)
        if name == "RunInstances":
            parameters |= {"MinCount": "1", "MaxCount": "1"}
        status, code, _request_id = send(service, {**SIGNED, "Action": name, **parameters})
        outcomes.append((status, code, parameters))
    assert [outcome for outcome in outcomes if outcome[0] >= 500] == []
    remove_servers(admin)
    remove_images(image_id)
    for volume in ec2.describe_volumes()["Volumes"]:
        if volume["State"] == "available":
            ec2.delete_volume(VolumeId=volume["VolumeId"])
    for group in ec2.describe_security_groups()["SecurityGroups"]:
        if group["GroupName"] != "default":
            ec2.delete_security_group(GroupId=group["GroupId"])
    for key in ec2.describe_key_pairs()["KeyPairs"]:
        ec2.delete_key_pair(KeyName=key["KeyName"])
