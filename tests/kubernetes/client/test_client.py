"""The client against recorded answers, faults, and all forms of configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kubeproxy.kubernetes.client import policy
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import ClientSettings
from kubeproxy.kubernetes.client.errors import (
    AheadError,
    ApiError,
    ExpiredError,
    ForbiddenError,
    GarbageError,
    OverloadedError,
    StatusError,
    UnauthorizedError,
    UnreachableError,
)
from kubeproxy.model.errors import ConfigError
from kubeproxy.model.version import __version__
from tests.kubernetes.harness import connected, kubeconfig
from tests.support.apiserver import ApiServer, Cluster, Fault
from tests.support.apiserver.recordings import TLS, Exchange, exchange, exchanges, server_tls, stream, streams
from tests.support.apiserver.replay import ReplayServer

ANSWERED = [found for found in exchanges("v1.*/*/*") if found.status == 200 and found.body.startswith(b"{")]
REFUSED = [found for found in exchanges("v1.*/*/*") if found.status >= 400]
STREAMS = [found for found in streams("v1.*/watch/*") if found.status == 200]


async def lines_of(client: Client, path: str = "/watch") -> list[bytes]:
    found = []
    async with client.stream(path, {"watch": "true"}, silence_s=5) as lines:
        async for line in lines:
            found.append(line)
    return found


# Recorded


@pytest.mark.parametrize("recorded", ANSWERED, ids=lambda recorded: recorded.name)
async def test_recorded_answers_are_read_completely(recorded: Exchange) -> None:
    async with ReplayServer([recorded]) as server, connected(server.url) as client:
        assert await client.get_json("/any") == recorded.body


@pytest.mark.parametrize("recorded", REFUSED, ids=lambda recorded: recorded.name)
async def test_recorded_refusals_name_url_and_reason(recorded: Exchange) -> None:
    async with ReplayServer([recorded]) as server, connected(server.url) as client:
        with pytest.raises(ApiError) as caught:
            await client.get_json("/some/path")
        assert caught.value.status == recorded.status
        assert f"{server.url}/some/path answered {recorded.status}" in str(caught.value)
        kinds = {
            401: UnauthorizedError,
            403: ForbiddenError,
            410: ExpiredError,
            429: OverloadedError,
            503: OverloadedError,
        }
        ahead = AheadError if b"ResourceVersionTooLarge" in recorded.body else StatusError
        assert type(caught.value) is kinds.get(recorded.status, ahead)
        if after := recorded.headers.get("Retry-After"):
            assert caught.value.retry_after_s == float(after)
        with pytest.raises(ApiError):
            await lines_of(client)


@pytest.mark.parametrize("pieces", [(), (1,), (7, 1, 200), (2372, 68), (16384,)], ids=str)
async def test_recorded_streams_arrive_line_by_line(pieces: tuple[int, ...]) -> None:
    for recorded in STREAMS:
        if pieces == (1,) and len(recorded.body) > 2_000:
            continue  # each byte is a turn of both event loops; (7, 1, 200) has the long ones
        async with ReplayServer([recorded], pieces=pieces) as server, connected(server.url) as client:
            if recorded.cut:
                with pytest.raises(UnreachableError) as caught:
                    await lines_of(client)
                assert caught.value.cause == "cut"
                assert str(caught.value) == f"{server.url}/watch: the answer was cut off before its end"
            else:
                assert await lines_of(client) == recorded.lines


async def test_a_refused_watch_raises() -> None:
    refused = stream("v1.20/watch/services-initial-events.ndjson")
    async with ReplayServer([refused]) as server, connected(server.url) as client:
        with pytest.raises(ApiError, match="422"):
            await lines_of(client)


async def test_no_response_at_all() -> None:
    silent = exchange("v1.36/errors/no-response-list-timeout-3s.json")
    assert silent is not None
    async with ReplayServer([silent]) as server, connected(server.url) as client:
        with pytest.raises(UnreachableError, match="without an answer") as caught:
            await client.get_json("/list")
        assert caught.value.cause == "no response"


async def test_plain_http_to_a_tls_port() -> None:
    answer = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    async with ReplayServer([answer]) as server, connected(server.url) as client:
        with pytest.raises(ApiError, match="Client sent an HTTP request to an HTTPS server"):
            await client.get_json("/api")


async def test_a_connection_is_reused_after_a_complete_answer() -> None:
    quiet = stream("v1.36/watch/services-timeout-5s.ndjson")
    async with ReplayServer([quiet]) as server, connected(server.url) as client:
        for _ in range(3):
            assert await lines_of(client) == []
        assert server.connections == 1


# Wrong


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>Sign in</html>", GarbageError, "text/html.*Sign in"),
        (b"HTTP/1.1 502 Bad\r\nContent-Type: text/html\r\n\r\n<h1>Bad gateway</h1>", ApiError, "502.*Bad gateway"),
        (b"HTTP/1.1 302 Found\r\nLocation: https://login/\r\n\r\n", ApiError, "302|redirect to https://login/"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n", UnreachableError, "could not be understood"),
        (b"", UnreachableError, "without an answer"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
            UnreachableError,
            "cut off",
        ),
    ],
)
async def test_answers_of_other_servers_are_garbage(answer: bytes, kind: type[ApiError], message: str) -> None:
    async with ReplayServer([answer]) as server, connected(server.url) as client:
        with pytest.raises(kind, match=message):
            await client.get_json("/apis")
        with pytest.raises(kind, match=message):
            await lines_of(client)


async def test_a_closed_port_is_unreachable() -> None:
    async with ReplayServer([b""]) as server:
        url = server.url
    async with connected(url) as client:
        with pytest.raises(UnreachableError, match="connection refused") as caught:
            await client.get_json("/apis")
        assert caught.value.cause == "refused"
        assert str(caught.value) == f"{url}/apis: connection refused", "and not the library's words for it"


async def test_a_name_that_does_not_resolve() -> None:
    async with connected("http://no-such-host.invalid:6443") as client:
        with pytest.raises(UnreachableError) as caught:
            await client.get_json("/apis")
        assert caught.value.cause == "name"


async def test_silence_is_a_timeout() -> None:
    async with ApiServer(Cluster()) as server, connected(server.url) as client:
        server.inject(Fault(kind="hang", times=-1))
        with pytest.raises(UnreachableError, match="no answer in time"):
            async with client.stream("/api/v1/services", {"watch": "true"}, silence_s=0.1):
                pass


async def test_an_endless_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ApiServer(Cluster()) as server, connected(server.url) as client:
        server.inject(Fault(kind="endless", times=-1))
        with pytest.raises(GarbageError, match="more than 100000 bytes"):
            await client.get_json("/api/v1/services", max_bytes=100_000)
        monkeypatch.setattr(policy, "ANSWER_S", 0.1)
        async with connected(server.url) as hasty:
            with pytest.raises((UnreachableError, GarbageError)):
                await hasty.get_json("/api/v1/services")


async def test_requests_have_user_agent_and_accept_headers() -> None:
    async with ApiServer(Cluster()) as server, connected(server.url) as client:
        await client.get_json("/apis")
        headers = server.requests[0].headers
        assert headers["User-Agent"] == f"kubeproxy/{__version__}"
        assert headers["Accept"] == "application/json"
        assert headers["Accept-Encoding"] == "gzip"
        assert "Authorization" not in headers


async def test_qps_and_burst_are_kept() -> None:
    async with ApiServer(Cluster()) as server, connected(server.url, qps=20.0, burst=2) as client:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(6):
            await client.get_json("/apis")
        assert loop.time() - begun >= 0.19


# Finding the server, and getting in


async def test_a_kubeconfig_with_a_token(tmp_path: Path) -> None:
    async with ApiServer(Cluster(), tokens={"open-sesame"}) as server:
        path = kubeconfig(tmp_path, server.url, {"token": "open-sesame"})
        client = await Client.connect(ClientSettings(kubeconfig=path))
        assert b"APIGroupList" in await client.get_json("/apis")
        await client.close()


async def test_a_kubeconfig_with_a_token_file_that_rotates(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with ApiServer(Cluster(), tokens={"first"}) as server:
        client = await Client.connect(
            ClientSettings(kubeconfig=kubeconfig(tmp_path, server.url, {"tokenFile": str(token)}))
        )
        await client.get_json("/apis")
        token.write_text("second\n")
        server.tokens = {"second"}
        before = len(server.requests)
        await client.get_json("/apis")
        assert len(server.requests) == before + 1, "the new token was there before the old one was refused"
        await client.close()


async def test_the_file_of_a_token_counts_before_the_token_itself(tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with ApiServer(Cluster(), tokens={"of-then"}) as server:
        path = kubeconfig(tmp_path, server.url, {"token": "of-then", "tokenFile": str(file)})
        client = await Client.connect(ClientSettings(kubeconfig=path))
        await client.get_json("/apis")
        server.tokens = {"of-now"}
        file.write_text("of-now")
        before = len(server.requests)
        await client.get_json("/apis")
        assert len(server.requests) == before + 1
        await client.close()


async def test_a_401_makes_the_client_read_its_credentials_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    async with ApiServer(Cluster(), tokens={"first"}) as server:
        client = await Client.connect(
            ClientSettings(kubeconfig=kubeconfig(tmp_path, server.url, {"tokenFile": str(token)}))
        )
        async with client.stream("/api/v1/services", {"watch": "true", "resourceVersion": "1"}, silence_s=5) as old:
            token.write_text("second")
            server.tokens = {"second"}
            await client.get_json("/apis")
            # A watch that was open before lives on in the old session.
            server.cluster.put("services", {"metadata": {"name": "web", "namespace": "demo"}})
            assert b'"ADDED"' in await anext(old)
        server.tokens = {"third"}
        with pytest.raises(UnauthorizedError, match="401"):
            await client.get_json("/apis")
        await client.close()


async def test_a_kubeconfig_with_a_ca(tmp_path: Path) -> None:
    async with ApiServer(Cluster(), tls=server_tls()) as server:
        path = kubeconfig(tmp_path, server.url, certificate_authority=str(TLS / "ca.crt"))
        client = await Client.connect(ClientSettings(kubeconfig=path))
        await client.get_json("/apis")
        await client.close()
        stranger = await Client.connect(ClientSettings(kubeconfig=kubeconfig(tmp_path, server.url)))
        with pytest.raises(UnreachableError, match="TLS failed") as caught:
            await stranger.get_json("/apis")
        assert caught.value.cause == "tls"
        await stranger.close()


async def test_in_cluster_with_a_token_that_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes((TLS / "ca.crt").read_bytes())
    async with ApiServer(Cluster(), tls=server_tls(), tokens={"first"}) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        client = await Client.connect(ClientSettings(service_account=tmp_path))
        assert client.server == server.url
        await client.get_json("/apis")
        (tmp_path / "token").write_text("second\n")
        server.tokens = {"second"}
        await client.get_json("/apis")
        await client.close()


async def test_master_overrides_the_kubeconfig_s_server(tmp_path: Path) -> None:
    async with ApiServer(Cluster(), tokens={"secret"}) as server:
        path = kubeconfig(tmp_path, "http://127.0.0.1:1", {"token": "secret"})
        for master in (server.url, server.url.removeprefix("http://"), server.url + "/"):
            client = await Client.connect(ClientSettings(kubeconfig=path, master=master))
            await client.get_json("/apis")
            assert client.server == server.url
            await client.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "current-context: found nothing"),
        ("{", "line 1"),
        ("[]", "found a list"),
        ("just text", "found a text"),
        ('{"current-context": "a"}', 'the current context "a" of .* does not exist'),
        ('{"current-context": "a", "contexts": [], "clusters": [], "users": []}', 'context "a"'),
        ('{"clusters": [{"name": "a", "cluster": {"insecure-skip-tls-verify": "false"}}]}', 'found the text "false"'),
    ],
)
async def test_an_invalid_kubeconfig_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        await Client.connect(ClientSettings(kubeconfig=str(path)))


async def test_missing_configuration_is_a_configuration_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        await Client.connect(ClientSettings(kubeconfig=str(tmp_path / "none")))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="neither --kubeconfig nor --master"):
        await Client.connect(ClientSettings(service_account=tmp_path))
    (tmp_path / "ca.crt").write_text("no certificate")
    path = kubeconfig(tmp_path, "https://127.0.0.1:1", certificate_authority=str(tmp_path / "ca.crt"))
    with pytest.raises(ConfigError, match="CA"):
        await Client.connect(ClientSettings(kubeconfig=path))
