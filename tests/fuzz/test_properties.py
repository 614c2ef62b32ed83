"""Bytes of hypothesis's making, a few seconds of them in every run: cut, joined and mutated from the corpus."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent
LONGEST = 8192
EXAMPLES = 30


def seeds(name: str) -> list[bytes]:
    return [path.read_bytes()[:LONGEST] for path in sorted((HERE / "corpus" / name).glob("*"))]


def scramble(data: bytes, longest: int, random: Random) -> bytes:
    """What a fuzzer does without knowing what it has: a few bytes exchanged, cut out or doubled."""
    scrambled = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(scrambled))
        match random.randrange(3):
            case 0:
                scrambled[at : at + 1] = bytes([random.choice(b'{}[]",:\0\n\xff-&*!#0e')])
            case 1:
                del scrambled[at : at + random.randint(1, 64)]
            case _:
                scrambled[at:at] = scrambled[at : at + random.randint(1, 64)]
    return bytes(scrambled[:longest])


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_input_is_decoded_or_refused(name: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(seeds(name)), st.integers(0, 2**32), st.integers(1, 8))
    def decoded_or_refused(data: bytes, seed: int, times: int) -> None:
        random = Random(seed)
        for turn in range(times):
            data = mutate(data, LONGEST, seed + turn, lambda it, longest: scramble(it, longest, random))
        TARGETS[name](data)

    decoded_or_refused()


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_are_decoded_or_refused(name: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=300))
    def decoded_or_refused(data: bytes) -> None:
        TARGETS[name](data)

    decoded_or_refused()
