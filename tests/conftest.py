"""What all tests share."""

import os

import torch
from hypothesis import HealthCheck, settings

# An example that waits for the disk or a busy core is not a failure.
settings.register_profile("kerntree", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kerntree")

# Triton's interpreter must be asked for before anybody imports Triton.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
