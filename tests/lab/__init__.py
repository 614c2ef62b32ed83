"""A laboratory: hosts made of network namespaces, joined by veth pairs, that vanish with the process that made them.

Used by the demo, the benchmark and the tests marked ``netns``. A host has no name in the file system and no process of
its own: it lives as long as the descriptor that `Host` holds, so whatever ends this process (even SIGKILL) leaves
nothing behind.
"""

from tests.lab.host import Host, Link, join
from tests.lab.node import Network, make_network

__all__ = ["Host", "Link", "Network", "join", "make_network"]
