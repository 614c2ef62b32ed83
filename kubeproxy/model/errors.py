"""Errors by cause: configuration, cluster or kernel, so that a message says where to look.

Every error says what was seen and what to do. The place that catches one counts and logs it once; no place both logs
and re-raises.
"""


class KubeproxyError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(KubeproxyError):
    """The configuration or the manifests are wrong. Ends a start with exit status 64 (sysexits' EX_USAGE).

    ``faults`` holds one line per fault: the field's path, what was found and what is allowed.
    """

    EXIT_STATUS = 64

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class ClusterError(KubeproxyError):
    """The API server did not answer, or its answer makes no sense. Retried."""


class KernelError(KubeproxyError):
    """The kernel (netfilter, sockets, conntrack) refused. Retried; the rules and sockets in force stay in force."""
