import os

import torch

# Small tensors: more threads only get in each other's way.
torch.set_num_threads(int(os.environ.get("WILDTTA_TEST_THREADS", "2")))
