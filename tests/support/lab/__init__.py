"""A laboratory: hosts made of network namespaces, joined by veth pairs, that vanish with the process that made them.

Used by the demo, the benchmark and the tests marked ``netns``. A host has no name in the file system and no process of
its own: it lives as long as the descriptor that `Host` holds, and the programs started on it die with the process that
started them, so whatever ends this process (even SIGKILL) leaves no host and no program behind.
"""

from tests.support.lab.daemon import Daemon, service_manifest, write_manifest
from tests.support.lab.host import Host, Link, join
from tests.support.lab.node import Network, PodLinks, make_network
from tests.support.lab.web import Answer, get

__all__ = [
    "Answer",
    "Daemon",
    "Host",
    "Link",
    "Network",
    "PodLinks",
    "get",
    "join",
    "make_network",
    "service_manifest",
    "write_manifest",
]
