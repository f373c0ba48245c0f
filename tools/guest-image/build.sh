#!/usr/bin/env bash
# Builds the guest image of the development stack out of Debian's cloud kernel, busybox and dropbear:
#
#   vmlinuz          the kernel (aki)
#   initrd.gz        the ramdisk (ari): finds and mounts the root file system, or is the whole guest when there is none
#   boot.gz          the ramdisk of the bootable disk: only what mounts the root file system. The BIOS of an emulated
#                    machine reads and the guest unpacks every byte of it, so it is small
#   rootfs.img       the machine image (ami): one ext4 file system without a partition table
#   nova-guest.qcow2 kernel, boot.gz and rootfs.img on one bootable disk: MBR, FAT partition with syslinux, and a root
#                    partition that grows
#
# usage: build.sh OUTPUT_DIRECTORY      (root; needs no loop device and no mount)
# needs: dropbear-bin e2fsprogs fdisk syslinux syslinux-common mtools cpio kmod qemu-utils
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
output=$(realpath -m "${1:?usage: build.sh OUTPUT_DIRECTORY}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# mkfs, depmod and syslinux may be outside of the PATH of a plain shell
export PATH=$PATH:/usr/sbin:/sbin

ROOT_MIB=40  # the root file system before it grows to the size of the flavor's disk
BOOT_MIB=32  # kernel, ramdisk and boot loader
# What a guest of libvirt may meet: virtio on PCI, IDE and SCSI disks and CD-ROMs, the power button, config drives.
DRIVERS="virtio_pci virtio_blk virtio_net virtio_scsi ata_piix sd_mod sr_mod virtio_rng virtio_balloon virtio_console
    button evdev isofs vfat nls_cp437 nls_ascii nls_iso8859-1 nls_utf8 qemu_fw_cfg virtiofs"
# Arguments of the kernel that shorten its start without hardware virtualization by a tenth: it neither moves itself, nor
# patches its own code for one processor or against side channels, nor tests its ciphers.
KERNEL_ARGUMENTS="quiet no_timer_check nokaslr mitigations=off noreplace-smp cryptomgr.notests"
# The drivers and programs of boot.gz: what /init and grow-root call.
DISK_DRIVERS="virtio_pci virtio_blk virtio_scsi ata_piix sd_mod"
BOOT_PROGRAMS="sh basename blockdev cat dd dirname findfs insmod mkdir mount readlink seq switch_root usleep"

fetch_packages() { # unpack rather than install: nothing of this machine's boot or tools changes
    local kernel cache=$output/cache package
    apt-cache show linux-image-cloud-amd64 > /dev/null 2>&1 || apt-get -q update > /dev/null
    kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" { print $2; exit }')
    mkdir -p "$cache" "$work/kernel" "$work/busybox"
    for package in "$kernel" busybox-static; do
        compgen -G "$cache/${package}_*.deb" > /dev/null ||
            (cd "$cache" && apt-get -q -o APT::Sandbox::User=root download "$package")
    done
    dpkg-deb -x "$(compgen -G "$cache/busybox-static_*.deb" | tail -n 1)" "$work/busybox"
    dpkg-deb --fsys-tarfile "$(compgen -G "$cache/${kernel}_*.deb" | tail -n 1)" |
        tar -x -C "$work/kernel" --wildcards './boot/vmlinuz*' './lib/modules/*'
    release=$(basename "$work"/kernel/lib/modules/*)
    cp "$work"/kernel/boot/vmlinuz-* "$output/vmlinuz"
}

copy_drivers() { # TREE DRIVER…: the drivers and all they depend on, and the order in which to load them (NAME FILE)
    local driver file tree=$1 base=$work/kernel
    mkdir -p "$tree/lib/modules"
    for driver in "${@:2}"; do
        modprobe -d "$base" -S "$release" --show-depends "$driver" | awk '$1 == "insmod" { print $2 }'
    done | awk '!seen[$0]++' | while read -r file; do
        cp "$file" "$tree/lib/modules/"
        file=$(basename "$file" .ko)
        echo "${file//-/_} $file.ko"
    done > "$tree/lib/modules/load-order"
}

copy_program() { # TREE PROGRAM DESTINATION: with the shared libraries that it needs
    local library
    install -D "$2" "$1/$3"
    ldd "$2" | grep -o '/[^ ]*' | while read -r library; do
        install -D "$library" "$1$library"
    done
}

lay_out_tree() {
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
    copy_drivers "$tree" $DRIVERS
}

lay_out_boot() {
    local tree=$work/boot program
    mkdir -p "$tree"/{bin,sbin,dev,proc,sys,usr/lib/nova-guest}
    install "$here/rootfs/init" "$tree/init"
    install "$here"/rootfs/usr/lib/nova-guest/{grow-root,load-drivers} "$tree/usr/lib/nova-guest/"
    install "$work/busybox/bin/busybox" "$tree/bin/busybox"
    for program in $BOOT_PROGRAMS; do ln -s busybox "$tree/bin/$program"; done
    copy_program "$tree" "$(command -v resize2fs)" usr/sbin/resize2fs
    # shellcheck disable=SC2086 # a list
    copy_drivers "$tree" $DISK_DRIVERS
}

pack_ramdisk() { # TREE FILE
    (cd "$1" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) | gzip -9 > "$2"
}

pack_root() {
    rm -f "$output/rootfs.img"
    # 4 KiB blocks although the file system is small: it is going to be a large one
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

put() { # IMAGE OFFSET_IN_MIB: into the raw disk
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
    put "$work/boot.img" 1
    put "$output/rootfs.img" $((1 + BOOT_MIB))
    qemu-img convert -q -c -O qcow2 "$work/disk.img" "$output/nova-guest.qcow2"
}

mkdir -p "$output"
fetch_packages
depmod -b "$work/kernel" "$release"
lay_out_tree
lay_out_boot
pack_ramdisk "$work/tree" "$output/initrd.gz"
pack_ramdisk "$work/boot" "$output/boot.gz"
pack_root
pack_boot
pack_disk
(cd "$output" && du -h vmlinuz initrd.gz boot.gz rootfs.img nova-guest.qcow2)
