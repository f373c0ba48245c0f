#!/usr/bin/env bash
# Fills a cache directory with the programs of Kubernetes that tests and "novactl up" start:
#   tools/kubernetes/build.sh [--force] [--keep]    --force: also if the cache is complete; --keep: retain sources
# NOVA_K8S_DIR is the cache (default: ~/.cache/nova-k8s). Programs are in bin/, CNI plugins in cni/. A complete cache of
# the same recipe is left unchanged. The script writes to the cache only and installs no package.
#   kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy: built from Debian's source package
#       with the Go release of its time, because servers built with a newer Go crash in server-side apply
#   etcd, etcdctl, kubectl, containerd, ctr, runc, CNI plugins, busybox: from Debian's binary packages
# Takes about 500 s of CPU time and 800 MB of disk.
set -euo pipefail
umask 022
CACHE=${NOVA_K8S_DIR:-$HOME/.cache/nova-k8s}
RECIPE=4 # increase after each change of the recipe; nova/federator/local/binaries.py has the same number
SOURCE_SUITE=bookworm GO_SUITE=bullseye ETCD_SUITE=trixie KUBECTL_SUITE=trixie NODE_SUITE=bookworm
GO=1.15
BUILT=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy)
PACKAGED=(etcd etcdctl kubectl containerd ctr containerd-shim-runc-v2 runc busybox)
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

say() { echo "[kubernetes $(date +%T)] $*" >&2; }
fail() { say "$*"; exit 3; }

complete() {
    local program
    [ "$(cat "$CACHE/bin/.recipe" 2> /dev/null)" = "$RECIPE" ] || return 1
    for program in "${BUILT[@]}" "${PACKAGED[@]}"; do [ -x "$CACHE/bin/$program" ] || return 1; done
}

# A private state of apt that reads Debian releases from the mirror of this machine.
configure_apt() {
    local mirror suite type
    mirror=$(apt-get indextargets --format '$(REPO_URI)|$(COMPONENT)' 'Identifier: Packages' |
        awk -F'|' '$2 == "main" && $1 ~ /\/debian\/?$/ { print $1; exit }')
    [ -n "$mirror" ] || fail "The apt sources of this machine contain no Debian mirror."
    [ -r "$KEYRING" ] || fail "$KEYRING is missing: install debian-archive-keyring."
    mkdir -p "$WORK"/apt/{lists/partial,cache/archives/partial,parts}
    for suite in "$SOURCE_SUITE" bullseye bookworm trixie; do
        for type in deb deb-src; do echo "$type [signed-by=$KEYRING] $mirror $suite main"; done
    done | sort -u > "$WORK/apt/sources.list"
    cat > "$WORK/apt/apt.conf" << END
Dir::Etc::sourcelist "$WORK/apt/sources.list";
Dir::Etc::sourceparts "$WORK/apt/parts";
Dir::Etc::preferencesparts "$WORK/apt/parts";
Dir::State::Lists "$WORK/apt/lists";
Dir::Cache "$WORK/apt/cache";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Sandbox::User "root";
END
}

download() {
    local package root=$WORK/root
    mkdir -p "$WORK"/{packages,root,source}
    export APT_CONFIG=$WORK/apt/apt.conf
    apt-get -qq update
    say "Downloading packages"
    (cd "$WORK/packages" && apt-get -qq download "golang-$GO-go/$GO_SUITE" "golang-$GO-src/$GO_SUITE" \
        "etcd-server/$ETCD_SUITE" "etcd-client/$ETCD_SUITE" "kubectl/$KUBECTL_SUITE" "containerd/$NODE_SUITE" \
        "runc/$NODE_SUITE" "containernetworking-plugins/$NODE_SUITE" "busybox-static/$NODE_SUITE")
    (cd "$WORK/source" && apt-get -qq source --download-only "kubernetes/$SOURCE_SUITE")
    unset APT_CONFIG
    for package in "$WORK"/packages/*.deb; do dpkg -x "$package" "$root"; done
    cp "$root"/usr/bin/{etcd,etcdctl,kubectl,containerd,ctr,containerd-shim-runc-v2} "$root"/usr/sbin/runc "$NEW/"
    cp "$root/bin/busybox" "$NEW/" 2> /dev/null || cp "$root/usr/bin/busybox" "$NEW/"
    rm -rf "$CACHE/cni"
    cp -r "$root/usr/lib/cni" "$CACHE/cni"
}

build() {
    local source version name root=$WORK/root
    cd "$WORK/source"
    tar xzf ./*.orig.tar.gz
    source=$(echo "$WORK"/source/kubernetes-*/) && source=${source%/}
    tar xJf ./*.debian.tar.xz -C "$source"
    cd "$source"
    while read -r name; do patch -s -p1 < "debian/patches/$name"; done < debian/patches/series
    version=$(basename "$source") && version=v${version#kubernetes-}
    mkdir -p .go/src/k8s.io "$WORK/home"
    ln -sfn ../../.. .go/src/k8s.io/kubernetes
    export GOROOT=$root/usr/lib/go-$GO GOPATH=$source/.go GOCACHE=$WORK/gocache GOFLAGS='' CGO_ENABLED=0 HOME=$WORK/home
    export KUBE_GIT_VERSION=$version KUBE_GIT_MAJOR=1 KUBE_GIT_TREE_STATE=archive KUBE_GIT_COMMIT=debian
    KUBE_GIT_MINOR=$(cut -d. -f2 <<< "$version")
    export KUBE_GIT_MINOR PATH=$GOROOT/bin:$PATH
    for name in src api misc test; do # absolute links of the package, which is not installed
        if [ -L "$GOROOT/$name" ] && [ ! -e "$GOROOT/$name" ]; then
            ln -sfn "$root/usr/share/go-$GO/$name" "$GOROOT/$name"
        fi
    done
    say "Building $version with $(go version)"
    nice -n $(($(nice) < 10 ? 10 - $(nice) : 0)) make WHAT="${BUILT[*]/#/cmd/}" > "$CACHE/build.log" 2>&1 ||
        { tail -n 20 "$CACHE/build.log" >&2; fail "The build failed; log: $CACHE/build.log"; }
    for name in "${BUILT[@]}"; do cp "_output/local/bin/linux/$(go env GOARCH)/$name" "$NEW/"; done
    cp LICENSE "$NEW/LICENSE.kubernetes"
}

force=0 keep=0
for argument in "$@"; do
    case $argument in
        --force) force=1 ;;
        --keep) keep=1 ;;
        *) echo "usage: $0 [--force] [--keep]" >&2; exit 2 ;;
    esac
done
mkdir -p "$CACHE"
exec 9> "$CACHE/.lock"
flock 9
[ $force = 1 ] || ! complete || { say "Complete: $CACHE/bin"; exit 0; }
for tool in rsync jq make xz patch flock apt-get dpkg; do
    command -v "$tool" > /dev/null || fail "$tool is missing: install the packages of tools/run-tests.sh."
done
WORK=$CACHE/work NEW=$CACHE/bin.new
rm -rf "$WORK" "$NEW"
mkdir -p "$WORK" "$NEW"
started=$SECONDS
configure_apt
download
say "Packages extracted after $((SECONDS - started)) s"
build
chmod 755 "$NEW"/*
echo "$RECIPE" > "$NEW/.recipe"
(cd "$NEW" && sha256sum "${BUILT[@]}" "${PACKAGED[@]}" > SHA256SUMS)
rm -rf "$CACHE/bin"
mv "$NEW" "$CACHE/bin"
cd "$CACHE"
[ $keep = 1 ] || rm -rf "$WORK"
say "Complete after $((SECONDS - started)) s: $CACHE/bin, $(du -sh "$CACHE/bin" | cut -f1)"
