"""Command line of the federator: novactl, also installed as the kubectl plugin kubectl-nova."""
