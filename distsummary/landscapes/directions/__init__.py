"""Checkpoints -> planes: which two directions a landscape has. The names that users may ask for."""

DIRECTIONS = ("pca", "random", "hessian", "line", "triangle")
CENTERINGS = ("last", "mean", "mindspore")  # of the PCA
CORNERS = {"line": 2, "triangle": 3}  # how many checkpoints, or runs, they go through
OF_RUNS = ("pca", *CORNERS)  # directions that need several checkpoints or runs
