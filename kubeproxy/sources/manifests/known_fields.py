"""Finds fields that Services, EndpointSlices and Endpoints do not have in Kubernetes 1.36. They are probably mistakes.

The daemon warns of unknown fields. It refuses an object if an unknown field looks like a misspelt restriction of
access, because ignoring the field would let in clients that the author wanted to keep out. (`kubectl --validate=strict`
refuses all unknown fields, and an API server drops them.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

Fields = Mapping[str, Any]
"""Known fields by name. The value is None for a field that is not examined further, `Fields` for a mapping, and a list
with one `Fields` for a list of mappings."""


def _values(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names)


_METADATA: Final[Fields] = {
    **_values("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation"),
    **_values("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations"),
    **_values("ownerReferences", "finalizers", "managedFields"),
}
_HEAD: Final[Fields] = {"apiVersion": None, "kind": None, "metadata": _METADATA}
_PORT: Final[Fields] = _values("name", "protocol", "port", "appProtocol")
_REFERENCE: Final[Fields] = _values("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_SUBSET_ADDRESS: Final[Fields] = {**_values("ip", "hostname", "nodeName"), "targetRef": _REFERENCE}

_SERVICE: Final[Fields] = {
    **_HEAD,
    "spec": {
        **_values("type", "clusterIP", "clusterIPs", "selector", "sessionAffinity", "internalTrafficPolicy"),
        **_values("externalTrafficPolicy", "externalIPs", "externalName", "loadBalancerIP", "loadBalancerClass"),
        **_values("loadBalancerSourceRanges", "allocateLoadBalancerNodePorts", "healthCheckNodePort"),
        **_values("publishNotReadyAddresses", "ipFamilies", "ipFamilyPolicy", "trafficDistribution"),
        "ports": [_values("name", "protocol", "port", "targetPort", "nodePort", "appProtocol")],
        "sessionAffinityConfig": {"clientIP": _values("timeoutSeconds")},
    },
    "status": {
        "conditions": None,
        "loadBalancer": {"ingress": [_values("ip", "hostname", "ipMode", "ports")]},
    },
}
_ENDPOINT_SLICE: Final[Fields] = {
    **_HEAD,
    "addressType": None,
    "ports": [_PORT],
    "endpoints": [
        {
            **_values("addresses", "hostname", "nodeName", "zone", "deprecatedTopology"),
            "conditions": _values("ready", "serving", "terminating"),
            "targetRef": _REFERENCE,
            "hints": {"forZones": [_values("name")], "forNodes": [_values("name")]},
        }
    ],
}
_ENDPOINTS: Final[Fields] = {
    **_HEAD,
    "subsets": [{"addresses": [_SUBSET_ADDRESS], "notReadyAddresses": [_SUBSET_ADDRESS], "ports": [_PORT]}],
}
KINDS: Final[Mapping[str, Fields]] = {
    "Service": _SERVICE,
    "EndpointSlice": _ENDPOINT_SLICE,
    "Endpoints": _ENDPOINTS,
}


RESTRICTING: Final = frozenset(
    (
        *("loadBalancerSourceRanges", "internalTrafficPolicy", "externalTrafficPolicy", "ipMode"),
        *("conditions", "ready", "serving", "terminating", "notReadyAddresses"),
    )
)
"""The fields that restrict which clients are let in, or which endpoints get connections."""


class UnknownField(NamedTuple):
    """A field that objects of this kind do not have."""

    path: str
    meant: str
    """The known field that was probably meant, or empty if none is similar."""

    @property
    def restricts(self) -> bool:
        """Return whether the field that was probably meant restricts access (see `RESTRICTING`)."""
        return self.meant in RESTRICTING

    @property
    def hint(self) -> str:
        """Return a text such as ``; did you mean port?``, or an empty text."""
        return f"; did you mean {self.meant}?" if self.meant else ""


def unknown_fields(found: object, kind: str) -> Iterator[UnknownField]:
    """Yield each unknown field of an object."""
    yield from _unknown(found, KINDS[kind], "")


def _unknown(found: object, known: Any, path: str) -> Iterator[UnknownField]:
    if isinstance(known, list) and isinstance(found, list):
        for index, item in enumerate(found):
            yield from _unknown(item, known[0], f"{path}[{index}]")
    elif isinstance(known, Mapping) and isinstance(found, Mapping):
        for name, value in found.items():
            here = f"{path}.{name}" if path else str(name)
            if name in known:
                yield from _unknown(value, known[name], here)
            else:
                yield UnknownField(here, nearest(str(name), known))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that was probably meant, or an empty text if none is similar."""
    lower = {other.lower(): other for other in known}
    near = get_close_matches(name.lower(), lower, n=1, cutoff=0.7)
    return lower[near[0]] if near else ""
