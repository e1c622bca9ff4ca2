"""The trainings of the zoo, written as their users would write them; each is run on every rank.

`job` says what a user would know: where the run is recorded, how many samples a batch has and how many steps
there are. `job.faults` is what makes a rank slow in the benchmark.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import distsummary as ds
from benchmarks.zoo.data import Images, Photos, Tokens, text
from benchmarks.zoo.faults import Faults
from benchmarks.zoo.nets import (
    CONTEXT,
    GPT,
    VOCABULARY,
    Discriminator,
    Generator,
    GroupNorm,
    ManyTasks,
    ResNet,
    SequenceClassifier,
    SyncNorm,
    ViT,
)


@dataclass(frozen=True)
class Job:
    """One training on one rank. `size`: samples of a batch."""

    run_dir: str
    size: int
    steps: int
    faults: Faults = field(default_factory=Faults)

    @property
    def epoch_steps(self) -> int:
        """The steps of an epoch; raises ValueError if `steps` is no multiple of it."""
        found = min(self.steps, 100 if self.steps % 200 else 200)
        if self.steps % found:
            raise ValueError(f"steps must be at most 100 or a multiple of it, got {self.steps}")
        return found

    @property
    def epochs(self) -> int:
        """How many epochs there are."""
        return self.steps // self.epoch_steps

    def samples(self, batches_a_step: int = 1) -> int:
        """The samples of the data set."""
        return self.size * dist.get_world_size() * self.epoch_steps * batches_a_step

    def loader(self, dataset: Dataset, workers: int = 0) -> DataLoader:
        """The rank's share of a data set, in batches."""
        return DataLoader(
            dataset,
            batch_size=self.size,
            sampler=DistributedSampler(dataset),
            num_workers=workers,
            collate_fn=self.faults.collate,
        )

    def beside_the_run(self, name: str) -> Path:
        """A file beside the run."""
        return Path(self.run_dir).with_name(f"{Path(self.run_dir).name}-{name}")


Train = Callable[[Job], None]
TRAININGS: dict[str, Train] = {}
SIZES: dict[str, int] = {}  # the samples of a batch from which the search for the right size begins
WORKERS: dict[str, int] = {}  # processes of its loader
WITHOUT_LOADER: set[str] = set()  # their steps begin with `run.next_step()`: no phase is called data


def training(name: str, *, size: int, workers: int = 0, has_loader: bool = True) -> Callable[[Train], Train]:
    """Enter a training into the zoo."""

    def enter(train: Train) -> Train:
        TRAININGS[name], SIZES[name], WORKERS[name] = train, size, workers
        if not has_loader:
            WITHOUT_LOADER.add(name)
        return train

    return enter


def classify(job: Job, model: nn.Module, optimizer: torch.optim.Optimizer, dataset: Dataset) -> None:
    """The loop that many of them have in common."""
    loader = job.loader(dataset)
    with ds.init(job.run_dir, watch=model, optimizer=optimizer) as run:
        for epoch in run.epochs(job.epochs):
            loader.sampler.set_epoch(epoch)
            for x, y in run.steps(loader):
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)


@training("resnet-bn", size=36)
def resnet_bn(job: Job) -> None:
    """A CNN with BatchNorm; DDP broadcasts the buffers of rank 0 before each forward."""
    net = ResNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    job.faults.place(net.stage2, optimizer)
    classify(job, DDP(net), optimizer, Images(job.samples()))


@training("resnet-bn-local", size=36)
def resnet_bn_local(job: Job) -> None:
    """The same; each rank keeps its own buffers."""
    net = ResNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    job.faults.place(net.stage2, optimizer)
    classify(job, DDP(net, broadcast_buffers=False), optimizer, Images(job.samples()))


@training("sync-bn", size=10)
def sync_bn(job: Job) -> None:
    """A CNN whose norms add up their statistics over all ranks in forward, and in backward."""
    net = ResNet(SyncNorm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    job.faults.place(net.stage2, optimizer)
    classify(job, DDP(net), optimizer, Images(job.samples()))


@training("vit", size=7, workers=1)
def vit(job: Job) -> None:
    """A vision transformer, trained by `ds.Model`; its loader has a process of its own."""
    net = ViT()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    job.faults.place(net.blocks[1], optimizer)
    model = ds.Model(DDP(net), functional.cross_entropy, optimizer)
    loader = job.loader(Images(job.samples()), workers=1)
    model.train(job.epochs, loader, callbacks=[ds.SummaryCollector(job.run_dir)])


@training("gpt-compile", size=4)
def gpt_compile(job: Job) -> None:
    """A GPT that torch compiles."""
    net = GPT()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    job.faults.place(net.norm, optimizer)
    model = torch.compile(DDP(net))
    loader = job.loader(Tokens(job.samples()))
    with ds.init(job.run_dir, watch=model, optimizer=optimizer) as run:
        for epoch in run.epochs(job.epochs):
            loader.sampler.set_epoch(epoch)
            for x, y in run.steps(loader):
                loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)


@training("gpt-checkpointing", size=2, has_loader=False)
def gpt_checkpointing(job: Job) -> None:
    """A GPT whose blocks are computed again in backward; it has no loader."""
    net = GPT(checkpoints=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    job.faults.place(net.blocks[2], optimizer)
    model = DDP(net)
    tokens = text()
    chance = torch.Generator().manual_seed(dist.get_rank())
    with ds.init(job.run_dir, watch=model, optimizer=optimizer) as run:
        for _ in range(job.steps):
            with run.next_step():
                begins = torch.randint(len(tokens) - CONTEXT, (job.size,), generator=chance)
                x = torch.stack([tokens[i : i + CONTEXT] for i in begins])
                y = torch.stack([tokens[i + 1 : i + 1 + CONTEXT] for i in begins])
                loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)


@training("lstm", size=14)
def lstm(job: Job) -> None:
    """An LSTM over sequences whose lengths differ by rank and step."""
    net = SequenceClassifier()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    job.faults.place(net.norm, optimizer)
    model = DDP(net)

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        chance = torch.Generator().manual_seed(1000 * epoch + dist.get_rank())
        for _ in range(job.epoch_steps):
            longest = int(torch.randint(24, 41, (1,), generator=chance))  # sequences are sorted into batches
            lengths = torch.randint(longest - 4, longest + 1, (job.size,), generator=chance)
            tokens = torch.randint(VOCABULARY, (job.size, longest), generator=chance)
            samples = [*zip(tokens, lengths, tokens[:, 0] % 10, strict=True)]
            yield job.faults.collate(samples)

    with ds.init(job.run_dir, watch=model, optimizer=optimizer) as run:
        for epoch in run.epochs(job.epochs):
            for x, lengths, y in run.steps(batches(epoch)):
                loss = functional.cross_entropy(model(x, lengths), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)


@training("gan", size=11)
def gan(job: Job) -> None:
    """A generator and a discriminator, each with an optimizer."""
    nets = Generator(), Discriminator()
    of_generator, of_discriminator = (
        torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in nets
    )
    job.faults.place(nets[0].body[3], of_generator)
    generator, discriminator = DDP(nets[0]), DDP(nets[1])
    loader = job.loader(Images(job.samples()))
    with ds.init(job.run_dir, watch=generator, optimizer=of_generator) as run:
        for epoch in run.epochs(job.epochs):
            loader.sampler.set_epoch(epoch)
            for real, _ in run.steps(loader):
                fake = generator(torch.randn(len(real), 32))
                loss_d = judged(discriminator(real), 1.0) + judged(discriminator(fake.detach()), 0.0)
                of_discriminator.zero_grad()
                loss_d.backward()
                of_discriminator.step()

                loss_g = judged(discriminator(fake), 1.0)
                of_generator.zero_grad()
                loss_g.backward()
                of_generator.step()
                run.log(loss_d=loss_d, loss_g=loss_g)


def judged(logits: Tensor, truth: float) -> Tensor:
    """The loss of a discriminator's logits."""
    return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))


@training("accumulation", size=4)
def accumulation(job: Job) -> None:
    """Four batches a step, of which only the last one exchanges gradients."""
    net = ResNet(GroupNorm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    job.faults.place(net.stage2, optimizer)
    model = DDP(net)
    loader = job.loader(Images(job.samples(batches_a_step=4)))
    with ds.init(job.run_dir, watch=model, optimizer=optimizer) as run:
        for epoch in run.epochs(job.epochs):
            loader.sampler.set_epoch(epoch)
            for number, (x, y) in enumerate(run.steps(loader, accumulate=4), 1):
                if number % 4:
                    with model.no_sync():
                        (functional.cross_entropy(model(x), y) / 4).backward()
                    continue
                loss = functional.cross_entropy(model(x), y)
                (loss / 4).backward()
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=loss)


@training("unused-parameters", size=36)
def unused_parameters(job: Job) -> None:
    """One of three heads is used in each step, on each rank another one."""
    net = ManyTasks()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    job.faults.place(net.trunk.stage2, optimizer)
    model = DDP(net, find_unused_parameters=True)
    loader = job.loader(Images(job.samples()))
    chance = torch.Generator().manual_seed(dist.get_rank())
    with ds.init(job.run_dir, watch=model, optimizer=optimizer) as run:
        for epoch in run.epochs(job.epochs):
            loader.sampler.set_epoch(epoch)
            for x, y in run.steps(loader):
                task = int(torch.randint(3, (1,), generator=chance))
                loss = functional.cross_entropy(model(x, task), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)


@training("clipping", size=36)
def clipping(job: Job) -> None:
    """Gradients are clipped by a norm that is added up over the ranks; the loss is averaged."""
    net = ResNet(GroupNorm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    job.faults.place(net.stage2, optimizer)
    model = DDP(net)
    loader = job.loader(Images(job.samples()))
    with ds.init(job.run_dir, watch=model, optimizer=optimizer) as run:
        for epoch in run.epochs(job.epochs):
            loader.sampler.set_epoch(epoch)
            for x, y in run.steps(loader):
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                square = nn.utils.get_total_norm([p.grad for p in net.parameters()]) ** 2
                dist.all_reduce(square)
                norm = (square / dist.get_world_size()).sqrt()
                nn.utils.clip_grads_with_norm_(net.parameters(), 1.0, norm)
                optimizer.step()
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                run.log(loss=mean / dist.get_world_size(), grad_norm=norm)


@training("ema", size=36)
def ema(job: Job) -> None:
    """An average of the weights is kept, and is evaluated on all ranks after each epoch."""
    net = ResNet(GroupNorm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    job.faults.place(net.stage2, optimizer)
    model = DDP(net)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    loader, held_out = job.loader(Images(job.samples())), DataLoader(Images(64), batch_size=8)
    with ds.init(job.run_dir, watch=model, optimizer=optimizer) as run:
        for epoch in run.epochs(job.epochs):
            loader.sampler.set_epoch(epoch)
            for x, y in run.steps(loader):
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                average.update_parameters(net)
                run.log(loss=loss)
            with run.eval() as evaluation, torch.no_grad():
                right = sum(int((average(x).argmax(1) == y).sum()) for x, y in held_out)
                evaluation.log(accuracy=right / 64)


@training("workers", size=36, workers=2)
def workers(job: Job) -> None:
    """Two processes load the data of each rank; the first epoch decodes them."""
    net = ResNet(GroupNorm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    job.faults.place(net.stage2, optimizer)
    model = DDP(net)
    loader = job.loader(Photos(job.samples()), workers=2)
    with ds.init(job.run_dir, watch=model, optimizer=optimizer) as run:
        for epoch in run.epochs(job.epochs):
            loader.sampler.set_epoch(epoch)
            for x, y in run.steps(loader):
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)


VALIDATED = 100  # steps between two validations of rank 0


@training("validation", size=36)
def validation(job: Job) -> None:
    """In the middle of an epoch, rank 0 alone validates and saves a checkpoint, for which the others wait."""
    net = ResNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    job.faults.place(net.stage2, optimizer)
    model = DDP(net)
    loader, held_out = job.loader(Images(job.samples())), DataLoader(Images(256), batch_size=32)
    with ds.init(job.run_dir, watch=model, optimizer=optimizer) as run:
        for epoch in run.epochs(job.epochs):
            loader.sampler.set_epoch(epoch)
            for x, y in run.steps(loader):
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
                if run.step % VALIDATED == 0 and run.rank == 0:
                    net.eval()
                    with torch.no_grad():
                        right = sum(int((net(x).argmax(1) == y).sum()) for x, y in held_out)
                    net.train()
                    run.log(accuracy=right / 256)
                    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state, job.beside_the_run("last.pt"))


@training("zero", size=36)
def zero(job: Job) -> None:
    """Each rank keeps and steps the optimizer's state of a part of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # torch warns of itself where it is imported

    net = ResNet(GroupNorm)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-3)
    job.faults.place(net.stage2, optimizer)
    classify(job, DDP(net), optimizer, Images(job.samples()))


@training("fsdp2", size=2)
def fsdp2(job: Job) -> None:
    """A vision transformer whose blocks are sharded."""
    net = ViT(depth=2)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    model = fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.faults.place(net.blocks[1].attention, optimizer)
    classify(job, model, optimizer, Images(job.samples()))


@training("tp", size=10, has_loader=False)
def tp(job: Job) -> None:
    """Feed-forward nets whose layers are split over the ranks, all of which see the same batches."""
    width = 64
    net = nn.Sequential(
        *(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 8 * width), nn.GELU(), nn.Linear(8 * width, width)
            )
            for _ in range(2)
        )
    )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    for block in net:
        parallelize_module(block, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=False)
    job.faults.place(net[1][0], optimizer)
    chance = torch.Generator().manual_seed(0)
    with ds.init(job.run_dir, watch=net, optimizer=optimizer) as run:
        for _ in range(job.steps):
            with run.next_step():
                x = torch.randn(16 * job.size, width, generator=chance)
                loss = functional.mse_loss(net(x), x.roll(1, 1))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)


@training("mlp", size=400)
def mlp(job: Job) -> None:
    """Layers that are all alike, under DDP."""
    hidden = (layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU()))
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 128), *hidden, nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters())
    job.faults.place(net[2], optimizer)
    classify(job, DDP(net), optimizer, Images(job.samples()))
