#!/usr/bin/env bash
# Adds Debian's signed boot loaders for UEFI to the bootable disk of the guest image:
#   uefi_image.sh GUEST_IMAGE_DIRECTORY OUTPUT.qcow2
# Firmware with Microsoft's keys accepts shim, shim accepts GRUB and the kernel, which Debian signed. The packages are not
# installed.
# requires: the sources of apt, mtools, qemu-utils
set -euo pipefail

image=$(realpath "$1") output=$(realpath -m "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get -q -o APT::Sandbox::User=root download shim-signed grub-efi-amd64-signed > /dev/null
for package in *.deb; do
    dpkg-deb -x "$package" .
done
qemu-img convert -O raw "$image/nova-guest.qcow2" disk.img
partition=disk.img@@1M
mtype -i $partition ::syslinux.cfg | awk '$1 == "APPEND" { $1 = "linux /vmlinuz"; print } END { print "initrd /boot.gz\nboot" }' \
    > grub.cfg
mmd -i $partition ::EFI ::EFI/BOOT ::EFI/debian
mcopy -i $partition usr/lib/shim/shimx64.efi.signed ::EFI/BOOT/BOOTX64.EFI
mcopy -i $partition usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed ::EFI/BOOT/grubx64.efi
mcopy -i $partition grub.cfg ::EFI/debian
qemu-img convert -q -c -O qcow2 disk.img "$output"
