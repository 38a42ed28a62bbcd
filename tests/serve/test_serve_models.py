"""Models that are not the embedded one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from serve_helpers import KEY, Client, bearer

import wildtta
from wildtta.bench.config import ConfigError
from wildtta.serve import Settings, create_app
from wildtta.serve.opening import open_model

_FILE = """
import sys
sys.path.insert(0, {tests!r})
import torch
from networks import make
from wildtta.models import Model, Preprocessing

def build():
    torch.manual_seed(0)
    return Model("mine", make({kind!r}), Preprocessing((16, 16)))
"""


def _spec(folder: Path, kind: str) -> str:
    path = folder / "mine.py"
    path.write_text(_FILE.format(tests=str(Path(__file__).parents[1]), kind=kind))
    return f"{path}:build"


@pytest.mark.parametrize("kind", ["bn", "ln"])
def test_a_model_of_ones_own_with_and_without_batchnorm(tmp_path: Path, kind: str) -> None:
    opened = open_model(Settings(model=_spec(tmp_path, kind), threads=1))
    region = wildtta.Region.estimate(opened.network, torch.randn(60, 3, 16, 16))
    region.save(tmp_path / "region.safetensors")
    settings = Settings(
        model=_spec(tmp_path, kind), threads=1, region=tmp_path / "region.safetensors", operator_key=KEY
    )
    opened = open_model(settings)
    assert opened.source.keys() == {"region"}
    images = torch.randint(0, 256, (3, 4, 3, 16, 16), dtype=torch.uint8)
    with TestClient(create_app(settings, opened)) as http:
        client = Client(http)
        refused = http.post("/v1/streams", json={"method": "eata"}, headers=bearer(KEY))
        assert refused.status_code == 422
        assert "--fisher" in refused.json()["detail"]
        for method in ("tent", "recap", "source"):
            first, second = (client.make(method, guard="none") for _ in range(2))
            needed = {"region": region} if method == "recap" else {}
            adapter = wildtta.adapt(opened.network, method, **needed)
            for batch in images:
                wanted = adapter(opened.model.preprocessing.normalise(batch.float() / 255)).softmax(-1)
                answer = first.predict(batch)
                found = torch.zeros_like(wanted)
                for row, prediction in zip(found, answer["predictions"], strict=True):
                    for guess in prediction["classes"]:
                        row[guess["index"]] = guess["probability"]
                assert (found - wanted).abs().max() < 1e-5
            assert second.ask("GET").json()["health"]["images"] == 0
            assert second.put(first.state()).status_code == 200


def test_a_region_of_another_model_is_told_at_the_start(tmp_path: Path) -> None:
    wildtta.Region(torch.ones(7)).save(tmp_path / "region.safetensors")
    with pytest.raises(ConfigError, match="another network"):
        open_model(Settings(region=tmp_path / "region.safetensors", threads=1))
