#!/usr/bin/env bash
# Runs a federation on this machine (Debian 12, root): the Nova Kubernetes API, two workload clusters with real pods, and a
# Deployment that is spread 30/70 over both and answers over HTTP. A second run restarts processes that do not run.
#   devstack/federation.sh           start
#   devstack/federation.sh --down    stop and delete everything
# NOVA_FEDERATION_DIR: directory of all data (default: /opt/stack/federation)
set -euo pipefail
cd "$(dirname "$0")/.."
DIR=${NOVA_FEDERATION_DIR:-/opt/stack/federation}
VENV=$DIR-venv
CACHE=${NOVA_K8S_DIR:-$HOME/.cache/nova-k8s}
START=$SECONDS
PACKAGES=(python3-venv rsync jq make patch xz-utils iptables iproute2 curl)

say() { printf '[%d:%02d] %s\n' $(((SECONDS - START) / 60)) $(((SECONDS - START) % 60)) "$*"; }

if [ "${1:-}" = --down ]; then
    [ ! -x "$VENV/bin/novactl" ] || [ ! -d "$DIR" ] || "$VENV/bin/novactl" down --delete --directory "$DIR"
    rm -rf "$VENV" "$DIR-build.log"
    exit
fi
[ $# = 0 ] || { echo "usage: $0 [--down]" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "$0: run it as root: whole clusters need network namespaces and mounts" >&2; exit 1; }

missing=()
for package in "${PACKAGES[@]}"; do
    dpkg -s "$package" > /dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    say "Debian packages: ${missing[*]}"
    apt-get update -q > /dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" > /dev/null
fi
if ! cmp -s setup.cfg "$VENV/setup.cfg"; then
    say "Python packages"
    [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
    tools/install-python.sh "$VENV/bin/python" -c constraints.txt -e '.[federator]' > /dev/null
    cp setup.cfg "$VENV/setup.cfg"
fi
if [ ! -f "$CACHE/bin/.recipe" ]; then
    say "Kubernetes is built from Debian's source package, once per machine (5 to 20 minutes)"
fi
tools/kubernetes/build.sh > "$DIR-build.log" 2>&1 || { tail -n 20 "$DIR-build.log" >&2; exit 1; }

export PATH="$VENV/bin:$CACHE/bin:$PATH" KUBECONFIG="$DIR/kubeconfig"
say "The control plane and two workload clusters"
novactl up --demo 2 --whole --directory "$DIR"
novactl status --directory "$DIR"

say "A Deployment, spread 30/70"
sed 's/image: busybox:.*/image: lab.local\/web:1/' nova/federator/install/samples/web.yaml | kubectl apply -f -
kubectl wait deployment/web --for=jsonpath='{.status.readyReplicas}'=10 --timeout=120s
for cluster in kind-workload-1 kind-workload-2; do
    address=$(kubectl --context "$cluster" get nodes -o jsonpath='{.items[0].status.addresses[?(@.type=="InternalIP")].address}')
    replicas=$(kubectl --context "$cluster" get deployment web -o jsonpath='{.status.readyReplicas}')
    answer=$(curl -sS --retry 10 --retry-all-errors --max-time 5 "http://$address:30080/")
    say "$cluster: $replicas replicas, http://$address:30080/ answers: $answer"
done
say "Done. Use it: export PATH=$VENV/bin:$CACHE/bin:\$PATH KUBECONFIG=$KUBECONFIG"
