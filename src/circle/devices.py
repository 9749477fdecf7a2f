"""Where tensors live."""

from __future__ import annotations

import torch

from circle.errors import CircleError


def usable_device(name: str | torch.device) -> torch.device:
    """The device of this name, or one line that says why it cannot be used here."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CircleError(f"device {str(name)!r} is not usable: {str(error).splitlines()[0]}") from error
    return device
