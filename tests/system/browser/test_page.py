"""The status page of a live daemon, in a browser, with one endpoint that refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import Daemon
from tests.support.lab.daemon import METRICS
from tests.system.browser.chromium import Chromium, chromium
from tests.system.browser.shop import EJECTED, WEB, Shop, ask, open_shop

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(chromium() is None, reason="needs a browser (Debian's package chromium)"),
]

URL = f"http://{METRICS[0]}:{METRICS[1]}/statusz"
SERVICES = 60
"""More than one page of them."""
NAMES = "[...document.querySelectorAll('#services li')].map(row => row.dataset.service)"
SHOWN = "document.querySelectorAll('#services li').length"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with open_shop(tmp_path_factory.mktemp("manifests"), services=SERVICES) as opened:
        yield opened


@pytest.fixture
def browser(shop: Shop) -> Iterator[Chromium]:
    with Chromium(shop.network.node) as opened:
        opened.open(URL)
        opened.wait_for(f"{SHOWN} === 50")
        yield opened
        assert opened.errors == []
        assert {url for url in opened.seen.requests if not url.startswith((URL, "data:image/svg+xml"))} == set()


def web(browser: Chromium, expression: str) -> str:
    return f"(row => row && {expression})(document.querySelector('[data-service=\"shop/web\"]'))"


def test_the_page_shows_the_ejected_endpoint_first(shop: Shop, browser: Chromium) -> None:
    for _ in range(3):
        ask(shop.network, WEB)
    title = browser.wait_for(web(browser, "row.querySelector('.dots .dot.ejected, .dots .dot.probing')?.title"))
    assert title.startswith(EJECTED)
    assert browser.evaluate(NAMES)[:2] == ["shop/web", "billing/reports"]
    assert browser.evaluate("document.getElementById('health').textContent").startswith("healthy")
    assert "refuses" in browser.evaluate(web(browser, "row.querySelector('.note').textContent"))
    label = browser.evaluate(web(browser, "row.querySelector('.dots').getAttribute('aria-label')"))
    assert re.search("1 (ejected|probing)", label), label
    assert browser.evaluate(web(browser, "row.querySelector('.details').hidden")) is True
    browser.evaluate(web(browser, "row.querySelector('button').click()"))
    details = browser.evaluate(web(browser, "row.querySelector('.details').innerText"))
    assert EJECTED in details
    assert f"addresses {WEB}:80" in details
    assert browser.evaluate(web(browser, "row.querySelector('button').getAttribute('aria-expanded')")) == "true"


def test_traffic_is_drawn(shop: Shop, browser: Chromium) -> None:
    browser.wait_for("document.getElementById('conn-rate').textContent !== '–'")
    drawn = web(browser, "!row.querySelector('svg.connections').classList.contains('flat')")

    def more() -> str:
        ask(shop.network, WEB)
        return ""

    for _ in range(40):
        more()
    browser.wait_for(drawn, why=more)
    assert browser.evaluate(web(browser, "row.querySelector('svg.connections').getAttribute('aria-label')"))
    assert re.search(r"up to \S+/s", browser.evaluate("document.getElementById('trend-peak').textContent"))
    assert "ago" in browser.evaluate("document.getElementById('trend-began').textContent")


def test_search_sort_filter_and_pages(browser: Chromium) -> None:
    assert browser.evaluate("document.getElementById('range').textContent") == "1–50 of 62"
    browser.evaluate("document.getElementById('next').click()")
    browser.wait_for(f"{SHOWN} === 12")
    browser.press("/")
    assert browser.evaluate("document.activeElement.id") == "search"
    browser.type("10.96.0.2")
    browser.wait_for(f"{NAMES}.join() === 'billing/reports'")
    browser.press("Escape")
    browser.wait_for(f"{SHOWN} === 50")
    browser.evaluate("document.querySelector('[data-state=empty]').click()")
    browser.wait_for(f"{NAMES}.join() === 'billing/reports'")
    assert browser.evaluate("document.querySelector('[data-state=empty]').getAttribute('aria-pressed')") == "true"
    browser.evaluate("document.querySelector('[data-state=empty]').click()")
    sort = "document.getElementById('sort')"
    browser.evaluate(f"{sort}.value = 'name'; {sort}.dispatchEvent(new Event('change'))")
    browser.wait_for(f"{NAMES}.join() === {NAMES}.sort().join() && {SHOWN} === 50")
    browser.evaluate("document.getElementById('search').focus()")
    browser.type("<img src=x onerror=alert(1)>")
    browser.wait_for("!document.getElementById('nothing').hidden")


def test_it_can_be_used_by_keys_alone_and_read_by_machines(browser: Chromium) -> None:
    for tag in ("header", "main", "h1", "h2", "[role=status]", "[role=alert]", "#search[aria-label]", "html[lang]"):
        assert browser.evaluate(f"document.querySelector({tag!r}) !== null"), tag
    assert browser.evaluate("document.querySelectorAll('svg[role=img]:not([aria-label])').length") == 0
    unreachable = "[...document.querySelectorAll('button, input, select')].filter(it => it.tabIndex < 0).length"
    assert browser.evaluate(unreachable) == 0
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    browser.resize(390, 800)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


CONTRAST = """
(() => {
  const luminance = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const poor = [];
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!text || !element.checkVisibility() || element.disabled) continue;
    const [light, dark] = [luminance(getComputedStyle(element).color), luminance(ground(element))]
      .sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const name = `${element.tagName} ${element.className} ${element.textContent.slice(0, 30)}`;
    if (ratio < 4.5) poor.push(`${name}: ${ratio.toFixed(2)}`);
  }
  return poor;
})()
"""
"""Text with less contrast than WCAG 2.1 asks for (1.4.3: 4.5 to 1)."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_day_and_by_night(browser: Chromium, scheme: str) -> None:
    browser.prefer(scheme)
    colour = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == {"light": "rgb(244, 246, 249)", "dark": "rgb(15, 20, 26)"}[scheme]
    browser.evaluate("document.querySelector('#services button').click()")
    assert browser.evaluate(CONTRAST) == []


def test_it_outlives_the_daemon(tmp_path: Path) -> None:
    with open_shop(tmp_path, services=2) as shop, Chromium(shop.network.node) as browser:
        browser.open(URL)
        browser.wait_for(f"{SHOWN} === 4")
        shop.daemon.terminate()
        browser.wait_for("document.body.classList.contains('stale')")
        assert "does not answer" in browser.evaluate("document.getElementById('notice').textContent")
        assert browser.evaluate(SHOWN) == 4
        with Daemon(shop.network.node, manifests=tmp_path):
            browser.wait_for("!document.body.classList.contains('stale')")
            browser.wait_for("document.getElementById('notice').textContent.includes('was restarted')")
