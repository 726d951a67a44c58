#!/usr/bin/env bash
# certificates.sh FOLDER : make the cluster's certificates, keys and kubeconfigs for an API server on the node. They are
# made once: a node that is switched off and on keeps them.
set -euo pipefail
mkdir -p "$1"; cd "$1"
[ ! -e admin.kubeconfig ] || exit 0

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key" 2>/dev/null; }

leaf() {  # NAME SUBJECT USAGE [ALTERNATIVE NAMES]
  key "$1"
  openssl req -new -key "$1.key" -out "$1.csr" -subj "$2"
  printf 'keyUsage=digitalSignature\nextendedKeyUsage=%s\n%s\n' "$3" "${4:+subjectAltName=$4}" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
  rm "$1.csr" "$1.ext"
}

key ca
openssl req -x509 -new -key ca.key -out ca.crt -days 30 -subj /CN=vgpu-test-ca
leaf apiserver /CN=kube-apiserver serverAuth \
  IP:127.0.0.1,IP:10.88.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc
leaf kubelet-serving /CN=node1 serverAuth IP:10.88.0.1,DNS:node1
leaf apiserver-kubelet /O=system:masters/CN=apiserver-kubelet clientAuth
leaf front-proxy /CN=front-proxy clientAuth
leaf admin /O=system:masters/CN=admin clientAuth
leaf controller-manager /CN=system:kube-controller-manager clientAuth
leaf scheduler /CN=system:kube-scheduler clientAuth
leaf proxy /CN=system:kube-proxy clientAuth
leaf kubelet /O=system:nodes/CN=system:node:node1 clientAuth
key sa
openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null

for user in controller-manager scheduler proxy kubelet admin; do
  cat > $user.kubeconfig <<CONFIG
apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://10.88.0.1:6443", certificate-authority: $PWD/ca.crt}}]
users: [{name: $user, user: {client-certificate: $PWD/$user.crt, client-key: $PWD/$user.key}}]
contexts: [{name: node, context: {cluster: node, user: $user}}]
current-context: node
CONFIG
done
