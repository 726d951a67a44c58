#!/usr/bin/env bash
# machine.sh : process 1 of the sandbox. Starts a control plane, containerd, kubelet and kube-proxy, and starts each
# again when it ends, as an init system would. In the environment: RUN, its folder; KUBE and CONTAINERD, folders of
# programs; IMAGES, a folder of image archives to import at the first start; CARDS, the number of GPU device nodes.
#   $RUN/pids/NAME   the program's process id in here     $RUN/held/NAME   while this file exists, NAME is not started again
set -euo pipefail
export PATH=$KUBE:$CONTAINERD:$PATH KUBECONFIG=$RUN/pki/admin.kubeconfig
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pki=$RUN/pki
started=$(date -u +%FT%TZ)
mkdir -p "$RUN"/{log,pids,held,etcd,containerd} /etc/cni/net.d /etc/cdi /run/cdi /etc/kubernetes
rm -f /etc/cni/net.d/* "$RUN"/pids/* "$RUN"/held/*
bash "$here/certificates.sh" "$pki"

keep() {  # NAME PROGRAM...
  local name=$1; shift
  (
    while :; do
      "$@" >> "$RUN/log/$name.log" 2>&1 &
      echo $! > "$RUN/pids/$name"
      wait $! || true
      sleep 0.2
      while [ -e "$RUN/held/$name" ]; do sleep 0.1; done
    done
  ) &
}

# Device nodes of GPUs with NVIDIA's numbers: a process that may open them is told that there is no such device, every
# other process that it is not permitted. The agent, for which an NVIDIA runtime would open all of them, gets nodes like
# /dev/null.
mkdir -p /run/agent-dev
cards() {
  for ((card = 0; card < ${CARDS:-0}; card++)); do echo "nvidia$card $card"; done
  [ "${CARDS:-0}" = 0 ] || echo nvidiactl 255
}
while read -r node minor; do
  mknod -m 666 "/dev/$node" c 195 "$minor"
  mknod -m 666 "/run/agent-dev/$node" c 1 3
done < <(cards)

cat > /etc/cni/net.d/10-node.conflist <<'CONFIG'
{"cniVersion": "1.0.0", "name": "node", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "snat": false}]}
CONFIG
cat > "$RUN/containerd.toml" <<CONFIG
version = 3
root = "$RUN/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "registry.invalid/vgpu/pause:dev"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "$(command -v runc)"
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/etc/cni/net.d"
CONFIG
cat > "$RUN/kubelet.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 10.88.0.1
healthzPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $pki/kubelet-serving.crt
tlsPrivateKeyFile: $pki/kubelet-serving.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
hairpinMode: none
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
nodeStatusUpdateFrequency: 2s
syncFrequency: 10s
serializeImagePulls: false
maxPods: 200
evictionHard: {memory.available: 100Mi, nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
volumePluginDir: /var/lib/kubelet/volumeplugins
CONFIG
# The audit log shows which rights the programs in the cluster use, and which requests exceed them.
cat > "$RUN/audit-policy.yaml" <<'CONFIG'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:vgpu-system", "system:serviceaccounts:vgpu-node"]
- level: None
CONFIG

# etcd listens on Unix sockets and uses no port. It insists on advertising an address of the form host:port, which
# nobody uses.
nowhere=http://localhost:1
keep etcd etcd --data-dir "$RUN/etcd" --unsafe-no-fsync --log-level warn --watch-progress-notify-interval=5s \
  --listen-client-urls unix:///run/etcd.sock --advertise-client-urls $nowhere \
  --listen-peer-urls unix:///run/etcd-peer.sock --initial-advertise-peer-urls $nowhere --initial-cluster default=$nowhere
keep kube-apiserver kube-apiserver --etcd-servers=unix:///run/etcd.sock \
  --bind-address=0.0.0.0 --advertise-address=10.88.0.1 --secure-port=6443 --service-cluster-ip-range=10.96.0.0/16 \
  --allow-privileged=true --profiling=false --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
  --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
  --cert-dir=/run/apiserver --kubelet-preferred-address-types=InternalIP --kubelet-certificate-authority="$pki/ca.crt" \
  --kubelet-client-certificate="$pki/apiserver-kubelet.crt" --kubelet-client-key="$pki/apiserver-kubelet.key" \
  --requestheader-client-ca-file="$pki/ca.crt" --requestheader-allowed-names=front-proxy \
  --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
  --requestheader-extra-headers-prefix=X-Remote-Extra- \
  --proxy-client-cert-file="$pki/front-proxy.crt" --proxy-client-key-file="$pki/front-proxy.key" \
  --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/sa.pub" \
  --service-account-signing-key-file="$pki/sa.key" \
  --audit-policy-file="$RUN/audit-policy.yaml" --audit-log-path="$RUN/log/audit.log"
# They have no ports of their own; the default client limits would make a fresh cluster wait for seconds.
keep kube-controller-manager kube-controller-manager --kubeconfig="$pki/controller-manager.kubeconfig" \
  --leader-elect=false --secure-port=0 --kube-api-qps=500 --kube-api-burst=1000 --use-service-account-credentials=true \
  --root-ca-file="$pki/ca.crt" --service-account-private-key-file="$pki/sa.key" \
  --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
  --node-monitor-period=2s
keep kube-scheduler kube-scheduler --kubeconfig="$pki/scheduler.kubeconfig" --leader-elect=false --secure-port=0

keep containerd containerd -c "$RUN/containerd.toml"
until [ -S /run/containerd/containerd.sock ]; do sleep 0.02; done
if [ ! -e "$RUN/imported" ]; then
  for archive in "$IMAGES"/*.tar; do
    ctr -a /run/containerd/containerd.sock -n k8s.io images import "$archive" >> "$RUN/log/import.log" 2>&1
  done
  # The name that the examples have, for want of a registry.
  ctr -a /run/containerd/containerd.sock -n k8s.io images tag registry.invalid/vgpu/workload:dev docker.io/library/debian:12-slim \
    >> "$RUN/log/import.log" 2>&1
  touch "$RUN/imported"
fi
until kubectl get --raw /readyz >/dev/null 2>&1; do sleep 0.1; done
keep kubelet kubelet --config="$RUN/kubelet.yaml" --kubeconfig="$pki/kubelet.kubeconfig" --hostname-override=node1 --node-ip=10.88.0.1
keep kube-proxy kube-proxy --kubeconfig="$pki/proxy.kubeconfig" --proxy-mode=iptables --cluster-cidr=10.244.0.0/16 \
  --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0 --hostname-override=node1
# Wait until the node is ready since this start: the API server also remembers what the kubelet reported before the
# machine was switched off.
ready_since() {
  kubectl get node node1 -o jsonpath='{range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{end}' 2>/dev/null
}
until read -r status heartbeat < <(ready_since; echo) && [ "$status" = True ] && [[ ! "$heartbeat" < "$started" ]]; do sleep 0.1; done
until kubectl -n default get serviceaccount default >/dev/null 2>&1; do sleep 0.05; done
touch /run/ready
while :; do wait; sleep 1; done
