#!/bin/sh
# The first process of a simulated host: sets up its namespaces like a separate machine, prints "booted", then reaps
# orphans like init. Started by power.py with these environment variables: HOST (directory of the host), HOST_NAME,
# HOST_KVM (yes: guests may use KVM) and HOST_BINDS (lines "source target").
set -e

mount --make-rprivate /
hostname "$HOST_NAME"
ip link set lo up

hierarchies=$(awk '$3 ~ /^cgroup2?$/ { print $2, $3, $4 }' /proc/self/mounts)
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/libvirt /run/netns
# sysfs shows the interfaces of the network namespace in which it was mounted.
mount -t sysfs sysfs /sys

mount_cgroups() { # mount the host's subtree of each hierarchy at the usual mount point
    case $hierarchies in */sys/fs/cgroup/*) mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup ;; esac
    echo "$hierarchies" | while read -r mountpoint kind options; do
        case $mountpoint in /sys/fs/cgroup*) ;; *) continue ;; esac
        mkdir -p "$mountpoint"
        if [ "$kind" = cgroup2 ]; then
            mount -t cgroup2 cgroup2 "$mountpoint"
        else
            controllers=$(echo "$options" | tr , '\n' | grep -Ex 'name=.*|blkio|cpu|cpuacct|cpuset|devices|freezer|hugetlb|memory|misc|net_cls|net_prio|perf_event|pids|rdma' | paste -sd,)
            case $controllers in name=*) controllers=none,$controllers ;; esac
            mount -t cgroup -o "$controllers" cgroup "$mountpoint"
        fi
    done
}

hide_kvm() { # if only root can open /dev/kvm, libvirtd probes it for some seconds for each guest
    [ "$HOST_KVM" != yes ] && [ -e /dev/kvm ] || return 0
    mkdir /run/dev
    mount --move /dev /run/dev
    mount -t tmpfs -o mode=755 tmpfs /dev
    # Mounts below /dev are moved, not stacked: libvirt would select the wrong one of two stacked mounts.
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

mount_disk() { # mount the files that survive a power loss
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
# Like systemd: mounts made later appear in the mount namespaces of running guests.
mount --make-rshared /
echo booted
exec > /dev/null
while :; do
    sleep 1000000 &
    wait $!
done
