"""Services and endpoints from manifests: files, directories, web addresses, standard input."""

from kubeproxy.sources.manifests.check import check
from kubeproxy.sources.manifests.inventory import Trouble
from kubeproxy.sources.manifests.source import ManifestSource, ManifestState, PathState, Report

__all__ = ["ManifestSource", "ManifestState", "PathState", "Report", "Trouble", "check"]
