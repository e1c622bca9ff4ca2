"""Runs the tests on other versions than the pinned ones, and writes docs/support.md: `make versions`.

`lowest` has the lowest versions that pyproject.toml takes, on Python 3.11; `newest` what was released last,
on Python 3.13; `with` the versions that are named. Their pins are in `requirements-*.txt` next to this file;
`.ci/environment` makes the environments of them, by uv, and keeps them in the cache.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(__file__).parent
SUPPORT = ROOT / "docs" / "support.md"
MARK = "<!-- written by `make versions` -->"
PYTHONS = {"lowest": "3.11", "newest": "3.13", "with": "3.11"}
SHOWN = ("torch", "ray", "numpy", "protobuf", "msgspec", "safetensors", "filelock", "psutil")
# One training of two ranks by ds.launch, operators in a compiled model, a landscape.
SMOKE = (
    "tests/ray/test_launch.py::test_gloo_is_initialised_and_sums_over_the_ranks",
    "tests/ray/test_training.py::test_four_ranks_make_one_run",
    "tests/frameworks/test_torch_operators.py::test_a_loop_that_only_logs_has_each_value_at_its_step",
    "tests/frameworks/test_torch_landscape.py::test_training_mode_is_mindspores_and_gives_the_same_dropout_at_every_point",
)
# Failures that are of other projects: a part of a test's name, and why.
OF_OTHERS: Mapping[str, Mapping[str, str]] = {
    "lowest": {
        "test_a_checkpoint_of_two_ranks_continues_on_one_and_on_four": (
            "FSDP2 of torch 2.8 adds up gradients on gloo"
        )
    },
    "newest": {},
    "with": {},
}
# What trainings show: of torch 2.15 on Python 3.13.0, whose guards are slow, and of LBFGS in torch 2.8.
SHOWN_TO_USERS = "ignore::RuntimeWarning:torch._dynamo.guards,ignore::UserWarning:torch.optim.lbfgs"
# A warning is an error where the code that it names is ours: what libraries warn of themselves is not.
WARNINGS = """error
ignore:::(?!distsummary|tests|examples|__main__)
ignore:subprocess .* is still running:ResourceWarning
ignore:unclosed file .*/dev/null:ResourceWarning"""
COUNTED = re.compile(r"(\d+) (failed|passed|skipped|error)")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def python_of(version: str) -> str | None:
    """An interpreter of this version: on the path, or of pyenv; None if there is none."""
    found = shutil.which(f"python{version}")
    ours = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), key=lambda path: path.parts)
    return str(ours[-1]) if ours else found


def floors(project: Mapping[str, Sequence[str]]) -> list[str]:
    """The dependencies of the package itself, each at its lowest version."""
    return [each.replace(">=", "==") for each in project["dependencies"]]


def resolve(name: str, python: str, others: Sequence[str]) -> Path:
    """Write the pins of an environment."""
    pins = TOOLS / f"requirements-{name}.txt" if name != "with" else ROOT / ".venv-uv" / "with.txt"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    constraints = ROOT / ".venv-uv" / f"constraints-{name}.txt"
    constraints.write_text("\n".join(floors(project) if name == "lowest" else others) + "\n")
    uv(
        "pip", "compile", "-q", "pyproject.toml", "--extra", "dev", "--no-annotate", "--no-header",
        "--upgrade", "--python", python, "-c", str(constraints), "-o", str(pins),
        *(("--resolution", "lowest-direct") if name == "lowest" else ()),
    )  # fmt: skip
    return pins


def skip(reason: str) -> None:
    """Note what this machine could not run."""
    print(reason)
    with open(os.environ.get("DISTSUMMARY_SKIPPED", os.devnull), "a") as file:
        print(reason, file=file)


def uv(*arguments: str) -> None:
    """Run uv."""
    subprocess.run([ROOT / ".venv-uv/bin/uv", *arguments], cwd=ROOT, check=True)


def make(name: str, python: str, pins: Path, *, only_cached: bool = False) -> bool:
    """Make an environment, and return whether it is there."""
    variables = os.environ | {"UV": str(ROOT / ".venv-uv/bin/uv")} | ({"CACHED": "1"} if only_cached else {})
    command = [".ci/environment", f".venv-{name}", python, "-e", ".", "-r", str(pins.relative_to(ROOT))]
    return subprocess.run(command, cwd=ROOT, env=variables, check=not only_cached).returncode == 0


def run_tests(name: str, tests: Sequence[str], jobs: str) -> tuple[dict[str, int], list[str]]:
    """Run tests in an environment; returns how many had which result, and the names of those that failed."""
    log = ROOT / f".venv-{name}" / "tests.log"
    with log.open("wb") as output:
        subprocess.run(
            [
                ROOT / f".venv-{name}/bin/python", "-m", "pytest", *tests, "-q", "-n", jobs, "--tb=short",
                "-m", "not interop and not long", "-o", f"filterwarnings={WARNINGS}",
            ],
            cwd=ROOT, stdout=output, stderr=output, check=False,
            env=os.environ | {"PYTHONWARNINGS": SHOWN_TO_USERS, "DISTSUMMARY_SKIPPED": os.devnull},
        )  # fmt: skip
    text = log.read_text(errors="replace")
    last = text.strip().splitlines()[-1] if text.strip() else ""
    return {what: int(count) for count, what in COUNTED.findall(last)}, FAILED.findall(text)


def described(name: str) -> list[str]:
    """The Python and the versions of an environment."""
    code = (
        "import json, platform, importlib.metadata as m\n"
        f"print(json.dumps([platform.python_version(), *(m.version(one) for one in {SHOWN!r})]))"
    )
    shown = subprocess.run(
        [ROOT / f".venv-{name}/bin/python", "-c", code], check=True, capture_output=True, text=True
    ).stdout
    found: list[str] = json.loads(shown)
    return found


def measured_commit() -> str:
    """The commit, with "-dirty" if tracked files differ from it that this program does not write itself."""
    written = [SUPPORT, *(TOOLS / f"requirements-{name}.txt" for name in PYTHONS)]
    others = [".", *(f":!{path.relative_to(ROOT)}" for path in written)]
    is_dirty = subprocess.run(
        ["git", "diff", "--quiet", "HEAD", "--", *others], cwd=ROOT, check=False
    ).returncode
    described = ["git", "describe", "--always"]
    commit = subprocess.run(described, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    return commit + "-dirty" * bool(is_dirty)


def of_others(name: str, failed: Sequence[str]) -> dict[str, list[str]]:
    """The failures by their reason; those that are no other project's have the reason ""."""
    reasons: dict[str, list[str]] = {}
    for test in failed:
        reason = next((why for part, why in OF_OTHERS[name].items() if part in test), "")
        reasons.setdefault(reason, []).append(test)
    return reasons


def row(name: str, versions: Sequence[str], tests: str, counts: Mapping[str, int], commit: str) -> str:
    """A line of the table."""
    python, *others = versions
    shown = ", ".join(f"{package} {version}" for package, version in zip(SHOWN, others, strict=True))
    result = ", ".join(f"{count:,} {what}" for what, count in counts.items()) or "did not run"
    return f"| {name} | {python} | {shown} | {time.strftime('%Y-%m-%d')} | {commit} | {tests}: {result} |"


def with_row(text: str, new: str, *, most: int = 40) -> str:
    """The document with a line more, at the top of its table."""
    before, _, after = text.partition(MARK)
    lines = after.strip("\n").splitlines()
    return f"{before}{MARK}\n" + "\n".join([*lines[:2], new, *lines[2:most]]) + "\n"


def main() -> int:
    """Test the environments; returns 1 if a failure is not another project's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["lowest", "newest"], help="lowest, newest")
    parser.add_argument(
        "--with", dest="others", default="", help="pins of another environment, such as ray==2.55.0"
    )
    parser.add_argument("--smoke", action="store_true", help="a few tests, in environments that are there")
    parser.add_argument("--tests", default="tests", help="what is run, such as 'tests/ray tests/frameworks'")
    parser.add_argument("--jobs", default="2")
    given = parser.parse_args()
    commit = measured_commit()
    is_sound = True
    for name in ["with"] if given.others else given.names:
        python = python_of(PYTHONS[name])
        if python is None:
            skip(f"other versions: no Python {PYTHONS[name]} for {name}")
            is_sound &= given.smoke
            continue
        pins = TOOLS / f"requirements-{name}.txt"
        if not given.smoke:
            pins = resolve(name, python, given.others.split())
        if not make(name, python, pins, only_cached=given.smoke):
            skip(f"other versions: no environment {name}, which make versions makes")
            continue
        tests = SMOKE if given.smoke else given.tests.split()
        counts, failed = run_tests(name, tests, given.jobs)
        reasons = of_others(name, failed)
        is_sound &= bool(counts.get("passed")) and "" not in reasons
        if not given.smoke:
            SUPPORT.write_text(
                with_row(SUPPORT.read_text(), row(name, described(name), given.tests, counts, commit))
            )
        print(name, *described(name), counts, f"log: .venv-{name}/tests.log", sep=", ")
        for why, those in reasons.items():
            print(*(f"  {why or 'FAILED'}: {test}" for test in those), sep="\n")
    return not is_sound


if __name__ == "__main__":
    sys.exit(main())
