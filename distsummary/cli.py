"""The command line: one verb for each thing that is done without writing Python."""

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from distsummary import __version__
from distsummary.errors import DistSummaryError, MissingExtraError
from distsummary.interrupts import heeds_interrupts
from distsummary.landscapes.directions.names import CENTRINGS, DIRECTIONS

if TYPE_CHECKING:
    from distsummary.aggregate.merge import MergeReport
    from distsummary.landscapes.output.grid import LossGrid

# Messages are to callers of Python. Here arguments are options: in the midst of a message (`engine=`), and as
# the field that it begins with.
WORDS = {
    "resume=False": "--anew",
    "gpus_per_worker": "--gpus-per-worker",
    "the same call": "the same command",
}
ARGUMENTS = "directions", "around", "runs", "parameters", "centring", "workers", "engine", "memory"
FIELDS = (*ARGUMENTS, "size", "seed", "refine", "ranks", "epochs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; 0 done, 1 it could not be done (said in one line), 2 wrong arguments, 130 interrupted.

    `fsck` has codes of its own: 0 clean, 1 problems are left, 2 it cannot be checked.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    options = _parser().parse_args(arguments)
    try:
        with heeds_interrupts():
            return int(options.handler(options) or 0)
    except (DistSummaryError, OSError) as error:  # of the system's own: a name that is too long, no access
        print(f"distsummary {options.verb}: {_in_options(str(error))}", file=sys.stderr)
        return 2 if options.verb == "fsck" else 1
    except KeyboardInterrupt as stop:
        what = str(stop) or "interrupted"
        kept = f"what was written so far is readable{_how_to_go_on(stop, options)}"
        print(f"distsummary {options.verb}: {what}; {kept}", file=sys.stderr)
        return 130


def _how_to_go_on(stop: KeyboardInterrupt, options: argparse.Namespace) -> str:
    """What to say of a landscape that was stopped with some points finished, which are in its journal."""
    if not any(grid.computed.any() for grid in getattr(stop, "grids", {}).values()):
        return ""
    return f", and the same command{' without --anew' if options.anew else ''} goes on from there"


def _in_options(text: str) -> str:
    """A message in the words of the command line: `engine='row'` is `--engine 'row'`."""
    for ours, theirs in WORDS.items():
        text = text.replace(ours, theirs)
    text = re.sub(rf"^({'|'.join(FIELDS)})(?= must| with | \()", r"--\1", text)
    argument = rf"(?<![\w./-])({'|'.join(ARGUMENTS)})="
    text = re.sub(rf"{argument}(?=['\"\w])(?!torch\.)", r"--\1 ", text)  # with its value; torch. is Python
    return re.sub(rf"{argument}(?!torch\.|\{{)", r"--\1", text)  # and so is a mapping


class _Formatter(logging.Formatter):
    """What is logged, in the words of the command line too."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _in_options(record.message)
        return super().formatMessage(record)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="distsummary", description="One training run out of many ranks.")
    parser.add_argument("--version", action="version", version=f"distsummary {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add in (_add_demo, _add_merge, _add_landscape, _add_dump, _add_fsck, _add_convert):
        add(verbs)
    return parser


def _add_demo(verbs: Any) -> None:
    demo = _verb(verbs, "demo", _demo, "train on real digits on several ranks and draw the landscape")
    demo.add_argument("--ranks", type=int, default=4, help="how many ranks (4)")
    demo.add_argument("--epochs", type=int, default=3, help="how many epochs (3)")
    demo.add_argument("--out", default="runs/demo", help="the run dir (runs/demo)")


def _add_merge(verbs: Any) -> None:
    merge = _verb(verbs, "merge", _merge, "make one run of the rank directories of a run dir, without Ray")
    merge.add_argument("run", metavar="RUN", help="the run dir")
    merge.add_argument(
        "--tag", action="append", default=[], help="also min, median, max, argmax_rank of this tag"
    )


def _add_landscape(verbs: Any) -> None:
    landscape = _verb(verbs, "landscape", _landscape, "draw loss landscapes around the trajectory of a run")
    landscape.add_argument("run", metavar="RUN", help="the run dir; landscapes are written to it")
    landscape.add_argument("factory", metavar="module:factory", help="returns (model, loss_fn, batches)")
    _add_planes(landscape)
    landscape.add_argument("--size", type=int, default=51, help="points along each side, 3 to 256 (51)")
    landscape.add_argument("--seed", type=int, default=0, help="of the random directions (0)")
    landscape.add_argument(
        "--refine", type=float, help="leave out points that interpolation tells within this share"
    )
    landscape.add_argument(
        "--workers", type=_workers, default="auto", help="auto, or a number; 0 uses no Ray"
    )
    landscape.add_argument("--gpus-per-worker", type=float, help="GPUs of a worker, or a share of one (1)")
    landscape.add_argument("--engine", default="auto", help="auto, row, or the engine that a grid names")
    landscape.add_argument("--memory", choices=("inference",), help="move one layer at a time")
    landscape.add_argument("--anew", action="store_true", help="do not go on with one that was stopped")


def _add_planes(landscape: argparse.ArgumentParser) -> None:
    """What is drawn around, along which directions, and what moves."""
    landscape.add_argument(
        "--directions",
        help=f"one or several of {', '.join(DIRECTIONS)}, with commas between (pca,random; "
        "random around a checkpoint file, pca of --runs)",
    )
    landscape.add_argument(
        "--around", metavar="PATH", help="another run, a ckpt_dir or a checkpoint file to draw around (RUN)"
    )
    landscape.add_argument(
        "--runs",
        metavar="PATH",
        action="append",
        help="a run, a ckpt_dir or a checkpoint file; once for each of several, for one plane through all",
    )
    landscape.add_argument(
        "--parameters",
        metavar="PATTERN",
        action="append",
        help="a part of a name, such as lora, or a regular expression: nothing else moves; once for each",
    )
    landscape.add_argument("--centring", choices=CENTRINGS, help="of the PCA (last; mean with --runs)")


def _add_dump(verbs: Any) -> None:
    dump = _verb(verbs, "dump", _dump, "print every value of event files, one JSON object a line")
    dump.add_argument("path", metavar="PATH", help="an event file, a rank's directory or a run dir")
    dump.add_argument("--full", action="store_true", help="also the numbers of tensors and the images")


def _add_fsck(verbs: Any) -> None:
    fsck = _verb(verbs, "fsck", _fsck, "name every file that is damaged or hostile to a viewer; 0 if none is")
    fsck.add_argument("directory", metavar="DIR", help="a run dir, a rank's directory or their parent")
    fsck.add_argument("--repair", action="store_true", help="cut torn tails, make run.json anew")


def _add_convert(verbs: Any) -> None:
    convert = _verb(verbs, "convert", _convert, "write the other dialect of event files that have one only")
    convert.add_argument("directory", metavar="DIR", help="a run dir or a rank's directory")
    convert.add_argument(
        "--to",
        choices=("tensorboard", "mindspore"),
        default="tensorboard",
        help="the dialect to write (tensorboard)",
    )
    convert.add_argument("--out", metavar="DIR", help="where to write (beside the files)")


def _verb(verbs: Any, name: str, handler: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line on stdout")
    parser.set_defaults(handler=handler)
    return parser


def _demo(options: argparse.Namespace) -> None:
    try:
        from distsummary.demo import run_demo
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed; run: pip install 'distsummary[demo]'"
        ) from error
    run_demo(options.out, ranks=options.ranks, epochs=options.epochs, as_json=options.json)


def _merge(options: argparse.Namespace) -> None:
    from distsummary.aggregate.merge import merge_run

    report = merge_run(options.run, key_tags=tuple(options.tag))
    print(json.dumps(asdict(report), default=str) if options.json else _merged(report))


def _merged(report: "MergeReport") -> str:
    """What a merge did, in a few lines."""
    if not report.files:
        return f"{report.path}: {report.note or 'nothing to merge'}"
    lines = [f"{report.path}: {report.steps} steps of {len(report.ranks)} ranks"]
    lines += [f"  {path.name}" for path in report.files]
    for name in ("missing_ranks", "conflicts", "damage", "refused"):
        found = getattr(report, name)
        lines += [f"  {name.replace('_', ' ')}: {', '.join(map(str, found))}"] if found else []
    return "\n".join(lines)


def _workers(text: str) -> int | str:
    """What `--workers` says, in the words of `landscape`; argparse makes a message of the error."""
    if text == "auto":
        return "ray"
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be auto or a whole number from 0 on, got {text!r}")
    return int(text)


@contextmanager
def _with_progress() -> Iterator[None]:
    """Let the log say how far a landscape is; it does where stderr is no terminal, as in a batch job."""
    log = logging.getLogger("distsummary.landscapes.run.progress")
    before = log.level
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)


def _planes(options: argparse.Namespace) -> dict[str, Any]:
    """What `_add_planes` asks of `landscape`, with the directions that it takes by default."""
    from distsummary.landscapes.directions.sources import is_single

    around = options.run if options.around is None and options.runs is None else options.around
    usual = "pca" if options.runs is not None else "random" if is_single(around) else "pca,random"
    asked = usual if options.directions is None else options.directions
    return {
        "around": around,
        "runs": options.runs,
        "directions": tuple(name.strip() for name in asked.split(",")),
        "parameters": options.parameters,
        "centring": options.centring,
    }


def _landscape(options: argparse.Namespace) -> None:
    from distsummary.landscapes.factory import load_factory
    from distsummary.landscapes.generator import landscape
    from distsummary.run_dir import RunDir

    parts, evaluation = load_factory(options.factory)
    with _with_progress():
        grids = landscape(
            *parts,
            **_planes(options),
            output=options.run,
            size=options.size,
            seed=options.seed,
            evaluation=evaluation,
            refine=options.refine,
            workers=options.workers,
            gpus_per_worker=options.gpus_per_worker,
            engine=options.engine,
            memory=options.memory,
            resume=not options.anew,
        )
    assert isinstance(grids, dict)  # several directions were asked for
    if options.json:
        print(json.dumps({"run_dir": options.run, "landscapes": sorted(grids)}))
    else:
        print("\n".join(_drawn(name, grid) for name, grid in sorted(grids.items())))
        print(f"pictures and grids: {RunDir(options.run).landscape_dir}")


def _drawn(name: str, grid: "LossGrid") -> str:
    """What a landscape is, in a line."""
    from distsummary.landscapes.output.describe import not_finite

    facts = [f"{len(grid.x)} x {len(grid.y)} points by {grid.engine}"]
    if not grid.computed.all():
        facts.append(f"{grid.computed.sum():,} of {grid.computed.size:,} computed")
    if grid.kind == "line":
        start, end = grid.true_loss
        facts.append(f"loss {start:.4g} and {end:.4g} at its ends, barrier {grid.barrier:.4g}")
    else:
        facts.append(f"loss {grid.true_loss[-1]:.4g} at its centre")
    if bad := not_finite(grid):
        facts.append(f"{bad} of {grid.computed.sum()} computed losses not finite")
    if grid.explained_variance.size:
        facts.append("explained variance " + " + ".join(f"{share:.3f}" for share in grid.explained_variance))
    if (out := grid.residuals.max(initial=0.0)) > 0.005:  # less is 0 %, as the rounding of a triangle is
        facts.append(f"checkpoints up to {out:.0%} out of the plane")
    return f"{name}: {', '.join(facts)}"


def _dump(options: argparse.Namespace) -> None:
    from distsummary.tools.dump import dump, to_line

    try:
        for record in dump(options.path, full=options.full):
            print(to_line(record))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough (head, less); stdout must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fsck(options: argparse.Namespace) -> int:
    from distsummary.tools.fsck import fsck

    report = fsck(options.directory, repair=options.repair)
    if options.json:
        print(json.dumps(report.as_json()))
        return report.exit_code
    for one in report.repaired:
        print(f"repaired: {one.as_line()}")
    for one in report.findings:
        print(one.as_line())
    problems = sum(one.is_problem for one in report.findings)
    print(
        f"{report.directories} directories, {report.files} files, {report.events} events: {problems} problems"
    )
    return report.exit_code


def _convert(options: argparse.Namespace) -> None:
    from distsummary.tools.convert import convert

    report = convert(options.directory, to=options.to, out=options.out)
    print(json.dumps(report.as_json()) if options.json else "\n".join(report.as_lines()))
