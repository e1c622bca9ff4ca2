"""Trainings that do not know of distsummary: `python scripts.py OUT NAME ...` writes what they saw as JSON.

Each returns rows of (loss, learning rate, norm of the gradients), one a step, and its model.
"""

import copy
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.utils.data import DataLoader

STEPS = 12
Row = tuple[float, float, float]
Result = tuple[list[Row], list[nn.Module]]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def norm_of(model: nn.Module) -> float:
    """What clip_grad_norm_ would return; of shards, that of this rank's."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return nn.utils.get_total_norm([getattr(each, "_local_tensor", each) for each in gradients]).item()


def batches(steps: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(steps):
        x = torch.rand(4, 8)
        yield x, x.sum(1, keepdim=True)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Row]:
    """Makes the steps of a common loop, and yields the row of each."""
    for x, y in batches():
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        norm = norm_of(model)
        optimizer.step()
        yield loss.item(), optimizer.param_groups[0]["lr"], norm


def plain() -> Result:
    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    loader = DataLoader(list(zip(torch.rand(4 * STEPS, 8), torch.rand(4 * STEPS, 1), strict=True)), 4)
    for x, y in loader:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        lr = optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
        rows.append((loss.item(), lr, norm.item()))
    return rows, [model]


def own_schedule() -> Result:
    """A learning rate that the loop sets, and one that is a tensor."""
    model, rows = net(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False, capturable=False)
    for number, (x, y) in enumerate(batches()):
        lr = 0.01 / (1 + number)
        optimizer.param_groups[0]["lr"].fill_(lr)
        loss = mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        rows.append((loss.item(), lr, norm_of(model)))
    return rows, [model]


def accumulation() -> Result:
    model, rows = net(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    total = 0.0
    for number, (x, y) in enumerate(batches(3 * STEPS)):
        loss = mse_loss(model(x), y) / 3
        loss.backward()
        total += loss.item()
        if number % 3 == 2:
            rows.append((total, 0.01, norm_of(model)))
            optimizer.step()
            optimizer.zero_grad()
            total = 0.0
    return rows, [model]


def attacked() -> Result:
    """FGSM: the first pass of a step serves the gradient of the input."""
    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        x.requires_grad_()
        mse_loss(model(x), y).backward()
        loss = mse_loss(model((x + 0.1 * x.grad.sign()).detach()), y)
        optimizer.zero_grad()
        loss.backward()
        rows.append((loss.item(), 0.1, norm_of(model)))
        optimizer.step()
    return rows, [model]


def sharpness() -> Result:
    """SAM: the gradients of the first pass lead to where those of the second are computed."""
    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        mse_loss(model(x), y).backward()
        before = [one.detach().clone() for one in model.parameters()]
        for one in model.parameters():
            assert one.grad is not None
            one.data.add_(one.grad, alpha=0.05)
        optimizer.zero_grad(set_to_none=False)
        loss = mse_loss(model(x), y)
        loss.backward()
        for one, old in zip(model.parameters(), before, strict=True):
            one.data = old
        rows.append((loss.item(), 0.1, norm_of(model)))
        optimizer.step()
        model.zero_grad()
    return rows, [model]


def bad_batches() -> Result:
    """The loop itself leaves out batches whose gradients are not finite, in several ways; or probes one."""
    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(batches(2 * STEPS)):
        loss = mse_loss(model(x), y * (torch.nan if number % 2 else 1.0))
        loss.backward()
        if number % 2:
            for one in model.parameters():
                if number % 4 == 1:
                    one.grad = None
                else:
                    one.grad.zero_()
            continue
        rows.append((loss.item(), 0.1, norm_of(model)))
        optimizer.step()
        optimizer.zero_grad()
    return rows, [model]


def weighted() -> Result:
    """Each sample of a batch has its loss and its weight."""
    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        losses, weights = (model(x) - y).square().flatten(), torch.rand(4)
        optimizer.zero_grad()
        losses.backward(weights)
        rows.append(((losses * weights).sum().item(), 0.1, norm_of(model)))
        optimizer.step()
    return rows, [model]


class Container(torch.optim.Optimizer):
    """As torchtitan's: has all parameters and no learning rate, and steps optimizers of its own."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        groups = [group for each in optimizers for group in each.param_groups]
        super().__init__([parameter for group in groups for parameter in group["params"]], {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step()


def contained() -> Result:
    """The script clips with a norm that it has computed itself."""
    model, rows = net(), []
    parts = [torch.optim.AdamW(model[place].parameters(), lr=0.01) for place in (0, 2)]
    optimizer = Container([*parts])
    for x, y in batches():
        loss = mse_loss(model(x), y)
        loss.backward()
        norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])  # type: ignore[misc]
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, norm)
        optimizer.step()
        optimizer.zero_grad()
        rows.append((loss.item(), 0.01, norm.item()))
    return rows, [model]


def amp() -> Result:
    """The gradients of one step overflow: GradScaler leaves it out."""
    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (x, y) in enumerate(batches(STEPS + 1)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse_loss(model(x), y)
        scaler.scale(loss * (torch.inf if number == 4 else 1)).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if number != 4:
            rows.append((loss.item(), 0.05, norm.item()))
    return rows, [model]


def amp_fused() -> Result:
    """GradScaler leaves it to the optimizer to unscale the gradients."""
    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in batches():
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        scaler.scale(loss).backward()
        norm = norm_of(model) / 1024
        scaler.step(optimizer)
        scaler.update()
        rows.append((loss.item(), 0.05, norm))
    return rows, [model]


def sparse() -> Result:
    """An embedding whose gradient holds the rows that the batch has used, one of them twice."""
    model, rows = nn.Embedding(9, 4, sparse=True), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.tensor([1, number % 9, 1])).square().sum()
        loss.backward()
        norm = model.weight.grad.to_dense().norm().item()
        optimizer.step()
        rows.append((loss.item(), 0.05, norm))
    return rows, [model]


def gan() -> Result:
    maker, judge, rows = net(), nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1)), []
    of_judge = torch.optim.Adam(judge.parameters(), lr=0.01)
    of_maker = torch.optim.Adam(maker.parameters(), lr=0.02)
    for x, y in batches():
        of_judge.zero_grad()
        made = maker(x)
        judged = binary_cross_entropy_with_logits(judge(y), torch.ones(4, 1))
        judged = judged + binary_cross_entropy_with_logits(judge(made.detach()), torch.zeros(4, 1))
        judged.backward()
        norm = norm_of(judge)
        of_judge.step()
        of_maker.zero_grad()
        fooled = binary_cross_entropy_with_logits(judge(made), torch.ones(4, 1))
        fooled.backward()
        of_maker.step()
        rows.append((judged.item() + fooled.item(), 0.01, norm))
    return rows, [maker, judge]


def lbfgs() -> Result:
    model, rows = net(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    norms: list[float] = []
    for x, y in batches():
        norms.clear()

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            norms.append(norm_of(model))
            return loss

        rows.append((optimizer.step(closure).item(), 0.1, norms[0]))
    return rows, [model]


def compiled() -> Result:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return [*steps(torch.compile(model, backend="aot_eager"), optimizer)], [model]


def compiled_step() -> Result:
    """The whole step is compiled."""
    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    @torch.compile(backend="aot_eager")
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for x, y in batches():
        rows.append((step(x, y).item(), 0.05, 0.0))
    return rows, [model]


def checkpointing() -> Result:
    """Activation checkpointing, whose reentrant kind runs a backward pass within the backward pass."""
    from torch.utils.checkpoint import checkpoint

    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches():
        optimizer.zero_grad()
        inner = checkpoint(model[0], x.requires_grad_(), use_reentrant=True)
        loss = mse_loss(model[2](model[1](inner)), y)
        loss.backward()
        optimizer.step()
        rows.append((loss.item(), 0.05, norm_of(model)))
    return rows, [model]


def evaluating() -> Result:
    """Evaluates, and saves a checkpoint, in the middle; a copy of the model follows it."""
    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    tests = DataLoader(torch.rand(8, 8), 4)
    for number, row in enumerate(steps(model, optimizer)):
        rows.append(row)
        if number % 4 == 1:
            model.eval()
            with torch.no_grad():
                for batch in tests:
                    model(batch)
            model.train()
            copy.deepcopy(model)
            torch.save({"model": model, "optimizer": optimizer.state_dict()}, os.devnull)
    return rows, [model]


def in_backward() -> Result:
    """An optimizer for each parameter, which steps as soon as its gradient is there."""
    model, rows = net(), []
    optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}
    norms: list[float] = []

    def step(parameter: nn.Parameter) -> None:
        norms.append(parameter.grad.norm().item())
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for x, y in batches():
        norms.clear()
        loss = mse_loss(model(x), y)
        loss.backward()
        rows.append((loss.item(), 0.05, norms[0]))
    return rows, [model]


def resumed() -> Result:
    """Continues at step 12, from a checkpoint."""
    torch.manual_seed(9)
    first = net()
    optimizer = torch.optim.Adam(first.parameters(), lr=0.01)
    optimizer.load_state_dict(torch.load(os.environ["CHECKPOINT"]))
    return [*steps(first, optimizer)], [first]


def written() -> Result:
    """Gives its loss to a SummaryWriter, after the step."""
    from torch.utils.tensorboard import SummaryWriter

    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with SummaryWriter(f"{sys.argv[1]}/written") as writer:
        for number, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            norm = norm_of(model)
            optimizer.step()
            writer.add_scalar("train/loss", loss, 10 * number)
            writer.add_scalars("both", {"half": loss.item() / 2}, 10 * number)
            rows.append((loss.item(), 0.05, norm))
    return rows, [model]


def in_thread() -> Result:
    """Trains in another thread than the one that imported torch, as workers of Ray Train do."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(plain()))
    thread.start()
    thread.join()
    return results[0]


def forking() -> Result:
    """Between two steps a process is forked, which trains as well: that is another training."""
    model, rows = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, row in enumerate(steps(model, optimizer)):
        rows.append(row)
        if number == STEPS // 2:
            # Python 3.12 and later warn whoever forks a process of several threads: recording has some.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                for _ in range(3):
                    optimizer.zero_grad()
                    model(torch.rand(4, 8)).sum().backward(inputs=[*model.parameters()])
                    optimizer.step()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    return rows, [model]


def crashing() -> Result:
    rows, models = plain()
    write("crashing", rows, models)
    raise RuntimeError("the data are gone")


def together() -> Result:
    """Tasks of Slurm, without collectives; as with collectives, none is over before the other has begun."""
    result = plain()
    begun = os.environ["TRAINED"]
    open(f"{begun}-{os.environ['SLURM_PROCID']}", "w").close()
    while not all(os.path.exists(f"{begun}-{rank}") for rank in range(2)):
        time.sleep(0.01)
    return result


def ddp() -> Result:
    """Ranks with data of their own."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    model, rows = nn.parallel.DistributedDataParallel(net()), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(list(batches()), batch_size=None, num_workers=1):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        rows.append((loss.item(), 0.05, norm.item()))
    torch.distributed.destroy_process_group()
    return rows, [model]


def failing_once() -> Result:
    """Ranks without collectives. The first time, rank 1 fails while rank 0 trains."""
    result = plain()
    failed, trained = (os.environ[name] for name in ("FAIL", "TRAINED"))
    if not os.path.exists(failed):
        if os.environ["RANK"] == "0":
            open(trained, "w").close()
            time.sleep(600)  # until its agent ends it
        while not os.path.exists(trained):
            time.sleep(0.01)
        open(failed, "w").close()
        raise RuntimeError("once")
    # as collectives do: no rank is over before the other has begun
    start = f"{trained}-{os.environ['MASTER_PORT']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    open(f"{start}-{os.environ['RANK']}", "w").close()
    while not all(os.path.exists(f"{start}-{rank}") for rank in range(2)):
        time.sleep(0.01)
    return result


def fsdp2() -> Result:
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    model, rows = net(), []
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, y in batches():
        optimizer.zero_grad()
        loss = mse_loss(model(x), y) + torch.distributed.get_rank()
        loss.backward()
        optimizer.step()
        rows.append((loss.item(), 0.01, norm_of(model)))
    torch.distributed.destroy_process_group()
    return rows, []


TRAININGS: dict[str, Callable[[], Result]] = {
    name: one
    for name, one in [*globals().items()]
    if getattr(one, "__annotations__", {}) == {"return": Result}
}


def write(name: str, rows: list[Row], models: list[nn.Module]) -> None:
    weights = [p.detach().flatten().tolist() for model in models for p in model.parameters()]
    rank = os.environ.get("RANK", "0")
    with open(f"{sys.argv[1]}/{name}.{rank}.json", "w") as file:
        json.dump({"rows": rows, "weights": weights}, file)


def main(names: list[str]) -> None:
    for name in names:
        torch.manual_seed(5)
        write(name, *TRAININGS[name]())


if __name__ == "__main__":
    main(sys.argv[2:])
