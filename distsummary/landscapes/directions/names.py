"""What can be asked for by name, where the command line's help can have it at no cost."""

DIRECTIONS = ("pca", "random", "hessian", "line", "triangle")
CENTERINGS = ("last", "mean", "mindspore")  # of the PCA
CORNERS = {"line": 2, "triangle": 3}  # the checkpoints, or runs, that these go through
OF_RUNS = ("pca", *CORNERS)  # those that several checkpoints span
