"""What many ranks cost: see README.md in benchmarks/."""
