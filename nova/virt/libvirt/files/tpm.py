"""The encrypted state of a guest's virtual TPM. libvirt stores the state outside the guest's directory while the guest
is defined. For a move, the state is copied to a file in the guest's directory."""

import grp
import os
import pwd

from nova.common import files
from nova.conf import CONF
from nova.virt.guest_files import directories
from nova.virt.libvirt.files import copies, disks

_ROOT = "/var/lib/libvirt/swtpm"
_FOLDERS = {"1.2": "tpm1.2", "2.0": "tpm2"}


def keep(uuid: str, place: str) -> None:
    """Copy the state of a stopped guest's TPM to its files in ``place``."""
    for version, name in disks.TPM_STATES.items():
        path = os.path.join(_ROOT, uuid, _FOLDERS[version], name)
        # The user of swtpm can write in the directory: do not follow a link, by which root would copy another file.
        if os.path.isfile(path) and not os.path.islink(path):
            copies.keep(path, place, name)


def restore(uuid: str, version: str) -> None:
    """Move a TPM state of this version from the guest's directory to libvirt. Remove states of other versions."""
    for saved, name in disks.TPM_STATES.items():
        path = os.path.join(directories.directory(uuid), name)
        if saved == version and os.path.exists(path):
            place = os.path.join(_ROOT, uuid, _FOLDERS[saved])
            os.makedirs(place, exist_ok=True)
            # swtpm needs access to the directory. libvirt sets the same mode, which does not depend on the umask.
            os.chmod(os.path.dirname(place), 0o711)  # noqa: S103
            with open(path, "rb") as file:
                files.replace(os.path.join(place, name), file.read(), sync=True)
            for made in (place, os.path.join(place, name)):
                os.chown(made, pwd.getpwnam(CONF.libvirt.swtpm_user).pw_uid,
                         grp.getgrnam(CONF.libvirt.swtpm_group).gr_gid, follow_symlinks=False)
        files.remove(path)
