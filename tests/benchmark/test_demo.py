"""The demo, on a quarter of the digits and with a narrow extractor: the whole way in a second or two."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from circle.benchmark import demo
from circle.benchmark.demo import CIRCLE, CLASS_MEAN, NETWORK, ContestantResult
from circle.benchmark.metrics import count_correct
from circle.cli.demo import _plot_path, show_demo
from circle.data.digits import DigitsSplit, load_digits_images
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.report.figures import STYLES


class DemoResult(NamedTuple):
    """What the contestants did, and where the plot is."""

    contestants: dict[str, ContestantResult]
    plot: Path


def a_quarter() -> DigitsSplit:
    digits = load_digits_images()
    return DigitsSplit(
        digits.train_images[::4], digits.train_labels[::4], digits.test_images[::4], digits.test_labels[::4]
    )


def narrow(preset: str, **changes: object) -> CircleClassifier:
    return CircleClassifier.from_preset(preset, members=1, extractor__filters=(10,), **changes)


class NarrowClassifier:
    from_preset = staticmethod(narrow)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DemoResult, str]]:
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "load_digits_images", a_quarter)
        patch.setattr(demo, "CircleClassifier", NarrowClassifier)
        console = Console(file=text, width=80)
        plot = tmp_path_factory.mktemp("demo") / "plot.png"
        contestants, written = show_demo(plot, 1, console)
        yield DemoResult(contestants, written), text.getvalue()


def test_circle_remembers_and_the_network_forgets(run: tuple[DemoResult, str]) -> None:
    records = {name: contestant.record for name, contestant in run[0].contestants.items()}
    assert list(records) == [CIRCLE, CLASS_MEAN, NETWORK]
    for record in records.values():
        assert record.tasks == ((4, 6), (2, 7), (3, 5), (9, 0), (8, 1))
        assert record.total.sum() == 135
        assert record.accuracy_after_task[0] > 0.9
    assert records[CIRCLE].final_accuracy > 0.9
    assert records[CIRCLE].first_task_accuracy[-1] > 0.9
    assert records[NETWORK].first_task_accuracy[-1] < 0.1
    assert records[NETWORK].final_accuracy < 0.3


@pytest.mark.parametrize(("contestant", "head"), [(CIRCLE, None), (CLASS_MEAN, "ncm")])
def test_counts_are_those_of_the_head_on_everything_at_once(
    run: tuple[DemoResult, str], contestant: str, head: str | None
) -> None:
    """In particular the class means are current: they hold every task, the last one too."""
    digits, record = a_quarter(), run[0].contestants[contestant].record
    classifier = narrow("small", channels=1, seed=1).partial_fit(digits.train_images, digits.train_labels)
    predictions = classifier.with_head(head or classifier.head).predict(digits.test_images)
    expected = count_correct(digits.test_labels, predictions, record.class_order)
    np.testing.assert_array_equal(record.correct[-1], expected)


def test_costs_are_reported(run: tuple[DemoResult, str]) -> None:
    circle, class_mean, network = run[0].contestants.values()
    assert class_mean.learning_seconds is None and class_mean.state_bytes is None
    assert circle.learning_seconds and network.learning_seconds
    assert all(contestant.evaluation_seconds > 0 for contestant in (circle, class_mean, network))
    assert network.state_bytes == 39720
    assert circle.state_bytes and circle.state_bytes > 1000


def test_the_report_says_it_all_in_80_columns(run: tuple[DemoResult, str]) -> None:
    result, text = run
    report, plot_line = text.rstrip("\n").rsplit("\n", 1)
    assert max(map(len, report.splitlines())) <= 80
    assert plot_line == f"Plot: {result.plot}"
    assert report.count("task 5/5") == 3
    rows = {line.split("│")[1].strip(): line for line in report.splitlines() if line.startswith("│")}
    for label, metric in [
        ("after task 2 (+ 2, 7)", lambda record: record.accuracy_after_task[1]),
        ("average incremental accuracy", lambda record: record.average_incremental_accuracy),
        ("final accuracy", lambda record: record.final_accuracy),
        ("first task accuracy at the end", lambda record: record.first_task_accuracy[-1]),
    ]:
        found = [cell.strip() for cell in rows[label].split("│")[2:-1]]
        assert found == [f"{100 * metric(contestant.record):.2f}" for contestant in result.contestants.values()]
    assert "39.7 kB" in rows["learned state, size"]
    assert rows["seconds, learning + evaluating"].count("shared") == 1
    assert "final accuracy: accuracy after the last task" in report


def test_the_plot_is_whole_and_alone(run: tuple[DemoResult, str]) -> None:
    plot = run[0].plot
    assert [path.name for path in plot.parent.iterdir()] == ["plot.png"]
    with Image.open(plot) as image:
        image.load()
        assert image.format == "PNG" and image.width > 1000
        pixels = np.asarray(image.convert("RGB"))
    above_legend = pixels[: int(0.8 * len(pixels))]
    left, right = np.array_split(above_legend, 2, axis=1)
    for style in STYLES[:3]:
        colour = [int(style["color"][start : start + 2], 16) for start in (1, 3, 5)]
        assert min((panel == colour).all(axis=2).sum() for panel in (left, right)) > 300


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (
            lambda folder: folder / "absent" / "plot.png",
            "absent/plot.png: cannot be written; expected a file in a folder that exists",
        ),
        (
            lambda folder: _touched(folder / "file") / "plot.png",
            "file/plot.png: cannot be written; expected a file in a folder that exists",
        ),
        (lambda folder: _with_folder(folder, "circle-demo.png"), "circle-demo.png: cannot be written; expected a file"),
        (lambda folder: Path("/proc/plot.png"), "/proc/plot.png: cannot be written"),
    ],
)
def test_an_unusable_path_is_refused_before_the_run(prepare, message, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(demo, "load_digits_images", lambda: pytest.fail("the run had begun"))
    with pytest.raises(CircleError, match=message) as caught:
        show_demo(prepare(tmp_path), 0, Console(file=io.StringIO()))
    assert "\n" not in str(caught.value)


def test_in_a_folder_the_plot_has_a_name_of_its_own(tmp_path: Path) -> None:
    assert _plot_path(tmp_path) == tmp_path / "circle-demo.png"
    assert list(tmp_path.iterdir()) == []


def _touched(path: Path) -> Path:
    path.touch()
    return path


def _with_folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder
