"""The version of this package, for the build, `--version` and the build-info metric."""

__version__ = "0.1.0"
