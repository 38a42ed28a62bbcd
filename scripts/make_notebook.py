"""Makes a notebook of an example whose cells are marked with `# %%`.

python scripts/make_notebook.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parent.parent / "examples" / "adapt_timm_model.py"


def notebook(source: str) -> str:
    """The notebook's file: text cells from comments, code cells as they are, no outputs."""
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(re.split(r"^# %%", source, flags=re.MULTILINE)[1:]):
        kind, _, text = part.partition("\n")
        text = text.strip()
        if "[markdown]" in kind:
            lines = [line.removeprefix("#").removeprefix(" ") for line in text.splitlines()]
            cells.append({"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": lines})
        else:
            code = {"cell_type": "code", "execution_count": None, "id": f"cell-{number}", "metadata": {}, "outputs": []}
            cells.append({**code, "source": text.splitlines()})
    for cell in cells:
        cell["source"] = [line + "\n" for line in cell["source"][:-1]] + cell["source"][-1:]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    made, place = notebook(EXAMPLE.read_text()), EXAMPLE.with_suffix(".ipynb")
    if "--check" in sys.argv:
        sys.exit(
            None if place.read_text() == made else f"{place} is not what {EXAMPLE.name} gives; run this without --check"
        )
    place.write_text(made)
    print(place)
