"""Makes planes of two directions from checkpoints. This module holds the names that users choose from."""

DIRECTIONS = ("pca", "random", "hessian", "curvature", "line", "triangle")
CENTERINGS = ("last", "mean", "mindspore")  # what PCA subtracts from the checkpoints, see `pca`
CORNERS = {"line": 2, "triangle": 3}  # how many checkpoints (or runs) these directions need
OF_RUNS = ("pca", *CORNERS)  # directions that need several checkpoints or runs
