"""Where alerts are sent: a URL is checked, and an alert is posted to it as its server takes it."""

import base64
import json
import re
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from distsummary.base.redaction import redacted
from distsummary.diagnosis.alerts import level_in
from distsummary.diagnosis.verdict import ERROR, INFO, WARNING
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.json_values import plain

Alert = Mapping[str, Any]

POST_S = 5.0  # a server that does not answer within it has not taken the alert
# What servers take, by the names of their hosts, which may have more labels before them.
_SLACK = ("hooks.slack.com", "hooks.slack-gov.com")
_DISCORD = ("discord.com", "discordapp.com")
_TEAMS = ("webhook.office.com", "outlook.office.com")  # connectors, which Microsoft ends
_TEAMS_WORKFLOWS = ("logic.azure.com", "logic.azure.us", "powerplatform.com")
_MOST = 2000  # characters that Discord takes
_COLOURS = {INFO: "accent", WARNING: "warning", ERROR: "attention"}  # of Teams' adaptive cards


def check_on_alert(on_alert: object, *, aggregate: bool) -> None:
    """Raise InvalidTypeError or InvalidValueError for anything but None, a function and a URL.

    `aggregate`: whether what the ranks record is judged while they train.
    """
    if on_alert is None:
        return
    if not callable(on_alert):
        if not isinstance(on_alert, str):
            raise InvalidTypeError(f"on_alert must be a function or a URL, got {on_alert!r}")
        if not _is_url(on_alert):
            raise InvalidValueError(
                "on_alert must be a function or a URL with a host that begins with http:// or https://, "
                f"got {redacted(on_alert)!r}"
            )
    if not aggregate:
        raise InvalidValueError(
            "on_alert needs the aggregator, which judges the ranks while they train, got aggregate=False; "
            "leave aggregate out"
        )


def _is_url(text: str) -> bool:
    """Whether alerts can be posted to a text: a scheme, a host, a port that there may be, no spaces."""
    try:
        url = urlsplit(text)
        is_whole = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
    return is_whole and text.isprintable() and " " not in text


def send(to: str, alert: Alert) -> None:
    """Post an alert to a URL; raises OSError if the server does not take it within POST_S.

    A login in the URL is sent as Basic authentication.
    """
    url = urlsplit(to)
    # urllib does not accept a login in a URL, so it becomes a header.
    login, _, host = url.netloc.rpartition("@")
    headers = {"Content-Type": "application/json", "User-Agent": "distsummary"}
    if login:
        headers["Authorization"] = f"Basic {base64.b64encode(unquote(login).encode()).decode()}"
    data = json.dumps(plain(payload(to, alert))).encode()
    request = urllib.request.Request(url._replace(netloc=host).geturl(), data, headers)
    with urllib.request.build_opener(_NoRedirects).open(request, timeout=POST_S):
        pass


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A server that sends the alert elsewhere has not taken it: no other host gets it, nor its login."""

    def redirect_request(self, *_: Any) -> None:  # Any: six arguments that do not matter
        """None: the response is an error."""


def payload(url: str, alert: Alert) -> dict[str, Any]:
    """An alert as the server of a URL takes it: Slack, Discord or Teams by the host, else as it is."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    head, where = f"distsummary: {level_in(alert)}", str(alert["run_dir"])
    said = str(alert["text"]).removeprefix("distsummary: ")
    is_discord = _is_of(host, _DISCORD)
    if _is_of(host, _SLACK) or (is_discord and parts.path.rstrip("/").endswith("/slack")):
        text = f"{head}: {said}\n{where}"
        # Slack takes these three characters escaped.
        return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    if is_discord:
        # Discord takes Markdown, whose characters are escaped.
        text = re.sub(r"([*_~`|\\])", r"\\\1", f"{head}: {said}\n{where}")
        text = text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
        return {"username": "distsummary", "content": text, "allowed_mentions": {"parse": []}}
    if _is_of(host, _TEAMS):
        return {"title": head, "text": f"{said}\n\n{where}"}
    if _is_of(host, _TEAMS_WORKFLOWS):
        blocks: list[dict[str, Any]] = [
            {"text": head, "weight": "Bolder", "color": _COLOURS[level_in(alert)]},
            {"text": said},
            {"text": where, "isSubtle": True},
        ]
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": [{"type": "TextBlock", "wrap": True, **block} for block in blocks],
        }
        kind = "application/vnd.microsoft.card.adaptive"
        return {
            "type": "message",
            "attachments": [{"contentType": kind, "contentUrl": None, "content": card}],
        }
    return dict(alert)


def _is_of(host: str, names: tuple[str, ...]) -> bool:
    return any(host == name or host.endswith(f".{name}") for name in names)
