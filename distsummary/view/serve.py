"""The pages of runs over HTTP, for one person on one machine: `distsummary serve`.

Who knows the token in the URL may read; no one may write, but with `edit` the names, tags and notes of runs.
The server listens on this machine alone unless it is given another host, and answers only requests that name
this machine as their host, so that a page of another site, whose name was made to point here, cannot ask.
"""

import errno
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from distsummary.base.checked_json import parse_json
from distsummary.base.checks import check_int
from distsummary.base.columns import cut
from distsummary.base.guard import guarded_log
from distsummary.base.terminal import noted
from distsummary.errors import (
    DamagedFileError,
    DistSummaryError,
    FilterError,
    InvalidTypeError,
    InvalidValueError,
    MissingFileError,
    RunDirError,
    reason,
)
from distsummary.view.report import built
from distsummary.view.served import Response, Served, UnknownRunError

logger = guarded_log(__name__)

HOST = "127.0.0.1"
PORT = 6116
TOKEN_VARIABLE = "DISTSUMMARY_TOKEN"
LEAST = 16  # characters of a token
MOST_BYTES = 1 << 17  # of a request that changes a run
_TOKEN = re.compile(rf"[A-Za-z0-9_-]{{{LEAST},}}")
_IDLE_S = 60.0  # after which a connection without requests is closed
_SCRIPT = "text/javascript; charset=utf-8"
_STATIC = {"page.js": _SCRIPT, "graph.js": _SCRIPT, "page.css": "text/css; charset=utf-8"}
_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>distsummary</title>
<link rel="stylesheet" href="page.css">
</head>
<body>
<div id="app"><p>Reading ...</p><noscript>This page needs JavaScript.</noscript></div>
<script src="page.js"></script>
</body>
</html>
"""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "media-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
# In a frame of TensorBoard, which warns of data: as a source of sounds.
_FRAMED = _HEADERS | {
    "Content-Security-Policy": _HEADERS["Content-Security-Policy"]
    .replace("media-src data:; ", "")
    .replace("frame-ancestors 'none'", "frame-ancestors 'self'")
}


class Server(ThreadingHTTPServer):
    """Listens from its making on; `serve_forever` answers. `url` has the token.

    Args:
        served: what it answers with.
        host: the name or address to listen on.
        port: 0: any free one; None: `PORT`, or any free one if another program has that.
        public_url: under which a proxy passes requests on to this server; its host is answered too.
        token: what the URL must have; None: a new one, which ends with the server.
        edit: who knows the token may also change names, groups, tags and notes.

    Raises RunDirError if the port is in use or may not be used, InvalidValueError for a wrong port, token or
    public URL, or a host that is not of this machine, MissingExtraError if the front end is not built.
    """

    def __init__(
        self,
        served: Served,
        *,
        host: str = HOST,
        port: int | None = None,
        public_url: str | None = None,
        token: str | None = None,
        edit: bool = False,
    ) -> None:
        port = check_int("port", port, low=0, high=65535, optional=True)
        self.served, self.edit = served, edit
        self.files = {name: built(name).encode() for name in _STATIC}
        self.token = secrets.token_hex(16) if token is None else _checked_token(token)
        self._public = None if public_url is None else _checked_url(public_url)
        self._host = host
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise InvalidValueError(
                f"host must be a name or address of this machine, got {host!r} ({error}); "
                f"{HOST} is the default"
            ) from error
        self.address_family, address = found[0][0], found[0][4][0]
        self.is_local = ipaddress.ip_address(str(address).partition("%")[0]).is_loopback
        # If no port was asked for and the usual one is taken, any free one will do.
        for number in (PORT, 0) if port is None else (port,):
            try:
                super().__init__((str(address), number), _Handler)
                break
            except OSError as error:
                if port is None and number and error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                raise _refused(error, host, number) from error

    def server_bind(self) -> None:
        """As of the base class, which would also ask name servers for the full name of the host."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def url(self) -> str:
        """What to open in a browser."""
        if self._public is not None:
            return f"{self._public.geturl()}/{self.token}/"
        name = self._host
        if not self.is_local and name in ("0.0.0.0", "::", ""):
            name = socket.gethostname()
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_port}/{self.token}/"

    def is_own(self, host: str) -> bool:
        """Whether a request's `Host` names this machine.

        The port is not compared: a tunnel has another one at its other end.
        """
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        public = () if self._public is None else (self._public.hostname,)
        if name in ("localhost", self._host.lower(), *public):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            # The host is a name and not an address.
            return not self.is_local and name in (socket.gethostname().lower(), socket.getfqdn().lower())
        # No name server can make a page of another site out of an address.
        return address.is_loopback or not self.is_local

    def path_of(self, path: str) -> str:
        """The path of a request without that of the public URL, which a proxy may leave there."""
        return path.removeprefix("" if self._public is None else self._public.path)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A tab that was closed while it was answered is no error."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            logger.error("a request of %s could not be answered", client_address, exc_info=error)


def serve(
    directory: str | os.PathLike[str],
    *,
    host: str = HOST,
    port: int | None = None,
    public_url: str | None = None,
    token: str | None = None,
    edit: bool = False,
) -> Server:
    """A server of the runs below a directory, which listens and has yet to `serve_forever`.

    Raises the errors of `Served` and `Server`.
    """
    return Server(Served(directory), host=host, port=port, public_url=public_url, token=token, edit=edit)


def token_in(file: str | os.PathLike[str] | None) -> str | None:
    """The token that a file or, without one, DISTSUMMARY_TOKEN of the environment has; None without both.

    It is never an argument of a command, which other users of the machine could read. Raises MissingFileError
    or RunDirError if the file cannot be read.
    """
    if file is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError as error:
        raise MissingFileError(
            f"there is no {os.fspath(file)}; write a token into it, or leave it out"
        ) from error
    except OSError as error:
        raise RunDirError(f"the token file {os.fspath(file)} cannot be read: {reason(error)}") from error


def _checked_token(token: str) -> str:
    if _TOKEN.fullmatch(token) is None:
        raise InvalidValueError(
            f"token must be {LEAST} or more letters, digits, - and _, got {len(token)} characters; "
            "such as: python -c 'import secrets; print(secrets.token_hex(16))'"
        )
    return token


def _checked_url(url: str) -> SplitResult:
    """A public URL without a slash at its end."""
    try:
        parts = urlsplit(url.rstrip("/"))
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or parts.query or parts.fragment or parts.username:
        raise InvalidValueError(f"public_url must be such as https://example.org/runs, got {url!r}")
    return parts


def _number(asked: Mapping[str, str], name: str) -> int | None:
    """A field of a request; None if it is not there. Raises InvalidValueError unless it is a whole number."""
    text = asked.get(name)
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidValueError(f"{name} must be a whole number, got {cut(text, 40)!r}")
    return None if text is None else int(text)


def _refused(error: OSError, host: str, port: int) -> DistSummaryError:
    """Why the server cannot listen there."""
    if error.errno == errno.EADDRINUSE:
        why = "is in use by another program; name another port, or 0 for any that is free"
    elif error.errno == errno.EACCES:
        why = "needs the rights of an administrator; name a port from 1024 on"
    elif error.errno == errno.EADDRNOTAVAIL:
        return InvalidValueError(
            f"host must be a name or address of this machine, got {host!r}; {HOST} is the default"
        )
    else:
        why = f"cannot be used: {error.strerror}"
    return RunDirError(f"port {port} of {host} {why}")


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection; the paths after the token:

    "" (the page: the list or, with ?run=NAME, a run), page.js, graph.js, page.css, runs (the list as JSON),
    filter?where=EXPR (the paths of runs for which it holds, as JSON),
    data?run=NAME&with=OTHER (as often as there are others), curve?run=NAME&tag=TAG (&rank=N: of one),
    step?run=NAME&step=N (&rank=N: is there in any case) and progress (what is read now, as JSON). With
    `edit`, POST labels?run=NAME takes changes as JSON, see `Served.relabel`; GET edit says whether it does.
    """

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "distsummary", ""
    timeout = _IDLE_S

    def do_GET(self) -> None:
        """Answer, or say in a line why not."""
        self._answer_with(self._get)

    def do_POST(self) -> None:
        """Change a run, or say in a line why not."""
        self._answer_with(self._post)

    def _answer_with(self, answer: Callable[[str, Mapping[str, list[str]]], None]) -> None:
        try:
            if (asked := self._asked()) is not None:
                answer(*asked)
        except UnknownRunError as error:
            self._say(
                HTTPStatus.NOT_FOUND, f"there is no run {error.args[0]!r} here; the list has those there are"
            )
        except MissingFileError as error:
            self._say(HTTPStatus.GONE, str(error))
        except (FilterError, InvalidTypeError) as error:
            self._say(HTTPStatus.BAD_REQUEST, str(error))
        except InvalidValueError as error:
            self._say(HTTPStatus.NOT_FOUND, str(error))
        except (DistSummaryError, OSError) as error:
            if isinstance(error, (ConnectionError, TimeoutError)):
                # The browser is gone, and no answer would reach it.
                raise
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except Exception as error:
            logger.exception("%s could not be answered", self.path.partition("/")[2].partition("/")[2])
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    do_HEAD = do_GET

    def _asked(self) -> tuple[str, dict[str, list[str]]] | None:
        """The path after the token and the fields; None after an answer to who may not ask."""
        if not self.server.is_own(self.headers.get("Host", "")):
            self._say(
                HTTPStatus.FORBIDDEN,
                "the host in the URL is no name of this machine; open the URL that distsummary serve "
                "printed, or start it with --host and this name",
            )
            return None
        url = urlsplit(self.path)
        token, slash, name = self.server.path_of(url.path).removeprefix("/").partition("/")
        # The time that this comparison takes reveals nothing of the right token.
        if not slash or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._say(
                HTTPStatus.FORBIDDEN,
                "the token in the URL is missing or not that of this server; open the URL that distsummary "
                "serve printed",
            )
            return None
        return name, parse_qs(url.query, keep_blank_values=True)

    def _get(self, name: str, query: Mapping[str, list[str]]) -> None:
        asked = {key: values[-1] for key, values in query.items()}
        if name == "":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", _HTML.encode())
        elif name in _STATIC:
            self._send(HTTPStatus.OK, _STATIC[name], self.server.files[name])
        elif name == "runs":
            self._send_known("application/json", self.server.served.runs())
        elif name == "filter":
            self._send_known("application/json", self.server.served.filtered(asked.get("where", "")))
        elif name == "edit":
            self._send(HTTPStatus.OK, "application/json", json.dumps(self.server.edit).encode())
        elif name == "data":
            found = self.server.served.page(asked.get("run", ""), query.get("with", []), query.get("by", []))
            self._send_known("application/octet-stream", found)
        elif name == "progress":
            text = json.dumps(dict(zip(("text", "done", "total"), noted(), strict=True)))
            self._send(HTTPStatus.OK, "application/json", text.encode())
        elif name == "curve":
            found = self.server.served.curve(
                asked.get("run", ""), asked.get("tag", ""), _number(asked, "rank")
            )
            self._send_known("application/octet-stream", found)
        elif name == "step":
            found = self.server.served.step(
                asked.get("run", ""), _number(asked, "step") or 0, _number(asked, "rank")
            )
            self._send_known("application/octet-stream", found)
        else:
            self._say(
                HTTPStatus.NOT_FOUND, "there is no such page; open the URL that distsummary serve printed"
            )

    def _post(self, name: str, query: Mapping[str, list[str]]) -> None:
        # What was not read of a request would be taken for the next one.
        self.close_connection = True
        length = self.headers.get("Content-Length", "")
        if name != "labels" or not self.server.edit:
            self._say(
                HTTPStatus.FORBIDDEN, "runs can only be read here; to change them: distsummary serve --edit"
            )
        # Another site can send a form without asking, but no JSON.
        elif self.headers.get("Content-Type") != "application/json" or not length.isdigit():
            self._say(HTTPStatus.BAD_REQUEST, "changes must be JSON, with their length")
        elif int(length) > MOST_BYTES:
            self._say(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"changes may have {MOST_BYTES} bytes")
        else:
            try:
                changes = parse_json(self.rfile.read(int(length)), dict[str, Any], name="the request")
            except DamagedFileError as error:
                raise InvalidTypeError(str(error)) from error
            self.server.served.relabel(query.get("run", [""])[-1], changes)
            self._send(HTTPStatus.OK, "application/json", b"{}")

    def _send_known(self, kind: str, answer: Response) -> None:
        """Send, unless the browser has it."""
        tag = f'"{answer.version}"'
        if self.headers.get("If-None-Match") == tag:
            self._send(HTTPStatus.NOT_MODIFIED, None, b"", {"ETag": tag})
        else:
            self._send(HTTPStatus.OK, kind, answer.data, {"ETag": tag, "Content-Encoding": "gzip"})

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", text.encode(errors="replace"))

    def _send(
        self, status: HTTPStatus, kind: str | None, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | (headers or {})).items():
            self.send_header(name, value)
        if kind is not None:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests only at level debug, without the token."""
        logger.debug("%s", (format % args).replace(self.server.token, "..."))


class Pages:
    """What a WsgiHandler answers with; who may ask is for the other server to decide.

    Raises MissingExtraError if the front end is not built.
    """

    edit, token = False, "run"

    def __init__(self, served: Served) -> None:
        self.served, self.files = served, {name: built(name).encode() for name in _STATIC}

    def is_own(self, host: str) -> bool:
        """Any host is that of the other server."""
        return True

    def path_of(self, path: str) -> str:
        """The path as it is."""
        return path


class WsgiHandler(_Handler):
    """Answers a GET or HEAD request that a WSGI server got, for a page in a frame of that server's page.

    Args:
        pages: what it answers with. name: the path after that of the page. environ: of the request.

    Attributes:
        status, sent, body: the answer, with its headers, once `do_GET` has returned.
    """

    def __init__(self, pages: Pages, name: str, environ: Mapping[str, Any]) -> None:
        self.server = pages  # type: ignore[assignment]  # the part of a Server that answers need
        self.command = environ["REQUEST_METHOD"]
        self.path = f"/{pages.token}/{name}?{environ.get('QUERY_STRING', '')}"
        self.headers = HTTPMessage()
        if known := environ.get("HTTP_IF_NONE_MATCH"):
            self.headers["If-None-Match"] = known
        self.status, self.sent, self.body = "", list[tuple[str, str]](), b""

    def _send(
        self, status: HTTPStatus, kind: str | None, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.status = f"{status.value} {status.phrase}"
        self.body = b"" if self.command == "HEAD" else body
        # A server may want a type of an answer without a body, too.
        always = {"Content-Type": kind or "application/octet-stream", "Content-Length": str(len(body))}
        self.sent = [*(_FRAMED | (headers or {}) | always).items()]
