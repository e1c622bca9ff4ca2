"""Trainings by hosts: `python trainings.py OUT NAME ARGUMENT ...` writes what a rank saw as JSON.

What the script sees of each step are rows of (loss, learning rate, norm of the gradients or None).
"""

import json
import os
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

STEPS = 8
Row = tuple[float, float, float | None]
RANK, WORLD_SIZE = (
    int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))
)


class Data(torch.utils.data.Dataset[Any]):
    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.rand(size, 4, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"x": self.x[place], "labels": self.x[place].sum()}


class Net(nn.Module):
    """What the Trainer of transformers takes; notes the loss of each call in training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.losses: list[float] = []

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        loss = mse_loss(self.inner(x)[:, 0], labels)
        if self.training:
            self.losses.append(loss.item())
        return {"loss": loss, "logits": self.inner(x)}


def transformers(out: str, with_us: bool, resumes: bool = False) -> list[Row]:
    """Two batches make a step; evaluates after every fourth step, and saves."""
    from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

    callbacks = []
    if with_us:
        from distsummary.integrations.transformers import DistSummaryCallback

        callbacks.append(DistSummaryCallback("run"))
    rows: list[Row] = []
    set_seed(1)
    model = Net()

    class Spy(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            lr = given["optimizer"].param_groups[0]["lr"]
            rows.append((sum(model.losses) / 2, lr, None))
            model.losses.clear()

    arguments = TrainingArguments(
        f"{out}/trainer", max_steps=STEPS + 4 if resumes else STEPS, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=4, save_steps=4, logging_steps=2,
        learning_rate=0.1, max_grad_norm=1.0, report_to="none", disable_tqdm=True, use_cpu=True,
        lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=Data(64), eval_dataset=Data(8), callbacks=[*callbacks, Spy()]
    )
    trainer.train(resume_from_checkpoint=resumes)
    return rows


def lightning(out: str, with_us: bool, resumes: bool = False) -> list[Row]:
    """A GAN-free module with validation; two batches make a step."""
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint

    rows: list[Row] = []
    losses: list[float] = []

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"width": 4})
            self.inner = nn.Linear(4, 1)

        def training_step(self, batch: Any, place: int) -> Tensor:
            loss = mse_loss(self.inner(batch["x"])[:, 0], batch["labels"])
            losses.append(loss.item())
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, place: int) -> None:
            self.log("val_loss", mse_loss(self.inner(batch["x"])[:, 0], batch["labels"]))

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            rows.append((sum(losses) / 2, optimizer.param_groups[0]["lr"], None))
            losses.clear()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    # Saved within a step, as by every_n_train_steps.
    callbacks: list[Any] = [ModelCheckpoint(f"{out}/trainer", "saved", every_n_train_steps=STEPS)]
    if with_us:
        from distsummary.integrations.lightning import DistSummaryCallback

        callbacks.append(DistSummaryCallback("run"))
    seed_everything(1)
    loaders = [torch.utils.data.DataLoader(Data(size), 2) for size in (64, 8)]
    trainer = Trainer(
        max_steps=STEPS + 4 if resumes else STEPS, accumulate_grad_batches=2, gradient_clip_val=1.0,
        logger=False, callbacks=callbacks,
        enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", "1")), log_every_n_steps=2,
        val_check_interval=8,
    )  # fmt: skip
    trainer.fit(Module(), *loaders, ckpt_path=f"{out}/trainer/saved.ckpt" if resumes else None)
    return rows


def lightning_logged(out: str, with_us: bool) -> list[Row]:
    """A module whose metrics Lightning's CSVLogger records, too; two batches make a step."""
    from lightning.pytorch import LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def training_step(self, batch: Any, place: int) -> Tensor:
            loss = mse_loss(self.inner(batch["x"])[:, 0], batch["labels"])
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, place: int) -> None:
            self.log("val_loss", mse_loss(self.inner(batch["x"])[:, 0], batch["labels"]))
            self.log("val_size", 2.0)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    class Batches(LightningDataModule):
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"size": 32})

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Data(self.hparams.size), 2)

        def val_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Data(8), 2)

    from distsummary.integrations.lightning import DistSummaryCallback

    trainer = Trainer(
        max_epochs=2, accumulate_grad_batches=2, logger=CSVLogger(out, name="", version="csv"),
        callbacks=[DistSummaryCallback("run")], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", devices=1, log_every_n_steps=3, val_check_interval=8,
    )  # fmt: skip
    trainer.fit(Module(), datamodule=Batches())
    return []


def accelerate(out: str, with_us: bool) -> list[Row]:
    """Two batches make a step; the gradients are clipped."""
    from accelerate import Accelerator

    trackers = []
    if with_us:
        from distsummary.integrations.accelerate import DistSummaryTracker

        trackers.append(DistSummaryTracker("run"))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=trackers)
    accelerator.init_trackers("project", {"width": 4})
    torch.manual_seed(1)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    loader = torch.utils.data.DataLoader(Data(2 * 2 * STEPS * accelerator.num_processes), 2)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    rows: list[Row] = []
    total = 0.0
    for batch in loader:
        with accelerator.accumulate(net):
            loss = mse_loss(net(batch["x"])[:, 0], batch["labels"])
            total += loss.item() / 2
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            if accelerator.sync_gradients:
                rows.append((total, 0.05, norm.item()))
                accelerator.log({"reported": total}, step=len(rows))
                total = 0.0
            optimizer.zero_grad()
    accelerator.end_training()
    return rows


def fabric(out: str, with_us: bool) -> list[Row]:
    """A loop of one's own, with Fabric; each rank logs a number of its own."""
    from lightning.fabric import Fabric

    loggers = []
    if with_us:
        from distsummary.integrations.lightning import DistSummaryLogger

        loggers.append(DistSummaryLogger("run"))
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    fabric = Fabric(accelerator="cpu", devices=devices, loggers=loggers)
    fabric.launch()
    for logger in loggers:
        logger.log_hyperparams({"width": 4})
    torch.manual_seed(1)
    net = nn.Linear(4, 1)
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=0.05))
    rows: list[Row] = []
    for batch in fabric.setup_dataloaders(torch.utils.data.DataLoader(Data(2 * STEPS * devices), 2)):
        loss = mse_loss(net(batch["x"])[:, 0], batch["labels"])
        optimizer.zero_grad()
        fabric.backward(loss)
        norm = fabric.clip_gradients(net, optimizer, max_norm=1.0)
        optimizer.step()
        fabric.log("reported", loss.item(), step=len(rows))
        rows.append((loss.item(), 0.05, norm.item()))
    return rows


def trl(out: str, with_us: bool) -> list[Row]:
    """Supervised fine-tuning of a small language model, made here."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    words = {word: number for number, word in enumerate(("<pad>", "<end>", "a", "b", "c", "d"))}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>", eos_token="<end>",
    )  # fmt: skip
    torch.manual_seed(1)
    size = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 16, "vocab_size": len(words)}
    model = GPT2LMHeadModel(GPT2Config(**size, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    rows: list[Row] = []

    class Spy(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            rows.append((losses.pop(), given["optimizer"].param_groups[0]["lr"], None))

    losses: list[float] = []

    class Tuner(SFTTrainer):  # type: ignore[misc]
        def training_step(self, *args: Any, **named: Any) -> Tensor:
            loss = super().training_step(*args, **named)
            losses.append(loss.item())
            return loss

    arguments = SFTConfig(
        f"{out}/trainer", max_steps=STEPS, per_device_train_batch_size=2, use_cpu=True, bf16=False,
        report_to="distsummary" if with_us else "none", learning_rate=0.1, lr_scheduler_type="constant",
        disable_tqdm=True, logging_steps=2, save_strategy="no", gradient_checkpointing=False,
    )  # fmt: skip
    data = Dataset.from_list([{"input_ids": [2, 3, 4, 5, 1]}, {"input_ids": [5, 4, 3, 2, 1]}] * 16)
    trainer = Tuner(model, arguments, train_dataset=data, processing_class=tokenizer, callbacks=[Spy()])
    trainer.train()
    return rows


def deepspeed(out: str, stage: int) -> list[Row]:
    """Two groups of parameters, two batches a step, clipped gradients; a stage of ZeRO, or 0: without."""
    variables = {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {name: value for name, value in variables.items() if name not in os.environ}
    import deepspeed as framework

    store = torch.distributed.HashStore() if WORLD_SIZE == 1 else None
    torch.distributed.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD_SIZE)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    groups = [{"params": [*net[place].parameters()], "lr": 0.05 + place / 100} for place in (0, 2)]
    config = {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    engine, *_ = framework.initialize(
        model=net, optimizer=torch.optim.AdamW(groups), config=config, dist_init_required=False
    )
    rows: list[Row] = []
    total, norm = 0.0, None
    for place in range(2 * STEPS):
        x = Data(4 * STEPS).x[2 * place : 2 * place + 2]
        loss = mse_loss(engine(x)[:, 0], x.sum(1))
        total += loss.item() / 2
        engine.backward(loss)
        if not stage:  # the engine does not keep it
            norm = nn.utils.get_total_norm([each.grad for each in net.parameters()]).item()
        engine.step()
        if engine.was_step_applied():
            rows.append((total, 0.05, norm if norm is not None else float(engine.get_global_grad_norm())))
            total = 0.0
    return rows


def bare(log: Any) -> list[Row]:
    """A loop of one's own, which logs its loss after each step."""
    net, rows = nn.Linear(4, 1), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for place in range(STEPS):
        x = Data(2 * STEPS).x[2 * place : 2 * place + 2]
        loss = mse_loss(net(x)[:, 0], x.sum(1))
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.get_total_norm([each.grad for each in net.parameters()])
        optimizer.step()
        log({"reported": loss.item()})
        rows.append((loss.item(), 0.05, norm.item()))
    return rows


def wandb(out: str, with_us: bool) -> list[Row]:
    import wandb as tracker

    with tracker.init(project="p"):
        return bare(tracker.log)


def mlflow(out: str, with_us: bool) -> list[Row]:
    import mlflow as tracker

    with tracker.start_run():
        return bare(tracker.log_metrics)


if __name__ == "__main__":
    place, name, *rest = sys.argv[1:]
    torch.manual_seed(1)
    found = globals()[name](place, *(word == "yes" if word.isalpha() else int(word) for word in rest))
    with open(f"{place}/{name}.{RANK}.json", "w") as file:
        json.dump(found, file)
