"""One target under atheris (libFuzzer for Python). `engine.py TARGET [LIBFUZZER-ARGUMENT...]`

Run by `tests.fuzz.__main__`, in a process of its own: libFuzzer ends it in its own way, at the first finding too.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["kubeproxy", "yaml", "ipaddress"]):
    from tests.fuzz.targets import TARGETS

from tests.fuzz.mutate import mutate


def _mutate(data: bytes, longest: int, seed: int) -> bytes:
    return mutate(data, longest, seed, lambda bytes_, size: bytes(atheris.Mutate(bytes_, size)))


def main() -> None:
    """Until libFuzzer has enough."""
    name, *arguments = sys.argv[1:]
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name], custom_mutator=_mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
