#!/usr/bin/env bash
# Builds the vCenter simulator of tests/integration/drivers/vcsim out of Debian packages only: golang-go and
# golang-github-vmware-govmomi-dev. Prints the path of the program. NOVA_VCSIM_DIR is the cache (default:
# ~/.cache/nova-vcsim); a program of the same sources is not built again. Takes 90 s of CPU time once, and then nothing.
set -euo pipefail
SOURCES=$(cd "$(dirname "$0")/../../tests/integration/drivers/vcsim" && pwd)
MODULE=github.com/vmware/govmomi LIBRARY=/usr/share/gocode
CACHE=${NOVA_VCSIM_DIR:-$HOME/.cache/nova-vcsim}
PROGRAM=$CACHE/vcsim-$(cat "$0" "$SOURCES"/*.go | sha256sum | cut -c 1-16)

mkdir -p "$CACHE"
exec 9> "$CACHE/.lock"
flock 9
if [ ! -x "$PROGRAM" ]; then
    [ -d "$LIBRARY/src/$MODULE/simulator" ] && command -v go > /dev/null ||
        { echo "Install golang-go and golang-github-vmware-govmomi-dev." >&2; exit 3; }
    WORK=$(mktemp -d "$CACHE/build.XXXXXX")
    trap 'rm -rf "$WORK"' EXIT
    mkdir -p "$WORK/src/$MODULE" "$WORK/src/vcsim"
    cp -r "$LIBRARY/src/$MODULE/." "$WORK/src/$MODULE/"
    cp "$SOURCES/main.go" "$WORK/src/vcsim/"
    cp "$SOURCES/additions.go" "$WORK/src/$MODULE/simulator/"
    cd "$WORK/src/$MODULE/simulator"
    # Methods that additions.go replaces, and calls of its functions.
    sed -i 's/^func (vm \*VirtualMachine) CloneVMTask(/func (vm *VirtualMachine) cloneVMTask(/
            s/c\.run\.start(c\.VirtualMachine)/c.VirtualMachine.boot()/
            s/c\.run\.stop(c\.VirtualMachine)/c.VirtualMachine.halt()/
            s/vm\.run\.stop(vm)/vm.halt()/
            s/vm\.Config\.ExtraConfig = append(vm\.Config\.ExtraConfig, c)/vm.setExtraConfig(c)/' virtual_machine.go
    sed -i 's/^func (m \*VirtualDiskManager) CopyVirtualDiskTask(/func (m *VirtualDiskManager) copyVirtualDiskTask(/' \
        virtual_disk_manager.go
    sed -i 's/^\t\tsrc = f$/\t\tsrc, dst = f, w/' http_nfc_lease.go
    GO111MODULE=off GOPATH="$WORK:$LIBRARY" GOFLAGS=-p=2 GOCACHE="$CACHE/go" nice -n 5 go build -o "$WORK/vcsim" vcsim >&2
    mv "$WORK/vcsim" "$PROGRAM"
    find "$CACHE" -maxdepth 1 -name 'vcsim-*' ! -path "$PROGRAM" -delete
fi
echo "$PROGRAM"
