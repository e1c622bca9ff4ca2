"""Versions of hosts: those that the tests ran, and the line that names another one.

A host's next version may rename what its integration calls. So a difference is named, and ends nothing.
"""

import re
import sys
from collections.abc import Container
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from distsummary.base.guard import Guard
from distsummary.base.terminal import announced


class HostVersions(NamedTuple):
    """Modules that a training by this host imports; the first and the last minor version that was tested."""

    modules: tuple[str, ...]
    first: str
    last: str


# By the names that pip knows.
TESTED = {
    "accelerate": HostVersions(("accelerate",), "1.10", "1.15"),
    "deepspeed": HostVersions(("deepspeed",), "0.19", "0.19"),
    "keras": HostVersions(("keras",), "3.12", "3.15"),
    "lightning": HostVersions(("lightning.pytorch", "lightning.fabric"), "2.5", "2.6"),
    "pytorch-lightning": HostVersions(("pytorch_lightning",), "2.5", "2.6"),  # the same code
    "ray": HostVersions(("ray.train", "ray.tune"), "2.60", "2.60"),
    "torchtitan": HostVersions(("torchtitan",), "0.3", "0.3"),
    "transformers": HostVersions(("transformers.trainer",), "5.24", "5.24"),
    "trl": HostVersions(("trl.trainer",), "1.16", "1.16"),
}
_guard = Guard()
_seen: set[str] = set()  # hosts whose version this process has compared


def name_untested(modules: Container[str] | None = None) -> None:
    """Write one line that names the hosts of this process whose version was not tested; each host once.

    Args:
        modules: names of those that are imported, by default `sys.modules`.
    """
    _guard.call("versions of hosts", _name, sys.modules if modules is None else modules)


def _name(modules: Container[str]) -> None:
    found, remedy = [], []
    for host, tested in TESTED.items():
        if host in _seen or not any(name in modules for name in tested.modules):
            continue
        _seen.add(host)
        try:
            installed = version(host)
        except PackageNotFoundError:
            # A copy of its sources, which has no version.
            continue
        if not is_tested(installed, tested):
            only = tested.first == tested.last
            found.append(
                f"{host} {installed} (tested: {tested.last if only else f'{tested.first} to {tested.last}'})"
            )
            remedy.append(f"'{host}=={tested.last}.*'")
    if found:
        announced(
            f"distsummary: not tested with {', '.join(found)}: recording continues; if values are missing or "
            f"wrong, upgrade distsummary, or: pip install {' '.join(remedy)}"
        )


def is_tested(installed: str, tested: HostVersions) -> bool:
    """Whether a version such as 2.6.1 is in the tested range; no number is in none."""
    numbers = [_minor(each) for each in (tested.first, installed, tested.last)]
    return numbers == sorted(numbers)


def _minor(text: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (-1, -1)
