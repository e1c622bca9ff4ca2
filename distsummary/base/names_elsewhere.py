"""Names that W&B, MLflow and TensorBoard have and distsummary has not, with what does the same here."""

from difflib import get_close_matches

GUIDE = "docs/coming-from.md"
_CONFIG, _LOG = "ds.init(config=...)", "run.log(loss=loss)"
_FILES = "write the file into run.dir: files stay where they are, and none is sent anywhere"
_PARENT = 'the directory above the run is the project: ds.init("PROJECT/a")'
_GROUP = 'ds.init(group="...")'
_ALWAYS = "nothing: what is recorded is in the files within a second"

ARGUMENTS = {  # of ds.init
    "project": _PARENT,
    "entity": "leave it out: runs are directories of yours, without an account",
    "mode": 'leave it out: nothing is ever sent, as with mode="offline"; ds.Run() records nothing',
    "job_type": 'write role="eval" for a job that only evaluates, else tags=["..."]',
    "id": 'leave it out: the directory names the run, and on_existing="attempt" continues in it',
    "reinit": 'call run.close() before the next ds.init, or write on_existing="new"',
    "dir": 'the directory is the first argument: ds.init("runs/a")',
    "save_code": "leave it out: the commit and the command line are recorded in any case",
    "settings": "each setting is an argument; ds.Record(...) as record= has the rarer ones",
    "force": "leave it out: there is no login",
    "anonymous": "leave it out: there is no login",
    "allow_val_change": "leave it out: each attempt has the config that it is started with",
    "sync_tensorboard": 'DISTSUMMARY_OPTIONS={"tee": true} and distsummary run -- COMMAND record it as well',
    "resume_from": "write resume=ds.resume(checkpoint, model, optimizer)",
    "fork_from": 'write resume=ds.resume(checkpoint, model, optimizer), on_existing="new"',
    "experiment": _PARENT,
    "experiment_name": _PARENT,
    "experiment_id": _PARENT,
    "run_name": 'write name="..."',
    "run_id": 'leave it out: the directory names the run, and on_existing="attempt" continues in it',
    "description": 'write notes="..."',
    "comment": 'write notes="..."',
    "nested": f"runs of one sweep share a group: {_GROUP}",
    "parent_run_id": f"runs of one sweep share a group: {_GROUP}",
    "tracking_uri": 'the directory is the first argument: ds.init("runs/a")',
    "log_system_metrics": "write system_metrics=True, which is the default",
    "hparams": "write config=...",
    "params": "write config=...",
    "log_dir": 'the directory is the first argument: ds.init("runs/a")',
    "logdir": 'the directory is the first argument: ds.init("runs/a")',
    "flush_secs": "leave it out: what is recorded is in the files within a second",
    "purge_step": "write initial_step=..., which replaces the steps after it",
}
ATTRIBUTES = {  # of a Run
    **dict.fromkeys(("finish", "end", "end_run", "stop", "terminate"), "run.close()"),
    "define_metric": 'run.define("eval/*", best="max")',
    **dict.fromkeys(
        ("log_metric", "log_metrics", "track", "add_scalar", "add_scalars", "append", "log_scalar"), _LOG
    ),
    **dict.fromkeys(("log_param", "log_params", "log_hyperparams", "add_hparams", "hparams"), _CONFIG),
    **dict.fromkeys(
        ("log_artifact", "log_artifacts", "use_artifact", "log_model", "link_artifact", "save", "upload",
         "log_code", "upload_files"),
        _FILES,
    ),
    "watch": 'ds.init(watch=model, histograms=".*", gradients=".*")',
    "unwatch": "leave it out: the run ends that",
    **dict.fromkeys(("tags", "set_tag", "set_tags", "add_tags"), 'ds.init(tags=["..."])'),
    "group": _GROUP,
    **dict.fromkeys(("notes", "description", "set_notes"), 'ds.init(notes="...")'),
    **dict.fromkeys(("project", "experiment", "entity"), "run.dir.parent, the directory above the run"),
    "run_id": "run.id",
    "info": "run.id, run.name and run.config",
    "path": "run.dir",
    "get_url": "run.url",
    "get_logdir": "run.dir",
    "log_dir": "run.dir",
    "flush": _ALWAYS,
    **dict.fromkeys(("add_histogram", "log_histogram"), "run.histogram(name, array)"),
    **dict.fromkeys(("add_image", "add_images", "log_image"), "run.image(name, array)"),
    **dict.fromkeys(("add_figure", "log_figure"), "run.figure(name, figure)"),
    **dict.fromkeys(("add_text", "log_text", "log_dict"), "run.text(name, text)"),
    **dict.fromkeys(("add_table", "log_table"), "run.table(name, rows)"),
    "add_video": "run.video(name, frames)",
    "add_audio": "run.audio(name, samples, rate)",
    "add_pr_curve": "run.pr_curve(name, labels, predictions)",
    "add_graph": 'ds.init(watch=model, graph="modules")',
    "history": "ds.open_run(run.dir).scalars()",
}  # fmt: skip
PACKAGE = {  # of the package itself
    **dict.fromkeys(("log", "log_metric", "log_metrics", "add_scalar"), "run = ds.init(...); run.log(...)"),
    **dict.fromkeys(("finish", "end_run"), "run.close()"),
    **dict.fromkeys(("config", "log_param", "log_params"), _CONFIG),
    **dict.fromkeys(("start_run", "active_run"), 'ds.init("runs/a"), which returns the run'),
    **dict.fromkeys(("set_experiment", "create_experiment", "set_tracking_uri"), _PARENT),
    **dict.fromkeys(("login", "setup"), "nothing: there is no account"),
    **dict.fromkeys(("Artifact", "log_artifact", "log_artifacts", "save"), _FILES),
    "define_metric": 'run.define("eval/*", best="max")',
    "watch": 'ds.init(watch=model, histograms=".*", gradients=".*")',
    "autolog": "distsummary run -- COMMAND, which needs no line of code",
    "alert": "run.alert(title, text)",
    **dict.fromkeys(("Image", "Histogram", "Video", "Audio"), "run.image, run.histogram and others"),
    "SummaryWriter": "from distsummary.integrations import SummaryWriter",
    **dict.fromkeys(("Api", "search_runs"), "ds.open_run"),
    **dict.fromkeys(("sweep", "agent"), f"any launcher of sweeps, with {_GROUP}"),
}


def missing_attribute(run: object, name: str) -> AttributeError:
    """The error for an attribute that a Run does not have: what has its place, or the nearest name."""
    kind = type(run).__name__
    if instead := ATTRIBUTES.get(name):
        return AttributeError(f"{kind} has no attribute {name!r}; here it is {instead} ({GUIDE})")
    names = [] if name.startswith("_") else [one for one in dir(type(run)) if not one.startswith("_")]
    near = get_close_matches(name, names, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return AttributeError(f"{kind} has no attribute {name!r}{hint}", name=name, obj=run)
