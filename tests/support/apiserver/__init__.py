"""A Kubernetes API server for tests: small, in memory, and held against recordings of real ones.

It lists, pages, watches, forgets and fails as kube-apiserver 1.36 or 1.20 does, as far as a service proxy can tell.
`ApiServer` runs inside a test; ``python -m tests.support.apiserver`` runs it as a program with a control endpoint.
"""

from tests.support.apiserver.cluster import Cluster
from tests.support.apiserver.faults import Break, Fault
from tests.support.apiserver.server import ApiServer
from tests.support.apiserver.version import V1_20, V1_36, Version

__all__ = ["V1_20", "V1_36", "ApiServer", "Break", "Cluster", "Fault", "Version"]
