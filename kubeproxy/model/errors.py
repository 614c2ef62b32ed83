"""Errors by who is to blame, so that whoever reads the message knows where to look.

Every error says what was seen and what to do. Where one is caught, it is counted and logged once; it is never both
logged and raised on.
"""


class KubeproxyError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(KubeproxyError):
    """The operator's configuration or manifests are wrong. Ends a start with exit status 64 (sysexits' EX_USAGE).

    ``faults`` holds one line per fault: the field's path, what was found and what is allowed.
    """

    EXIT_STATUS = 64

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class ClusterError(KubeproxyError):
    """The API server did not answer, or answered something that it should not. Retried."""


class KernelError(KubeproxyError):
    """The kernel (netfilter, sockets, conntrack) said no. Retried; what works goes on working meanwhile."""
