"""A backend: answers every request with its own name, `/slow` after a second,
`/client` with the address of its client. `backend.py NAME ADDRESS PORT`"""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer


class Handler(BaseHTTPRequestHandler):
    """Answers with the name of the backend."""

    name = ""

    def do_GET(self) -> None:
        """Answer with the name and a newline."""
        if self.path == "/slow":
            time.sleep(1)
        body = f"{self.client_address[0] if self.path == '/client' else self.name}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing: the story has the output."""


class Server(ThreadingTCPServer):
    """Serves many clients at once. (http.server's own would look its address up in the DNS, and there is no DNS
    here.)"""

    allow_reuse_address = True
    request_queue_size = 128
    daemon_threads = True


if __name__ == "__main__":
    Handler.name = sys.argv[1]
    Server((sys.argv[2], int(sys.argv[3])), Handler).serve_forever()
