"""Keys of encrypted volumes, fetched with the caller's token when a server gets a volume, and stored with its device.
Later starts and moves of the server need no token of its user. The keys are stored encrypted for conductors only
(nova.conductor.secret_cipher). Only hosts receive them, with the orders of steps that connect volumes."""

import contextlib
import secrets
from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from nova import context, exception, key_manager
from nova.conductor.core import Core
from nova.conductor.secret_cipher import SecretCipher, SecretUnreadable
from nova.db.servers import passwords, servers
from nova.db.sql.engine import Database
from nova.objects.accounts.flavor import Flavor
from nova.objects.requirements.properties import tpm_secret_security
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import Volume, VolumeEncryption, VolumeKey

_AT_ONCE = 500  # servers read in one statement


def fetched(core: Core, ctx: context.RequestContext, volume: Volume) -> VolumeEncryption | None:
    """Return the encryption of a volume with its passphrase, or None. Call outside any transaction. Raises
    InvalidVolume (no host could decrypt it, or the caller cannot have its key), KeyManagerUnavailable, VolumeNotFound,
    Forbidden, VolumeServiceUnavailable, ServiceUnavailable."""
    if not volume.encrypted:
        return None
    return _of(core, ctx, volume.uuid, core.attachments.secret_of(ctx, volume.uuid))


def of_successor(core: Core, ctx: context.RequestContext, old: BlockDevice, volume_id: str) -> VolumeEncryption | None:
    """Return the encryption of a volume that replaces ``old``, or None. The caller may be the volume service, which
    cannot fetch its users' keys, but a volume that it migrates keeps its secret."""
    secret = core.attachments.secret_of(ctx, volume_id, own_rights=True)
    if not secret:
        return None
    if old.encryption is not None and old.encryption.key_id == secret:
        return old.encryption
    return _of(core, ctx, volume_id, secret)


def check(core: Core, ctx: context.RequestContext, volume_id: str) -> None:
    """Check that a volume created from this encrypted volume can be decrypted. Raises the errors of fetched()."""
    core.attachments.secret_of(ctx, volume_id)
    try:
        key_manager.back_end()
    except key_manager.NotConfigured as error:
        raise _no_key_manager(volume_id) from error


def _of(core: Core, ctx: context.RequestContext, volume_id: str, secret: str) -> VolumeEncryption:
    try:
        if not secret:
            raise key_manager.SecretDenied
        stored = key_manager.secret(ctx, secret)
    except key_manager.NotConfigured as error:
        raise _no_key_manager(volume_id) from error
    except key_manager.SecretDenied as error:
        raise exception.InvalidVolume(
            reason=f"volume {volume_id} is encrypted, and the key manager does not return the key") from error
    # The volume service takes the same text for its passphrase when it formats the volume.
    return VolumeEncryption(key_id=secret, encrypted_passphrase=core.cipher.encrypt(stored.hex()) or "")


def _no_key_manager(volume_id: str) -> exception.InvalidVolume:
    return exception.InvalidVolume(reason=f"volume {volume_id} is encrypted, and no key manager is configured")


def opened(cipher: SecretCipher, instance: Instance) -> list[VolumeKey]:
    """Return the decryptable keys of the server's volumes, for a host. The host reports keys that are missing."""
    encrypted = {device.encryption.key_id: device.encryption.encrypted_passphrase
                 for device in instance.block_devices if device.encryption}
    passphrases = {key_id: cipher.try_decrypt(token) for key_id, token in encrypted.items()}
    return [VolumeKey(key_id=key_id, passphrase=text) for key_id, text in passphrases.items() if text]


def tpm_secret(cipher: SecretCipher, instance: Instance, flavor: Flavor) -> str | None:
    """Return the encrypted secret of the server's virtual TPM, created if the server gets a TPM with this flavor."""
    if instance.encrypted_tpm_secret or not tpm_secret_security(flavor, instance.image):
        return instance.encrypted_tpm_secret
    return cipher.encrypt(secrets.token_hex(32))


def renew(db: Database, cipher: SecretCipher) -> int:
    """Re-encrypt all decryptable volume keys and TPM secrets with the first key of the cipher; return the number of
    changed servers."""
    def renewed(devices: list[BlockDevice]) -> list[BlockDevice]:
        return [device if device.encryption is None else msgspec.structs.replace(
            device, encryption=_renewed(cipher, device.encryption)) for device in devices]

    count, after = 0, ""
    while uuids := db.read(lambda connection, after=after: passwords.with_volume_keys(  # type: ignore[misc]
            connection, after, _AT_ONCE)):
        after = uuids[-1]
        for uuid in uuids:
            count += db.write(lambda connection, uuid=uuid: _renew(connection, uuid, renewed, cipher))  # type: ignore[misc]
    return count


def _renew(connection: sa.Connection, uuid: str, renewed: Callable[[list[BlockDevice]], list[BlockDevice]],
           cipher: SecretCipher) -> bool:
    instance = servers.get(connection, uuid, deleted=True)
    before, had = instance.block_devices, instance.encrypted_tpm_secret
    servers.change(connection, instance, "block_devices", renewed)
    with contextlib.suppress(SecretUnreadable):
        if had and (secret := cipher.reencrypt(had)) != had:
            servers.update(connection, uuid, {"encrypted_tpm_secret": secret})
            return True
    return instance.block_devices != before


def _renewed(cipher: SecretCipher, encryption: VolumeEncryption) -> VolumeEncryption:
    with contextlib.suppress(SecretUnreadable):
        return msgspec.structs.replace(
            encryption, encrypted_passphrase=cipher.reencrypt(encryption.encrypted_passphrase))
    return encryption
