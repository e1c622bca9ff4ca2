"""A small GPT under torch.compile shows what happens in it: `python examples/gpt_taps.py runs/gpt_taps`

Each block records three numbers that show a diverging training early: its largest attention logit, the
entropy of its attention, and the RMS of its output; and the gradient that flows through it. `norms=True` adds
the norm of every parameter, its gradient and its update, and names the first that is NaN. The
numbers come at every step; histograms and pictures of the attention at step 1 and every `collect_freq` steps.
Compiling takes a minute; `python examples/gpt_taps.py runs/gpt_taps aot_eager` takes seconds.
"""

import sys

import torch
from torch import Tensor, nn

import distsummary as ds

WIDTH, HEADS, LENGTH, LETTERS, LAYERS = 32, 4, 16, 27, 2


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, LENGTH, WIDTH) to the same shape."""
        x = ds.summary.gradient(f"{self.name}/gradient", x)
        batch = x.shape[0]
        q, k, v = self.qkv(self.before_attention(x)).view(batch, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        ds.summary.scalar(f"{self.name}/largest_logit", logits.amax())
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1)
        attention = logits.masked_fill(future, float("-inf")).softmax(-1)
        ds.summary.scalar(f"{self.name}/entropy", torch.special.entr(attention).sum(-1).mean())
        ds.summary.image(f"{self.name}/attention", attention[0].unsqueeze(1))  # a picture of each head
        x = x + self.out((attention @ v).transpose(1, 2).reshape(batch, LENGTH, WIDTH))
        x = x + self.mlp(self.before_mlp(x))
        ds.summary.scalar(f"{self.name}/rms", x.square().mean().sqrt())
        ds.summary.histogram(f"{self.name}/output", x)
        return x


class Gpt(nn.Module):
    """Predicts the next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(f"block{layer}") for layer in range(LAYERS)))
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, text: Tensor) -> Tensor:
        """The loss of texts (batch, LENGTH + 1) of letters."""
        x = self.letters(text[:, :-1]) + self.places.weight
        return nn.functional.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), text[:, 1:].flatten())


def main(run_dir: str, backend: str = "inductor") -> None:
    """Learn to count through the alphabet, from any letter in steps of one to three."""
    torch.manual_seed(0)
    model = Gpt()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with ds.init(run_dir, watch=model, norms=True, optimizer=optimizer) as run:
        for _ in run.steps(range(60)):
            first, stride = torch.randint(LETTERS, (16, 1)), torch.randint(1, 4, (16, 1))
            loss = compiled((first + stride * torch.arange(LENGTH + 1)) % LETTERS)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    print(f"{run.step} steps, loss {loss.item():.2f}, {breaks} graph breaks")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["runs/gpt_taps"]))
