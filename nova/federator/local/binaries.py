"""The programs of Kubernetes that tools/kubernetes/build.sh collects in a cache directory."""

import os
import pathlib

from nova.common.errors import Invalid

RECIPE = "4"  # version of the build by tools/kubernetes/build.sh; programs of other versions are refused
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
NODE = ("kubelet", "kube-proxy", "containerd", "ctr", "containerd-shim-runc-v2", "runc", "busybox")


def cache_directory() -> pathlib.Path:
    """Return $NOVA_K8S_DIR, or ~/.cache/nova-k8s."""
    value = os.environ.get("NOVA_K8S_DIR")
    return pathlib.Path(value) if value else pathlib.Path.home() / ".cache" / "nova-k8s"


class Binaries:
    """The programs in a cache directory. Raises Invalid if a program is missing or the cache has another recipe."""

    def __init__(self, cache: pathlib.Path | None = None, programs: tuple[str, ...] = CONTROL_PLANE) -> None:
        self.cache = cache or cache_directory()
        self.directory = self.cache / "bin"
        missing = [name for name in programs if not os.access(self.directory / name, os.X_OK)]
        recipe = self.directory / ".recipe"
        if missing or not recipe.is_file() or recipe.read_text().strip() != RECIPE:
            raise Invalid(f"{self.directory} has no Kubernetes programs of recipe {RECIPE}"
                          f"{f' (missing: {chr(44).join(missing)})' if missing else ''}."
                          " Run tools/kubernetes/build.sh, or set NOVA_K8S_DIR to a directory that it has filled.")

    def path(self, name: str) -> str:
        return str(self.directory / name)
