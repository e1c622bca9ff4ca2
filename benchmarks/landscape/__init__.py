"""What a point of a landscape costs, next to the peers: see README.md in benchmarks/."""
