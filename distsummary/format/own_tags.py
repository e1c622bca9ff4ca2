"""The names of all values that distsummary adds to a run; docs/format.md lists them in one table.

Viewers sort tags by name and show the first ones first. OWN sorts behind names as users choose them, in each
of their orders: MindInsight and TensorBoard's HPARAMS compare code points; TensorBoard's other pages do so,
too, but "/", digits and "_" come before all else. The kind follows: TensorBoard shows the tags with an equal
first part as a group.
"""

OWN = "zz_"

# Milliseconds of a step.
PERF_TAGS = f"{OWN}perf/"
STEP_MS, DATA_WAIT_MS = f"{PERF_TAGS}step_ms", f"{PERF_TAGS}data_wait_ms"
OWN_MS = f"{PERF_TAGS}own_ms"  # what the loop's thread did by itself: CPU and blocked time without waiting
WAIT_MS = f"{PERF_TAGS}wait_ms"  # for other ranks
# What the loop's thread did in each phase of a step, to find out which rank is slow; each rank has them, but
# not the merged run.
PHASE_TAGS = f"{PERF_TAGS}phase/"
LOADER_IDLE = f"{PHASE_TAGS}data/idle_ms"  # how long the workers of the loader had nothing to do
EVERY = f"{PHASE_TAGS}every"  # one step in so many is measured; not reported while it is 1

# What a process, its node and its GPU use; ranks take samples at steps of their own.
SYSTEM_TAGS = f"{OWN}system/"
PROCESS_TAGS, NODE_TAGS, GPU_TAGS = f"{SYSTEM_TAGS}process/", f"{SYSTEM_TAGS}node/", f"{SYSTEM_TAGS}gpu/"
PROCESS_CPU, PROCESS_MEMORY = f"{PROCESS_TAGS}cpu_percent", f"{PROCESS_TAGS}memory_gib"
PROCESS_PRIVATE = f"{PROCESS_TAGS}private_gib"
GPU_MEMORY, GPU_UTILIZATION = f"{GPU_TAGS}memory_percent", f"{GPU_TAGS}utilization_percent"
GPU_RESERVED, GPU_ALLOCATED = f"{GPU_TAGS}reserved_gib", f"{GPU_TAGS}allocated_gib"

# By what ranks that should be alike are compared: see `check_tags`. As of phases, the merged run has none.
CHECK_TAGS = f"{OWN}check/"
BITS_TAGS = f"{CHECK_TAGS}bits/"
BATCH_TAGS = (f"{CHECK_TAGS}batch/0", f"{CHECK_TAGS}batch/1")  # the digest of a batch, in two parts
# The number of the first tensor of the batch, or parameter, that is not finite; and with LAG, how many steps
# before the event that was.
NONFINITE_TAGS = {kind: f"{CHECK_TAGS}nonfinite/{kind}" for kind in ("input", "gradient", "weight")}
LAG = "/lag"
EPOCH = f"{CHECK_TAGS}epoch"  # at the first step of an epoch: its number

# Of the merged run: on how many ranks a step stands, and the statistics of a tag over the ranks.
OF_RANKS = f"{OWN}ranks/"
RANKS_TAG = f"{OF_RANKS}count"
STATISTICS = ("min", "median", "max", "argmax_rank")

# Of the merged run: the sentences of verdicts, and the rank of the first, at the step where they were
# reported. The step of a hang may be one that no rank ends.
ALERT_TAGS = ALERT_TEXT, ALERT_RANK = f"{OWN}alerts/text", f"{OWN}alerts/rank"

# Norms of all parameters together, the text that names the first one that is not finite, and the value of the
# plugin "norms", which no viewer shows.
GRADIENT_NORM, WEIGHT_NORM = f"{OWN}norms/gradient", f"{OWN}norms/weight"
NONFINITE_TEXT = f"{OWN}norms/nonfinite"
NORMS_TAG = f"{OWN}norms"

GRADIENT_TAGS = f"{OWN}gradient/"  # of a parameter
CURVATURE_TAGS = f"{OWN}curvature/"  # of the layers of a second-order optimizer
FOUND_INF = f"{OWN}amp/found_inf"  # if it is not 0, GradScaler has the optimizer skip the step
RUN_TEXT = f"{OWN}run"  # what run.json says, for TensorBoard's page TEXT

# What belongs to the user's own model has the names of MindSpore: `<parameter>/auto`, and these.
AUTO = "/auto"
LOSS_TAG, LEARNING_RATE_TAG, IMAGE_TAG = f"loss{AUTO}", f"learning_rate{AUTO}", f"input_data{AUTO}"
EVALUATION_TAGS = "eval/"  # metrics, such as eval/accuracy
SCRIPT_TAGS = "script/"  # what a script gives to another library


def statistics_of(tag: str) -> list[str]:
    """The tags of the STATISTICS of a tag over the ranks."""
    return [f"{OF_RANKS}{tag}/{kind}" for kind in STATISTICS]


def is_own(tag: str) -> bool:
    """Whether a tag has a name of distsummary."""
    return tag.startswith(OWN)
