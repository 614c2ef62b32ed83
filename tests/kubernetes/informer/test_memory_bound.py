"""The kept objects are bounded, and no namespace uses the bound up for the others."""

from __future__ import annotations

from random import Random

from kubeproxy.kubernetes.informer.memory_bound import MAX_NAMED, OBJECT_BYTES, MemoryBound


def filled(limit: int = 100_000, *, namespace: str = "greedy", size: int = 1000) -> tuple[MemoryBound, int]:
    """An allowance that one namespace has filled, and the number of its kept objects."""
    allowance = MemoryBound(limit)
    kept = 0
    while allowance.admit(f"{namespace}/{kept}", size - OBJECT_BYTES):
        kept += 1
    return allowance, kept


def test_what_is_within_the_bound_is_kept() -> None:
    allowance, kept = filled()
    assert kept == 100
    assert allowance.kept == 100_000
    assert (allowance.left_out, allowance.largest) == (1, "greedy")


def test_a_namespace_that_fills_the_bound_loses_only_its_own_objects() -> None:
    allowance, kept = filled()
    assert not allowance.admit("greedy/more", 0)
    assert allowance.admit("victim/web", 1000)
    assert allowance.admit("victim/dns", 40_000)
    assert not allowance.admit("victim/too-much", 40_000), "half of the bound is its part"
    assert all(f"greedy/{number}" in allowance for number in range(kept)), "those known stay"


def test_one_that_grows_is_kept_only_where_there_is_room_and_one_that_shrinks_always() -> None:
    allowance, _ = filled()
    assert allowance.admit("greedy/5", 10)
    assert not allowance.admit("greedy/6", 10_000)
    assert "greedy/6" not in allowance


def test_a_list_keeps_what_was_known_before_what_is_new() -> None:
    allowance, kept = filled()
    allowance.begin()
    assert not allowance.admit("greedy/!first-by-name", 1000 - OBJECT_BYTES)
    assert all(allowance.admit(f"greedy/{number}", 1000 - OBJECT_BYTES) for number in range(kept))
    allowance.keep({f"greedy/{number}" for number in range(50)})
    assert allowance.kept == 50_000


def test_room_again_is_worth_a_list_once_there_is_enough() -> None:
    allowance, _ = filled()
    for number in range(5):
        allowance.release(f"greedy/{number}")
        assert not allowance.worth_a_list, "a little more than one object's room is not worth it"
    for number in range(11):
        allowance.release(f"greedy/{number}")
    worth_before = allowance.worth_a_list
    allowance.begin()
    assert (worth_before, allowance.worth_a_list) == (True, False)


def test_what_is_left_out_and_goes_is_forgotten() -> None:
    allowance, kept = filled()
    allowance.release(f"greedy/{kept}")
    assert allowance.left_out == 0


def test_the_names_of_those_left_out_are_bounded() -> None:
    allowance, _ = filled()
    for number in range(MAX_NAMED + 100):
        allowance.admit(f"greedy/more-{number}", 1000)
    assert allowance.left_out == MAX_NAMED


def test_sums_stay_true() -> None:
    random = Random(11)
    allowance = MemoryBound(200_000)
    sizes: dict[str, int] = {}
    for _ in range(5_000):
        name = f"n{random.randrange(5)}/{random.randrange(100)}"
        if random.random() < 0.3:
            allowance.release(name)
            sizes.pop(name, None)
        elif allowance.admit(name, size := random.randrange(3000)):
            sizes[name] = size + OBJECT_BYTES
        else:
            sizes.pop(name, None)
        assert allowance.kept == sum(sizes.values())
        assert {name for name in sizes if name in allowance} == set(sizes)
        of_namespace = {space: sum(s for n, s in sizes.items() if n.startswith(space)) for space in ("n0", "n1")}
        assert all(size <= 200_000 for size in of_namespace.values())
