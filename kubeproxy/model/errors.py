"""The base classes of errors. They distinguish whose fault an error is: the configuration's, the cluster's or the
kernel's.

Every message says what was found and what to do. The code that handles an error counts and logs it once. No code both
logs and re-raises an error.
"""


class KubeproxyError(Exception):
    """The base class of all errors that this package raises on purpose."""


class ConfigError(KubeproxyError):
    """Raised if the configuration or a manifest is invalid.

    At the start it ends the process with exit status 64 (EX_USAGE). ``faults`` has a line for each fault, with the
    field's path, what was found and what is allowed.
    """

    EXIT_STATUS = 64

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class ClusterError(KubeproxyError):
    """Raised if the API server does not answer, refuses a request, or sends an invalid answer. The operation is
    repeated later."""


class KernelError(KubeproxyError):
    """Raised if the kernel refuses an operation on netfilter, sockets or conntrack. The operation is repeated later,
    and the present rules and sockets stay in effect."""
