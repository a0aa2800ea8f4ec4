"""Run by torchrun: trains what the test asks for, in double precision, in two processes.

The first trainings use a process group that this script makes, the last ones the library's own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import bfn
from bfn import recipe as config
from support.training import several_trainings

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
folder = Path(sys.argv[1])
dist.init_process_group("gloo")
for job in json.loads((folder / "jobs.json").read_text()):
    recipe = config.read(job["recipe"], job["overrides"])
    bfn.train.run(recipe, job["out"], resume=True, display=False)
dist.destroy_process_group()
torch.set_default_dtype(torch.float32)
several_trainings.main(folder / "several" / os.environ["RANK"])
