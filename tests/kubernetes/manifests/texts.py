"""Manifests for tests."""

from __future__ import annotations


def service(name: str, address: str = "10.0.0.1", *, port: object = 80, namespace: str = "") -> str:
    """A Service as YAML."""
    place = f", namespace: {namespace}" if namespace else ""
    return (
        f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}{place}}}\n"
        f"spec:\n  clusterIP: {address}\n  ports:\n  - port: {port}\n"
    )


def endpoint_slice(name: str, *addresses: str) -> str:
    """An EndpointSlice of the Service of the same name, as YAML."""
    endpoints = "".join(f"- addresses: [{address}]\n" for address in addresses)
    return (
        f"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"
        f"metadata:\n  name: {name}\n  labels: {{kubernetes.io/service-name: {name}}}\n"
        f"addressType: IPv4\nports: [{{port: 8080}}]\nendpoints:\n{endpoints}"
    )


def join(*documents: str) -> str:
    """One manifest of several documents."""
    return "---\n".join(documents)
