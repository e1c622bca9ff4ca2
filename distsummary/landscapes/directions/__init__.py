"""Checkpoints -> planes: which two directions a landscape has. The names that users may ask for."""

DIRECTIONS = ("pca", "random", "hessian", "line", "triangle")
CENTERINGS = ("last", "mean", "mindspore")  # of the PCA
CORNERS = {"line": 2, "triangle": 3}  # the checkpoints, or runs, that these go through
OF_RUNS = ("pca", *CORNERS)  # those that several checkpoints span
