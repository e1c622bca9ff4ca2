"""The server over real connections: who may ask for what, and what it says when it cannot listen."""

import gzip
import json
import shutil
import socket
import threading
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import pytest

from distsummary.errors import InvalidValueError, MissingExtraError, MissingFileError, RunDirError
from distsummary.view.serve import PORT, Server, serve, token_in
from distsummary.view.served import Served
from tests.patience import PATIENCE_S
from tests.unit.runs.recording import record

pytestmark = pytest.mark.usefixtures("bundle")


@contextmanager
def serving(directory, **settings):
    with Server(Served(directory, every_s=0.0), port=0, **settings) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(PATIENCE_S)


def ask(server: Server, path: str, **headers: str) -> tuple[HTTPResponse, bytes]:
    """GET a path after the token, unless it begins with "/"."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
    try:
        connection.request(
            "GET", path if path.startswith("/") else f"/{server.token}/{path}", headers=headers
        )
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_nothing_is_answered_without_the_token_or_under_another_host_name(tmp_path):
    record(tmp_path / "run")
    with serving(tmp_path) as server:
        for path in (
            "/",
            "/runs",
            "/page.js",
            f"/{server.token}",
            f"/{server.token[:-1]}/runs",
            "/x/data?run=run",
        ):
            answer, body = ask(server, path)
            assert (answer.status, b"the token in the URL is missing" in body) == (403, True), path
        for host in ("evil.example", "127.0.0.1.evil.example", "", "[", "10.0.0.1"):
            answer, body = ask(server, "runs", Host=host)
            assert (answer.status, b"no name of this machine" in body) == (403, True), host
        for host in ("localhost", "LOCALHOST:9000", "127.0.0.1:9", "[::1]:80"):  # a tunnel has another port
            assert ask(server, "runs", Host=host)[0].status == 200, host


def test_pages_and_data_are_answered_and_nothing_else(tmp_path, bundle):
    record(tmp_path / "run")
    with serving(tmp_path) as server:
        answer, body = ask(server, "?run=run")
        assert (answer.status, b'<script src="page.js">' in body) == (200, True)
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
        assert ask(server, "page.js")[1] == b"'use strict'"
        ask(server, "data?run=run")
        assert json.loads(ask(server, "progress")[1]) == {"text": "reducing curve", "done": 2, "total": 2}
        for name in ("data", "curve"):
            answer, _ = ask(server, f"{name}?run=run&tag=loss&rank=0")
            assert (answer.status, answer.headers["Content-Encoding"]) == (200, "gzip")
            again, body = ask(
                server, f"{name}?run=run&tag=loss&rank=0", **{"If-None-Match": answer.headers["ETag"]}
            )
            assert (again.status, body) == (304, b"")
        for path, said in {
            "data?run=../run": "there is no run '../run' here",
            "data": "there is no run '' here",
            "curve?run=run&tag=x&rank=0": "tag must be one that was recorded, got 'x'; the nearest are",
            "curve?run=run&tag=loss&rank=-1": "rank must be a whole number, got '-1'",
            "curve?run=run&tag=loss&rank=4": "rank must be 'merged', None or one of 0, got 4",
            "run/run.json": "there is no such page",
            "../../etc/passwd": "there is no such page",
        }.items():
            answer, body = ask(server, path)
            assert (answer.status, said in body.decode()) == (404, True), (path, body)
        answer, body = ask(server, "filter?where=nme+~+'r'")
        assert (answer.status, body.decode().splitlines()[1:]) == (400, ["  nme ~ 'r'", "  ^"])
        assert gzip.decompress(ask(server, "filter?where=name+~+'r'")[1]) == b'["run"]'


def change(server: Server, changes: object, run: str = "run", **headers: str) -> tuple[int, str]:
    """POST changes of a run."""
    body = changes if isinstance(changes, bytes) else json.dumps(changes).encode()
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
    try:
        path = f"/{headers.pop('token', server.token)}/labels?run={run}"
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_run_is_changed_with_edit_alone(tmp_path):
    record(tmp_path / "run")
    with serving(tmp_path) as server:
        assert ask(server, "edit")[1] == b"false"
        assert change(server, {"name": "a"})[0] == 403
    with serving(tmp_path, edit=True) as server:
        ask(server, "runs")
        assert ask(server, "edit")[1] == b"true"
        assert change(server, {"name": "best", "add": ["x"], "notes": "two\nlines"}) == (200, "{}")
        for changes, headers, status, said in (
            ({"name": "a"}, {"token": "0" * 32}, 403, "token"),
            ({"name": "a"}, {"Host": "evil.example"}, 403, "no name of this machine"),
            ({"name": "a"}, {"Content-Type": "text/plain"}, 400, "must be JSON"),
            (b"{", {}, 400, "is not JSON"),
            (b"[]", {}, 400, "is not what it should be"),
            (b" " * (1 << 18), {}, 413, "may have"),
            ({"name": 3}, {}, 400, "name must be"),
            ({"name": ""}, {}, 404, "name must be 1 to 200"),
            ({"path": "x"}, {}, 404, "unknown key 'path'"),
            ({"name": "a"}, {"run": "../run"}, 404, "there is no run"),
        ):
            found = change(server, changes, **headers)
            assert (found[0], said in found[1]) == (status, True), (changes, headers, found)
        found = json.loads(gzip.decompress(ask(server, "runs")[1]))["columns"]
        assert (found["name"], found["tags"], found["notes"]) == (["best"], [["x"]], ["two\nlines"])


def test_a_tab_that_asks_again_gets_what_is_new_and_is_reported_that_the_run_is_gone(tmp_path):
    record(tmp_path / "run")
    with serving(tmp_path) as server:
        first, before = ask(server, "data?run=run")
        assert ask(server, "data?run=run", **{"If-None-Match": first.headers["ETag"]})[0].status == 304
        record(tmp_path / "run", steps=range(6, 9), first_seq=6)
        later, body = ask(server, "data?run=run", **{"If-None-Match": first.headers["ETag"]})
        assert later.status == 200
        assert [b'"steps":[1,5]' in gzip.decompress(before), b'"steps":[1,8]' in gzip.decompress(body)] == [
            True
        ] * 2
        shutil.rmtree(tmp_path / "run")
        gone, said = ask(server, "data?run=run")
        assert (gone.status, b"run was removed while it was read" in said) == (410, True)


def test_a_damaged_run_json_hides_nothing_but_the_states(tmp_path):
    record(tmp_path / "run")
    (tmp_path / "run/run.json").write_text("{")
    with serving(tmp_path) as server:
        found = json.loads(gzip.decompress(ask(server, "runs")[1]))
        assert found["columns"]["state"] == ["unreadable"]
        assert ask(server, "data?run=run")[0].status == 200


def test_a_port_in_use_is_reported_and_another_is_taken_if_none_was_named(tmp_path):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", PORT))
            taken.listen()
        except OSError:
            pass  # another program has it: as good
        with pytest.raises(RunDirError, match=f"port {PORT} of 127.0.0.1 is in use by another program; name"):
            serve(tmp_path, port=PORT)
        with serve(tmp_path) as server:
            assert urlsplit(server.url).port == server.server_port != PORT


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1", "", "\udc80"])
def test_a_host_of_another_machine_is_refused(tmp_path, host):
    with pytest.raises(InvalidValueError, match="host must be a name or address of this machine"):
        serve(tmp_path, host=host)


def test_another_host_is_answered_under_its_own_names_only(tmp_path):
    with serve(tmp_path, host="0.0.0.0", port=0) as server:
        assert not server.is_local
        assert urlsplit(server.url).hostname == socket.gethostname().lower()
        assert server.is_own(socket.gethostname())
        assert server.is_own("192.0.2.1:80")
        assert not server.is_own("evil.example")


def test_without_a_front_end_it_does_not_start(tmp_path, bundle):
    (bundle / "page.js").unlink()
    with pytest.raises(MissingExtraError, match="run: make front"):
        serve(tmp_path)


def test_behind_a_proxy_it_has_the_public_name_and_a_token_that_stays(tmp_path, monkeypatch):
    record(tmp_path / "run")
    (tmp_path / "token").write_text(f"{'x' * 20}\n")
    monkeypatch.setenv("DISTSUMMARY_TOKEN", "y" * 20)
    assert (token_in(None), token_in(tmp_path / "token")) == ("y" * 20, "x" * 20)
    settings = {"public_url": "https://runs.example.org/ds/", "token": token_in(tmp_path / "token")}
    with serving(tmp_path, **settings) as server:
        assert server.url == f"https://runs.example.org/ds/{'x' * 20}/"
        for path in (f"/{'x' * 20}/runs", f"/ds/{'x' * 20}/runs"):  # a proxy passes the path on, or not
            assert ask(server, path, Host="runs.example.org")[0].status == 200
        assert ask(server, "runs", Host="evil.example")[0].status == 403
    with pytest.raises(MissingFileError, match="write a token into it"):
        token_in(tmp_path / "none")
    with pytest.raises(RunDirError, match="cannot be read"):
        token_in(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [{"token": "short"}, {"token": "x" * 20 + "/"}, {"token": ""}, {"public_url": "runs.example.org"},
     {"public_url": "ftp://a"}, {"public_url": "https://a/?b"}, {"public_url": "https://[a"},
     {"public_url": ""}],
)  # fmt: skip
def test_a_wrong_token_or_public_url_is_refused(tmp_path, settings):
    [name] = settings
    with pytest.raises(InvalidValueError, match=f"{name} must be "):
        serve(tmp_path, port=0, **settings)
