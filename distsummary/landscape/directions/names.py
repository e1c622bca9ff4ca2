"""What can be asked for by name, where the command line's help can have it at no cost."""

DIRECTIONS = ("pca", "random", "hessian", "line", "triangle")
CENTRINGS = ("last", "mean", "mindspore")  # of the PCA
OF_RUNS = ("pca", "line", "triangle")  # those that several checkpoints span
