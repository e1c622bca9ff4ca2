"""What recording costs, next to the peers: see README.md in benchmarks/."""
