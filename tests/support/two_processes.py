"""Run by torchrun: trains what the test asks for, in double precision, in two processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import bfn
from bfn import recipe as config

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
for job in json.loads(Path(sys.argv[1]).read_text()):
    recipe = config.read(job["recipe"], job["overrides"])
    bfn.train.run(recipe, job["out"], resume=job["resume"], display=False)
dist.destroy_process_group()
