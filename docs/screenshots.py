"""Screenshots of a run report at two widths, light and dark, by Chromium: python docs/screenshots.py REPORT FOLDER.

Needs chromedriver. The report is a file, and nothing else is loaded.
"""

import base64
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

PORT = 9517
FLAGS = [
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "hide-scrollbars",
    "no-first-run",
    "disable-background-networking",
]
FLAGS += ["disable-component-update", "disable-sync", "disable-quic"]
WIDTHS = {"wide": 1280, "phone": 390}


def call(path: str, body: dict[str, Any]) -> Any:
    request = Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        return json.load(answer)["value"]


def shoot(report: Path, folder: Path, height: int | None) -> None:
    """One picture for each width and scheme, as tall as the page, or `height` at most."""
    with tempfile.TemporaryDirectory() as profile:
        options = {"args": [f"--{flag}" for flag in [*FLAGS, f"user-data-dir={profile}"]]}
        session = call("/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})["sessionId"]

        def devtools(command: str, **parameters: Any) -> Any:
            return call(f"/session/{session}/goog/cdp/execute", {"cmd": command, "params": parameters})

        for name, width in WIDTHS.items():
            for scheme in ("light", "dark"):
                media = [{"name": "prefers-color-scheme", "value": scheme}]
                devtools("Emulation.setEmulatedMedia", features=media)
                size = {"width": width, "deviceScaleFactor": 1, "mobile": name == "phone"}
                devtools("Emulation.setDeviceMetricsOverride", height=900, **size)
                call(f"/session/{session}/url", {"url": report.resolve().as_uri()})
                content = devtools("Page.getLayoutMetrics")["cssContentSize"]
                print(f"{name} {scheme}: {content['width']} × {content['height']}")
                clip = {"x": 0, "y": 0, "width": width, "height": min(content["height"], height or 1e6), "scale": 1}
                image = devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
                (folder / f"report-{name}-{scheme}.png").write_bytes(base64.b64decode(image))
        urlopen(Request(f"http://127.0.0.1:{PORT}/session/{session}", method="DELETE")).close()


if __name__ == "__main__":
    driver = subprocess.Popen(["chromedriver", f"--port={PORT}"], stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        shoot(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
    finally:
        driver.terminate()
        driver.wait()
