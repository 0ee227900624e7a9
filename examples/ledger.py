"""A bookkeeping service on the loopback interface: the outside world of the story, out of the store's reach.

Every invoice that is posted is written to its book, on disk, before anything is answered. Asked whether it has an
invoice, it cannot tell: its search is always down, so only a person who opens the book knows.

    POST /invoices   writes the invoice, prints a line, and answers when it is told to
    GET  /invoices   503

`python -m examples.ledger BOOK` prints its address, then a line for every invoice. A line on its standard input
releases one answer. It ends when its standard input does, so that it never outlives whoever started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

LONGEST_INVOICE = 10_000


class Ledger(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, book: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.book = book
        self.may_answer = threading.Semaphore(0)


class Handler(BaseHTTPRequestHandler):
    server: Ledger

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        if self.path != "/invoices" or not 0 < length <= LONGEST_INVOICE:
            self._answer(400, {"error": "not an invoice"})
            return
        invoice = json.loads(self.rfile.read(length))
        with self.server.book.open("a") as book:
            book.write(json.dumps(invoice, sort_keys=True) + "\n")
            book.flush()
            os.fsync(book.fileno())
        print("wrote", invoice["order"], flush=True)
        self.server.may_answer.acquire()
        self._answer(201, {"invoice": f"inv-{invoice['order']}"})

    def do_GET(self) -> None:
        self._answer(503, {"error": "the search index is being rebuilt"})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # whoever asked is gone; the book keeps what was written

    def log_message(self, format: str, *args: object) -> None:
        """Requests are told by whoever makes them."""


def post(url: str, invoice: dict[str, object], timeout: float) -> dict[str, str]:
    """What a client does. Raises OSError when there is no answer."""
    request = Request(f"{url}/invoices", json.dumps(invoice).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=timeout) as response:
        answer: dict[str, str] = json.load(response)
    return answer


def main(book: Path) -> None:
    ledger = Ledger(book)
    threading.Thread(target=ledger.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{ledger.server_address[1]}", flush=True)
    for _ in sys.stdin:
        ledger.may_answer.release()
    ledger.shutdown()
    ledger.server_close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
