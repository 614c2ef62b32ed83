# An image of kubeproxy. With any engine:  docker build -t kubeproxy .      Without one:  make image
#
# The base decides which nft the image brings. It must not be newer than the hosts' own, because an older nft may not be
# able to list what a newer one wrote. Debian 12 has 1.0.6, Debian 13 has 1.1.3.
# The digest, which covers all architectures, decides; the tag is its name. To take a newer one:
#   docker buildx imagetools inspect debian:12-slim     (the line "Digest"; or: skopeo inspect docker://debian:12-slim)
ARG BASE=docker.io/library/debian:12.12-slim@sha256:d5d3f9c23164ea16f31852f95bd5959aad1c5e854332fe00f7b3a20fcc9f635c


FROM ${BASE} AS build
RUN apt-get update -qq \
 && DEBCONF_NOWARNINGS=yes apt-get install -y -qq --no-install-recommends \
      python3 python3-dev python3-venv gcc libc6-dev >/dev/null
# For builds behind a proxy or a mirror; without effect if empty.
ARG PIP_CERT=""
ARG PIP_INDEX_URL=""
# Layers round the times of files, so bytecode must not depend on them: with a time set, it does not.
ARG SOURCE_DATE_EPOCH=315532800
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
COPY deploy/venv.sh deploy/compile.py deploy/
COPY kubeproxy kubeproxy
RUN bash deploy/venv.sh python3 /opt/kubeproxy /opt/kubeproxy


FROM ${BASE} AS debian
# The package iptables has libxtables and its extensions, for the adapter of the legacy tables.
RUN apt-get update -qq \
 && DEBCONF_NOWARNINGS=yes apt-get install -y -qq --no-install-recommends python3 nftables iptables >/dev/null
COPY deploy/slim-image.sh /run/
RUN bash /run/slim-image.sh && rm /run/slim-image.sh


# One layer: what is removed from a base is carried along by every image that builds on it.
FROM scratch
COPY --from=debian / /
COPY --from=build /opt/kubeproxy /opt/kubeproxy
ENV PATH=/opt/kubeproxy/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONFAULTHANDLER=1

ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kubeproxy" \
      org.opencontainers.image.description="A service proxy for Linux nodes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Root, because containers give capabilities to no other user; the deployment decides which: NET_ADMIN for the rules,
# NET_RAW for marked dials and dials from clients' addresses, NET_BIND_SERVICE for ports below 1024.
USER 0
STOPSIGNAL SIGTERM
# No init beside it: `kubeproxy run` is one, and keeps its workers when the control process crashes.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["kubeproxy", "healthcheck"]
ENTRYPOINT ["kubeproxy"]
CMD ["run"]
