#!/usr/bin/env bash
# Usage: bash tests/tools/kubernetes.sh DIRECTORY
#
# Puts etcd, kube-apiserver, kube-controller-manager and kube-proxy (1.20.2) into DIRECTORY, for the tests that want a real
# control plane (tests/system/e2e/test_real_server.py), and for the comparisons with kube-proxy. They are built from the
# source package of Debian 12, with its Go. Nothing is installed: packages are unpacked below DIRECTORY/work, which may be
# removed afterwards (2.5 GB). Takes two minutes of four cores; needs apt, dpkg-dev and debian-archive-keyring.
#
# The cluster of real kubelets (tests/system/cluster) wants programs of 1.32 or newer, in a directory of its own: the kubelet
# of 1.20 reads no containerRuntimeEndpoint from its configuration. docs/conformance.md says where they are.
set -euo pipefail
[[ $# == 1 ]] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$1/work"
directory=$(cd "$1" && pwd)
work=$directory/work
cd "$work"

mkdir -p lists/partial cache/archives/partial root source go/src/k8s.io
archive="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main"
printf 'deb %s\ndeb-src %s\n' "$archive" "$archive" >sources.list
cat >apt.conf <<END
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
END
export APT_CONFIG=$work/apt.conf
apt-get -q update
apt-get -q download etcd-server golang-1.19-go golang-1.19-src
for package in ./*.deb; do dpkg -x "$package" root; done
if [[ ! -e source/kubernetes ]]; then
  rm -rf source/*
  (cd source && apt-get -q source --only-source kubernetes)
  # How Go iterates over maps has changed since: built with Go 1.18 or later, the server would crash in this library.
  reflect2=(source/kubernetes-*/vendor/github.com/modern-go/reflect2)
  sed -i 's/^\(func mapiterinit(.*m unsafe.Pointer\)) \*hiter$/\1, it *hiter)/
          s#// rest fields are ignored#rest [10]unsafe.Pointer#' "${reflect2[0]}/unsafe_link.go"
  sed -i 's/^\treturn &UnsafeMapIterator{/\tit := new(hiter)\n\tmapiterinit(type2.rtype, *(*unsafe.Pointer)(obj), it)\n&/
          s/hiter: .*mapiterinit.*/hiter:      it,/' "${reflect2[0]}/unsafe_map.go"
  mv source/kubernetes-*/ source/kubernetes
fi
ln -sfn "$work/source/kubernetes" go/src/k8s.io/kubernetes

export GOROOT=$work/root/usr/lib/go-1.19 GOPATH=$work/go GOCACHE=$work/go/cache GO111MODULE=off CGO_ENABLED=0
go() { nice -n 19 "$GOROOT/bin/go" "$@"; }
cd "$GOPATH/src/k8s.io/kubernetes"

# The one generated file that the source package does not have.
go build -o "$work/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
described() {
  grep -rl --include='*.go' --exclude='*_test.go' '+k8s:openapi-gen=' "$@" | grep -vE 'generat|sample-apiserver' |
    xargs -n1 dirname | sort -u | sed 's#^staging/src#vendor#; s#^#k8s.io/kubernetes/#' | paste -sd,
}
"$work/openapi-gen" --input-dirs "$(described staging/src/k8s.io pkg)" --output-base "$GOPATH/src" \
  --output-package k8s.io/kubernetes/pkg/generated/openapi --output-file-base zz_generated.openapi \
  --go-header-file hack/boilerplate/boilerplate.generatego.txt --report-filename /dev/null

for program in kube-apiserver kube-controller-manager kube-proxy; do
  go build -o "$directory/$program" -ldflags '-s -w' "k8s.io/kubernetes/cmd/$program"
done
cp "$work/root/usr/bin/etcd" "$directory/"
echo "ready: KUBERNETES_BINARIES=$directory .venv/bin/python -m pytest tests/system/e2e/test_real_server.py"
