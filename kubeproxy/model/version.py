"""The version of this package, read by the build, `--version` and the build-info metric."""

__version__ = "0.1.0"
