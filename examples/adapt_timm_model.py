# %% [markdown]
# # A timm model that goes on learning
#
# A classifier of timm's, images that it was not trained for, and an adapter between the two. With a connection to the hub the
# model comes with its weights; offline, `PRETRAINED=0 MODEL=test_vit python examples/adapt_timm_model.py` shows the same with
# random ones (and then it can only show that it runs).

# %%
import os

import timm
import torch
from timm.data import resolve_model_data_config

import wildtta
from wildtta.corruptions import corrupt

name = os.environ.get("MODEL", "resnet50_gn.a1h_in1k")  # a network with GroupNorm or LayerNorm adapts best
pretrained = os.environ.get("PRETRAINED", "1") == "1"
count = int(os.environ.get("IMAGES", "128"))

network = timm.create_model(name, pretrained=pretrained).eval()
config = resolve_model_data_config(network)

# %% [markdown]
# Images in [0, 1], and how this model wants them. Put your own here: clean ones like those of the training in `source`, and
# those that the model meets in `met`. These are smooth random pictures, and the same with noise.

# %%
side = config["input_size"][1]
mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
torch.manual_seed(0)
clean = torch.nn.functional.interpolate(torch.rand(count, 3, 8, 8), (side, side), mode="bicubic").clamp(0, 1)
source = (clean[: count // 2] - mean) / std
met = (corrupt(clean[count // 2 :], "gaussian_noise", severity=3) - mean) / std

# %% [markdown]
# Σ says how features vary on source images. Estimate it once and keep it in a file.

# %%
region = wildtta.Region.estimate(network, source)
adapter = wildtta.adapt(network, "recap", region=region, guard="collapse")

# %% [markdown]
# Predict as ever. Each call answers, then learns.

# %%
answers = torch.cat([adapter(batch) for batch in met.split(16)]).argmax(-1)
with torch.no_grad():
    before = torch.cat([network(batch) for batch in met.split(16)]).argmax(-1)
print(f"{name}: {int((answers != before).sum())} of {len(met)} answers changed; {adapter.report}")
