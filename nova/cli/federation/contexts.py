"""Contexts of the kubeconfig that commands of novactl use."""

import argparse
import pathlib

from nova.federator.kube.client import Api
from nova.federator.kube.config import Kubeconfig, load

NOVA = "nova"  # default context of the Nova API server
_NAMESPACE = "elotl"
_TIMEOUT = 10.0  # seconds after which a request fails


def context_of(options: argparse.Namespace, context: str) -> Kubeconfig:
    """Return a context of --kubeconfig or $KUBECONFIG. Raises Invalid."""
    return load([pathlib.Path(options.kubeconfig)] if options.kubeconfig else None, context)


def namespace_of(options: argparse.Namespace) -> str:
    """Return the namespace of Nova in a hosting or workload cluster."""
    return options.namespace or options.hosting_cluster_nova_namespace or _NAMESPACE


def connect(config: Kubeconfig) -> Api:
    """Return a client whose requests fail after ten seconds without a response."""
    return Api(config, agent="novactl", timeout=_TIMEOUT)


def nova_api(options: argparse.Namespace) -> Api:
    """Return a client of the Nova API server, which --context selects (default: the context nova)."""
    return connect(context_of(options, options.context or NOVA))
