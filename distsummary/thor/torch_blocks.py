"""Block-diagonal matrices: sums of outer products, damped inverses, and their product with a gradient.

A symmetric matrix of size n is kept as its diagonal blocks, float (groups, blocks, width, width): `groups` is
1, or the groups of a grouped convolution, which have a matrix each. The last block is padded with zeros.
MindSpore computes whole matrices and then keeps these blocks alone (nn/optim/thor.py, CholeskyTrsm with
split_dim=128).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH = 128  # of a block, as in MindSpore


class Inverse(NamedTuple):
    """The inverse of a damped factor.

    Attributes:
        blocks: float (groups, blocks, width, width), or (n,) of a diagonal factor.
        condition: of the damped factor, in the 1-norm; a tensor without dimensions.
        is_regular: whether the factor is finite and positive definite; a bool tensor without dimensions.
    """

    blocks: Tensor
    condition: Tensor
    is_regular: Tensor


def shape_of(size: int, *, groups: int = 1, width: int = WIDTH) -> tuple[int, int, int, int]:
    """The shape of the blocks of `groups` matrices of a size."""
    width = min(width, size)
    return groups, -(-size // width), width, width


def outer(vectors: Tensor, *, width: int = WIDTH) -> Tensor:
    """The blocks of V V', the sum of outer products, of vectors (groups, n, count)."""
    groups, size, count = vectors.shape
    _, blocks, width, _ = shape_of(size, width=width)
    parts = F.pad(vectors, (0, 0, 0, blocks * width - size)).reshape(groups, blocks, width, count)
    return parts @ parts.mT


def trace(blocks: Tensor) -> Tensor:
    """The sum of the diagonal, of all groups; a tensor without dimensions."""
    return blocks.diagonal(dim1=-2, dim2=-1).sum()


def damped_inverse(blocks: Tensor, damping: float, size: int) -> Inverse:
    """(M + damping I)^-1 by Cholesky factors, of matrices of `size`."""
    groups, count, width, _ = blocks.shape
    added = blocks.new_full((count * width,), damping)
    # The padding gets ones, so that it has an inverse.
    added[size:] = 1
    matrix = blocks + torch.diag_embed(added.view(count, width))
    # Unlike cholesky, cholesky_ex does not raise, and so does not wait for the device. The identity takes the
    # place of factors that failed; `is_regular` reports them.
    factor, info = torch.linalg.cholesky_ex(matrix)
    eye = torch.eye(width, dtype=factor.dtype, device=factor.device)
    inverse = torch.cholesky_inverse(torch.where(info[..., None, None] > 0, eye, factor))
    # The columns of the padding do not count in the norms.
    norms = [one.abs().sum(-2).reshape(groups, -1)[:, :size].max() for one in (matrix, inverse)]
    return Inverse(inverse, norms[0] * norms[1], ~info.any() & inverse.isfinite().all())


def diagonal_inverse(diagonal: Tensor, damping: float) -> Inverse:
    """1 / (d + damping), of a diagonal matrix (n,)."""
    damped = diagonal + damping
    inverse = damped.reciprocal()
    return Inverse(inverse, damped.max() * inverse.max(), inverse.isfinite().all() & (damped > 0).all())


def largest(inverse: Tensor, size: int, group: int, count: int) -> list[tuple[float, Tensor]]:
    """The largest eigenvalues of a damped factor of one group, and eigenvectors (size,), from its inverse.

    The inverse of a factor is `inverse`: blocks, or (n,) of a diagonal factor.
    """
    if inverse.dim() == 1:
        values, places = (1 / inverse.double()).topk(min(count, size))
        return [(float(v), F.one_hot(at, size).double()) for v, at in zip(values, places, strict=True)]
    found: list[tuple[float, Tensor]] = []
    width = inverse.shape[-1]
    for number, block in enumerate(inverse[group].double()):
        begin = number * width
        real = min(width, size - begin)
        # The padding has eigenvalues that are none of the factor.
        values, vectors = torch.linalg.eigh(block[:real, :real])
        # eigh sorts upwards, and the smallest eigenvalues of the inverse belong to the largest of the factor.
        for at in range(min(count, real)):
            vector = F.pad(vectors[:, at], (begin, size - begin - real))
            found.append((1 / float(values[at]), vector))
    return sorted(found, key=lambda one: -one[0])[:count]


def precondition(gradient: Tensor, inverse_g: Tensor, inverse_a: Tensor) -> Tensor:
    """G^-1 gradient A^-1, of a gradient (groups, outputs, inputs); A may be diagonal: it then scales outputs.

    A diagonal `inverse_a` (n,) is that of an embedding, whose gradient (1, n, features) has the inputs first:
    the result is A^-1 gradient G^-1.
    """
    if inverse_a.dim() == 1:
        return inverse_a[:, None] * _times_right(gradient, inverse_g)
    return _times_right(_times_right(gradient.mT, inverse_g).mT, inverse_a)


def _times_right(matrix: Tensor, blocks: Tensor) -> Tensor:
    """M B, of M (groups, rows, n) and the symmetric blocks of B."""
    groups, rows, size = matrix.shape
    _, count, width, _ = blocks.shape
    if count == 1:
        return matrix @ blocks[:, 0]
    parts = F.pad(matrix, (0, count * width - size)).view(groups, rows, count, width)
    product = parts.transpose(1, 2) @ blocks
    return product.transpose(1, 2).reshape(groups, rows, count * width)[:, :, :size]
