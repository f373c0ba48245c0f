"""The arguments of novactl."""

import argparse
import pathlib
from collections.abc import Sequence

_NAMESPACE = "elotl"
_EPILOG = "Environment: KUBECONFIG names the kubeconfig files, as for kubectl."


def parser(program: str) -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="kubectl nova" if program == "kubectl-nova" else program, epilog=_EPILOG, allow_abbrev=False,
        description="Install, inspect and operate Nova, which runs workloads in many Kubernetes clusters.")
    top.add_argument("--version", action="store_true", help="print the version")
    _add_contexts(top, defaults=True)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _leaf(commands, "kubectl-install", "install this program as the kubectl plugin kubectl-nova").add_argument(
        "--directory", type=pathlib.Path, default=pathlib.Path("/usr/local/bin"),
        help="directory on PATH for the plugin (default: %(default)s)")
    _add_install(commands)
    get = _group(commands, "get", "print a kubeconfig or a table")
    _leaf(get, "kubeconfig", "print the administrator's kubeconfig of the control plane (--context: hosting cluster)")
    _leaf(get, "schedulegroups", "list schedule groups with their clusters and policies (--context: Nova)")
    _leaf(commands, "status", "check the control plane, its custom resources and its clusters (--context: Nova)")
    join = _leaf(commands, "join-command", "create a one-time token and print the command with which a cluster joins")
    join.add_argument("name", metavar="CLUSTER", help="name of the workload cluster in Nova")
    join.add_argument("--server", default="", help="address of the Nova API server for agents, such as"
                                                   " https://nova.example.com (default: the address in the context)")
    join.add_argument("--hours", type=_hours, default=24, help="validity of the token (default: %(default)s)")
    certs = _group(commands, "certs", "manage certificates")
    renew = _leaf(certs, "renew", "renew all certificates and their authorities (CAs) (--context: hosting cluster)")
    stage = renew.add_mutually_exclusive_group()
    stage.add_argument("--finish", action="store_true",
                       help="stop trusting the previous CAs, after all agents have renewed their certificates")
    stage.add_argument("--force", action="store_true",
                       help="continue even if some agents do not trust the new CAs; these agents must join again")
    _add_operations(commands)
    completion = _leaf(commands, "completion", "print a script that completes commands in a shell")
    completion.add_argument("shell", choices=("bash", "zsh"))
    return top


def _add_operations(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    explain = _leaf(commands, "explain", "explain per cluster why an object runs there or not (--context: Nova)")
    explain.add_argument("object", metavar="KIND/NAME", help="an object of the control plane, such as deploy/web,"
                                                              " in the namespace -n (default: default)")
    plan = _leaf(commands, "plan", "print the moves that a policy would cause, and change nothing (--context: Nova)")
    plan.add_argument("-f", "--file", required=True, help="YAML file with SchedulePolicies, or - for standard input")
    drain = _leaf(commands, "drain", "move all workloads out of a cluster and remove it (--context: Nova)")
    drain.add_argument("name", metavar="CLUSTER", help="name of the workload cluster in Nova")
    drain.add_argument("--orphan", action="store_true", help="leave the copies of workloads in the cluster")
    drain.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS",
                       help="time to wait until the cluster is removed; then the command ends and the removal continues"
                            " (default: %(default).0f)")
    local = []
    up = _leaf(commands, "up", "run Nova on this machine: etcd, API server, controller manager and scheduler")
    up.add_argument("--demo", type=int, default=0, metavar="N", help="also run N workload clusters")
    up.add_argument("--whole", action="store_true", help="new workload clusters run real pods (needs root)")
    up.add_argument("--port", type=int, default=0, help="port of the API server (default: a free port)")
    up.add_argument("--supervise", action="store_true", help="restart ended processes until SIGTERM (internal)")
    down = _leaf(commands, "down", "stop the processes that 'up' has started")
    down.add_argument("--delete", action="store_true", help="also delete all clusters and their objects")
    for name, text in (("backup", "store the data of the control plane in a file"),
                       ("restore", "replace the data of the control plane by a backup")):
        command = _leaf(commands, name, text)
        command.description = f"{text[0].upper()}{text[1:]}, in --hosting-cluster-context or of 'novactl up'."
        command.add_argument("file", type=pathlib.Path, help="file of the backup")
        local.append(command)
    for command in (commands.choices["status"], up, down, *local):
        command.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("~/.nova/local"),
                             help="directory in which 'up' stores its data (default: %(default)s)")


def _add_install(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for verb, help_text in (("install", "install a control plane, an agent or certificates"),
                            ("uninstall", "remove a control plane or an agent")):
        group = _group(commands, verb, help_text)
        plane = _leaf(group, "control-plane", f"{verb} the control plane (--context: hosting cluster)", ["cp"])
        plane.add_argument("name", metavar="NAME", help="name of the control plane; its kubeconfig is in ~/.nova/NAME")
        agent = _leaf(group, "agent", f"{verb} the agent of a workload cluster (--context: workload cluster)")
        agent.add_argument("name", metavar="CLUSTER", help="name of the workload cluster in Nova")
        if verb == "uninstall":
            continue
        plane.add_argument("--replicas", type=int, choices=(1, 3), default=1,
                           help="replicas of each component; 3 needs nodes in three zones (default: %(default)s)")
        plane.add_argument("--timeout", type=_seconds, default=360, metavar="SECONDS",
                           help="time to wait for the address of the API server, and then for each component to be"
                                " ready (default: %(default)s)")
        agent.add_argument("--nova-context", default="nova", help="kubeconfig context of the Nova API server"
                                                                  " (default: %(default)s)")
        agent.add_argument("--init-kubeconfig", default="", metavar="TEXT",
                           help="credentials that join-command printed (default: create them with --nova-context)")
        for command in (plane, agent):
            command.add_argument("--image-repository", default="", help="repository of Nova's image, without a tag")
            command.add_argument("--image-tag", default="", help="tag of Nova's image")
        certs = _leaf(group, "certs", "print the Secrets with the certificates of a new control plane")
        certs.add_argument("--apiserver-public-endpoint", required=True, metavar="HOST",
                           help="IP address or DNS name of the Nova API server for users and agents")
        certs.add_argument("--nova-node-ip", default="", metavar="HOST", help="another address of the API server")


def _group(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, help_text: str,
           ) -> "argparse._SubParsersAction[argparse.ArgumentParser]":
    group = commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.",
                                allow_abbrev=False)
    _add_contexts(group)
    return group.add_subparsers(dest="subject", metavar="SUBJECT", required=True)


def _leaf(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, help_text: str,
          aliases: Sequence[str] = ()) -> argparse.ArgumentParser:
    leaf = commands.add_parser(name, aliases=list(aliases), help=help_text, allow_abbrev=False,
                               description=f"{help_text[0].upper()}{help_text[1:]}.")
    _add_contexts(leaf)
    return leaf


def _add_contexts(command: argparse.ArgumentParser, defaults: bool = False) -> None:
    """Add the options that are valid before and after the command."""
    def default(value: str) -> str:
        return value if defaults else argparse.SUPPRESS

    group = command.add_argument_group("clusters")
    group.add_argument("--kubeconfig", default=default(""), metavar="FILE", help="kubeconfig file instead of"
                                                                                  " $KUBECONFIG")
    group.add_argument("--context", default=default(""), help="kubeconfig context of the cluster that the help of the"
                                                               " command names")
    group.add_argument("-n", "--namespace", default=default(""), help=f"namespace of Nova (default: {_NAMESPACE})")
    group.add_argument("--hosting-cluster-context", default=default(""), metavar="CONTEXT",
                       help="kubeconfig context of the hosting cluster")
    group.add_argument("--hosting-cluster-nova-namespace", default=default(""), metavar="NAMESPACE",
                       help=f"namespace of the control plane in the hosting cluster (default: {_NAMESPACE})")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 1 to 86400")
    return seconds


def _hours(text: str) -> int:
    hours = int(text)
    if not 1 <= hours <= 8760:
        raise argparse.ArgumentTypeError(f"{text} is not a number of hours from 1 to 8760")
    return hours
