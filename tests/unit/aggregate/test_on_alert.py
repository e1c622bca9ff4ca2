"""What rank 0 does with an alert: a function is called, a server gets JSON, and what fails is counted."""

import base64
import json
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import distsummary as ds
from distsummary.aggregate.on_alert import CLOSE_S, OnAlert
from distsummary.diagnosis.alert_sender import check_on_alert, payload
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.rundir.run_dir import RunDir
from distsummary.training.callbacks import CallbackParams, RunContext


def verdict(rank: int, until: int | None = None) -> Verdict:
    return Verdict(rank=rank, cause="data", since_step=3, until_step=until, evidence="slow", reported_step=9)


Quick = partial(OnAlert, look_s=0.01)


@pytest.fixture
def server():
    """An HTTP server on this machine: refuses as many requests as `refusals` says, keeps the others."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.server.asked += 1
            if self.server.asked <= self.server.refusals:
                self.send_error(503)
                return
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", self.server.url)
                self.end_headers()
                return
            self.server.logins.append(self.headers["Authorization"])
            self.server.released.wait()
            self.server.taken.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.taken, server.asked, server.refusals = [], 0, 0
        server.logins, server.released = [], threading.Event()
        server.released.set()
        server.url = f"http://127.0.0.1:{server.server_port}/alerts"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def sent_to(callback: OnAlert, run_dir: RunDir, *verdicts: Verdict) -> None:
    """One training, in which the aggregator reports the verdicts."""
    with callback:
        callback.on_train_begin(RunContext(CallbackParams()))
        for one in verdicts:
            Alerts(run_dir).report(1, one)


def test_a_function_gets_each_alert_of_this_training_once(tmp_path):
    run_dir, got, failures = RunDir(tmp_path).create(), [], []
    Alerts(run_dir).report(0, verdict(7))  # an earlier attempt
    callback = Quick(run_dir, got.append, failures.append)
    sent_to(callback, run_dir, verdict(1), verdict(2), verdict(1, until=20))
    assert [(one["rank"], one["cause"], one["attempt"]) for one in got] == [(1, "data", 1), (2, "data", 1)]
    assert got[1]["text"] == "distsummary: Rank 2 has held up the run since step 3: slow."
    assert got[1]["run_dir"] == str(run_dir.base)
    assert failures == []


def test_a_function_that_raises_is_counted_and_gets_the_next_alert(tmp_path):
    run_dir, ranks, failures = RunDir(tmp_path).create(), [], []

    def fail(alert):
        ranks.append(alert["rank"])
        raise RuntimeError("no network")

    sent_to(Quick(run_dir, fail, failures.append), run_dir, verdict(1), verdict(2))
    assert ranks == [1, 2]
    assert failures == ["on_alert: RuntimeError: no network"] * 2


def test_alerts_that_cannot_be_read_end_no_training_and_are_reported_when_they_can_be(tmp_path):
    run_dir, got, failures, waiting = RunDir(tmp_path).create(), [], [], threading.Event()
    run_dir.alerts_path.mkdir()
    with (callback := Quick(run_dir, got.append, failures.append)):
        callback.on_train_begin(RunContext(CallbackParams()))
        while len(failures) < 2:  # at the begin, and at a look
            waiting.wait(0.01)
        run_dir.alerts_path.rmdir()
        Alerts(run_dir).report(1, verdict(2))
    assert [one["rank"] for one in got] == [2]
    assert {one.split("[")[0] for one in failures} == {"on_alert: IsADirectoryError: "}


def test_a_server_gets_json_also_if_it_refuses_twice(tmp_path, server):
    run_dir, failures, taken = RunDir(tmp_path).create(), [], threading.Event()
    server.refusals = 2
    with (callback := Quick(run_dir, server.url, failures.append)):
        callback.on_train_begin(RunContext(CallbackParams()))
        Alerts(run_dir).report(0, verdict(2))
        while not server.taken and not failures:
            taken.wait(0.01)
    [(kind, alert)] = server.taken
    assert (kind, alert["rank"], alert["evidence"], failures) == ("application/json", 2, "slow", [])


@pytest.mark.parametrize(
    ("path", "reason"), [("/alerts", "503: Service Unavailable"), ("/moved", "302: Found")]
)
def test_a_server_that_never_takes_it_or_is_elsewhere_is_counted(tmp_path, server, path, reason):
    run_dir, failures, waiting = RunDir(tmp_path).create(), [], threading.Event()
    server.refusals = 0 if path == "/moved" else 99
    with (callback := Quick(run_dir, server.url.replace("/alerts", path), failures.append)):
        callback.on_train_begin(RunContext(CallbackParams()))
        Alerts(run_dir).report(0, verdict(2))
        while not failures:
            waiting.wait(0.01)
    assert failures == [f"on_alert: HTTPError: HTTP Error {reason}"]
    assert (server.asked, server.taken) == (3, [])


def test_the_alert_of_the_end_is_tried_again_as_well(tmp_path, server):
    run_dir, failures = RunDir(tmp_path).create(), []
    server.refusals = 2
    sent_to(Quick(run_dir, server.url, failures.append, look_s=0.2), run_dir, verdict(1))
    assert (len(server.taken), server.asked, failures) == (1, 3, [])
    server.refusals = 99
    sent_to(Quick(run_dir, server.url, failures.append), run_dir, verdict(2))
    assert (len(server.taken), failures) == (1, ["on_alert: HTTPError: HTTP Error 503: Service Unavailable"])


def test_a_login_in_the_url_is_sent_and_never_written(tmp_path, server):
    run_dir, failures, waiting = RunDir(tmp_path).create(), [], threading.Event()
    url = server.url.replace("//", "//me:p%40ss@")
    server.refusals = 3
    with (callback := Quick(run_dir, url, failures.append)):
        callback.on_train_begin(RunContext(CallbackParams()))
        Alerts(run_dir).report(0, verdict(1))
        while not failures:
            waiting.wait(0.01)
        Alerts(run_dir).report(0, verdict(2))
    assert server.logins == ["Basic " + base64.b64encode(b"me:p@ss").decode()]
    assert failures == ["on_alert: HTTPError: HTTP Error 503: Service Unavailable"]
    with pytest.raises(InvalidValueError) as caught:
        check_on_alert("ftp://me:p%40ss@host/", aggregate=True)
    assert "p%40ss" not in str(caught.value)


def test_a_server_that_does_not_answer_holds_the_end_for_five_seconds_at_most(tmp_path, server):
    run_dir, failures = RunDir(tmp_path).create(), []
    assert CLOSE_S <= 5.0
    server.released.clear()
    sent_to(Quick(run_dir, server.url, failures.append, close_s=0.02), run_dir, verdict(1))
    assert server.taken == []
    assert failures == ["on_alert: the last alerts were not passed on within 0.02 s"]
    server.released.set()


def test_alerts_that_are_held_back_are_not_passed_on_and_of_too_many_the_count_is(tmp_path):
    run_dir, got, failures = RunDir(tmp_path).create(), [], []
    entry = {"role": "train", "attempt": 1, "incarnation": "", "world_size": 1}
    options = {"mute": ["nan"], "most_per_hour": 2}
    run_dir.update_manifest(lambda manifest: manifest.update(attempts=[entry | {"diagnose": options}]))
    nan = replace(verdict(0), cause="nan", level="error")
    started = replace(verdict(0), cause="started", level="info")
    sent_to(
        Quick(run_dir, got.append, failures.append),
        run_dir, nan, started, *(verdict(rank) for rank in range(1, 6)),
    )  # fmt: skip
    assert [(one["rank"], one["cause"]) for one in got] == [(1, "data"), (2, "data"), (5, "message")]
    assert got[2]["text"].startswith("distsummary: 3 more alerts were held back")
    assert failures == []


ALERT = {
    **verdict(2).as_json(), "time": 1.0, "attempt": 0, "run_dir": "/runs/a&b",
    "text": "distsummary: rank 2: data_time <1>",
}  # fmt: skip
SAID = "distsummary: warning: rank 2: data_time <1>\n/runs/a&b"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "https://hooks.slack.com/services/T0/B0/x",
            {"text": SAID.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")},
        ),
        (
            "https://discord.com/api/webhooks/1/x/slack",
            {"text": SAID.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")},
        ),
        (
            "https://ptb.discord.com/api/webhooks/1/x",
            {
                "username": "distsummary",
                "content": SAID.replace("_", r"\_"),
                "allowed_mentions": {"parse": []},
            },
        ),
        (
            "https://mine.webhook.office.com/webhookb2/x",
            {"title": "distsummary: warning", "text": "rank 2: data_time <1>\n\n/runs/a&b"},
        ),
        ("https://hooks.slack.com.example.org/x", ALERT),
        ("http://127.0.0.1:16330/services/T0/B0", ALERT),
    ],
)
def test_each_server_gets_what_it_takes(url, expected):
    assert payload(url, ALERT) == expected


@pytest.mark.parametrize(
    "host", ["prod-1.westus.logic.azure.com:443", "x.y.environment.api.powerplatform.com"]
)
def test_a_workflow_of_teams_gets_an_adaptive_card(host):
    found = payload(f"https://{host}/workflows/x", ALERT)
    [attachment] = found["attachments"]
    assert (found["type"], attachment["contentType"]) == (
        "message",
        "application/vnd.microsoft.card.adaptive",
    )
    body = attachment["content"]["body"]
    assert [one["text"] for one in body] == ["distsummary: warning", "rank 2: data_time <1>", "/runs/a&b"]
    assert {one["type"] for one in body} == {"TextBlock"}


def test_a_long_text_fits_into_a_message_of_discord():
    found = payload("https://discord.com/api/webhooks/1/x", ALERT | {"text": "x" * 9000})
    assert (len(found["content"]), found["content"][-3:]) == (2000, "...")


def test_slack_gets_its_payload_over_http(tmp_path, server, monkeypatch):
    """The server of the fixture is the proxy by which the host of Slack is reached."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    run_dir, failures, waiting = RunDir(tmp_path).create(), [], threading.Event()
    with (callback := Quick(run_dir, "http://hooks.slack.com/services/x", failures.append)):
        callback.on_train_begin(RunContext(CallbackParams()))
        Alerts(run_dir).report(0, verdict(2))
        while not server.taken and not failures:
            waiting.wait(0.01)
    assert failures == []
    assert server.taken == [
        (
            "application/json",
            {"text": f"distsummary: warning: Rank 2 has held up the run since step 3: slow.\n{run_dir.base}"},
        )
    ]


@pytest.mark.parametrize(
    ("given", "aggregate", "error", "words"),
    [
        (3, True, InvalidTypeError, "on_alert must be"),
        ("hooks.example.org", True, InvalidValueError, "begins with http:// or https://"),
        (print, False, InvalidValueError, "leave aggregate out"),
    ],
)
def test_a_wrong_argument_names_its_remedy(tmp_path, given, aggregate, error, words):
    with pytest.raises(error, match=words):
        check_on_alert(given, aggregate=aggregate)
    with pytest.raises(error, match=words):
        ds.init(tmp_path / "run", on_alert=given, aggregate=aggregate)
