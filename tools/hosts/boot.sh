#!/bin/sh
# The first process of a host: makes its namespaces look like a machine of its own, says "booted", then reaps orphans as
# init does. Started by power.py with the host's settings in the environment: HOST (its directory), HOST_NAME, HOST_KVM
# (yes: guests may use it) and HOST_BINDS (lines "source target").
set -e

mount --make-rprivate /
hostname "$HOST_NAME"
ip link set lo up

hierarchies=$(awk '$3 ~ /^cgroup2?$/ { print $2, $3, $4 }' /proc/self/mounts)
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/libvirt /run/netns
# Interfaces are seen through the sysfs of their namespace.
mount -t sysfs sysfs /sys

mount_cgroups() { # the host's part of each hierarchy, at the usual places
    case $hierarchies in */sys/fs/cgroup/*) mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup ;; esac
    echo "$hierarchies" | while read -r place kind options; do
        case $place in /sys/fs/cgroup*) ;; *) continue ;; esac
        mkdir -p "$place"
        if [ "$kind" = cgroup2 ]; then
            mount -t cgroup2 cgroup2 "$place"
        else
            controllers=$(echo "$options" | tr , '\n' | grep -Ex 'name=.*|blkio|cpu|cpuacct|cpuset|devices|freezer|hugetlb|memory|misc|net_cls|net_prio|perf_event|pids|rdma' | paste -sd,)
            case $controllers in name=*) controllers=none,$controllers ;; esac
            mount -t cgroup -o "$controllers" cgroup "$place"
        fi
    done
}

hide_kvm() { # where only root may open /dev/kvm, libvirtd probes anew for every guest, for seconds
    [ "$HOST_KVM" != yes ] && [ -e /dev/kvm ] || return 0
    mkdir /run/dev
    mount --move /dev /run/dev
    mount -t tmpfs -o mode=755 tmpfs /dev
    # Mounts below /dev move along: of two on one another libvirt would take the wrong one.
    for device in /run/dev/*; do
        name=/dev/${device##*/}
        if mountpoint -q "$device"; then
            mkdir "$name"
            mount --move "$device" "$name"
        elif [ "$name" != /dev/kvm ]; then
            cp -a "$device" "$name"
        fi
    done
    umount -l /run/dev
    rmdir /run/dev
}

mount_disk() { # what outlives a loss of power
    for name in etc/libvirt var/lib/libvirt var/cache/libvirt var/log/libvirt; do
        mkdir -p "/$name"
        mount --bind "$HOST/disk/$name" "/$name"
    done
    mount --bind "$HOST/disk/etc/hosts" /etc/hosts
    [ ! -f /etc/machine-id ] || mount --bind "$HOST/disk/etc/machine-id" /etc/machine-id
    cat /proc/sys/kernel/random/uuid > /run/boot_id
    mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
    echo "$HOST_BINDS" | while read -r source target; do
        [ -z "$source" ] || mount --bind "$source" "$target"
    done
}

mount_cgroups
hide_kvm
mount_disk
# As systemd leaves it: what is mounted while a guest runs shows in the room of mounts that libvirt made for it.
mount --make-rshared /
echo booted
exec > /dev/null
while :; do
    sleep 1000000 &
    wait $!
done
