"""A Kubernetes API server for tests: small, in memory, and compared with recordings of real ones.

Lists, pages, watches, expired versions and errors are those of kube-apiserver 1.36 or 1.20, as far as a proxy uses
them; creation and discovery, as far as a command that creates objects does. `ApiServer` runs inside a test; ``python -m
tests.support.apiserver`` runs it as a program with a control endpoint."""

from tests.support.apiserver.cluster import Cluster
from tests.support.apiserver.creation import command_cluster
from tests.support.apiserver.faults import Break, Fault
from tests.support.apiserver.server import ApiServer
from tests.support.apiserver.version import V1_20, V1_36, Version

__all__ = ["V1_20", "V1_36", "ApiServer", "Break", "Cluster", "Fault", "Version", "command_cluster"]
