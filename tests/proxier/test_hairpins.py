"""Endpoints that the kernel may lead to themselves: counted by frontend, and moved once."""

from __future__ import annotations

from kubeproxy.model import Address, Family, FrontendName, ServicePortName
from kubeproxy.proxier.hairpins import Hairpins

A, B = Address("10.3.0.2"), Address("10.3.1.2")
WEB, SHOP = (FrontendName(ServicePortName("default", name, "http"), Family.IPV4) for name in ("web", "shop"))


def test_an_address_stays_as_long_as_a_frontend_has_it() -> None:
    hairpins = Hairpins()
    hairpins.put(WEB, [A, B])
    hairpins.put(SHOP, [A])
    assert hairpins.moved(set()) == {A: True, B: True}
    hairpins.settle()
    assert not hairpins.has_moved
    hairpins.put(WEB, ())
    assert hairpins.addresses == {A}
    assert hairpins.moved({A, B}) == {B: False}
    hairpins.put(SHOP, ())
    assert hairpins.moved({A, B}) == {A: False, B: False}


def test_what_is_in_force_already_has_not_moved() -> None:
    hairpins = Hairpins()
    hairpins.put(WEB, [A])
    hairpins.put(WEB, [A, B])
    assert hairpins.moved({A}) == {B: True}
    hairpins.put(WEB, [A])
    assert hairpins.moved({A}) == {}
    assert hairpins.has_moved
