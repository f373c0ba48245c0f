"""Checks of created and rebuilt servers: key pairs and limits."""

import base64
from collections.abc import Sequence

import sqlalchemy as sa

from nova import exception
from nova.db.accounts import keypairs, quotas
from nova.objects.servers.instance import Key, Personality


def check_amounts(connection: sa.Connection, project_id: str, metadata: dict[str, str],
                  personality: Sequence[Personality]) -> None:
    """Raise QuotaLimit for more metadata or files than a server of the project may have."""
    if not metadata and not personality:
        return
    most = quotas.limits(connection, project_id, None)

    def exceeds(resource: str, amount: int) -> bool:
        return 0 <= most[resource] < amount

    if exceeds("metadata_items", len(metadata)):
        raise exception.QuotaLimit(f"Maximum number of metadata items exceeds {most['metadata_items']}")
    if exceeds("injected_files", len(personality)):
        raise exception.QuotaLimit("Personality file limit exceeded")
    for file in personality:
        if exceeds("injected_file_path_bytes", len(file.path.encode())):
            raise exception.QuotaLimit(f"Personality file path exceeds maximum {most['injected_file_path_bytes']}")
        if exceeds("injected_file_content_bytes", len(base64.b64decode(file.contents))):
            raise exception.QuotaLimit(
                f"Personality file content exceeds maximum {most['injected_file_content_bytes']}")


def key_of(connection: sa.Connection, user_id: str, name: str) -> Key:
    """Return a copy of a key pair of the user. Raises InvalidInput."""
    try:
        keypair = keypairs.get(connection, user_id, name)
    except exception.KeypairNotFound as error:
        raise exception.InvalidInput("Invalid key_name provided.") from error
    return Key(name=keypair.name, type=keypair.type, public_key=keypair.public_key, fingerprint=keypair.fingerprint)
