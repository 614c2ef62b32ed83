"""Errors by their cause, which is the configuration, the cluster or the kernel, so that a message says where to look.

Every error says what was seen and what to do. The place that catches one counts and logs it once; no place both logs
and re-raises.
"""


class KubeproxyError(Exception):
    """The base of all errors that this package raises on purpose."""


class ConfigError(KubeproxyError):
    """The configuration or the manifests are wrong.

    It ends a start with exit status 64 (sysexits' EX_USAGE). ``faults`` holds one line per fault: the field's path,
    what was found and what is allowed.
    """

    EXIT_STATUS = 64

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class ClusterError(KubeproxyError):
    """The API server did not answer, or its answer makes no sense. The request is tried again."""


class KernelError(KubeproxyError):
    """The kernel (netfilter, sockets, conntrack) has refused. The operation is tried again, and the rules and sockets
    in force stay in force."""
