"""`python -m tests.system.browser PNG...`: take the pictures of the status page that the documentation shows.

Two files: by day and by night. Takes some two minutes, in which there is traffic to be seen.
"""

from __future__ import annotations

import math
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.system.browser.chromium import Chromium
from tests.system.browser.shop import WEB, Shop, ask, open_shop

TRAFFIC_S = 125.0


def clients(shop: Shop, until: threading.Event) -> None:
    """Some are busier than others, and the tide comes and goes."""
    began = time.monotonic()
    step = 0
    while not until.wait(0.03 * (1.3 + math.sin((time.monotonic() - began) / 3))):
        step += 1
        ask(shop.network, WEB if step % 3 else f"10.96.1.{1 + (step * step) % 11}")


def main(day: Path, night: Path) -> None:
    """Take them."""
    with tempfile.TemporaryDirectory() as directory, open_shop(Path(directory)) as shop:
        closing = threading.Event()
        threading.Thread(target=clients, args=(shop, closing), daemon=True).start()
        with Chromium(shop.network.node) as browser:
            browser.resize(1280, 900, scale=1.5)
            browser.open("http://127.0.0.1:10249/statusz")
            browser.wait_for("document.querySelector('#services li') !== null")
            time.sleep(TRAFFIC_S)
            browser.wait_for("document.querySelector('.dot.ejected') !== null")
            browser.evaluate("document.querySelector('#services button').click()")
            browser.evaluate("document.activeElement.blur()")
            for scheme, path in (("light", day), ("dark", night)):
                browser.prefer(scheme)
                path.write_bytes(browser.screenshot())
            print(*browser.errors, sep="\n", end="")
        closing.set()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
