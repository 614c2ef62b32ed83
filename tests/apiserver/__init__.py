"""A Kubernetes API server for tests: small, in memory, and held against recordings of real ones.

It lists, pages, watches, forgets and fails as kube-apiserver 1.36 or 1.20 does, as far as a service proxy can tell.
`ApiServer` runs inside a test; ``python -m tests.apiserver`` runs it as a program with a control endpoint.
"""

from tests.apiserver.cluster import Cluster
from tests.apiserver.faults import Break, Fault
from tests.apiserver.server import ApiServer
from tests.apiserver.version import V1_20, V1_36, Version

__all__ = ["V1_20", "V1_36", "ApiServer", "Break", "Cluster", "Fault", "Version"]
