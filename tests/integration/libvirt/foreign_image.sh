#!/usr/bin/env bash
# Builds kernel and ramdisk of the guest image for another architecture from Debian's packages, which are not installed:
#   foreign_image.sh ARCHITECTURE CONSOLE OUTPUT_DIRECTORY
# ARCHITECTURE: aarch64, ppc64le or s390x. CONSOLE: the kernel's name of the serial port.
# requires: the sources of apt, cpio, kmod, busybox (for the list of its programs)
set -euo pipefail

architecture=$1 console=$2 output=$(realpath -m "$3")
rootfs=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../../tools/guest-image/rootfs" && pwd)
case $architecture in
    aarch64) debian=arm64 kernel=linux-image-cloud-arm64 ;;
    ppc64le) debian=ppc64el kernel=linux-image-powerpc64le ;;
    s390x) debian=s390x kernel=linux-image-s390x ;;
esac
drivers="virtio_pci virtio_ccw virtio_blk virtio_net virtio_scsi sd_mod sr_mod virtio_rng virtio_balloon evdev isofs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$PATH:/usr/sbin:/sbin

mkdir -p "$output" "$work"/{apt/lists/partial,cache/archives/partial,packages,kernel,busybox,tree}
touch "$work/apt/status"
mirror=$(grep -rhoE 'https?://[^ ]*/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2> /dev/null |
    head -n 1) || true # one of the places may be missing
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} bookworm main" \
    > "$work/sources.list"
apt=(-q -o "APT::Architecture=$debian" -o "APT::Architectures::=$debian" -o "Dir::State=$work/apt"
    -o "Dir::State::lists=$work/apt/lists" -o "Dir::State::status=$work/apt/status" -o "Dir::Cache=$work/cache"
    -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update > /dev/null
package=$(apt-cache "${apt[@]}" depends "$kernel" | awk '$1 == "Depends:" { print $2; exit }')
(cd "$work/packages" && apt-get "${apt[@]}" download "${package%:*}" busybox-static > /dev/null)
dpkg-deb -x "$work"/packages/busybox-static_*.deb "$work/busybox"
dpkg-deb --fsys-tarfile "$work"/packages/linux-image-*.deb |
    tar -x -C "$work/kernel" --wildcards './boot/vmlinu*' './lib/modules/*'
release=$(basename "$work"/kernel/lib/modules/*)
depmod -b "$work/kernel" "$release"

tree=$work/tree
mkdir -p "$tree"/{bin,sbin,usr/bin,usr/sbin,dev,proc,sys,run,tmp,mnt,root,home/nova,var/lib,var/run,var/log,lib/modules}
cp -a "$rootfs/." "$tree/"
chown -R root:root "$tree"
chmod 600 "$tree/etc/shadow"
install "$work/busybox/bin/busybox" "$tree/bin/busybox"
for program in $(busybox --list); do
    [ -e "$tree/bin/$program" ] || ln -s busybox "$tree/bin/$program"
done
ln -s ../bin/busybox "$tree/sbin/getty"
ln -s ../bin/busybox "$tree/sbin/init"
sed -i "s/ttyS0/$console/g" "$tree/etc/inittab"
for driver in $drivers; do
    modprobe -d "$work/kernel" -S "$release" --show-depends "$driver" 2> /dev/null | awk '$1 == "insmod" { print $2 }' || true
done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$tree/lib/modules/"
    file=$(basename "$file" .ko)
    echo "${file//-/_} $file.ko"
done > "$tree/lib/modules/load-order"
(cd "$tree" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) | gzip -9 > "$output/initrd.gz"
cp "$work"/kernel/boot/vmlinu* "$output/vmlinuz"
chmod 644 "$output/vmlinuz" "$output/initrd.gz"
