"""What the pages of runs cost: see README.md in benchmarks/."""
