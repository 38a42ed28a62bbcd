"""The page, as a browser sees it."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from serve_helpers import KEY, NPY, bearer, glyphs, npy, opened, picture, service, until

from wildtta.serve import Settings, create_app

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import serve_page

pytest.importorskip("websockets")


def test_the_page_needs_nothing_from_elsewhere() -> None:
    with service() as client:
        answer = client.http.get("/")
    assert not re.findall(
        r"""(?:src|href)\s*=|url\(|https?://(?!www\.w3\.org/2000/svg)""", answer.text.replace(".src =", "")
    )
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert " style=" not in answer.text  # the policy would not let it through


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    app = create_app(Settings(operator_key=KEY, threads=1), opened())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


@pytest.mark.skipif(serve_page.chromium() is None, reason="there is no chromium here")
def test_streams_are_shown_and_images_tried(address: str, tmp_path: Path) -> None:
    import httpx

    def make(name: str) -> tuple[str, dict[str, str]]:
        made = httpx.post(f"{address}v1/streams", json={"name": name}, headers=bearer(KEY)).json()
        return made["id"], bearer(made["token"]) | NPY

    id, headers = make("gate <b>one</b>")
    make("resting")
    for _ in range(2):
        httpx.post(f"{address}v1/streams/{id}/predict", content=npy(glyphs()[:8]), headers=headers)
    path = tmp_path / "glyph.png"
    path.write_bytes(picture(glyphs()[3]))
    with serve_page.Page() as page:
        page.open(address, "not the key")
        page.until("document.getElementById('refused').textContent.includes('not the operator')")
        page.enter(KEY)
        page.until("document.querySelectorAll('article').length === 2")
        page.until("[...document.querySelectorAll('h2')].some(title => title.textContent === 'gate <b>one</b>')")
        assert page.run("document.querySelectorAll('article path').length") >= 4
        assert "16 images" in page.run("document.body.innerText")
        page.run(f"document.getElementById('target').value = '{id}'")
        page.choose("#file", path)
        page.until("document.querySelectorAll('.guess').length === 5")
        assert "only looked at" in page.run("document.getElementById('told').innerText")
        page.run("document.querySelector('#make button').click()")
        page.until("document.querySelectorAll('article').length === 3")
        assert "not shown again" in page.run("document.getElementById('made').innerText")
        page.run("document.getElementById('filter').value = 'gate'; filter()")
        assert page.run("[...document.querySelectorAll('article')].filter(card => !card.hidden).length") == 1
        page.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=True)
        assert page.run("document.documentElement.scrollWidth") <= 360
        assert [error for error in page.errors if "403" not in error] == []
