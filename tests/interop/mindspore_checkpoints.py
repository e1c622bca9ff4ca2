"""Run by MindSpore's Python: reads our checkpoints and reports what it found, then writes its own.

Usage: python mindspore_checkpoints.py DIRECTORY
"""

import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np

KEY = b"0123456789ABCDEF"
place = Path(sys.argv[1])
reported = {}
for path in sorted(place.glob("*.ckpt")):
    key = {} if path.name.startswith("plain") else {"dec_key": KEY, "dec_mode": path.name.partition("-1_")[0]}
    found = ms.load_checkpoint(str(path), **key)
    reported[path.name] = {
        name: value if isinstance(value, str) else value.asnumpy().tolist() for name, value in found.items()
    }
    net = ms.nn.SequentialCell(ms.nn.Dense(3, 2))
    reported[path.name]["not loaded"] = ms.load_param_into_net(net, found)[0]
(place / "reported.json").write_text(json.dumps(reported))

values = [{"name": "w", "data": ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))}]
(place / "theirs").mkdir()
for mode in ("AES-GCM", "AES-CBC"):
    ms.save_checkpoint(values, str(place / "theirs" / f"{mode}.ckpt"), enc_key=KEY, enc_mode=mode)
ms.save_checkpoint(
    values,
    str(place / "theirs" / "plain.ckpt"),
    append_dict={"epoch_num": 3, "note": "größe"},
    crc_check=True,
)
