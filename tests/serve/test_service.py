"""Transfers of models: one at a time, and the next one waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories import tiny_model

from circle.serve import service as service_module
from circle.serve.limits import BusyError, Limits
from circle.serve.service import Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "m.circle", tiny_model, Limits(waiting=1))
    yield made
    made.close()


async def one_transfer(service: Service) -> Path:
    async with service.transfer() as folder:
        assert folder.is_dir()
        return folder


def test_a_transfer_waits_for_the_one_before_it(service: Service) -> None:
    async def check() -> None:
        async with service.transfer() as first:
            second = asyncio.create_task(one_transfer(service))
            await asyncio.sleep(0.01)
            assert not second.done(), "it waits, and is not refused"
            with pytest.raises(BusyError, match=r"waiting model transfers reached \(1\)"):
                await one_transfer(service)
        assert await second != first
        assert not first.exists()

    asyncio.run(check())


def test_a_transfer_that_takes_too_long_keeps_nobody_waiting(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(service_module, "TRANSFER_SECONDS", 0.01)
            async with service.transfer():
                with pytest.raises(BusyError, match="another model is being transferred"):
                    await one_transfer(service)
        assert not (await one_transfer(service)).exists(), "and the next one is taken"

    asyncio.run(check())
