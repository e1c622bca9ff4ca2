"""The command line: one subcommand (a verb) for each task.

The docstring of a verb is its help text, and its decorator lists its arguments. A verb imports what it needs
when it is called, so that `distsummary merge` loads neither Ray nor torch.
"""

import argparse
import io
import json
import logging
import math
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from distsummary import __version__
from distsummary.base.columns import named, numbered, printable, quoted, width_of
from distsummary.base.extras import require
from distsummary.base.interrupts import handles_interrupts
from distsummary.base.terminal import cleaned, pausing_progress, printed, showing_progress
from distsummary.errors import DistSummaryError, InvalidValueError, WorldMismatchError, reason
from distsummary.landscapes.directions import CENTERINGS, DIRECTIONS

if TYPE_CHECKING:
    from distsummary.runs.housekeeping import Removal

# Messages name arguments of Python functions; the command line names its options instead. An argument is
# recognised by the "=" after it (ARGUMENTS), or at the beginning of a message as its subject (FIELDS).
WORDS = {
    "resume=False": "--fresh",
    "gpus_per_worker": "--gpus-per-worker",
    "the same call": "the same command",
    "'merged', None or one of": "'merged' or one of",
    "leave rank= out": "leave --rank out",
}
ARGUMENTS = (
    "directions",
    "around",
    "runs",
    "parameters",
    "centering",
    "workers",
    "engine",
    "memory",
    "address",
)
FIELDS = (*ARGUMENTS, "size", "seed", "refine", "ranks", "epochs", "rank", "tag", "plugin")


EXIT_CODES = (
    "Exit codes: 0 success; 1 it failed, or something is wrong with the run (status, watch) or its files "
    "(fsck), or a condition is met (compare); 2 wrong arguments, or a path that is missing or not what the "
    "verb takes; 3 it is unclear whether one is (compare); 130 Ctrl-C, 143 SIGTERM."
)


Argument: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]  # what `ArgumentParser.add_argument` takes


class Answer(NamedTuple):
    """What a verb has found, as an object for JSON and as text, one of which is printed; its exit code."""

    result: Any
    text: str
    code: int = 0


# Takes the options; returns what is to be printed, or an exit code (None: 0) if it has printed all by itself.
Function: TypeAlias = Callable[[argparse.Namespace], Answer | int | None]


class Verb(NamedTuple):
    """A verb's function, its arguments, an example of its use, and whether its progress is shown."""

    run: Function
    arguments: tuple[Argument, ...]
    example: str
    shows_progress: bool


VERBS: dict[str, Verb] = {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit code (EXIT_CODES), with a one-line message for 1 and 2.

    argparse exits with 2 for wrong arguments.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A file name that is no UTF-8 can then be printed.
            stream.reconfigure(errors="backslashreplace")
    handler = _Handler()
    handler.setFormatter(_Formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    options = parsed(arguments)
    try:
        with handles_interrupts():
            return _run(VERBS[options.verb], options)
    except BrokenPipeError:
        # The reader has closed the pipe (head, less), and stdout must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (DistSummaryError, OSError) as error:
        # An OSError is raised if the operating system refuses a path.
        said = in_options(str(error))
        if isinstance(error, OSError) and not isinstance(error, DistSummaryError) and error.filename:
            said = f"{error.filename}: {reason(error)}"
        printed(f"distsummary {options.verb}: {said}", file=sys.stderr)
        is_wrong = isinstance(error, FileNotFoundError | NotADirectoryError | InvalidValueError)
        # In a WorldMismatchError the files disagree with each other, and the arguments are right.
        is_wrong &= not isinstance(error, WorldMismatchError)
        return 2 if is_wrong or options.verb in ("fsck", "status", "watch") else 1
    except KeyboardInterrupt as stop:
        # These verbs have written nothing.
        if options.verb in ("serve", "watch"):
            return 130
        kept = "what was written so far is readable"
        # An interrupted landscape (LandscapeCancelled) keeps its finished points in the journal.
        if any(grid.computed.any() for grid in getattr(stop, "grids", {}).values()):
            kept += f", and the same command{' without --fresh' if options.fresh else ''} resumes from there"
        printed(f"distsummary {options.verb}: {str(stop) or 'interrupted'}; {kept}", file=sys.stderr)
        return 130


def _run(entry: Verb, options: argparse.Namespace) -> int:
    """Run a verb and print its answer; returns the exit code."""
    with showing_progress(options.verb) if entry.shows_progress else nullcontext():
        found = entry.run(options)
    if isinstance(found, Answer):
        from distsummary.format.json_values import plain

        printed(json.dumps(plain(found.result)) if options.json else found.text)
        found = found.code
    sys.stdout.flush()
    return found or 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line; argparse exits with 2 for wrong ones."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    # argparse would take "-draft" of `distsummary tag` for an option.
    tags = (
        [one for one in words if re.fullmatch("-[^-]+.*", one) and one != "-h"]
        if words[:1] == ["tag"]
        else []
    )
    options = build_parser().parse_args([one for one in words if one not in tags])
    if tags:
        options.tags += tags
    return options


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs; each verb also takes --json."""
    parser = argparse.ArgumentParser(
        prog="distsummary", description="One training run out of many ranks.", epilog=EXIT_CODES
    )
    parser.add_argument("--version", action="version", version=f"distsummary {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, entry in VERBS.items():
        text = entry.run.__doc__
        epilog = f"Example: distsummary {entry.example}\n\n{textwrap.fill(EXIT_CODES, 80)}"
        shape = argparse.RawDescriptionHelpFormatter
        one = verbs.add_parser(name, help=text, description=text, epilog=epilog, formatter_class=shape)
        one.add_argument("--json", action="store_true", help="print the result as one line of JSON on stdout")
        for names, settings in entry.arguments:
            one.add_argument(*names, **settings)
    return parser


def in_options(text: str) -> str:
    """A message with options in place of arguments: `engine='row'` becomes `--engine 'row'`."""
    for ours, theirs in WORDS.items():
        text = text.replace(ours, theirs)
    text = re.sub(rf"^({'|'.join(FIELDS)})(?= must| with | \()", r"--\1", text)
    argument = rf"(?<![\w./-])({'|'.join(ARGUMENTS)})="
    # An option stands apart from its value; code after the "=" is left as it is.
    text = re.sub(rf"{argument}(?=['\"\w])(?!torch\.)", r"--\1 ", text)
    return re.sub(rf"{argument}(?!torch\.|\{{)", r"--\1", text)


@contextmanager
def _exits_at_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as `sys.exit` does, with the exit code that a shell reports for it."""

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # generic for type checkers only
    """Writes log records to stderr, on a line of their own."""

    def emit(self, record: logging.LogRecord) -> None:
        with pausing_progress():
            super().emit(record)


class _Formatter(logging.Formatter):
    """Formats log records as plain sentences, with options in place of arguments."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return level + cleaned(in_options(record.message))


def argument(*names: str, **settings: Any) -> Argument:
    """One argument of a verb, as for `ArgumentParser.add_argument`."""
    return names, settings


def repeated(name: str, *, help: str, **settings: Any) -> Argument:
    """An option that gives a list, None without any."""
    return argument(name, action="append", help=f"{help}; may be repeated", **settings)


RUN = argument("run_dir", metavar="RUN", help="the run dir")
RECORDED = argument("run_dir", metavar="RUN", help="the run dir, or a directory with event files")
TAG = repeated("--tag", help="only scalars of this tag")
OUT = argument(
    "-o",
    "--out",
    metavar="FILE",
    help="the file (the name of the run, in the current directory); missing directories are made",
)


def whole_number(*words: str, most: float = math.inf) -> Callable[[str], int | str]:
    """The type of an argument: a whole number from 0 on, or one of the words; argparse reports errors."""

    def convert(text: str) -> int | str:
        if text in words:
            return text
        if text.isascii() and text.isdigit() and int(text) <= most:
            return int(text)
        numbers = "a whole number from 0 " + ("on" if most == math.inf else f"to {most}")
        raise argparse.ArgumentTypeError(f"must be {' or '.join([*words, numbers])}, got {text!r}")

    return convert


def seconds(text: str) -> float:
    """The type of `--every`; argparse reports errors."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.1 <= found <= 3600:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0.1 to 3600, got {text!r}")
    return found


def verb(*arguments: Argument, example: str, shows_progress: bool = True) -> Callable[[Function], Function]:
    """Register a function as the verb of its name; `example`: a command line without "distsummary"."""

    def register(run: Function) -> Function:
        # A verb that is a word of Python's is a function with "_" after it.
        VERBS[run.__name__.rstrip("_")] = Verb(run, arguments, example, shows_progress)
        return run

    return register


@verb(
    argument("--ranks", type=int, default=4, help="how many ranks (4)"),
    argument("--epochs", type=int, default=3, help="how many epochs (3)"),
    argument("--out", dest="run_dir", metavar="RUN", default="runs/demo", help="the run dir (runs/demo)"),
    example="demo --ranks 2 --out runs/demo",
    shows_progress=False,
)
def demo(options: argparse.Namespace) -> None:
    """Train on real digits on several ranks and draw the loss landscape."""
    # Before the import, which needs torch itself.
    require("the demo", "torch", "sklearn", "matplotlib")
    from distsummary.demo import run_demo

    run_demo(options.run_dir, ranks=options.ranks, epochs=options.epochs, as_json=options.json)


@verb(
    argument("--into", metavar="DIR", help="the run dir; {time} becomes the time of the start (runs/{time})"),
    argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its arguments"),
    example="run -- torchrun --nproc-per-node 4 train.py",
    shows_progress=False,
)
def run(options: argparse.Namespace) -> int:
    """Run a command and record the trainings of torch in it, without a change of the script."""
    from distsummary.cli.recorded_command import run_command

    return run_command(options.command, options.into)


@verb(
    RUN,
    repeated("--tag", help="also write min, median, max and argmax_rank of this tag"),
    example="merge runs/digits",
)
def merge(options: argparse.Namespace) -> Answer:
    """Merge the rank directories of a run dir into one run, without Ray."""
    from distsummary.aggregate.merge import merge_run

    report = merge_run(options.run_dir, key_tags=tuple(options.tag or ()))
    lines = [f"{report.path}: {report.steps} steps of {len(report.ranks)} ranks"]
    if report.completed:
        lines.append(
            f"  steps that the merged run missed or had of fewer ranks: {report.completed}, now completed"
        )
    if report.short_norms:
        lines.append(f"  norms of parameters that are NaN, as parts are missing: {report.short_norms}")
    lines += [f"  {path.name}" for path in report.files]
    # The merge has logged the conflicts of the configuration already.
    conflicts = [one.as_text() for one in report.conflicts if not one.is_setting]
    for name, found in (
        ("missing ranks", report.missing_ranks),
        ("conflicts", conflicts),
        ("damage", report.damage),
        ("refused", report.refused),
    ):
        if found:
            lines.append(f"  {name}: {', '.join(map(str, found))}")
    if not report.files:
        lines = [f"{report.path}: {report.note or 'nothing to merge'}"]
    return Answer(report, "\n".join(lines))


@verb(
    argument("prefix", metavar="PREFIX", help="what the paths of the ranks' directories have in common"),
    example="adopt runs/summary_dir",
)
def adopt(options: argparse.Namespace) -> Answer:
    """Make one run of ranks that wrote to PREFIX0, PREFIX1 ..., by moving their directories into PREFIX."""
    from distsummary.cli.adopt import adopt as adopt_ranks

    found = adopt_ranks(options.prefix)
    lines = [f"{found.path}: {named(found.ranks, 'rank')}; next: distsummary merge {quoted(found.path)}"]
    lines += [f"  what is left in {path} is of that rank alone and may be removed" for path in found.left]
    return Answer(found, "\n".join(lines))


@verb(
    argument("run_dir", metavar="RUN", help="the run dir, which the landscapes are also written to"),
    argument(
        "factory",
        metavar="module:factory",
        help="a function that returns (model, loss_fn, batches), or a dict of arguments, such as batch_loss",
    ),
    argument(
        "--directions",
        help=f"one or several of {', '.join(DIRECTIONS)}, separated by commas (pca,random; random around a "
        "checkpoint file, pca with --runs)",
    ),
    argument(
        "--around", metavar="PATH", help="draw around another run, ckpt_dir or checkpoint file instead of RUN"
    ),
    argument(
        "--runs",
        metavar="PATH",
        action="append",
        help="a run, ckpt_dir or checkpoint file; repeat it for one plane through all of them",
    ),
    repeated(
        "--parameters",
        metavar="PATTERN",
        help="vary only parameters whose name contains this regular expression, such as lora",
    ),
    argument("--centering", choices=CENTERINGS, help="centering of the PCA (last; mean with --runs)"),
    argument("--size", type=int, default=51, help="points along each side, 3 to 256 (51)"),
    argument("--seed", type=int, default=0, help="seed of the random directions (0)"),
    argument(
        "--refine",
        type=float,
        metavar="SHARE",
        help="interpolate points whose expected error is at most this share of the loss, such as 0.01",
    ),
    argument(
        "--workers",
        type=whole_number("auto"),
        default="auto",
        help="a number of Ray workers, or auto for as many as fit; 0 computes in this process",
    ),
    argument("--address", help="the Ray cluster to use, such as HOST:PORT, auto or local"),
    argument("--gpus-per-worker", type=float, help="GPUs of each worker, or a share of one (1)"),
    argument("--engine", default="auto", help="auto, row, or the engine of an earlier landscape"),
    argument("--memory", choices=("inference",), help="inference: compute within the model's own memory"),
    argument("--fresh", action="store_true", help="start again instead of resuming an interrupted landscape"),
    example="landscape runs/digits train:factory --size 31",
    shows_progress=False,
)
def landscape(options: argparse.Namespace) -> Answer:
    """Draw loss landscapes around the trajectory of a run."""
    from distsummary.cli.landscape_command import draw

    grids, text = draw(options)
    return Answer({"run_dir": options.run_dir, "landscapes": sorted(grids)}, text)


@verb(RUN, example="status runs/digits")
def status(options: argparse.Namespace) -> Answer:
    """Say which rank is in which state, from the run's files; exits with 1 if something is wrong."""
    from distsummary.runs.status import read_status
    from distsummary.runs.status_text import as_json, text_of

    found = read_status(options.run_dir)
    return Answer(as_json(found), text_of(found, width=width_of(sys.stdout)), found.exit_code)


@verb(RUN, example="why runs/digits")
def why(options: argparse.Namespace) -> Answer:
    """Name the ranks that are slow, stuck or sick, with cause, steps and evidence; exits with 1 if any is."""
    from distsummary.cli.why import as_json, text_of, why

    found = why(options.run_dir)
    return Answer(as_json(found), text_of(found, width=width_of(sys.stdout)), int(bool(found.verdicts)))


@verb(RECORDED, example="cost runs/digits")
def cost(options: argparse.Namespace) -> Answer:
    """Say what the time of a run was spent on: training, waiting for ranks, data, restarts and so on."""
    from distsummary.runs.cost import text_of
    from distsummary.runs.recorded_run import open_run

    found = open_run(options.run_dir).cost()
    return Answer(found.as_json(), text_of(printable(options.run_dir), found))


@verb(
    RUN,
    argument("--every", type=seconds, default=2.0, metavar="SECONDS", help="seconds between two looks (2)"),
    example="watch runs/digits",
    shows_progress=False,
)
def watch(options: argparse.Namespace) -> int:
    """Show the states of the ranks until the run is over; exits as `status` does."""
    from distsummary.cli.watch import watch

    with _exits_at_sigterm():
        return watch(options.run_dir, sys.stdout, every_s=options.every, as_json=options.json).exit_code


@verb(
    argument("run_dir", metavar="RUN_DIR", help="where the run is on the node that is its home"),
    argument("--address", default="auto", help="the Ray cluster, as HOST:PORT (auto)"),
    example="sync runs/a",
)
def sync(options: argparse.Namespace) -> Answer:
    """Have the hosts of a cluster send what they still have of a run; exits with 1 if one cannot."""
    from distsummary.launching.actor_sync import sync
    from distsummary.launching.launcher import connected

    with connected(1, {}, options.address):
        found = [*sync(options.run_dir)]
    text = "\n".join(one.as_text() for one in found) or "no host has anything that was not sent"
    return Answer([one._asdict() for one in found], text, int(any(one.error for one in found)))


@verb(
    argument("run_dir", nargs="?", metavar="RUN_DIR", help="where a run is to be, which need not exist yet"),
    argument(
        "--address", help="the Ray cluster, as HOST:PORT or auto (RAY_ADDRESS; without it this host alone)"
    ),
    argument("--wait", type=seconds, default=18.0, metavar="SECONDS", help="how long nodes may take (18)"),
    argument("--clean", action="store_true", help="remove spools that no training writes any more"),
    example="doctor /shared/runs/a --address auto",
    shows_progress=False,
)
def doctor(options: argparse.Namespace) -> Answer:
    """Check what a training on these hosts needs, one line a check; exits with 1 if something is missing."""
    from distsummary.rundir.topology import cluster_address

    if address := options.address or cluster_address():
        from distsummary.launching.actor_doctor import doctor_of_cluster

        found = doctor_of_cluster(options.run_dir, address, answer_s=options.wait, clean=options.clean)
    else:
        from distsummary.launching.doctor import doctor

        found = doctor(options.run_dir, clean=options.clean)
    checks = [check._asdict() for check in found.checks]
    lines = "\n".join(check.as_line() for check in found.checks)
    return Answer({"checks": checks, "hosts": found.hosts}, lines, found.exit_code)


@verb(
    argument("directory", metavar="DIR", help="the directory that the run dirs are in"),
    argument("--where", metavar="EXPR", default="", help="only runs such as: config.lr < 0.3 and name ~ 'a'"),
    argument("--sort", metavar="COLUMN", help="the smallest or, where high is better, the best first"),
    argument("--reverse", action="store_true", help="turn the order round"),
    argument("--columns", metavar="A,B", help="the columns to show; all that there are: --json"),
    example="runs runs/ --where 'config.lr < 0.3' --sort eval/accuracy --columns name,eval/accuracy",
)
def runs(options: argparse.Namespace) -> Answer:
    """List the runs below a directory, the newest first: filter, sort and choose columns."""
    from distsummary.runs.run_table import as_json, open_runs, text_of

    found = open_runs(options.directory).where(options.where)
    if options.sort is not None:
        found = found.sorted_by(options.sort)
    if options.reverse:
        found = found.reversed()
    columns = None if options.columns is None else [name.strip() for name in options.columns.split(",")]
    text = text_of(found, columns=columns, width=width_of(sys.stdout))
    return Answer(as_json(found, columns), text)


@verb(
    argument("directory", metavar="DIR", help="event files of others, or MLflow's file store (mlruns)"),
    argument("--into", metavar="DIR", default="runs/imported", help="for the new runs (runs/imported)"),
    argument(
        "--each",
        choices=("auto", "runs", "ranks"),
        default="auto",
        help="what a directory of event files is: a run, a rank of one run, or what its name says (auto)",
    ),
    example="import ../old/tensorboard --into runs/old",
)
def import_(options: argparse.Namespace) -> Answer:
    """Make runs of what TensorBoard's writers or MLflow recorded; what cannot be read is named."""
    from distsummary.cli.import_runs import import_runs, text_of

    found = import_runs(options.directory, options.into, each=options.each)
    code = int(any(one.is_wrong for one in found))
    return Answer({"runs": found}, text_of(found, width=width_of(sys.stdout)), code)


YES = argument("--yes", action="store_true", help="do it; without, only say what would be done")


@verb(
    argument("runs", metavar="RUN", nargs="+", help="run dirs"),
    YES,
    example="delete runs/a runs/b --yes",
    shows_progress=False,
)
def delete(options: argparse.Namespace) -> Answer:
    """Remove runs that have ended: what distsummary wrote there, and no file of others."""
    from distsummary.runs.housekeeping import delete, each

    return _removed(each(options.runs, lambda path: delete(path, is_sure=options.yes)), options.yes)


@verb(
    argument("directory", metavar="DIR", help="the directory that the run dirs are in"),
    repeated(
        "--keep",
        metavar="WHICH",
        help="runs that stay: 'best 5 by eval/accuracy' (or lowest, highest), 'newest 10'",
    ),
    argument("--older", metavar="AGE", help="only runs that were last written so long ago: 30d, 12h, 2w"),
    argument("--where", metavar="EXPR", default="", help="only runs such as: config.lr < 0.3 and name ~ 'a'"),
    argument(
        "--checkpoints",
        action="store_true",
        help="remove no run, but the checkpoints of its path without the last one",
    ),
    YES,
    example="prune runs/ --keep 'best 5 by eval/accuracy' --older 30d",
)
def prune(options: argparse.Namespace) -> Answer:
    """Remove the runs of a directory that are not to be kept, or their checkpoints."""
    from distsummary.runs.housekeeping import delete, each, read_age, read_keep, to_prune
    from distsummary.runs.run_table import open_runs

    if not (options.keep or options.older or options.where):
        raise InvalidValueError(
            "prune needs --keep, --older or --where: without any of them no run would stay"
        )
    keep = [read_keep(text) for text in options.keep or ()]
    older_s = None if options.older is None else read_age(options.older)
    table = open_runs(options.directory).where(options.where)
    paths = to_prune(table, keep=keep, older_s=older_s)
    removed = each(
        paths,
        lambda path: delete(path, is_sure=options.yes, checkpoints_only=options.checkpoints),
    )
    answer = _removed(removed, options.yes)
    text = answer.text
    if foreign := sum(not row.id for row in table.rows):
        text += f"\n{numbered(foreign, 'directory', 'directories')} left alone: no readable run.json"
    # A run that still trains stays: that is no failure.
    return answer._replace(text=text, code=int(any(one.files and one.reason for one in removed)))


@verb(
    RUN,
    argument("name", metavar="NAME", help="the new name of its directory"),
    YES,
    example="rename runs/20260131-235959 baseline --yes",
    shows_progress=False,
)
def rename(options: argparse.Namespace) -> Answer:
    """Give the directory of a run that has ended another name."""
    from distsummary.runs.housekeeping import rename

    found = rename(options.run_dir, options.name, is_sure=options.yes)
    return _removed([found], options.yes, verb=f"rename to {printable(options.name)}:")


def _removed(found: "list[Removal]", is_sure: bool, *, verb: str = "remove") -> Answer:
    """The answer of delete, prune and rename; 1 if a run could not be removed."""
    from distsummary.runs.housekeeping import text_of

    text = text_of(found, verb=verb, is_sure=is_sure, width=width_of(sys.stdout))
    return Answer({"runs": found}, text, int(any(one.reason for one in found)))


@verb(
    RECORDED,
    argument("tags", nargs="*", metavar="+TAG", help="+TAG adds a tag, -TAG removes one"),
    argument("--name", help="what to call it; its directory stays as it is"),
    argument("--group", help="the group that it belongs to; '' for none"),
    argument("--notes", help="a text about it; '' for none"),
    example="tag runs/digits +baseline -draft --notes 'lr of the paper'",
)
def tag(options: argparse.Namespace) -> Answer:
    """Change the tags, name, group and notes of a run; without changes, print them."""
    from distsummary.runs.labels import relabelled, text_of

    found = relabelled(
        options.run_dir, options.tags, name=options.name, group=options.group, notes=options.notes
    )
    return Answer(found, text_of(options.run_dir, found))


@verb(
    argument("path", metavar="PATH", help="an event file, a rank's directory or a run dir"),
    argument("--full", action="store_true", help="also print the elements of tensors and the images"),
    repeated("--tag", help="only values of this tag"),
    repeated("--plugin", help="only values of this kind, such as scalar"),
    argument("--dialect", choices=("mindspore", "tensorboard"), help="only files of this dialect"),
    argument("--rank", type=int, help="only the files of this rank"),
    example="dump runs/digits --tag loss --rank 2 --dialect mindspore",
)
def dump(options: argparse.Namespace) -> None:
    """Print every value in event files, one JSON object per line."""
    from distsummary.cli.dump import dump, to_line

    for record in dump(
        options.path,
        full=options.full,
        tags=options.tag or (),
        plugins=options.plugin or (),
        dialect=options.dialect,
        rank=options.rank,
    ):
        printed(to_line(record))


@verb(
    RECORDED,
    example="show runs/digits",
)
def show(options: argparse.Namespace) -> Answer:
    """Show a run on one screen: state, config, code, data, curves, and what is missing."""
    from distsummary.runs.recorded_run import open_run
    from distsummary.runs.show import overview, text_of

    found = overview(open_run(options.run_dir))
    return Answer(found, text_of(found, width=width_of(sys.stdout)))


@verb(
    argument("runs", metavar="RUN", nargs="+", help="runs, or directories of runs, of which all are taken"),
    repeated(
        "--with",
        dest="others",
        metavar="RUN",
        nargs="+",
        help="the runs before it and those after it are groups, such as the seeds of two settings",
    ),
    argument("--where", metavar="EXPR", default="", help="of directories only runs such as: config.lr < 0.3"),
    argument(
        "--by", metavar="COLUMN", help="group the runs of directories by this column, such as config.lr"
    ),
    repeated(
        "--fail-if",
        metavar="CONDITION",
        help="a change of a group against the first at which to exit with 1: 'loss > +2%%', or in units of "
        "the tag 'eval/accuracy < -0.01'; with 3 if the spread of the runs leaves that open",
    ),
    argument(
        "--at",
        default="last",
        metavar="POINT",
        help="which value of a run --fail-if is about: last, best, or mean:N, the mean of the last N (last)",
    ),
    repeated(
        "--reach",
        metavar="TAG=VALUE",
        help="the value of a tag to whose steps and time the curves are compared",
    ),
    TAG,
    example="compare runs/main/* --with runs/new/* --fail-if 'loss > +2%' --at mean:100",
)
def compare(options: argparse.Namespace) -> Answer:
    """Say what differs between runs or groups of them, how their curves do, and whether one is worse."""
    from distsummary.runs import gate
    from distsummary.runs.compare import compare, grouped_by, read_values, runs_in, text_of
    from distsummary.runs.recorded_run import open_run

    conditions = [gate.read_condition(text) for text in options.fail_if or ()]
    at, values = gate.check_at(options.at), read_values(options.reach or ())
    if options.by is not None and options.others:
        raise InvalidValueError("--by makes the groups, and so does --with; use one of them")
    names = None
    if options.by is not None:
        found = grouped_by(options.by, options.runs, options.where)
        names, groups = [*found], [*found.values()]
    elif options.others:
        groups = [runs_in(group, options.where) for group in (options.runs, *options.others)]
    else:
        groups = [[path] for path in runs_in(options.runs, options.where)]
    compared = compare(
        [[open_run(path) for path in group] for group in groups],
        conditions=conditions,
        at=at,
        values=values,
        tags=options.tag,
        names=names,
    )
    text = text_of(compared, width=width_of(sys.stdout))
    return Answer(compared, text, gate.exit_code(compared.decisions))


@verb(
    RECORDED,
    argument("--to", required=True, choices=("parquet", "csv"), help="the format to write"),
    OUT,
    TAG,
    argument(
        "--rank", type=whole_number("merged"), help="only this rank, or merged for the merged run (all ranks)"
    ),
    example="export runs/digits --to parquet --tag loss",
)
def export(options: argparse.Namespace) -> Answer:
    """Write the scalars of a run as a table: rank, attempt, step, wall_time, tag, value."""
    from distsummary.runs.export import export

    path, rows = export(options.run_dir, options.to, out=options.out, tag=options.tag, rank=options.rank)
    return Answer({"file": path, "rows": rows}, f"{path}: {rows:,} rows")


@verb(
    RECORDED,
    OUT,
    TAG,
    repeated("--rank", type=int, help="a rank to draw by itself, of many"),
    repeated(
        "--with",
        dest="others",
        metavar="OTHER",
        help="a run to compare it with: what differs, their curves on top of each other",
    ),
    example="report runs/digits --with runs/other -o digits.html",
)
def report(options: argparse.Namespace) -> Answer:
    """Write the page of a run as one HTML file: verdicts, curves, heat maps of ranks and steps, timeline."""
    from distsummary.view.report import report

    path = report(
        options.run_dir,
        out=options.out,
        ranks=options.rank or (),
        tags=options.tag,
        others=options.others or (),
    )
    size = path.stat().st_size
    return Answer({"file": path, "bytes": size}, f"{path}: {size / 1e6:.1f} MB")


@verb(
    argument("directory", metavar="DIR", help="the directory that the run dirs are in, or one run dir"),
    argument(
        "--port",
        type=whole_number(most=65535),
        help="the port; 0: any free one (6116 or, if it is in use, any free one)",
    ),
    argument("--host", help="the address to listen on (127.0.0.1: this machine alone)"),
    argument(
        "--public-url",
        metavar="URL",
        help="under which a proxy passes requests on to this server",
    ),
    argument(
        "--token-file",
        metavar="FILE",
        help="has the token of the URL, which then stays (DISTSUMMARY_TOKEN of the environment has it too)",
    ),
    argument("--edit", action="store_true", help="let the page change names, tags and notes of runs"),
    example="serve runs/ --port 6116",
    shows_progress=False,
)
def serve(options: argparse.Namespace) -> None:
    """Show runs live in a browser, on this machine alone and, without --edit, read-only, until Ctrl-C."""
    from distsummary.view.serve import HOST, serve, token_in

    with serve(
        options.directory,
        host=options.host or HOST,
        port=options.port,
        public_url=options.public_url,
        token=token_in(options.token_file),
        edit=options.edit,
    ) as server:
        if not server.is_local:
            printed(
                f"distsummary serve: --host {options.host}: who knows the URL can read these runs from other "
                "machines, and nothing is encrypted; safer: leave --host out and tunnel, "
                f"ssh -L {server.server_port}:127.0.0.1:{server.server_port} MACHINE",
                file=sys.stderr,
            )
        text = json.dumps({"url": server.url, "directory": str(server.served.path)})
        printed(text if options.json else server.url, file=sys.stdout)
        with _exits_at_sigterm():
            server.serve_forever()


@verb(
    argument("directory", metavar="DIR", help="a run dir, a rank's directory or their parent"),
    argument("--repair", action="store_true", help="cut torn ends off files, rebuild run.json"),
    example="fsck runs/digits",
)
def fsck(options: argparse.Namespace) -> Answer:
    """Report damaged event files and manifests; exits with 0 if there are none."""
    from distsummary.cli.fsck import fsck

    report = fsck(options.directory, repair=options.repair)
    problems = sum(one.is_problem for one in report.findings)
    lines = [f"repaired: {one.as_line()}" for one in report.repaired]
    lines += [one.as_line() for one in report.findings]
    lines.append(
        f"{report.directories} directories, {report.files} files, {report.events} events: {problems} problems"
    )
    return Answer(report.as_json(), "\n".join(lines), report.exit_code)


@verb(
    argument("directory", metavar="DIR", help="a run dir or a rank's directory"),
    argument(
        "--to",
        choices=("tensorboard", "mindspore"),
        default="tensorboard",
        help="the dialect to write (tensorboard)",
    ),
    argument("--out", metavar="DIR", help="where to write (next to the files)"),
    example="convert runs/digits --to tensorboard",
)
def convert(options: argparse.Namespace) -> Answer:
    """Write event files in the other dialect, for directories that have only one."""
    from distsummary.cli.convert import convert

    report = convert(options.directory, to=options.to, out=options.out)
    return Answer(report, "\n".join(report.as_lines()))
