"""The seconds on which several processes of a run have to agree, in one table."""

# How the life of a rank is seen.
BEAT_S = 5.0  # between two heartbeats of a rank
SILENT_S = 6 * BEAT_S  # a rank that was not seen for so long is taken for dead
BEHIND_S = 3 * BEAT_S  # a rank that is missing the steps of more than this time is behind
UNREACHED_S = 2 * BEAT_S  # a host that sent nothing for so long is not reached
LAUNCHER_S = 90.0  # how long after the end of a rank its launcher may report why it died

# How ranks join a run.
JOIN_WINDOW_S = 60.0  # how much later than the first rank of a start another rank may join it
JOIN_S = 30.0  # how long the aggregator waits for further ranks of an attempt; then the missing are named
CLAIM_S = 60.0  # how long a rank waits for another process that claims the same rank
SHARED_S = 8.0  # how long a network file system may take to show the run.json of another node
FAR_S = BEAT_S + 3.0  # how long a heartbeat of another job on another machine is awaited
NUMBERED_S = 20.0  # how long a rank waits for signs that it shares its directory, or that it does not
WORLD_S = 10.0  # how long the first deal waits for ranks that have not registered

# How what they recorded becomes one run.
WAIT_S = 30.0  # a step waits this long for ranks that have not reported it, and no longer
EVALUATED_S = 30.0  # how long after one rank the others may report their evaluations
HIDDEN_S = 75.0  # how long a merge waits for files that do not show all yet; NFS caches sizes for up to 60 s
