"""Buffers that threads keep: of the right shape, used again, never shared."""

from __future__ import annotations

import threading

import torch

from circle.machine import Workspace


def test_memory_is_used_again_and_grows() -> None:
    workspace, like = Workspace(), torch.zeros(1)
    first = workspace.take("maps", (4, 5), like)
    assert first.shape == (4, 5)
    assert first.is_contiguous()
    assert workspace.take("maps", (3, 2), like).data_ptr() == first.data_ptr()
    assert workspace.take("maps", (6, 7), like).shape == (6, 7)
    assert workspace.take("others", (4, 5), like).data_ptr() != workspace.take("maps", (4, 5), like).data_ptr()


def test_types_have_their_own() -> None:
    workspace = Workspace()
    assert workspace.take("maps", (3,), torch.zeros(1, dtype=torch.float64)).dtype == torch.float64
    assert workspace.take("maps", (3,), torch.zeros(1)).dtype == torch.float32


def test_threads_do_not_share() -> None:
    workspace, found = Workspace(), []
    mine = workspace.take("maps", (8,), torch.zeros(1))

    def take() -> None:
        found.append(workspace.take("maps", (8,), torch.zeros(1)))

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert found[0].data_ptr() != mine.data_ptr()


def test_memory_of_inference_mode_can_be_written_outside_of_it() -> None:
    workspace = Workspace()
    with torch.inference_mode():
        workspace.take("maps", (2,), torch.zeros(1)).fill_(1.0)
    assert workspace.take("maps", (2,), torch.zeros(1)).fill_(2.0).tolist() == [2.0, 2.0]
