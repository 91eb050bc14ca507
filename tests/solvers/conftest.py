"""One thread, as in the service: results must not depend on the number, and the machine is shared."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("pathline", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("pathline")
