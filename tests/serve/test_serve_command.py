"""The command line of the service, as far as it goes without listening."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from wildtta.cli import app


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--open", "--host", "0.0.0.0"], "--open lets anybody"),
        (["--operator-key-file", "nowhere"], "nowhere"),
        (["--device", "abacus"], "no device"),
        (["--model", "glyph-resnot"], "did you mean"),
        (["--region", "nowhere.safetensors"], "no such file"),
        (["--max-images", "300"], "--max-images"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(flags: list[str], found: str, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["serve", *flags])
    assert answer.exit_code == 2, answer.output
    assert found in answer.output
    assert "Traceback" not in answer.output
