"""What the documents promise is there: commands, options, links, versions, and code that runs."""

import argparse
import re
import tomllib
from pathlib import Path

import pytest

import distsummary
from distsummary.cli import main as cli
from distsummary.collect.options import FLAGS, PATTERNS
from tests import forked
from tests.docs.documents import ROOT, anchors, blocks, commands, documents, links
from tests.programs import run_python

README = (ROOT / "README.md").read_text()
RECORDING = (ROOT / "docs/recording.md").read_text()
READING = (ROOT / "docs/reading.md").read_text()
MINDSPORE = (ROOT / "docs/mindspore.md").read_text()
THOR = (ROOT / "docs/thor.md").read_text()
START, COMING, HOSTS = (
    (ROOT / "docs" / name).read_text() for name in ("start.md", "coming-from.md", "hosts.md")
)
PAGES = (README, START, COMING, HOSTS, RECORDING, MINDSPORE, THOR)
SNIPPETS = [block for text in PAGES for block in blocks(text) if block.language == "python"]


def verbs() -> dict[str, argparse.ArgumentParser]:
    """The verbs of the command line and their parsers."""
    parser = cli.build_parser()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the command line has no verbs")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda block: f"line_{block.line}")
@pytest.mark.usefixtures("fork_server")
def test_the_python_of_these_pages_runs_as_it_stands(snippet, tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text("\n" * (snippet.line - 1) + snippet.code)
    done = forked.run_script(tmp_path / "snippet.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_python_of_the_page_on_reading_runs_on_a_recorded_run(tmp_path: Path) -> None:
    with distsummary.init(tmp_path / "runs/demo", aggregate=False, quiet=True) as run:
        for _ in run.steps(range(3)):
            run.log(loss=0.5)
    snippets = [block for block in blocks(READING) if block.language == "python"]
    program = "\n".join(block.code for block in snippets)
    reported = "print(len(frame), run.steps, run.state)"
    done = run_python("-c", f"{program}\n{reported}", cwd=tmp_path, code=None)
    assert (done.returncode, done.stdout) == (0, "3 (1, 3) finished\n"), done.stderr


def test_the_page_on_reading_names_everything_that_a_run_has() -> None:
    public = {name for name in vars(distsummary.RecordedRun) if not name.startswith("_")}
    assert public - set(re.findall(r"`run\.(\w+)", READING)) == set()


def test_the_page_on_recording_names_all_keys_and_kinds() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", RECORDING, re.MULTILINE))
    assert named >= {*FLAGS, *PATTERNS, "collect_landscape"}
    assert named >= {"log", "histogram", "image", "tensor", "text", "figure"}


@pytest.mark.long
def test_the_python_of_the_landscapes_runs_in_its_order_and_prints_what_it_says(tmp_path: Path) -> None:
    first, *others = [b for b in blocks((ROOT / "docs/landscape.md").read_text()) if b.language == "python"]
    checked = 0
    for name, block in (("train.py", first), *((f"line_{block.line}.py", block) for block in others)):
        (tmp_path / name).write_text(block.code)
        done = run_python(name, cwd=tmp_path)
        for said in re.findall(r"print\(\w+\)\s+# (LossGrid.*)", block.code):
            assert said.split(" points")[0] in done.stdout
            checked += 1
    assert checked


@pytest.mark.usefixtures("fork_server")
def test_the_samples_of_the_callbacks_run_in_their_order_and_print_what_the_page_shows(tmp_path: Path):
    page = blocks((ROOT / "docs/callbacks.md").read_text())
    mark = "-- the next sample"
    samples = [block for block in page if block.language == "python"]
    (tmp_path / "page.py").write_text(f"\nprint({mark!r})\n".join(block.code for block in samples))
    done = forked.run_script(tmp_path / "page.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = [
        page[page.index(block) + 1].code if page[page.index(block) + 1].language == "text" else ""
        for block in samples
    ]
    said = done.stdout.split(f"{mark}\n")
    assert [_without_decimals(text) for text in said] == [_without_decimals(text) for text in shown]
    named = {name for name in distsummary.__all__ if issubclass(_class_of(name), distsummary.Callback)}
    headings = anchors((ROOT / "docs/callbacks.md").read_text())
    elsewhere = {"Callback", "SummaryCollector"}  # described on other pages
    assert {name for name in named if name.lower() not in headings} <= elsewhere


def _class_of(name: str) -> type:
    found = getattr(distsummary, name)
    return found if isinstance(found, type) else object


def _without_decimals(text: str) -> str:
    """The text with every decimal number alike: losses and times differ between machines."""
    return re.sub(r"\d+\.\d+", "0.0", text)


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_modules_that_the_maps_name_exist(name: str) -> None:
    package = ROOT / "distsummary"
    text = (ROOT / name).read_text()
    named = set(re.findall(r"(?<![\w*./])((?:[a-z_]+/)*[a-z_0-9]+\.py)\b", text))
    known = [f"/{path.relative_to(package).as_posix()}" for path in package.rglob("*.py")]
    missing = [module for module in sorted(named) if not any(path.endswith(f"/{module}") for path in known)]
    assert named
    assert not [module for module in missing if not (ROOT / module).exists()]


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_make_targets_in_documents_exist(document: Path) -> None:
    used = {target for line in commands(document.read_text()) for target in _make_targets_of(line)}
    assert used <= make_targets()


def _make_targets_of(line: str) -> list[str]:
    if not line.startswith("make "):
        return []
    return [word for word in line.split()[1:] if re.fullmatch(r"[a-z][\w-]*", word)]


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_command_lines_in_documents_are_accepted(document: Path) -> None:
    known = verbs()
    wrong = []
    for line in commands(document.read_text()):
        match = re.match(r"(?:\S*bin/)?(?:python -m )?distsummary (?P<verb>[a-z]\w*)(?P<rest>.*)", line)
        if match is None:
            continue
        if match["verb"] not in known:
            wrong.append(line)
            continue
        own = match["rest"].partition(" -- ")[0]  # what follows is another command
        options = set(re.findall(r"(?<!\S)--[\w-]+", own))
        if not options <= set(known[match["verb"]]._option_string_actions):
            wrong.append(line)
    assert wrong == []


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_in_documents_lead_somewhere(document: Path) -> None:
    broken = []
    for target in links(document.read_text()):
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        if not path.exists() or (anchor and anchor not in anchors(path.read_text())):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("verb", ["", *verbs()])
def test_every_verb_explains_itself(verb: str) -> None:
    done = run_python("-m", "distsummary", *verb.split(), "--help", COLUMNS="1000")
    assert f"usage: distsummary {verb}".strip() in done.stdout
    options = verbs()[verb]._actions if verb else []
    assert [action.dest for action in options if not action.help] == []


def test_public_names_are_sorted_and_each_is_there_once() -> None:
    assert distsummary.__all__ == sorted(set(distsummary.__all__))


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == project["version"] == distsummary.__version__


def test_the_judgement_of_a_clone_runs_targets_that_exist() -> None:
    [used] = re.findall(r"^for target in (.+); do$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert used.split() == ["check", "test", "demo", "smoke"]
    assert set(used.split()) <= make_targets()
