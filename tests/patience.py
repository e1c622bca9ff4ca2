"""How long tests wait for what takes seconds on a quiet machine."""

PATIENCE_S = 400.0  # below the `timeout` of a test in pyproject.toml, whose message would say less
