"""Classify images with a model that `circle export` wrote. Needs onnxruntime, numpy and pillow, and nothing of CIRCLE.

python examples/run_onnx.py pets.onnx cat.jpg dog.png      # the three most probable classes of each
python examples/run_onnx.py pets.onnx --page               # a page on this machine to drop images on
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before the import: it would write an identity of this machine
import onnxruntime

PAGE = Path(__file__).with_name("onnx_page.html")
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
LARGEST_UPLOAD = 32 * 2**20  # bytes


class Classifier:
    """An exported model: what it knows about its input and its classes is in the file."""

    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.about = self.session.get_modelmeta().custom_metadata_map
        self.classes = json.loads(self.about["classes"])
        self.size = int(self.about["width"]), int(self.about["height"])

    def pixels(self, image: Image.Image) -> np.ndarray:
        """uint8 [H, W, C], or [C, H, W] where the file says so."""
        image = ImageOps.exif_transpose(image)
        if image.has_transparency_data:
            grey = int(self.about["background"])
            behind = Image.new("RGBA", image.size, (grey, grey, grey, 255))
            image = Image.alpha_composite(behind, image.convert("RGBA"))
        image = image.convert("L" if self.about["channels"] == "1" else "RGB")
        array = np.asarray(self.fitted(image))
        array = array[:, :, None] if array.ndim == 2 else array
        return array if self.about["layout"] == "NHWC" else array.transpose(2, 0, 1)

    def fitted(self, image: Image.Image) -> Image.Image:
        """The image in the model's size, another aspect ratio treated as it was when the model learned."""
        if image.size == self.size:
            return image
        if self.about["aspect"] == "stretch":
            return image.resize(self.size, Image.Resampling.BILINEAR)
        if self.about["aspect"] == "pad":
            colour = (int(self.about["background"]),) * len(image.getbands())
            return ImageOps.pad(image, self.size, Image.Resampling.BILINEAR, colour)
        return ImageOps.fit(image, self.size, Image.Resampling.BILINEAR)

    def probabilities(self, images: list[Image.Image]) -> np.ndarray:
        """float32 [N, classes], any number of images in one call."""
        return self.session.run(["probabilities"], {"images": np.stack([self.pixels(image) for image in images])})[0]

    def ranked(self, image: Image.Image, top: int) -> list[tuple[object, float]]:
        """The most probable classes, best first."""
        values = self.probabilities([image])[0]
        return [(self.classes[index], float(values[index])) for index in np.argsort(-values)[:top]]


def make_server(classifier: Classifier, port: int) -> HTTPServer:
    """A server for this machine alone: the page at /, and /classify for the bytes of one image."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                self.answer(200, PAGE.read_bytes(), "text/html; charset=utf-8")
            else:
                self.answer(404, b"not found", "text/plain")

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if self.path != "/classify" or not 0 < length <= LARGEST_UPLOAD:
                self.answer(400, b'{"error": "expected an image of at most 32 MB at /classify"}', "application/json")
                return
            try:
                with Image.open(io.BytesIO(self.rfile.read(length)), formats=FORMATS) as image:
                    ranked = classifier.ranked(image, top=5)
                status, result = 200, {"predictions": [{"label": label, "probability": p} for label, p in ranked]}
            except UNREADABLE as error:
                status, result = 400, {"error": f"not a readable image: {error}"}
            self.answer(status, json.dumps(result).encode(), "application/json")

        def answer(self, status: int, content: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Silence: the page shows what happened."""

    return HTTPServer(("127.0.0.1", port), Handler)


def failed(text: str) -> int:
    """Say in one line what went wrong; the program's exit code."""
    print(" ".join(text.split()), file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Classify images with a model that `circle export` wrote.")
    parser.add_argument("model")
    parser.add_argument("images", nargs="*")
    parser.add_argument("--top", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="serve a page to drop images on")
    parser.add_argument("--port", type=int, default=8000, help="of the page; 0 = any that is free")
    given = parser.parse_args()
    if bool(given.images) == given.page:
        parser.error("expected images to classify, or --page")
    try:
        classifier = Classifier(given.model)
    except Exception as error:  # onnxruntime has many kinds of errors, without a name that could be imported
        return failed(f"{given.model}: not a model that `circle export` wrote ({error})")
    if given.page:
        server = make_server(classifier, given.port)
        print(f"http://127.0.0.1:{server.server_port} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    for name in given.images:
        try:
            with Image.open(name, formats=FORMATS) as image:
                ranked = classifier.ranked(image, given.top)
        except UNREADABLE as error:
            return failed(f"{name}: not a readable image ({error})")
        print(f"{name}: " + ", ".join(f"{label} {100 * value:.1f} %" for label, value in ranked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
