"""Does the exported file give the same integers in a browser? One run in onnxruntime-web (WASM), compared with ``==``.

npm install onnxruntime-web     # in any folder; nothing else of CIRCLE needs it
python -m benchmarks.browser_integers node_modules/onnxruntime-web --output results/export/browser.json

Needs Chromium on the path (or CIRCLE_CHROMIUM), and playwright.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
from playwright.sync_api import Page, sync_playwright
from sklearn.datasets import load_digits

from circle import CircleClassifier, __version__
from circle.errors import CircleError
from circle.export.checking import with_positions
from circle.export.model import onnx_model, positions_name
from circle.runtime.noise import noise_images
from circle.runtime.weights import random_bytes

PRESETS = ("small", "fast", "reservoir")
BATCHES = (1, 50)
SCRIPT = "ort.wasm.min.js"
RUN = """async ([file, bytes, shape, positions]) => {
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmPaths = new URL("dist/", location).href;
    const session = await ort.InferenceSession.create(file, { executionProviders: ["wasm"] });
    const pixels = Uint8Array.from(atob(bytes), (letter) => letter.charCodeAt(0));
    const found = await session.run({ images: new ort.Tensor("uint8", pixels, shape) });
    return [Array.from(found[positions].data), Array.from(found.best.data, Number),
            Array.from(found.probabilities.data)];
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each of them."""

    extensions_map: ClassVar = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format: str, *args: Any) -> None: ...


def pictures() -> np.ndarray:
    """50 images uint8 [N, 32, 32, 3]: noise, random bytes, black and white ones, digits."""
    chance = random_bytes(0, "browser", (10, 3, 32, 32))
    digits = np.repeat((load_digits().images[:8] * (255 / 16)).astype(np.uint8)[:, None], 3, 1)
    digits = digits.repeat(4, 2).repeat(4, 3)
    ends = np.stack([np.zeros_like(chance[0]), np.full_like(chance[0], 255)])
    images = np.concatenate([noise_images(25, 3, 32, 32, 7), chance, (chance[:5] > 127) * np.uint8(255), ends, digits])
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))


def compare(page: Page, preset: str, folder: Path, images: np.ndarray) -> dict[str, Any]:
    """One preset's file in the page beside the model: whether all integers and best classes are the same."""
    labels = np.arange(len(images)) % 10  # features do not depend on what was learned
    model = CircleClassifier.from_preset(preset).partial_fit(images, labels).for_prediction()
    path = folder / f"{preset}.onnx"
    path.write_bytes(onnx_model(model).SerializeToString())
    path.write_bytes(with_positions(model, path))
    (features,), expected = model.features(images), model.predict_proba(images)
    equal, same_best, largest = True, True, 0.0
    for batch in BATCHES:
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            given = [path.name, base64.b64encode(part.tobytes()).decode(), list(part.shape), positions_name(0)]
            positions, best, probabilities = page.evaluate(RUN, given)
            here = slice(start, start + batch)
            equal &= np.array_equal(np.reshape(positions, (len(part), -1)), features[here].numpy())
            same_best &= np.array_equal(best, expected[here].argmax(1))
            difference = np.abs(np.reshape(probabilities, (len(part), -1)) - expected[here])
            largest = max(largest, float(difference.max()))
    return {
        "preset": preset,
        "images": len(images),
        "batches": list(BATCHES),
        "features": features.shape[1],
        "equal": bool(equal),
        "same_best_class": bool(same_best),
        "largest_difference_of_a_probability": largest,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("package", type=Path, help="the folder of onnxruntime-web that npm made")
    parser.add_argument("--output", type=Path, default=Path("results/export/browser.json"))
    arguments = parser.parse_args()
    chromium = os.environ.get("CIRCLE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or not (arguments.package / "dist" / SCRIPT).is_file():
        missing = "chromium on the path" if chromium is None else f"{arguments.package}/dist/{SCRIPT}"
        raise CircleError(f"no {missing}; expected both (see the head of this file)")
    package = json.loads((arguments.package / "package.json").read_text())
    images, found = pictures(), []
    with TemporaryDirectory() as name, sync_playwright() as driver:
        folder = Path(name)
        shutil.copytree(arguments.package / "dist", folder / "dist")
        (folder / "index.html").write_text(f'<!doctype html><script src="dist/{SCRIPT}"></script>')
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=name))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        for preset in PRESETS:
            found.append(compare(page, preset, folder, images))
            print(found[-1], flush=True)
        about = {
            "command": "python -m benchmarks.browser_integers node_modules/onnxruntime-web",
            "circle": __version__,
            "onnxruntime_web": package["version"],
            "chromium": browser.version,
            "provider": "wasm, one thread",
        }
        browser.close()
        server.shutdown()
    equal = all(each["equal"] for each in found)
    arguments.output.write_text(json.dumps({**about, "equal": equal, "presets": found}, indent=1) + "\n")
    print(f"{'the same integers' if equal else 'OTHER INTEGERS'}; kept in {arguments.output}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
