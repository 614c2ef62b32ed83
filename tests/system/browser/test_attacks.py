"""A browser on the node against its own metrics server: rebinding, framing, scripts in names (attack review, 13)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.lab import write_manifest
from tests.support.lab.daemon import METRICS
from tests.system.browser.chromium import Chromium, chromium
from tests.system.browser.shop import Shop, open_shop

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(chromium() is None, reason="needs a browser (Debian's package chromium)"),
]

EVIL = "evil.example"
"""A website: its name resolves to the loopback address when its page asks again (DNS rebinding)."""
ELSEWHERE = ("127.0.0.1", 8088)
"""Where a website of another origin is served."""
STATUS = f"http://{METRICS[0]}:{METRICS[1]}/statusz"
INJECTED = '<img src=x onerror=\\"document.title=1\\"><script>document.title=1</script>'


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with open_shop(tmp_path_factory.mktemp("manifests"), services=4) as opened:
        yield opened


@pytest.fixture
def browser(shop: Shop) -> Iterator[Chromium]:
    with Chromium(shop.network.node, f"--host-resolver-rules=MAP {EVIL} 127.0.0.1") as opened:
        yield opened


@pytest.fixture
def website(shop: Shop) -> Iterator[str]:
    """A page of another origin on the node."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title><body>")

        def log_message(self, *args: object) -> None:
            """Silent."""

    with shop.network.node.entered():
        # A browser opens connections that it may need later; one of them must not keep the server from its end.
        server = ThreadingHTTPServer(ELSEWHERE, Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://{ELSEWHERE[0]}:{ELSEWHERE[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


READ = "fetch('{url}').then(answer => answer.text().then(text => answer.status + ' ' + text), error => 'no: ' + error)"


def test_a_website_that_rebinds_its_name_reads_nothing(browser: Chromium) -> None:
    for path in ("/statusz", "/statusz.json", "/configz", "/metrics", "/trace?to=10.96.0.1:80"):
        browser.open(f"http://{EVIL}:{METRICS[1]}{path}")
        browser.wait_for("document.body && document.body.innerText.includes('The Host header has another host')")
        # What is of its own origin now, the security policy of the refusal keeps from it besides.
        answer = browser.evaluate(READ.format(url=path))
        assert answer.startswith(("no: ", "421 The Host header")), path


def test_a_website_of_another_origin_reads_nothing(browser: Chromium, website: str) -> None:
    browser.open(website)
    browser.wait_for("document.title === 'elsewhere'")
    for path in ("/statusz.json", "/metrics", "/configz"):
        assert browser.evaluate(READ.format(url=STATUS.replace("/statusz", path))).startswith("no: "), path


def test_a_website_cannot_frame_the_page(browser: Chromium, website: str) -> None:
    browser.open(website)
    browser.wait_for("document.title === 'elsewhere'")
    framed = (
        "new Promise(done => {{ const frame = document.createElement('iframe'); frame.onload = () => done('loaded');"
        " frame.src = '{url}'; document.body.append(frame); }})"
    )
    for path in ("/statusz", "/metrics", "/configz"):
        browser.evaluate(framed.format(url=STATUS.replace("/statusz", path)))
    refused = [error for error in browser.errors if "frame-ancestors" in error or "X-Frame-Options" in error]
    for path in ("/statusz", "/metrics", "/configz"):
        assert any(path in error or f":{METRICS[1]}" in error for error in refused), (path, browser.errors)
    assert len(refused) >= 3


def test_what_a_manifest_says_is_no_markup(shop: Shop, browser: Chromium) -> None:
    """Names are checked; annotations, port names and reasons come from others, and a search text from a link."""
    write_manifest(
        shop.manifests / "attack.yaml",
        f"""
apiVersion: v1
kind: Service
metadata:
  name: attack
  namespace: shop
  labels: {{note: plain}}
  annotations: {{service.kubernetes.io/topology-mode: "{INJECTED}", kubeproxy/note: "{INJECTED}"}}
spec:
  clusterIP: 10.96.0.66
  type: LoadBalancer
  externalIPs: ["{INJECTED}"]
  externalName: "{INJECTED}"
  loadBalancerSourceRanges: ["{INJECTED}"]
  ports: [{{name: "{INJECTED}", port: 80}}]
---
apiVersion: v1
kind: Service
metadata: {{name: "{INJECTED}", namespace: shop}}
spec: {{clusterIP: 10.96.0.67, ports: [{{port: 80}}]}}
""",
    )
    browser.open(
        f"{STATUS}?search=%3Cscript%3Edocument.title%3D1%3C%2Fscript%3E#%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"
    )
    browser.wait_for("document.getElementById('health')?.textContent.startsWith('healthy')")
    browser.open(STATUS)
    browser.wait_for("document.body?.innerText.includes('attack')")
    browser.evaluate("document.querySelectorAll('#services button').forEach(button => button.click())")
    assert browser.evaluate("document.title") != "1"
    assert browser.evaluate("document.querySelectorAll('#services script, #services img, body img').length") == 0
    assert browser.errors == []
