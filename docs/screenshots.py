"""Take screenshots of a run report at two widths, light and dark: python docs/screenshots.py REPORT FOLDER [ID].

It needs chromedriver and Pillow. The report is a file, and nothing else is loaded. With an ID, pictures end below the
section with this id.
"""

import base64
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from PIL import Image

PORT = 9517
FLAGS = [
    "headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "disable-quic",
]  # fmt: skip
WIDTHS = {"wide": 1280, "phone": 390}
COLOURS = 256


def call(path: str, body: dict[str, Any]) -> Any:
    """Send a command to chromedriver."""
    request = Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        return json.load(answer)["value"]


def take_screenshots(report: Path, folder: Path, last: str | None) -> None:
    """Write one picture for each width and colour scheme; print the size of the page, and whether it is too wide."""
    with tempfile.TemporaryDirectory() as profile:
        options = {"args": [f"--{flag}" for flag in [*FLAGS, f"user-data-dir={profile}"]]}
        session = call("/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})["sessionId"]

        def devtools(command: str, **parameters: Any) -> Any:
            return call(f"/session/{session}/goog/cdp/execute", {"cmd": command, "params": parameters})

        for name, width in WIDTHS.items():
            for scheme in ("light", "dark"):
                devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": name == "phone"}
                devtools("Emulation.setDeviceMetricsOverride", **screen)
                call(f"/session/{session}/url", {"url": report.resolve().as_uri()})
                size = devtools("Page.getLayoutMetrics")["cssContentSize"]
                print(f"{name} {scheme}: {size['width']} × {size['height']}{' TOO WIDE' * (size['width'] > width)}")
                find = f"document.getElementById({json.dumps(last)})?.getBoundingClientRect().bottom ?? 0"
                end = devtools("Runtime.evaluate", expression=find)["result"]["value"]
                clip = {"x": 0, "y": 0, "width": width, "height": end + 18 if end else size["height"], "scale": 1}
                image = devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
                picture = Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")
                picture.quantize(COLOURS, kmeans=2).save(folder / f"report-{name}-{scheme}.png", optimize=True)
        urlopen(Request(f"http://127.0.0.1:{PORT}/session/{session}", method="DELETE")).close()


if __name__ == "__main__":
    driver = subprocess.Popen(["chromedriver", f"--port={PORT}"], stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        take_screenshots(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
    finally:
        driver.terminate()
        driver.wait()
