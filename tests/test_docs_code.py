"""What the documentation shows runs, says what it is said to say, and would be accepted by the command line.

On each page the Python blocks run in their order, in one namespace and a folder of their own. A `text` block right after one is
what it prints (percentages may differ a little from machine to machine); one after `<!-- raises: CODE -->` is the error of
that code. In `sh` blocks every `wildtta` line must be one that the command line accepts. A block after
`<!-- not run: REASON -->` is left alone.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from torch import nn
from typer.main import get_command

import wildtta
from wildtta.cli import app
from wildtta.data import open_data
from wildtta.models import load_model

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>not run|raises): (?P<note>.*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass
class Block:
    kind: str
    text: str
    mark: str | None
    note: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            found["kind"],
            found["text"],
            found["mark"],
            found["note"] or "",
            text.count("\n", 0, found.start("text")) + 1,
        )
        for found in BLOCK.finditer(text)
    ]


def with_kind(kind: str) -> list[Path]:
    return [page for page in PAGES if any(block.kind == kind and block.mark != "not run" for block in blocks(page))]


def setting_of(page: Path, folder: Path) -> dict[str, Any]:
    """What the pieces of code on the page of errors are about."""
    if page.name != "faq.md":
        return {}
    torch.manual_seed(0)
    head = [nn.Flatten(), nn.Linear(12, 3)]

    class ReturnsADict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.GroupNorm(1, 3), nn.Linear(12, 3)

        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.head(self.norm(images).flatten(1))}

    model = load_model("glyph-resnet")
    adapter = wildtta.adapt(model.network, "tent")
    adapter.save("tent.safetensors")
    Path("cut.safetensors").write_bytes(Path("tent.safetensors").read_bytes()[:300])
    return {
        "torch": torch,
        "wildtta": wildtta,
        "load_model": load_model,
        "open_data": open_data,
        "model": model,
        "network": model.network,
        "adapter": adapter,
        "saved": "tent.safetensors",
        "cut": "cut.safetensors",
        "no_norms": nn.Sequential(*head),
        "with_softmax": nn.Sequential(nn.GroupNorm(1, 3), *head, nn.Softmax(-1)),
        "returns_a_dict": ReturnsADict(),
        "batchnorm_network": nn.Sequential(nn.BatchNorm2d(3), *head),
    }


def same(said: str, shown: str) -> bool:
    """The same words; percentages within 3 points, since sums in another order move an image or two."""
    share = re.compile(r"\d+(?= %)")
    if share.sub("#", said).split() != share.sub("#", shown).split():
        return False
    pairs = zip(share.findall(said), share.findall(shown), strict=True)
    return all(abs(int(mine) - int(theirs)) <= 3 for mine, theirs in pairs)


@pytest.mark.parametrize("page", with_kind("python"), ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"page_{page.stem}"
    module = type(sys)(name)
    monkeypatch.setitem(sys.modules, name, module)  # classes and registered functions look themselves up there
    names: dict[str, Any] = vars(module)
    names.update(setting_of(page, tmp_path))
    said: str | None = None
    for block in blocks(page):
        if block.mark == "not run":
            said = None
        elif block.mark == "raises":
            with pytest.raises(Exception) as found:  # noqa: PT011 (the message is compared below)
                eval(block.note, names)
            assert str(found.value).split() == block.text.split(), f"{page.name}:{block.line}"
        elif block.kind == "python":
            printed = io.StringIO()
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, names)
            said = printed.getvalue()
        elif block.kind == "text" and said is not None and said.strip():
            assert same(said, block.text), f"{page.name}:{block.line}: it printed\n{said}"
            said = None


def lines(block: Block) -> list[str]:
    """The commands of a block: without comments, with continued lines joined."""
    joined = block.text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip()]


@pytest.mark.parametrize("page", [*with_kind("sh"), ROOT / "README.md"], ids=lambda page: page.stem)
def test_the_commands_of_a_page_are_accepted(page: Path) -> None:
    command = get_command(app)
    assert isinstance(command, click.Group) or hasattr(command, "commands")
    for block in blocks(page):
        if block.kind != "sh" or block.mark == "not run":
            continue
        for line in lines(block):
            words = shlex.split(line, comments=True)
            if not words or words[0] != "wildtta":
                continue
            name = words[1]
            assert name in command.commands, f"{page.name}:{block.line}: there is no command {name!r}"
            command.commands[name].make_context(name, words[2:], resilient_parsing=False)


def test_what_is_not_run_is_little_and_says_why() -> None:
    left = [(page.name, block.line, block.note) for page in PAGES for block in blocks(page) if block.mark == "not run"]
    for name, line, note in left:
        print(f"{name}:{line}: {note}")
        assert len(note) > 10, f"{name}:{line} does not say why"
    assert len(left) <= 3, left
