"""maxSurge and maxUnavailable, after the tables of upstream's deployment_util tests."""

from __future__ import annotations

import pytest

from kubeproxy.controllers.surge import (
    max_surge,
    max_total,
    max_unavailable,
    min_available,
    new_replica_set_size,
    resolve,
)
from tests.controllers.builders import deployment


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [(1, (1, 0)), (2, (1, 0)), (3, (1, 0)), (4, (1, 1)), (5, (2, 1)), (7, (2, 1)), (8, (2, 2)), (10, (3, 2))],
)
def test_a_quarter_each(replicas: int, expected: tuple[int, int]) -> None:
    assert resolve("25%", "25%", replicas) == expected


def test_upstreams_cases() -> None:
    assert resolve("39%", "39%", 10) == (4, 3)
    assert resolve(0, 0, 0) == (0, 1)
    assert resolve("0%", "0%", 10) == (0, 1)
    assert resolve(None, None, 10) == (0, 1)


@pytest.mark.parametrize("text", ["oops", "10", "10%%", "-5%", "1.5%", ""])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        resolve(text, 0, 10)


def test_a_percentage_of_any_length_means_what_it_says() -> None:
    """An API server takes them. Python converts no text of 5,000 digits to a number."""
    assert resolve("9" * 5000 + "%", "9" * 5000 + "%", 10) == (10**8, 10**8)
    assert resolve("0" * 5000 + "25%", "0%", 4) == (1, 0)
    with pytest.raises(ValueError) as raised:
        resolve("9" * 5000, 0, 10)
    assert len(str(raised.value)) < 200


def test_the_most_that_may_be_missing() -> None:
    assert max_unavailable(deployment(1, surge=1, unavailable=5)) == 1
    assert max_unavailable(deployment(0, surge=1, unavailable=5)) == 0
    assert max_unavailable(deployment(10, surge=0, unavailable=0)) == 1
    assert max_unavailable(deployment(10, strategy="Recreate")) == 0
    assert max_surge(deployment(10, strategy="Recreate")) == 0
    assert min_available(deployment(10, surge=3, unavailable="20%")) == 8
    assert min_available(deployment(10, strategy="Recreate")) == 0
    assert max_total(deployment(10, surge="25%")) == 13


@pytest.mark.parametrize(
    ("strategy", "surge", "total", "current", "expected"),
    [
        ("Recreate", 0, 20, 0, 10),
        ("RollingUpdate", 0, 10, 0, 0),
        ("RollingUpdate", 2, 10, 0, 2),
        ("RollingUpdate", 2, 5, 0, 7),
        ("RollingUpdate", 2, 13, 3, 3),
        ("RollingUpdate", 50, 10, 0, 10),
        ("RollingUpdate", 0, 8, 8, 10),
    ],
)
def test_the_size_of_the_new_replica_set(strategy: str, surge: int, total: int, current: int, expected: int) -> None:
    assert new_replica_set_size(deployment(10, surge=surge, strategy=strategy), total, current) == expected
