"""The recorded graph of a model as a file for Model Explorer, for `distsummary dump --graph`."""

import os
from itertools import chain
from pathlib import Path
from typing import Any

from distsummary.cli.dump import event_files
from distsummary.errors import MissingFileError
from distsummary.events.reader import read_file
from distsummary.events.segments import dialect_of
from distsummary.format import mindspore_graph
from distsummary.format.graph import model_explorer
from distsummary.format.records import DIALECTS


def model_graph(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The newest graph of a run as an object for JSON, which Model Explorer opens from a .json file.

    Args:
        path: an event file, the directory of a rank, or a run dir; of the latter, the merged run or, if that
            has no graph, the first rank that has one.

    Raises:
        MissingFileError: there is no such path, no event file, or no graph in the files.
        DamagedFileError: it is a file of another kind.
    """
    by_place: dict[Path, list[Path]] = {}
    for file in event_files(path):
        by_place.setdefault(file.parent, []).append(file)
    for files in by_place.values():
        for dialect in DIALECTS:
            of_dialect = [file for file in files if dialect_of(file) == dialect]
            events = chain.from_iterable(read_file(file, "skip") for file in of_dialect)
            found = [value.data for event in events for value in event.values if value.plugin == "graph"]
            # The last graph in the files is the newest.
            if found:
                graph = mindspore_graph.decode(found[-1])
                return {"label": Path(path).resolve().name, "graphs": [model_explorer(graph)]}
    raise MissingFileError(
        f'there is no graph in {path}; rank 0 records it in a run with watch=model, graph="modules"'
    )
