#!/bin/sh
# Makes what controller and rendezvous server share, in a folder: key, CA, and a certificate for the names of server and etcd in the cluster.
# usage: deploy/installation.sh FOLDER [NAMESPACE], then
#   kubectl -n NAMESPACE create secret generic elastic-installation --from-file=FOLDER
# Keep the Secret: the tokens of running jobs depend on server.key. The key of the CA is thrown away; for a new certificate make a new CA.
set -eu
folder=${1:?usage: deploy/installation.sh FOLDER [NAMESPACE]}
namespace=${2:-elastic-system}
names=DNS:elastic-rendezvous.$namespace.svc,DNS:localhost,IP:127.0.0.1
# Those of components/etcd; its members know each other by this certificate.
for member in 0 1 2; do names=$names,DNS:elastic-etcd-$member.elastic-etcd.$namespace.svc; done
umask 077
mkdir -p "$folder"
[ -e "$folder/server.key" ] && { echo "$folder/server.key is there already; nothing was changed" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=elastic-installation-ca" \
  -keyout "$work/ca.key" -out "$folder/ca.crt" 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=elastic-rendezvous" \
  -keyout "$folder/tls.key" -out "$work/tls.csr" 2>/dev/null
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$names" >"$work/extensions"
openssl x509 -req -in "$work/tls.csr" -CA "$folder/ca.crt" -CAkey "$work/ca.key" -CAcreateserial -CAserial "$work/serial" -days 3650 \
  -extfile "$work/extensions" -out "$folder/tls.crt" 2>/dev/null
openssl rand -hex 32 >"$folder/server.key"
echo "made $folder: server.key, ca.crt, tls.crt, tls.key"
