"""The notation of values: allowed texts, refused texts, and reading back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.config.address_types import (
    CIDR,
    IP,
    ClusterCIDR,
    HealthzAddress,
    MetricsAddress,
    NodePortAddress,
    ServerAddress,
)
from kubeproxy.config.value_types import (
    Duration,
    LabelValue,
    Leaf,
    Namespace,
    NanosecondsOrDuration,
    PortRange,
    PositiveDuration,
    Quantity,
    WorkerCount,
)

LEAVES: tuple[type[Leaf], ...] = (
    CIDR,
    IP,
    ClusterCIDR,
    Duration,
    HealthzAddress,
    MetricsAddress,
    LabelValue,
    Namespace,
    NanosecondsOrDuration,
    NodePortAddress,
    PortRange,
    PositiveDuration,
    Quantity,
    WorkerCount,
)

S = 10**9


@pytest.mark.parametrize(
    ("text", "nanoseconds", "printed"),
    [
        ("0", 0, "0s"),
        ("0s", 0, "0s"),
        ("-0", 0, "0s"),
        ("250ms", 250 * 10**6, "250ms"),
        ("1.5s", 1_500_000_000, "1.5s"),
        (".5s", 500_000_000, "500ms"),
        ("1.s", S, "1s"),
        ("+5s", 5 * S, "5s"),
        ("1h2m3.5s", 3723 * S + S // 2, "1h2m3.5s"),
        ("1m1h", 3660 * S, "1h1m0s"),
        ("90s", 90 * S, "1m30s"),
        ("24h", 86400 * S, "24h0m0s"),
        ("1us", 1000, "1µs"),
        ("1µs", 1000, "1µs"),
        ("1μs", 1000, "1µs"),
        ("1.5µs", 1500, "1.5µs"),
        ("7ns", 7, "7ns"),
        ("0.3333333333333333333h", 1_199_999_999_999, "19m59.999999999s"),
        ("2562047h47m16.854775807s", 2**63 - 1, "2562047h47m16.854775807s"),
    ],
)
def test_durations_have_the_notation_of_go(text: str, nanoseconds: int, printed: str) -> None:
    duration = Duration.parse(text)
    assert (duration.nanoseconds, str(duration)) == (nanoseconds, printed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "5 s",
        "s",
        "1d",
        "-5s",
        "1h-5m",
        "1e3s",
        "٣s",
        "2562048h",
        "1s\n",
        ".s",
        "1..5s",
        "9" * 5000 + "s",
        "inf",
    ],
)
def test_texts_that_go_refuses_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError):
        Duration.parse(text)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_durations_are_read_back(nanoseconds: int) -> None:
    assert Duration.parse(str(Duration(nanoseconds))) == Duration(nanoseconds)


def test_a_positive_duration_is_not_zero() -> None:
    assert PositiveDuration.parse("1ns").nanoseconds == 1
    with pytest.raises(ValueError):
        PositiveDuration.parse("0s")


def test_the_flush_frequency_may_be_nanoseconds() -> None:
    assert NanosecondsOrDuration.parse("5000000000") == NanosecondsOrDuration.parse("5s")


@pytest.mark.parametrize(
    ("text", "first", "last", "printed"),
    [
        ("", 0, 0, ""),
        ("0", 0, 0, ""),
        ("0-0", 0, 0, ""),
        ("300", 300, 300, "300-300"),
        ("300-2000", 300, 2000, "300-2000"),
        (" 300 - 2000 ", 300, 2000, "300-2000"),
        ("300+10", 300, 310, "300-310"),
        ("65530+100", 65530, 65535, "65530-65535"),
    ],
)
def test_port_ranges(text: str, first: int, last: int, printed: str) -> None:
    ports = PortRange.parse(text)
    assert (ports.first, ports.last, str(ports), bool(ports)) == (first, last, printed, bool(text.strip("0-")))


@pytest.mark.parametrize("text", ["2000-300", "0-100", "1-65536", "65536", "-1", "a-b", "1-2-3", "1,2", "+5", "300-"])
def test_invalid_port_ranges(text: str) -> None:
    with pytest.raises(ValueError):
        PortRange.parse(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("0.0.0.0", "0.0.0.0:10256"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("::", "[::]:10256"),
        ("[::]", "[::]:10256"),
        ("[0:0::1]:65535", "[::1]:65535"),
        ("0.0.0.0:0", "0.0.0.0:0"),
    ],
)
def test_server_addresses(text: str, printed: str) -> None:
    address = HealthzAddress.parse(text)
    assert str(address) == printed
    assert address.served == (address.port != 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":80",
        "localhost:80",
        "0.0.0.0:",
        "0.0.0.0:65536",
        "0.0.0.0:http",
        "[0.0.0.0]:80",
        "[::1]80",
        "[::1",
        "1.2.3:4",
    ],
)
def test_invalid_server_addresses(text: str) -> None:
    with pytest.raises(ValueError):
        MetricsAddress.parse(text)


def test_each_server_has_its_default_port() -> None:
    assert (HealthzAddress.parse("::1").port, MetricsAddress.parse("::1").port) == (10256, 10249)
    assert ServerAddress.parse("::1").port == 0


@pytest.mark.parametrize(
    ("leaf", "text", "printed"),
    [
        (IP, "0:0::1", "::1"),
        (CIDR, "10.1.2.3/8", "10.0.0.0/8"),
        (CIDR, "fde4:8dba:82e1::1/48", "fde4:8dba:82e1::/48"),
        (ClusterCIDR, "", ""),
        (ClusterCIDR, "10.0.0.0/8", "10.0.0.0/8"),
        (ClusterCIDR, "10.0.0.0/8, fde4::/16", "10.0.0.0/8,fde4::/16"),
        (NodePortAddress, "primary", "primary"),
        (NodePortAddress, "192.0.2.9/24", "192.0.2.0/24"),
        (Namespace, "", ""),
        (Namespace, "kube-system", "kube-system"),
        (Namespace, "a" * 63, "a" * 63),
        (LabelValue, "", ""),
        (LabelValue, "eu-1.a_B", "eu-1.a_B"),
        (Quantity, "64Ki", "64Ki"),
        (Quantity, "1.5M", "1.5M"),
    ],
)
def test_other_values(leaf: type[Leaf], text: str, printed: str) -> None:
    assert str(leaf.parse(text)) == printed


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        (IP, "1.2.3"),
        (IP, "fe80::1%eth0"),
        (IP, "::ffff:1.2.3.4"),
        (CIDR, "10.0.0.0"),
        (CIDR, "10.0.0.0/33"),
        (CIDR, "10.0.0.0/255.0.0.0"),
        (CIDR, "/8"),
        (ClusterCIDR, "10.0.0.0/8,11.0.0.0/8"),
        (ClusterCIDR, "10.0.0.0/8,fde4::/16,fde5::/16"),
        (ClusterCIDR, ","),
        (NodePortAddress, "secondary"),
        (NodePortAddress, "10.0.0.1"),
        (Namespace, "a" * 64),
        (Namespace, "Upper"),
        (Namespace, "-a"),
        (Namespace, "a\n"),
        (LabelValue, "a" * 64),
        (LabelValue, "a-"),
        (LabelValue, "a b"),
        (Quantity, "64kib"),
    ],
)
def test_other_invalid_values(leaf: type[Leaf], text: str) -> None:
    with pytest.raises(ValueError):
        leaf.parse(text)


def test_cluster_blocks() -> None:
    assert ClusterCIDR.parse("").blocks == ()
    assert ClusterCIDR.parse("10.0.0.0/8, fde4::/16").blocks == ("10.0.0.0/8", "fde4::/16")


@given(st.sampled_from(LEAVES), st.text() | st.from_regex(r"[\d.:/a-fmshnu+\-\[\]]*"))
def test_any_text_is_a_value_or_a_value_error(leaf: type[Leaf], text: str) -> None:
    try:
        value = leaf.parse(text)
    except ValueError:
        return
    assert leaf.parse(str(value)) == value
