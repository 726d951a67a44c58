#!/usr/bin/env bash
# sandbox.sh RUN NAME CMD... : run CMD as process 1 of a sandbox that takes nothing from this machine and leaves nothing
# on it: own pid, mount, network, host name, ipc and cgroup namespaces; every cgroup hierarchy confined to /NAME;
# the sysctls that a kubelet writes shadowed; /etc, /var/lib and /var/log overlays kept under RUN. Files under
# RUN survive the sandbox, as a disk survives a machine that is switched off; /run and /dev do not.
set -euo pipefail
export RUN=$1 NAME=$2; shift 2
export CONTROLLERS="cpu cpuacct cpuset memory devices freezer blkio pids"
mkdir -p "$RUN"

[ -d /sys/fs/cgroup/memory ] || {
  echo "cluster: the node needs cgroup v1 hierarchies under /sys/fs/cgroup; v2 is not supported yet" >&2; exit 1; }
for hierarchy in $CONTROLLERS systemd; do
  group=/sys/fs/cgroup/$hierarchy/$NAME
  mkdir -p "$group"
  if [ "$hierarchy" = cpuset ]; then  # empty until set, and no process may enter before
    for what in cpus mems; do cat "/sys/fs/cgroup/cpuset/cpuset.$what" > "$group/cpuset.$what"; done
  fi
  echo $$ > "$group/cgroup.procs"
done

exec unshare --mount --net --uts --ipc --cgroup --pid --fork --kill-child --mount-proc --propagation private bash -c '
set -euo pipefail
mount --make-rshared /
hostname node1

# The sandbox gets its own view of the cgroups, in which /NAME of the machine is the root.
umount -R /sys/fs/cgroup 2>/dev/null || umount -l -R /sys/fs/cgroup
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
for controller in $CONTROLLERS; do
  mkdir "/sys/fs/cgroup/$controller"
  mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
done
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd

for folder in etc var/lib var/log; do
  mkdir -p "$RUN/disk/$folder" "$RUN/disk.work/$folder"
  mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$RUN/disk/$folder,workdir=$RUN/disk.work/$folder" "/$folder"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock "$RUN/shadow"

# The sandbox has its own /dev, because device nodes that stand for GPUs must not appear on the machine.
mkdir /run/dev
mount -t tmpfs -o mode=755 tmpfs /run/dev
for node in null zero full random urandom tty kmsg fuse; do [ ! -e "/dev/$node" ] || cp -a "/dev/$node" /run/dev/; done
ln -s /proc/self/fd /run/dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${stream%:*}" "/run/dev/${stream#*:}"; done
mkdir /run/dev/pts /run/dev/shm /run/dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /run/dev/pts
ln -s pts/ptmx /run/dev/ptmx
mount -t tmpfs -o mode=1777 tmpfs /run/dev/shm
mount -t mqueue mqueue /run/dev/mqueue
mount --rbind /run/dev /dev

printf "127.0.0.1 localhost\n10.88.0.1 node1\n" > "$RUN/shadow/hosts"
: > "$RUN/shadow/resolv.conf"
for file in hosts resolv.conf; do
  target=$(readlink -f "/etc/$file")
  [ -e "$target" ] || { rm -f "/etc/$file"; : > "/etc/$file"; target=/etc/$file; }
  mount --bind "$RUN/shadow/$file" "$target"
done
for key in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  shadow=$RUN/shadow/${key//\//_}
  cat "/proc/sys/$key" > "$shadow"
  mount --bind "$shadow" "/proc/sys/$key"
done

# The node has one address and a route for cluster IPs; it can reach nothing outside.
ip link set lo up
ip link add eth0 type veth peer name eth0-peer
ip address add 10.88.0.1/24 dev eth0
ip link set eth0 up
ip link set eth0-peer up
ip route add 10.96.0.0/16 dev eth0
sysctl -q -w net.ipv4.ip_forward=1
exec "$@"' bash "$@"
