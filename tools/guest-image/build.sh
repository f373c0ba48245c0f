#!/usr/bin/env bash
# Builds the guest image of the development stack from Debian's cloud kernel, busybox and dropbear:
#
#   vmlinuz          kernel (aki)
#   initrd.gz        ramdisk (ari): mounts the root file system, or runs the whole guest if there is no root file system
#   boot.gz          ramdisk of the bootable disk: only mounts the root file system. It is small, because an emulated
#                    machine reads and unpacks it slowly
#   rootfs.img       machine image (ami): an ext4 file system without a partition table
#   nova-guest.qcow2 bootable disk with kernel, boot.gz and rootfs.img: MBR, FAT partition with syslinux, and a root
#                    partition that grows to the size of the disk
#
# usage: build.sh OUTPUT_DIRECTORY      (as root; uses neither loop devices nor mounts)
# The image also boots with the kernel of Debian's package user-mode-linux (root=/dev/ubda, or /dev/ubda2 for the disk).
# requires: dropbear-bin e2fsprogs fdisk syslinux syslinux-common mtools cpio kmod qemu-utils
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
output=$(realpath -m "${1:?usage: build.sh OUTPUT_DIRECTORY}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# mkfs, depmod and syslinux are in directories that may be missing in PATH.
export PATH=$PATH:/usr/sbin:/sbin

ROOT_MIB=40  # the root file system before it grows to the size of the flavor's disk
BOOT_MIB=32  # kernel, ramdisk and boot loader
# Drivers for virtual hardware of libvirt: virtio on PCI, IDE and SCSI disks and CD-ROMs, power button, config drives.
DRIVERS="virtio_pci virtio_blk virtio_net virtio_scsi ata_piix sd_mod sr_mod virtio_rng virtio_balloon virtio_console
    button evdev isofs vfat nls_cp437 nls_ascii nls_iso8859-1 nls_utf8 qemu_fw_cfg virtiofs"
# Kernel arguments that shorten an emulated boot by a tenth: no address space randomization, no mitigations of side
# channels, no self-tests of ciphers.
KERNEL_ARGUMENTS="quiet no_timer_check nokaslr mitigations=off noreplace-smp cryptomgr.notests"
# Drivers and programs of boot.gz, used by /init and grow-root.
DISK_DRIVERS="virtio_pci virtio_blk virtio_scsi ata_piix sd_mod"
BOOT_PROGRAMS="sh basename blockdev cat dd dirname findfs insmod mkdir mount readlink seq switch_root uname usleep"
# Drivers that are modules of User Mode Linux: config drives and IPv6.
UML_DRIVERS="isofs ipv6"

fetch_packages() { # download and unpack packages without installing them, so that this machine does not change
    local kernel cache=$output/cache package
    apt-cache show linux-image-cloud-amd64 > /dev/null 2>&1 || apt-get -q update > /dev/null
    kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" { print $2; exit }')
    mkdir -p "$cache" "$work/kernel" "$work/busybox" "$work/uml"
    for package in "$kernel" busybox-static user-mode-linux; do
        compgen -G "$cache/${package}_*.deb" > /dev/null ||
            (cd "$cache" && apt-get -q -o APT::Sandbox::User=root download "$package")
    done
    dpkg-deb -x "$(compgen -G "$cache/busybox-static_*.deb" | tail -n 1)" "$work/busybox"
    dpkg-deb --fsys-tarfile "$(compgen -G "$cache/${kernel}_*.deb" | tail -n 1)" |
        tar -x -C "$work/kernel" --wildcards './boot/vmlinuz*' './lib/modules/*'
    dpkg-deb --fsys-tarfile "$(compgen -G "$cache/user-mode-linux_*.deb" | tail -n 1)" |
        tar -x -C "$work/uml" --wildcards './usr/lib/uml/modules/*'
    mkdir "$work/uml/lib"
    mv "$work/uml/usr/lib/uml/modules" "$work/uml/lib/"
    cp "$work"/kernel/boot/vmlinuz-* "$output/vmlinuz"
}

copy_drivers() { # BASE TREE DRIVER…: copy drivers with their dependencies, and write load-order (lines "NAME FILE")
    local driver file release target base=$1 tree=$2
    release=$(basename "$base"/lib/modules/*)
    target=$tree/lib/modules/$release
    mkdir -p "$target"
    [ -e "$base/lib/modules/$release/modules.dep" ] || depmod -b "$base" "$release"
    for driver in "${@:3}"; do
        modprobe -d "$base" -S "$release" --show-depends "$driver" | awk '$1 == "insmod" { print $2 }'
    done | awk '!seen[$0]++' | while read -r file; do
        cp "$file" "$target/"
        file=$(basename "$file" .ko)
        echo "${file//-/_} $file.ko"
    done > "$target/load-order"
}

copy_program() { # TREE PROGRAM DESTINATION: copy a program with its shared libraries
    local library
    install -D "$2" "$1/$3"
    ldd "$2" | grep -o '/[^ ]*' | while read -r library; do
        install -D "$library" "$1$library"
    done
}

create_root_tree() {
    local tree=$work/tree program
    mkdir -p "$tree"/{bin,sbin,usr/bin,usr/sbin,lib64,dev,proc,sys,run,tmp,mnt,root,home/nova,var/lib,var/run,var/log}
    cp -a "$here/rootfs/." "$tree/"
    chown -R root:root "$tree"
    chown -R 1000:1000 "$tree/home/nova"
    chmod 600 "$tree/etc/shadow"
    chmod 1777 "$tree/tmp"
    install "$work/busybox/bin/busybox" "$tree/bin/busybox"
    for program in $("$work/busybox/bin/busybox" --list); do
        [ -e "$tree/bin/$program" ] || ln -s busybox "$tree/bin/$program"
    done
    ln -s ../bin/busybox "$tree/sbin/getty"
    ln -s ../bin/busybox "$tree/sbin/init"
    for program in dropbear resize2fs; do
        copy_program "$tree" "$(command -v "$program")" "usr/sbin/$program"
    done
    copy_program "$tree" "$(command -v lsblk)" usr/bin/lsblk
    # shellcheck disable=SC2086 # a list
    copy_drivers "$work/kernel" "$tree" $DRIVERS
    # shellcheck disable=SC2086
    copy_drivers "$work/uml" "$tree" $UML_DRIVERS
}

create_boot_tree() {
    local tree=$work/boot program
    mkdir -p "$tree"/{bin,sbin,dev,proc,sys,usr/lib/nova-guest}
    install "$here/rootfs/init" "$tree/init"
    install "$here"/rootfs/usr/lib/nova-guest/{grow-root,load-drivers} "$tree/usr/lib/nova-guest/"
    install "$work/busybox/bin/busybox" "$tree/bin/busybox"
    for program in $BOOT_PROGRAMS; do ln -s busybox "$tree/bin/$program"; done
    copy_program "$tree" "$(command -v resize2fs)" usr/sbin/resize2fs
    # shellcheck disable=SC2086 # a list
    copy_drivers "$work/kernel" "$tree" $DISK_DRIVERS
}

pack_ramdisk() { # TREE FILE
    (cd "$1" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) | gzip -9 > "$2"
}

pack_root() {
    rm -f "$output/rootfs.img"
    # 4 KiB blocks, although mke2fs would choose smaller blocks: the file system will grow.
    mke2fs -q -F -t ext4 -b 4096 -J size=4 -m 0 -L nova-root -d "$work/tree" "$output/rootfs.img" "${ROOT_MIB}M"
}

pack_boot() { # the FAT partition
    local image=$work/boot.img
    truncate -s "${BOOT_MIB}M" "$image"
    mformat -i "$image" -T $((BOOT_MIB * 2048)) -h 64 -s 32 -v NOVA-BOOT ::
    printf '%s\n' 'DEFAULT nova' 'PROMPT 0' 'TIMEOUT 0' 'LABEL nova' '  KERNEL vmlinuz' '  INITRD boot.gz' \
        "  APPEND console=tty0 console=ttyS0 $KERNEL_ARGUMENTS" > "$work/syslinux.cfg"
    mcopy -i "$image" "$output/vmlinuz" "$output/boot.gz" "$work/syslinux.cfg" ::
    syslinux --install "$image"
}

write_to_disk() { # IMAGE OFFSET_IN_MIB: write a partition image to the raw disk
    dd if="$1" of="$work/disk.img" bs=1M seek="$2" conv=notrunc,sparse status=none
}

pack_disk() {
    truncate -s $((1 + BOOT_MIB + ROOT_MIB))M "$work/disk.img"
    sfdisk -q "$work/disk.img" <<- TABLE
	label: dos
	start=1MiB, size=${BOOT_MIB}MiB, type=e, bootable
	start=$((1 + BOOT_MIB))MiB, type=83
	TABLE
    dd if=/usr/lib/syslinux/mbr/mbr.bin of="$work/disk.img" bs=440 count=1 conv=notrunc status=none
    write_to_disk "$work/boot.img" 1
    write_to_disk "$output/rootfs.img" $((1 + BOOT_MIB))
    qemu-img convert -q -c -O qcow2 "$work/disk.img" "$output/nova-guest.qcow2"
}

mkdir -p "$output"
fetch_packages
create_root_tree
create_boot_tree
pack_ramdisk "$work/tree" "$output/initrd.gz"
pack_ramdisk "$work/boot" "$output/boot.gz"
pack_root
pack_boot
pack_disk
(cd "$output" && du -h vmlinuz initrd.gz boot.gz rootfs.img nova-guest.qcow2)
