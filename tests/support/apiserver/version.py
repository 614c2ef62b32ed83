"""The recorded differences of kube-apiserver 1.36 and 1.20 (both with etcd 3.4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of kube-apiserver, with the differences that matter here."""

    name: str
    minor: str
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """API groups and their versions, in the order of /apis."""
    silent_after_410: bool
    """A watch stays open and silent after a 410, until its timeoutSeconds."""
    compaction_expires_tokens: bool
    """False: continue tokens survive a compaction until the server restarts."""
    streams_lists: bool
    """True: knows watches with sendInitialEvents; with etcd 3.4 it answers them, and any watch without a
    resourceVersion, with an ERROR event. False: such a watch begins with the existing objects."""
    service_fields: frozenset[str]
    """Field selectors of Services beyond metadata.name and metadata.namespace."""
    endpoints_warning: str = ""
    """Header Warning on lists and watches of Endpoints."""
    checks_fields: bool = True
    """Obeys fieldValidation; else what is unknown is dropped."""
    aggregates_discovery: bool = True
    """Has all resources in one answer, for who asks for that."""
    audits: bool = True
    """Answers carry an Audit-Id."""
    bad_version_status: int = 400
    """The status of a list with a resourceVersion that is not a number."""

    def serves(self, group_version: str) -> bool:
        """Whether a group is served in a version, like ``discovery.k8s.io/v1``."""
        group, _, version = group_version.partition("/")
        return any(name == group and version in versions for name, versions in self.groups)


V1_36 = Version(
    name="v1.36",
    minor="36",
    groups=(
        ("apps", ("v1",)),
        ("events.k8s.io", ("v1",)),
        ("networking.k8s.io", ("v1",)),
        ("discovery.k8s.io", ("v1",)),
    ),
    silent_after_410=False,
    compaction_expires_tokens=False,
    streams_lists=True,
    service_fields=frozenset({"spec.clusterIP", "spec.type"}),
    endpoints_warning='299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"',
)

V1_20 = Version(
    name="v1.20",
    minor="20+",
    groups=(
        ("apps", ("v1",)),
        ("events.k8s.io", ("v1", "v1beta1")),
        ("networking.k8s.io", ("v1", "v1beta1")),
        ("discovery.k8s.io", ("v1beta1",)),
    ),
    silent_after_410=True,
    compaction_expires_tokens=True,
    streams_lists=False,
    service_fields=frozenset(),
    checks_fields=False,
    aggregates_discovery=False,
    audits=False,
    bad_version_status=500,
)

VERSIONS = {version.name: version for version in (V1_36, V1_20)}
