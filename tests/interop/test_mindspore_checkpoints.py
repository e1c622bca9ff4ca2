"""MindSpore loads our .ckpt files, plain and encrypted, and we load those of MindSpore."""

import json

import numpy as np
import pytest
import torch

import distsummary as ds
from tests.interop.conftest import run_mindspore

pytestmark = pytest.mark.interop

KEY = b"0123456789ABCDEF"


def test_checkpoints_are_read_both_ways(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters())
    info = ["epoch_num", {"note": "größe", "half": torch.ones(2, dtype=torch.float16)}]
    callbacks = [
        ds.ModelCheckpoint(name, tmp_path, ds.CheckpointConfig(append_info=info, format="ckpt", **how))
        for name, how in {
            "plain": {"async_save": True},
            "AES-GCM": {"enc_key": KEY},
            "AES-CBC": {"enc_key": KEY, "enc_mode": "AES-CBC"},
        }.items()
    ]
    with ds.Run(callbacks=callbacks, network=model, optimizer=optimizer) as run:
        for _ in run.steps(range(2)):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
    run_mindspore("mindspore_checkpoints.py", tmp_path)

    reported = json.loads((tmp_path / "reported.json").read_text())
    assert {"plain-1_2.ckpt", "AES-GCM-1_2.ckpt", "AES-CBC-1_2.ckpt"} <= reported.keys()
    moments = optimizer.state[model[0].weight]["exp_avg"]
    for name in ("plain-1_2.ckpt", "AES-GCM-1_2.ckpt", "AES-CBC-1_2.ckpt"):
        found = reported[name]
        assert found["not loaded"] == []
        assert found["0.weight"] == model[0].weight.tolist()
        assert found["optimizer/state/0/exp_avg"] == moments.tolist()
        assert (found["epoch_num"], found["step_num"], found["note"]) == (1, 2, "größe")
        assert found["half"] == [1.0, 1.0]

    for mode in ("AES-GCM", "AES-CBC"):
        theirs = ds.load_checkpoint(tmp_path / "theirs" / f"{mode}.ckpt", dec_key=KEY, dec_mode=mode)
        np.testing.assert_array_equal(theirs["w"], np.arange(6, dtype=np.float32).reshape(2, 3))
    plain = ds.load_checkpoint(tmp_path / "theirs" / "plain.ckpt")
    assert (int(plain["epoch_num"]), plain["note"]) == (3, "größe")
