"""circle serve"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from circle.cli import console
from circle.cli.flags import ModelFlags
from circle.data.image_sizes import AUTO
from circle.learner import CircleClassifier
from circle.serve.limits import Limits
from circle.serve.server import serve as serve_model
from circle.serve.service import Service

_LIMITS = Group("Limits", sort_key=5)
NO_IMAGES_YET = (
    "a new model without images to go by: brought to 32 x 32; --preset best-224 or `circle learn` takes the form for "
    "larger ones"
)


def serve(
    model: Path,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    limits: Annotated[Limits | None, Parameter(name="*", group=_LIMITS)] = None,
    settings: ModelFlags | None = None,
) -> None:
    """Teach and ask a model in the browser; also a JSON API.

    Everything learned is on the disk before it is acknowledged, and in the model file when the server ends.

    Parameters
    ----------
    model
        The model file, created where it does not exist.
    host
        Address to listen on. Any but this machine's own needs a token in the environment variable CIRCLE_TOKEN.
    port
        Port to listen on; 0 takes a free one.
    name
        A further name that the server is called by, such as behind a proxy; others are refused.
    """
    settings = settings or ModelFlags()
    out, err = console.output(), console.messages()
    token = os.environ.get("CIRCLE_TOKEN") or None

    def new_model() -> CircleClassifier:
        made = settings.new_model()
        if made.image_size == AUTO:
            err.print(NO_IMAGES_YET, soft_wrap=True)
        return made

    def check(found: CircleClassifier) -> None:
        settings.check_against(found, model)

    def ready(address: str, service: Service) -> None:
        for note in service.store.notes:
            err.print(note, soft_wrap=True)
        hint = "#token=... (the value of CIRCLE_TOKEN)" if token else ""
        out.print(f"{model}: {address}{hint}  (Ctrl-C ends; everything learned is kept)", soft_wrap=True)
        out.file.flush()

    serve_model(
        model,
        new_model,
        host=host,
        port=port,
        token=token,
        host_names=name,
        limits=limits,
        check=check,
        ready=ready,
    )
