"""The models of the zoo: small versions of what people train."""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

IMAGE, CLASSES = 16, 10  # the side of an image in pixels; it has three channels
VOCABULARY, CONTEXT = 256, 64  # tokens


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut. `norm`: makes the normalisation of so many channels."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        return functional.relu(self.body(x) + self.shortcut(x))


class GroupNorm(nn.GroupNorm):
    """GroupNorm of four groups, made like a BatchNorm."""

    def __init__(self, channels: int) -> None:
        super().__init__(4, channels)


class ResNet(nn.Module):
    """A stem, three stages, a head: (N, 3, 16, 16) to (N, 10)."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), norm(width), nn.ReLU())
        self.stage1 = ResidualBlock(width, width, 1, norm)
        self.stage2 = ResidualBlock(width, 2 * width, 2, norm)
        self.stage3 = ResidualBlock(2 * width, 4 * width, 2, norm)
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of images."""
        x = self.stage3(self.stage2(self.stage1(self.stem(x))))
        return self.head(x.mean((2, 3)))


class SyncNormalise(torch.autograd.Function):
    """Normalises channels by the statistics of all ranks' batches, as torch's SyncBatchNorm does on GPUs."""

    @staticmethod
    def forward(context, x, weight, bias, eps):
        """(N, C, H, W) to the same; one all_reduce."""
        count = x.numel() / x.shape[1]
        totals = torch.cat([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3)), x.new_tensor([count])])
        torch.distributed.all_reduce(totals)
        channels, count = x.shape[1], float(totals[-1])
        mean = totals[:channels] / count
        inverse = torch.rsqrt(totals[channels : 2 * channels] / count - mean * mean + eps)
        normal = (x - mean[:, None, None]) * inverse[:, None, None]
        context.save_for_backward(normal, weight, inverse)
        context.count = count
        return normal * weight[:, None, None] + bias[:, None, None]

    @staticmethod
    def backward(context, gradient):
        """The gradients of x, weight and bias; one all_reduce."""
        normal, weight, inverse = context.saved_tensors
        of_bias, of_weight = gradient.sum((0, 2, 3)), (gradient * normal).sum((0, 2, 3))
        totals = torch.stack([of_bias, of_weight])
        torch.distributed.all_reduce(totals)
        mean, slope = totals[:, :, None, None] / context.count
        of_x = (gradient - mean - normal * slope) * (weight * inverse)[:, None, None]
        return of_x, of_weight, of_bias, None


class SyncNorm(nn.Module):
    """A BatchNorm over all ranks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same."""
        return SyncNormalise.apply(x, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    """Self-attention of (N, T, width); causal for language models."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) to the same."""
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.out(y.transpose(1, 2).reshape(n, t, width))


class TransformerBlock(nn.Module):
    """Attention and a feed-forward net, each with a norm before and a shortcut."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, is_causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches of 4 x 4 pixels through transformer blocks: (N, 3, 16, 16) to (N, 10)."""

    def __init__(self, width: int = 48, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.positions = nn.Parameter(torch.zeros(1, (IMAGE // 4) ** 2, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, 4, False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of images."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


class GPT(nn.Module):
    """A decoder: tokens (N, T) to logits (N, T, 256). `checkpoints`: compute activations twice."""

    def __init__(self, width: int = 48, depth: int = 4, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, 4, True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the next token at each place."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.head(self.norm(x))


class SequenceClassifier(nn.Module):
    """An LSTM over packed sequences: tokens (N, T) and lengths (N,) to logits (N, 10)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The logits of a batch of sequences."""
        packed = nn.utils.rnn.pack_padded_sequence(
            self.tokens(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (state, _) = self.lstm(packed)
        return self.head(self.norm(state[-1]))


class Generator(nn.Module):
    """Noise (N, 32) to images (N, 3, 16, 16)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ConvTranspose2d(32, 2 * width, 4),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """The images of a batch of noise."""
        return self.body(noise[:, :, None, None])


class Discriminator(nn.Sequential):
    """Images (N, 3, 16, 16) to logits (N, 1)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(
            nn.Conv2d(3, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 1),
        )


class ManyTasks(nn.Module):
    """One trunk and a head for each of three tasks, of which a call uses one: (N, 3, 16, 16) to (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = ResNet(GroupNorm)
        self.trunk.head = nn.Identity()
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CLASSES)) for _ in range(3)
        )

    def forward(self, x: Tensor, task: int) -> Tensor:
        """The logits of a batch of images for a task."""
        return self.heads[task](self.trunk(x))
