import torch

# Small tensors: more threads only get in each other's way.
torch.set_num_threads(1)
