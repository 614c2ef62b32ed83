"""The decoders, each with the errors that it may raise and the properties of what it accepts. A target takes any
bytes, and returns or raises AssertionError; any other exception is a finding."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from kubeproxy.config import flags
from kubeproxy.config.diff import compare
from kubeproxy.config.dump import dump, go_data
from kubeproxy.config.load import load
from kubeproxy.daemon.flow_accounting import as_ended
from kubeproxy.daemon.takeover import protocol
from kubeproxy.dataplane.workers import orphan, takeover_messages
from kubeproxy.dataplane.workers import protocol as channel
from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.client.decode import EventType, LineSplitter, identity, parse_event, parse_page
from kubeproxy.kubernetes.client.errors import CAUSES, ApiError, GarbageError
from kubeproxy.kubernetes.client.list_stream import ListSplitter
from kubeproxy.kubernetes.client.status import parse_status, retry_after, status_error
from kubeproxy.kubernetes.informer.resource import Resource
from kubeproxy.kubernetes.printing.go_encoding import indented_json, yaml_text
from kubeproxy.kubernetes.printing.jsonpath import JsonPath
from kubeproxy.kubernetes.resource_builder import decode, discovery, openapi
from kubeproxy.kubernetes.resource_builder.discovery import Catalog
from kubeproxy.kubernetes.resource_builder.errors import ObjectError
from kubeproxy.kubernetes.resource_builder.mapper import Index
from kubeproxy.kubernetes.resource_builder.selector_syntax import parse_selector
from kubeproxy.kubernetes.resource_builder.stream import Document, Splitter
from kubeproxy.kubernetes.resource_builder.validation import validate
from kubeproxy.model import (
    EndpointSlice,
    Family,
    FrontendName,
    Node,
    Service,
    ServiceName,
    ServicePortName,
    SliceName,
)
from kubeproxy.model.errors import ConfigError
from kubeproxy.netfilter.conntrack import flow_records, messages
from kubeproxy.netfilter.conntrack.flow_owners import FlowOwners
from kubeproxy.netfilter.conntrack.flow_totals import FlowTotals
from kubeproxy.netfilter.netlink.messages import parse
from kubeproxy.netfilter.nftables import transaction as nftables_table
from kubeproxy.netfilter.nftables.declarations import HOOKS, KINDS
from kubeproxy.netfilter.nftables.elements import Element, PackedTargets
from kubeproxy.netfilter.nftables.listing import Listed, Listing, table_of
from kubeproxy.netfilter.nftables.reading import entries
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.observability.http.access import OPEN_PAGES, Access, host_name
from kubeproxy.observability.logs import access_log
from kubeproxy.rescue import nflog
from kubeproxy.rescue import protocol as rescue_protocol
from kubeproxy.rescue.packets import Refusal, Refused, Syn, again
from kubeproxy.rescue.packets import parse as parse_packet
from kubeproxy.rescue.resends import Resends
from kubeproxy.sources.kubernetes.kinds import Endpoints, OwnNode, Services, Slices
from kubeproxy.sources.manifests.documents import read
from kubeproxy.sources.manifests.inventory import Inventory
from kubeproxy.sources.manifests.objects import Terms
from kubeproxy.sources.sink import SourceName
from tests.fuzz.invariants import canonical, check_node, check_service, check_slice, port, resolvable

Target = Callable[[bytes], None]
LONGEST_DOCUMENT: Final = 65536
MOST_PIECES: Final = 200
"""The most pieces that a stream is split into."""
LONGEST_MESSAGE: Final = 2000
"""The longest error message. People read it, so it may not repeat a long input."""


@dataclass
class Checking:
    """A sink that checks every object."""

    services: dict[ServiceName, Service] = field(default_factory=dict)
    slices: dict[SliceName, EndpointSlice] = field(default_factory=dict)

    def replace_services(self, source: SourceName, services: Iterable[Service]) -> None:
        self.services.clear()
        for service in services:
            self.put_service(source, service)

    def put_service(self, source: SourceName, service: Service) -> None:
        check_service(service)
        self.services[service.name] = service

    def remove_service(self, source: SourceName, name: ServiceName) -> None:
        self.services.pop(name, None)

    def replace_slices(self, source: SourceName, slices: Iterable[EndpointSlice]) -> None:
        self.slices.clear()
        for endpoint_slice in slices:
            self.put_slice(source, endpoint_slice)

    def put_slice(self, source: SourceName, endpoint_slice: EndpointSlice) -> None:
        check_slice(endpoint_slice)
        self.slices[endpoint_slice.name] = endpoint_slice

    def remove_slice(self, source: SourceName, name: SliceName) -> None:
        self.slices.pop(name, None)

    def set_node(self, node: Node | None) -> None:
        if node is not None:
            check_node(node)

    def resolve(self) -> None:
        """Check that each Service can be served with any of the endpoints."""
        for service in self.services.values():
            resolvable(service, self.slices.values())


def _resources(sink: Checking) -> tuple[Resource[Any], ...]:
    return (Services(sink), Slices(sink), Endpoints(sink), OwnNode(sink, "node-a"))


def _said(error: Exception) -> None:
    assert str(error), "an error without a word"
    assert len(str(error)) <= LONGEST_MESSAGE, "an error as long as its input"


def watch(data: bytes) -> None:
    """The stream of a watch: `GarbageError` or valid events. The first byte of the input is the length of the
    pieces."""
    step, stream = (data[0] or 256, data[1:]) if data else (1, b"")
    splitter = LineSplitter(max_line_bytes=1 << 16)
    sink = Checking()
    resources = _resources(sink)
    lines: list[bytes] = []
    try:
        for start in range(0, len(stream), step):
            lines += splitter.feed(stream[start : start + step])
    except GarbageError as error:
        _said(error)
    for line in lines:
        try:
            event = parse_event(line)
        except ApiError as error:
            _refused(error)
            continue
        assert 0 < len(event.resource_version) <= 128
        for resource in resources:
            if event.type is EventType.DELETED:
                resource.remove(event.metadata)
            elif event.type is not EventType.BOOKMARK:
                with contextlib.suppress(*api_types.UNDECODABLE):
                    found, faults = resource.translate(event.object)
                    _check_faults(faults)
                    resource.put(event.metadata, found)
    sink.resolve()


def pages(data: bytes) -> None:
    """A page of a list: `GarbageError`, or items that are each translated or refused; the same in pieces."""
    try:
        page = parse_page(data)
    except GarbageError as error:
        _said(error)
        page = None
    split = _split(data)
    if page is None or split is None:
        assert page is None or data.count(b"items") > 1, "a page that is none in pieces"
        assert split is None, "no page, but one in pieces"
        return
    if data.count(b"items") == 1:
        assert [bytes(raw) for raw in page.items] == split, "other items in pieces"
    sink = Checking()
    for resource in _resources(sink):
        found: list[Any] = []
        for raw in page.items:
            identity(raw)
            with contextlib.suppress(*api_types.UNDECODABLE):
                meant, faults = resource.translate(raw)
                _check_faults(faults)
                found += meant
        resource.replace(found)
    sink.resolve()


def _split(data: bytes) -> list[bytes] | None:
    """The items of a page that arrives 64 bytes at a time; None: it is not a page."""
    splitter = ListSplitter(max_object_bytes=1 << 16, piece_bytes=64)
    items: list[bytes] = []
    try:
        for start in range(0, len(data), 64):
            if (part := splitter.feed(data[start : start + 64])) is not None:
                items += map(bytes, part.items)
        return items + [bytes(raw) for raw in splitter.end().items]
    except GarbageError as error:
        _said(error)
        return None


def refusals(data: bytes) -> None:
    """A refusal: the header Retry-After is the first line, the body follows."""
    header, _, body = data.partition(b"\n")
    wait_s = retry_after(header.decode("latin-1"), 1.7e9)
    assert wait_s is None or wait_s >= 0
    for code in (400, 401, 403, 410, 429, 500, 503):
        error = status_error(parse_status(body), code=code, seen="answered", retry_after_s=wait_s)
        _refused(error)


def _refused(error: ApiError) -> None:
    _said(error)
    assert error.cause in CAUSES, error.cause


def _check_faults(faults: Iterable[Any]) -> None:
    found = [str(fault) for fault in faults]
    assert len(found) <= 30, "as many faults as the object has parts"
    assert all(len(text) <= LONGEST_MESSAGE for text in found)


def manifests(data: bytes) -> None:
    """A manifest: never an exception, and a second reading has the same result."""
    terms = Terms()
    reading = read(data, terms)
    services: dict[ServiceName, Service] = {}
    slices: list[EndpointSlice] = []
    for _, entry in reading.entries:
        assert entry.name is not None or entry.skipped or entry.faults
        assert len(entry.skipped) <= LONGEST_MESSAGE
        _check_faults(entry.faults)
        if entry.service is not None:
            check_service(entry.service)
            services[entry.service.name] = entry.service
        for endpoint_slice in entry.slices:
            check_slice(endpoint_slice)
            slices.append(endpoint_slice)
    for service in services.values():
        resolvable(service, slices)
    assert read(data, terms, reading).entries == reading.entries
    inventory = Inventory()
    inventory.update({"it": reading})
    assert all(len(str(problem)) <= 2 * LONGEST_MESSAGE for problem in inventory.problems())
    inventory.update({"it": read(data, terms, reading)})
    assert not len(inventory.update({"it": None})) or services or slices
    assert not list(inventory.services())


def configuration(data: bytes) -> None:
    """A configuration file: `ConfigError`, or a configuration that is equal after writing and reading."""
    _load_config({}, data)


def _load_config(given: Mapping[str, list[str]], data: bytes) -> None:
    try:
        with _in_memory(data) as path:
            loaded = load({**given, "config": [path]}).configuration
    except ConfigError as error:
        _faulty(error)
        return
    with _in_memory(dump(loaded).encode()) as path:
        again = load({"config": [path]}).configuration
    assert again == loaded
    assert compare(loaded, again).live == compare(loaded, again).restart == ()
    go_data(loaded)


def _faulty(error: ConfigError) -> None:
    assert error.faults
    assert all(fault and len(fault) <= LONGEST_MESSAGE for fault in error.faults)


@contextlib.contextmanager
def _in_memory(data: bytes) -> Any:
    descriptor = os.memfd_create("configuration")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def command_line(data: bytes) -> None:
    """Flags, one a line as NAME=VALUE: `ConfigError`, or a configuration that is equal after writing and reading."""
    given: dict[str, list[str]] = {}
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        name, _, value = line.partition("=")
        if name in flags.flags() and name != "config":
            given.setdefault(name, []).append(value)
    try:
        loaded = load(given).configuration
    except ConfigError as error:
        _faulty(error)
        return
    try:
        written = dump(loaded).encode()
    except UnicodeEncodeError:
        return  # bytes of a path that are not UTF-8; no YAML file can hold them
    with _in_memory(written) as path:
        assert load({"config": [path]}).configuration == loaded


def worker(data: bytes) -> None:
    """The channel between control process and workers, both directions: `GarbledError`, or frames. A decoded frame has
    the same bytes when it is encoded again."""
    step, stream = (data[0] or 256, data[1:]) if data else (1, b"")
    for kind in (channel.Request, channel.Report):
        decoder: channel.Decoder[Any] = channel.Decoder(kind)
        try:
            for start in range(0, len(stream), step):
                for frame, descriptors in fed(decoder, stream[start : start + step]):
                    assert 0 <= descriptors <= channel.DESCRIPTORS_LIMIT
                    written = channel.encode(frame, descriptors)
                    ((again, beside),) = fed(channel.Decoder[Any](kind), written)
                    assert channel.encode(again, beside) == written
        except channel.GarbledError as error:
            _said(error)


def fed(decoder: channel.Decoder[Any], data: bytes) -> Iterator[tuple[Any, int]]:
    """The frames that these bytes complete."""
    while data:
        room = decoder.room
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        data = data[taken:]
        yield from decoder.frames(taken)


def packet_log(data: bytes) -> None:
    """The kernel's packet log, with packets of any host: SYNs that can be sent again, failures, or nothing.
    The same bytes as a single packet; and as a message between the control process and the rescue process."""
    resends = Resends()
    logged = list(nflog.packets(data))
    assert nflog.may_report(data) or not any(each.reported for each in logged)
    assert [packet for _, packet in nflog.copies(data)] == [each.packet for each in logged if not each.reported]
    resends.copied(data, nflog.count(data), 0.0)
    for number, packet in enumerate([data, *(each.packet for each in logged)]):
        found, now = parse_packet(packet), float(number)
        if isinstance(found, Syn):
            resent = again(found)
            assert resent is None or parse_packet(resent) == found._replace(packet=resent)
            resends.refused(Refusal(found.service, found.client, found.last), now)
            resends.refused_client(Refused(found.client, found.service, found.last), now)
        elif isinstance(found, Refusal):
            resends.refused(found, now)
        elif isinstance(found, Refused):
            resends.refused_client(found, now)
        elif found is not None:
            resends.unreachable(found, now)
            assert found.payload is None or found.payload in packet
        for sent in resends.due(now + 1):
            assert isinstance(parse_packet(sent.data), Syn)
    for decode_message in (rescue_protocol.decode_message, rescue_protocol.decode_order):
        with contextlib.suppress(rescue_protocol.GarbledMessageError):
            decode_message(data)


def conntrack(data: bytes) -> None:
    """Output of ctnetlink: flows with valid addresses and ports, each of which a request can delete. The same as a dump
    for counting, and as events of ends: each record can be counted, attributed and logged."""
    flow_records.end_of_dump(data)
    owners, totals = FlowOwners(lambda traffic: None, frozenset), FlowTotals()
    owners.use(RuleSet())
    name = FrontendName(ServicePortName("", "", ""), Family.IPV4)
    for kind in (flow_records.NEW, flow_records.DELETE):
        found = list(flow_records.records(data, kind))
        assert found == list(flow_records.records(data, kind)), "another result by a layout that is known"
        totals.begin()
        for record in found:
            assert owners.of(record) is None
            totals.seen(name, record)
            totals.ended(name, record)
            line = as_ended(record, name, {}, now=1.0)
            assert line.duration_s is None or line.duration_s >= 0
            access_log.text_line(replace(line, began=0.0, duration_s=None))
        totals.finish()
    for message in parse(data):
        assert isinstance(message.error, int)
        flow = messages.parse_flow(message)
        if flow is not None:
            canonical_or_mapped(flow.address)
            for number in (flow.source_port, flow.port, flow.target_port):
                port(number, least=0)
            messages.delete_request(flow, 1)


def canonical_or_mapped(address: str) -> None:
    """Check an address. The kernel also tracks addresses that no Service can have."""
    if not address.lower().startswith("::ffff:"):
        canonical([address])  # type: ignore[list-item]


def nft(data: bytes) -> None:
    """Elements of a map in our table, whatever the kernel lists: a table from which there is a way to any other."""
    sets = {name: Listed(kind.listed, entries(kind.listed, [])) for name, kind in KINDS.items()}

    def slots(name: str, where: Element, count: int) -> PackedTargets:
        if len(data) < 8 * count:
            raise ValueError("a slot is missing")
        return PackedTargets(data[: 8 * count], Family.IPV4)

    for name in ("redirects4", "spreads4", "spreads6", "internal_sources4", "admitted6"):
        listed = Listed(KINDS[name].listed, entries(KINDS[name].listed, [data]))
        table = table_of(Listing({**sets, name: listed}, HOOKS, {}, slots))
        nftables_table.difference(table, RuleSet())


def stream(data: bytes) -> None:
    """Documents of a command: objects or `ObjectError`; the same in pieces of any length, and once printed."""
    step, data = (data[0] or 256, data[1:]) if data else (1, b"")
    step = max(step, len(data) // MOST_PIECES)
    documents, ended = _documents(data, len(data) or 1)
    again, ended_again = _documents(data, step)
    assert (documents, ended) == (again, ended_again)
    for document in documents:
        for found, duplicates in decode.objects(document, "it"):
            assert all(len(text) <= LONGEST_MESSAGE for text in duplicates)
            if isinstance(found, ObjectError):
                _faulty(found)
                continue
            assert all(isinstance(text, str) for text in (found.name, found.kind, found.namespace, found.label))
            found.encoded()
            found.position.of_field(found.text, ("metadata", "labels"))
            printed = f"{yaml_text(found.data)}---\n{indented_json(found.data)}\n".encode()
            for written in _documents(printed, 4096)[0]:
                (value,), more = decode.parse(written.text, 1, is_json=written.is_json)
                assert value == found.data, written
                assert not more


def _documents(data: bytes, step: int) -> tuple[list[Document], str]:
    """The documents, and how the stream ended."""
    splitter = Splitter("it", max_document=LONGEST_DOCUMENT)
    found: list[Document] = []
    try:
        for start in range(0, len(data), step):
            found += splitter.feed(data[start : start + step])
        found += splitter.end()
    except ObjectError as error:
        _faulty(error)
        return found, str(error)
    return found, ""


def mapper(data: bytes) -> None:
    """A server's resources and their fields: `GarbageError`, or a catalog that finds each of them."""
    first, _, rest = data.partition(b"\n")
    catalogs = []
    for read_catalog in (
        discovery.parse_aggregated,
        lambda body: Catalog(tuple(discovery.parse_resources(body, "g", "v1"))),
    ):
        try:
            catalogs.append(read_catalog(rest))
        except GarbageError as error:
            _said(error)
    for split in (discovery.parse_versions, discovery.parse_groups):
        with contextlib.suppress(GarbageError):
            split(rest)
    text = first.decode("utf-8", "replace")
    for catalog in catalogs:
        index = Index(catalog)
        for resource in catalog.resources:
            assert index.kind(resource.group_version, resource.kind) is not None
            path = resource.path(text, text)
            assert path.startswith(("/api/", "/apis/"))
            assert not {"", ".", ".."} & set(path.strip("/").split("/")), path
            assert path.isascii()
            assert path.isprintable()
    for read_text in (parse_selector, JsonPath):
        with contextlib.suppress(ConfigError):
            read_text(text)
    with contextlib.suppress(GarbageError):
        schemas = openapi.parse(rest)
        for key in schemas.kinds:
            group, version, kind = key.split("/", 2)
            sample = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": 1}, "spec": {"a": [None]}}
            assert all(len(fault.message) <= LONGEST_MESSAGE for fault in validate(sample, schemas))


def host(data: bytes) -> None:
    """A request to the metrics server: its page on the first line, the values of Host after it. On loopback, the
    server refuses the name of another host. Other hosts get open pages only, unless it is public."""
    page, *hosts = data.decode("utf-8", "surrogateescape").split("\n")
    ours = frozenset({"node-1"})
    for public in (False, True):
        access = Access(names=ours, public=public)
        for from_loopback in (False, True):
            refusal = access.refusal(page, hosts, from_loopback=from_loopback)
            if refusal is not None:
                assert refusal.status in (403, 421)
                continue
            assert page in OPEN_PAGES or from_loopback or public
            if from_loopback or page not in OPEN_PAGES:
                for name in map(host_name, hosts):
                    assert name is not None
                    if name not in ("localhost", "node-1"):
                        ipaddress.ip_address(name)


def talk(data: bytes) -> None:
    """A message of a new instance or an orphaned worker: objects line by line, or `ValueError` and the end."""
    asyncio.run(_talk(data))
    for line in data.split(b"\n"):
        orphan._decode(line)


async def _talk(data: bytes) -> None:
    decoders: list[msgspec.json.Decoder[takeover_messages.TakeoverMessage]] = [
        protocol.HELLOS,  # type: ignore[list-item]
        protocol.FIRST_ANSWERS,  # type: ignore[list-item]
        protocol.PROOFS,  # type: ignore[list-item]
        protocol.REQUESTS,  # type: ignore[list-item]
        protocol.ANSWERS,  # type: ignore[list-item]
    ]
    for decoder in decoders:
        reader = asyncio.StreamReader(limit=takeover_messages.LINE_BYTES)
        reader.feed_data(data)
        reader.feed_eof()
        try:
            while (message := await protocol.receive(reader, decoder)) is not None:
                assert takeover_messages.decode(takeover_messages.encode(message), decoder) == message
        except ValueError as error:
            _said(error)


TARGETS: Final[Mapping[str, Target]] = {
    target.__name__: target
    for target in (
        watch,
        pages,
        refusals,
        manifests,
        configuration,
        command_line,
        worker,
        conntrack,
        packet_log,
        nft,
        host,
        talk,
        stream,
        mapper,
    )
}
