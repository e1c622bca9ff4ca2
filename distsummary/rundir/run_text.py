"""What the manifest says about a run, as a table in Markdown for TensorBoard's page TEXT."""

import re
import time
from collections import Counter
from collections.abc import Iterable

from distsummary.base.columns import as_ranges
from distsummary.rundir.run_dir import Manifest
from distsummary.rundir.states import AttemptState, RankState, RunState

MAX_HOSTS = 16  # that are named
_MARKDOWN = re.compile(r"[&<>|*_`\[\]\\~#]")


def run_text(manifest: Manifest, run: RunState, role: str = "train") -> str:
    """The run, the ranks, hosts, commit and versions of the newest attempt, and all attempts."""
    attempts = [attempt for attempt in run.attempts if attempt.role == role]
    entries = [entry for entry in manifest["attempts"] if entry["role"] == role]
    rows = {"run": str(manifest["run_id"])}
    for entry, attempt in zip(entries[-1:], attempts[-1:], strict=False):
        provenance = entry.get("provenance") or {}
        git, versions = provenance.get("git") or {}, provenance.get("versions") or {}
        rows["ranks"] = f"{entry['world_size']}, {_hosts(attempt.ranks)}"
        if provenance:
            found = [provenance[name] for name in ("python", "platform") if name in provenance]
            rows["python"] = " on ".join(found)
        if git:
            rows["commit"] = f"{git.get('commit', '')}{' with changes' if git.get('dirty') else ''}"
        rows |= {str(name): str(version) for name, version in versions.items()}
    rows |= {f"attempt {attempt.attempt}": _attempt(attempt) for attempt in attempts}
    lines = [f"| {_escaped(name)} | {_escaped(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _hosts(ranks: Iterable[RankState]) -> str:
    hosts: dict[str, list[int]] = {}
    for known in ranks:
        hosts.setdefault(known.host or "unknown", []).append(known.rank)
    named = [f"{host}: {as_ranges(sorted(found), ', ')}" for host, found in list(hosts.items())[:MAX_HOSTS]]
    more = f"; {len(hosts) - MAX_HOSTS} more" if len(hosts) > MAX_HOSTS else ""
    return f"on {len(hosts)} host{'s' if len(hosts) > 1 else ''} ({'; '.join(named)}{more})"


def _attempt(attempt: AttemptState) -> str:
    states = Counter(known.state for known in attempt.ranks)
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(attempt.started))
    if states.keys() <= {"running"}:
        # The text stays as it is when the ranks end, so that it must not say that they run.
        return f"began {started}"
    failure = attempt.failure
    first = f"; first: rank {failure.rank}, {failure.error}" if failure else ""
    return f"began {started}; ranks: {', '.join(f'{n} {state}' for state, n in states.items())}{first}"


def _escaped(text: str) -> str:
    """The text without anything that Markdown or HTML would take for formatting."""
    return _MARKDOWN.sub(lambda match: f"&#{ord(match[0])};", text.replace("\n", " "))
