"""Looks at the service's page in headless Chromium: drives it, and takes pictures of it.

python scripts/serve_page.py docs/images/serve.png             # starts a service with a few streams, feeds them, takes a picture
python scripts/serve_page.py page.png:dark phone.png:400x900

Needs chromium (apt-get install chromium) and the package websockets.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-port=0",
    "--hide-scrollbars",
    "--no-first-run",
)


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One page of a browser of its own, over Chrome's debugging protocol."""

    def __init__(self, *, width: int = 1240, height: int = 900, dark: bool = False) -> None:
        from websockets.sync.client import connect

        program = chromium()
        if program is None:
            raise RuntimeError("there is no chromium here: apt-get install chromium")
        self.folder = tempfile.TemporaryDirectory()
        command = [program, *FLAGS, f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self._port()
        from urllib.request import urlopen

        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            target = next(found for found in json.load(answer) if found["type"] == "page")
        self.stack = ExitStack()
        self.socket = self.stack.enter_context(connect(target["webSocketDebuggerUrl"], max_size=1 << 26))
        self.count = 0
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def _port(self) -> int:
        path, end = Path(self.folder.name) / "DevToolsActivePort", time.monotonic() + 60
        while not path.is_file() or "\n" not in path.read_text():
            if time.monotonic() > end:
                raise RuntimeError("chromium did not start")
            time.sleep(0.1)
        return int(path.read_text().splitlines()[0])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while True:
            found = json.loads(self.socket.recv(timeout=60))
            if found.get("id") == self.count:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                result: dict[str, Any] = found.get("result", {})
                return result
            if found.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(found["params"]["exceptionDetails"]))
            if found.get("method") == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
                self.errors.append(found["params"]["entry"]["text"])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def until(self, script: str, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > end:
                raise AssertionError(
                    f"it did not come about in the page: {script}\n{self.run('document.body.innerText')}"
                )
            time.sleep(0.1)

    def open(self, url: str, key: str) -> None:
        """The page, with the key typed in."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && !!document.getElementById('door')")
        self.enter(key)

    def enter(self, key: str) -> None:
        self.run(f"document.getElementById('key').value = {json.dumps(key)}")
        self.run("document.querySelector('#enter button').click()")

    def choose(self, selector: str, path: Path) -> None:
        """Put a file into a file input, as a person would."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def picture(self, path: Path, *, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self.stack.close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder.name, ignore_errors=True)
        self.folder.cleanup()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


_STREAMS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("north gate", "recap", {}, "fog"),
    ("loading bay", "recap", {"lr": "x10"}, "gaussian_noise"),
    ("roof", "sar", {}, "snow"),
    ("lane 3", "tent", {"lr": "x3000"}, "contrast"),
    ("lane 4", "eata", {}, "motion_blur"),
)


async def _feed(port: int, seconds: float) -> None:
    from serving import Connection, corrupted, make_streams, npy, request

    async def one(made: dict[str, Any], kind: str) -> None:
        images, connection, start = corrupted(256, kind, 4), Connection(port), 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            body = npy(images[start : start + 8])
            await connection.send(request("POST", f"/v1/streams/{made['id']}/predict", made["token"], body))
            start = (start + 8) % 256
            await asyncio.sleep(0.4)

    tasks = []
    for name, method, hyperparameters, kind in _STREAMS:
        made = (await make_streams(port, 1, method, name=name, hyperparameters=hyperparameters))[0]
        tasks.append(one(made, kind))
    await asyncio.gather(*tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "pictures", type=Path, nargs="+", help="NAME.png; with :dark or :WIDTHxHEIGHT behind it for another look"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the streams are fed before")
    given = parser.parse_args()
    from serving import KEY, Server

    with tempfile.TemporaryDirectory() as folder, Server("--state", folder) as server:
        asyncio.run(_feed(server.port, given.seconds))
        for wanted in given.pictures:
            name, *options = str(wanted).split(":")
            sides = next((option for option in options if "x" in option), "1240x900").split("x")
            with Page(width=int(sides[0]), height=int(sides[1]), dark="dark" in options) as page:
                page.open(f"http://127.0.0.1:{server.port}/", KEY)
                page.until("document.querySelectorAll('.chart path').length >= 4")
                _try(page, Path(folder))
                page.picture(Path(name))
                for error in page.errors:
                    print("the page says:", error)


def _try(page: Page, folder: Path) -> None:
    from PIL import Image
    from serving import corrupted

    path = folder / "glyph.png"
    Image.fromarray(corrupted(32, "fog", 2)[27]).save(path)
    page.choose("#file", path)
    page.until("document.querySelectorAll('.guess').length === 5")


if __name__ == "__main__":
    main()
