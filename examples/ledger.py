"""A bookkeeping service on the loopback interface: the outside world of the story, out of the store's reach.

Whatever is posted is written to its book, on disk, before anything is answered. It knows no idempotency keys.

    POST /invoices              writes an invoice, and prints a line
    POST /voids                 writes that an invoice is void; a second time it changes nothing
    POST /receipts              422 for an address that cannot be one
    GET  /invoices?order=1001   what the book has of an order; 503 while the search is down
    POST /control               what the story wants of it: {"search": "down"}, {"answers": "held"}

`python -m examples.ledger BOOK` prints its address, then a line for every invoice. It ends when its standard input
does, so that it never outlives whoever started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, quote, urlsplit
from urllib.request import Request, urlopen

LONGEST_BODY = 10_000
PATIENCE = 30.0

Body = dict[str, Any]


class Ledger(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, book: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self._book = book
        self._writing = threading.Lock()
        self.search_is_up = True
        self.may_answer = threading.Event()
        self.may_answer.set()

    def write(self, line: Body) -> None:
        with self._writing, self._book.open("a") as book:
            book.write(json.dumps(line) + "\n")
            book.flush()
            os.fsync(book.fileno())

    def void(self, invoice: str) -> None:
        if invoice not in voided(self._book):
            self.write({"void": invoice})

    def find(self, order: str) -> list[Body]:
        gone = voided(self._book)
        return [line for line in lines(self._book) if line.get("order") == order and line["invoice"] not in gone]


def lines(book: Path) -> list[Body]:
    """The book, as anybody can read it who has the file."""
    return [json.loads(line) for line in book.read_text().splitlines()] if book.exists() else []


def voided(book: Path) -> set[str]:
    return {line["void"] for line in lines(book) if "void" in line}


class Handler(BaseHTTPRequestHandler):
    server: Ledger

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(length)) if 0 < length <= LONGEST_BODY else {}
        if self.path == "/invoices":
            number = f"inv-{body['order']}"
            self.server.write({"invoice": number, "order": body["order"], "cents": body["cents"]})
            print("wrote", body["order"], flush=True)
            self.server.may_answer.wait()
            self._answer(201, {"invoice": number})
        elif self.path == "/voids":
            self.server.void(body["invoice"])
            self._answer(201, {"void": body["invoice"]})
        elif self.path == "/receipts" and "@" not in body["to"]:
            self._answer(422, {"error": f"{body['to']!r} is not an address"})
        elif self.path == "/receipts":
            self._answer(202, {"sent_to": body["to"]})
        elif self.path == "/control":
            self.server.search_is_up = body.get("search") != "down"
            (self.server.may_answer.clear if body.get("answers") == "held" else self.server.may_answer.set)()
            self._answer(200, {})
        else:
            self._answer(404, {"error": "there is no such thing"})

    def do_GET(self) -> None:
        if self.server.search_is_up:
            (order,) = parse_qs(urlsplit(self.path).query)["order"]
            self._answer(200, {"found": self.server.find(order)})
        else:
            self._answer(503, {"error": "the search index is being rebuilt"})

    def _answer(self, status: int, body: Body) -> None:
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


# --- what a client does ------------------------------------------------------------------------------------------


class Refused(Exception):
    """The ledger understood, and said no. Nothing was written."""


def post(url: str, path: str, body: Body) -> Body:
    """What it answers. `Refused` when it says no; OSError when it does not answer, or not sensibly."""
    request = Request(f"{url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return _asked(request)


def search(url: str, order: str) -> list[Body]:
    found: list[Body] = _asked(Request(f"{url}/invoices?order={quote(order)}"))["found"]
    return found


def _asked(request: Request) -> Body:
    try:
        with urlopen(request, timeout=PATIENCE) as response:
            answer: Body = json.load(response)
    except HTTPError as error:
        with error:
            said = json.load(error).get("error", "")
        if error.code == 422:
            raise Refused(said) from None
        raise OSError(f"the ledger answers {error.code}: {said}") from None
    return answer


def main(book: Path) -> None:
    ledger = Ledger(book)
    threading.Thread(target=ledger.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{ledger.server_address[1]}", flush=True)
    sys.stdin.read()
    ledger.may_answer.set()
    ledger.shutdown()
    ledger.server_close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
