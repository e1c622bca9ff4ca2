"""Nets that use their parameters in unusual ways."""

import copy
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.frameworks.landscape_nets import Net

Forward = Callable[[Any, Tensor], Tensor]


class Unusual(Net):
    """(n, 6) to three classes; `more` are modules, parameters or values that it has in addition."""

    def __init__(self, forward: Forward, more: dict[str, Callable[[], Any]]) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        for name, make in more.items():
            setattr(self, name, make())
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)

    def batch(self, rows: int) -> Any:
        return torch.randn(rows, 6), torch.arange(rows) % 3


UNUSUAL: dict[str, Callable[[], Unusual]] = {}


def unusual(**more: Callable[[], Any]) -> Callable[[Forward], Forward]:
    def keep(forward: Forward) -> Forward:
        UNUSUAL[forward.__name__] = lambda: Unusual(forward, more)
        return forward

    return keep


@unusual()
def other_modules_weights(net: Any, x: Tensor) -> Tensor:
    return F.linear(F.linear(x, net.fc.weight, net.fc.bias).relu(), net.out.weight, net.out.bias)


@unusual()
def data_in_an_operation(net: Any, x: Tensor) -> Tensor:
    return net.out(x @ net.fc.weight.data.T)


@unusual()
def data_in_numpy(net: Any, x: Tensor) -> Tensor:
    return net.out(x @ torch.tensor(net.fc.weight.data.numpy().copy()).T + torch.tensor(net.fc.bias.tolist()))


@unusual(w=lambda: nn.Parameter(torch.randn(18, 6)), cold=lambda: nn.Parameter(torch.randn(6, 6), False))
def slices(net: Any, x: Tensor) -> Tensor:
    """Inputs that cannot be flattened: what kernel they get hangs on whether weights require a gradient."""
    h = torch.stack([x, x + 1, x * 2], 1).transpose(0, 1)
    q, k, v = net.w.chunk(3)
    h = F.linear(h, q, net.fc.bias) @ k.T @ v.t() + h @ net.cold.T + F.linear(h, net.cold)
    return net.out(h).mean(0)


@unusual()
def state_dict(net: Any, x: Tensor) -> Tensor:
    return net.out(x @ net.state_dict()["fc.weight"].T)


@unusual()
def a_copy_of_a_module(net: Any, x: Tensor) -> Tensor:
    return net.out(copy.deepcopy(net.fc)(x))


@unusual()
def functional_call(net: Any, x: Tensor) -> Tensor:
    return net.out(torch.func.functional_call(net.fc, dict(net.fc.named_parameters()), (x,)))


@unusual()
def vmap(net: Any, x: Tensor) -> Tensor:
    return net.out(torch.vmap(lambda w, row: w @ row, (None, 0))(net.fc.weight, torch.vmap(net.fc)(x)))


@unusual()
def gradients(net: Any, x: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        x = x.clone().requires_grad_()
        y = net.out(torch.tanh(net.fc(x)))
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return (y + slope[:, :3]).detach()


@unusual()
def checkpointing(net: Any, x: Tensor) -> Tensor:
    return net.out(checkpoint(net.fc, x, use_reentrant=False))


@unusual()
def its_own_autocast(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = net.fc(net.fc(x))
    return net.out(h.float())


@unusual(rnn=lambda: nn.GRU(6, 6))
def autocast_inside_an_operation(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = net.rnn(x)[0]
    return net.out(h.float())


@unusual(scale=lambda: nn.Parameter(torch.tensor(1.5)), none=lambda: nn.Parameter(torch.empty(0, 3)))
def numbers_and_nothing(net: Any, x: Tensor) -> Tensor:
    return net.out(net.fc(x)) * float(net.scale) + net.scale.item() + net.none.sum()


@unusual(w=lambda: nn.Parameter(torch.randn(6, 12)[:, ::2]), t=lambda: nn.Parameter(torch.randn(6, 6).t()))
def strides(net: Any, x: Tensor) -> Tensor:
    return net.out(x @ net.w.T + F.linear(x, net.t) + float(net.t.is_contiguous()))


@unusual(
    steps=lambda: nn.Parameter(torch.arange(6), requires_grad=False),
    scale=lambda: nn.Parameter(torch.randn(6), requires_grad=False),
)
def frozen(net: Any, x: Tensor) -> Tensor:
    return net.out(net.fc(x) * net.scale + net.steps)


@unusual(rnn=lambda: nn.GRU(6, 3, batch_first=True, bidirectional=True), cell=lambda: nn.LSTMCell(6, 6))
def recurrent(net: Any, x: Tensor) -> Tensor:
    h = c = net.rnn(x[:, None])[0][:, 0]
    for _ in range(3):
        h, c = net.cell(x, (h, c))
    return net.out(h)


@unusual(mha=lambda: nn.MultiheadAttention(6, 2), kv=lambda: nn.MultiheadAttention(6, 2, kdim=3, vdim=3))
def attention(net: Any, x: Tensor) -> Tensor:
    x = x[None]
    return net.out((net.mha(x, x, x)[0] + net.kv(x, x[..., :3], x[..., :3], need_weights=False)[0])[0])


@unusual(
    encoder=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 12, batch_first=True), 2),
    both=lambda: nn.Transformer(6, 2, 1, 1, 12, batch_first=True),
)
def transformers(net: Any, x: Tensor) -> Tensor:
    mask = torch.zeros(len(x), 3, dtype=torch.bool)
    mask[0, 2:] = True
    h = net.encoder(torch.stack([x, x + 1, x - 1], 1), src_key_padding_mask=mask)
    return net.out(net.both(h, h)[:, 0])


@unusual(
    bag=lambda: nn.EmbeddingBag(7, 6), conv=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
)
def bags_and_parametrizations(net: Any, x: Tensor) -> Tensor:
    return net.out(net.conv(x) + net.bag((x.abs() * 2).long().clamp(0, 6)))


@unusual(script=lambda: torch.jit.trace(nn.Linear(6, 6), torch.randn(2, 6)))
def traced(net: Any, x: Tensor) -> Tensor:
    return net.out(net.script(x))


@unusual(last=lambda: None)
def a_view_that_no_one_reads_again(net: Any, x: Tensor) -> Tensor:
    net.last = net.fc.weight.t()
    return net.out(x @ net.last)


@unusual()
def clamped(net: Any, x: Tensor) -> Tensor:
    net.fc.weight.data.clamp_(-0.1, 0.1)
    return net.out(net.fc(x))


@unusual()
def written_through_a_view(net: Any, x: Tensor) -> Tensor:
    net.fc.weight.view(-1)[0] = 1.0
    return net.out(net.fc(x))


@unusual(table=lambda: nn.Embedding(7, 6, max_norm=0.5))
def renormalised(net: Any, x: Tensor) -> Tensor:
    return net.out(net.fc(x) + net.table((x.abs() * 2).long().clamp(0, 6)).sum(1))


@unusual(view=lambda: None)
def kept_view(net: Any, x: Tensor) -> Tensor:
    if net.view is None:
        net.view = net.fc.weight.t()
    return net.out(x @ net.view)


@unusual()
def in_another_thread(net: Any, x: Tensor) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return net.out(pool.submit(net.fc, x).result())


def raw(tensor: Tensor) -> Any:
    """What lies at a tensor's address."""
    address = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(address, tuple(tensor.shape))


@unusual()
def a_foreign_kernel(net: Any, x: Tensor) -> Tensor:
    return net.out(x + torch.tensor(np.float32(raw(net.fc.weight).mean())))


@unusual(zero=lambda: nn.Parameter(torch.zeros(6)))
def a_foreign_kernel_on_zeros(net: Any, x: Tensor) -> Tensor:
    return net.out(x + torch.tensor(raw(net.zero) * 1.0))


@unusual()
def memory_in_another_form(net: Any, x: Tensor) -> Tensor:
    return net.out(x + torch.from_numpy(raw(net.fc.weight).reshape(-1))[:6])
