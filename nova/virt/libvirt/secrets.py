"""The keys of a guest's encrypted volumes and of its virtual TPM in libvirt: in memory, readable by QEMU only.

libvirtd loses the keys when it stops. So each action for which libvirtd needs a key provides it again: the start of a
guest, the attachment of a volume, and an incoming migration."""

import contextlib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator

import libvirt

from nova.objects.servers.instance import BlockDevice
from nova.virt.libvirt.xml.layout import TPM, secret_of
from nova.virt.libvirt.xml.xmltree import element

# Usage name of a secret. It contains the server, so that of_server() finds all secrets of the server.
_USAGE = "nova/{server}/{volume}"


def define(connection: libvirt.virConnect, server: str, devices: Iterable[BlockDevice], tpm: str | None = None) -> None:
    """Define a libvirt secret for each of the server's encrypted devices that are connected to this host, and one for
    its virtual TPM with the passphrase ``tpm``."""
    keys = {device.volume_id or "": device.connection.key.passphrase for device in devices
            if device.connection and device.connection.key is not None}
    for name, passphrase in (keys | ({TPM: tpm} if tpm else {})).items():
        secret = ET.Element("secret", ephemeral="yes", private="yes")
        element(secret, "uuid", secret_of(server, name))
        element(secret, "description", f"{'TPM' if name == TPM else f'Volume {name}'} of server {server}")
        usage = element(secret, "usage", type="vtpm" if name == TPM else "volume")
        element(usage, "name" if name == TPM else "volume", _USAGE.format(server=server, volume=name))
        connection.secretDefineXML(ET.tostring(secret, encoding="unicode")).setValue(passphrase.encode())


def undefine(connection: libvirt.virConnect, server: str, unless: str) -> None:
    """Undefine the server's secrets whose UUID does not occur in the definition ``unless``."""
    for secret in of_server(connection, server):
        if secret.UUIDString() not in unless:
            with _ignore_missing():
                secret.undefine()


def of_server(connection: libvirt.virConnect, server: str) -> list[libvirt.virSecret]:
    start = _USAGE.format(server=server, volume="")
    try:
        defined = connection.listAllSecrets()
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
            raise
        return []
    secrets = []
    for secret in defined:
        with _ignore_missing():
            if secret.usageID().startswith(start):
                secrets.append(secret)
    return secrets


@contextlib.contextmanager
def _ignore_missing() -> Iterator[None]:
    try:
        yield
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_SECRET:
            raise
