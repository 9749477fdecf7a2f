"""What a server remembers beside the statistics: empty classes, images held back, changes that can be undone."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from circle.data.decode import ImageConfig
from circle.labels import decode_labels, encode_labels
from circle.serve.journal import Frame, split

MAX_HISTORY_BYTES = 8 * 2**20  # of pixels of the images learned last
MAX_HELD_OUT_BYTES = 16 * 2**20  # of pixels of images held back
MAX_HELD_OUT_PER_CLASS = 100


class ReplacedTest(NamedTuple):
    """A picture that was held back until another request brought the same file."""

    label: Hashable
    digest: bytes
    group: str


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """One labelled image that a request brought."""

    label: Hashable
    pixels: np.ndarray  # uint8 [channels, height, width]
    digest: bytes  # of label and file, for the ledger
    content: bytes  # of the file alone
    group: str = ""  # pictures that came together are undone together
    held_out: bool = False
    features: list[Tensor] = field(default_factory=list)  # [1, size] per group; filled when first needed
    replaced: ReplacedTest | None = None  # whose place it took; tests again when this one is undone

    def as_replaced(self) -> ReplacedTest:
        return ReplacedTest(self.label, self.digest, self.group)

    def header(self) -> dict[str, Any]:
        replaced = self.replaced and (
            encode_label(self.replaced.label),
            self.replaced.digest.hex(),
            self.replaced.group,
        )
        return {
            "kind": "picture",
            "label": encode_label(self.label),
            "digest": self.digest.hex(),
            "content": self.content.hex(),
            "group": self.group,
            "held": self.held_out,
            **({"former": replaced} if replaced else {}),
        }

    @classmethod
    def from_header(cls, header: dict[str, Any], blob: bytes, image: ImageConfig) -> LabelledImage:
        pixels = np.frombuffer(blob, np.uint8).reshape(image.channels, image.height, image.width).copy()
        label, digest, group = header.get("former") or (None, "", "")
        return cls(
            decode_label(header["label"]),
            pixels,
            bytes.fromhex(header["digest"]),
            bytes.fromhex(header["content"]),
            header["group"],
            header["held"],
            replaced=ReplacedTest(decode_label(label), bytes.fromhex(digest), group) if label is not None else None,
        )


class EditHistory:
    """Bounded, and a function of the changes that the journal lists, so that a restart finds it again."""

    def __init__(self) -> None:
        self.classes: dict[Hashable, None] = {}  # those made by hand, in the order of their making
        self.held_out: dict[bytes, LabelledImage] = {}  # by content
        self.recent: deque[LabelledImage] = deque()
        self._recent_bytes = 0
        self._held_out_bytes = 0
        self._held_out_counts: Counter[Hashable] = Counter()

    # -- questions -------------------------------------------------------------------------------------------

    def can_hold_out(self, example: LabelledImage, others: Sequence[LabelledImage]) -> bool:
        """Whether there is room to hold back a picture, and ``others`` that are not in here yet."""
        of_class = self._held_out_counts[example.label] + sum(other.label == example.label for other in others)
        size = self._held_out_bytes + sum(each.pixels.nbytes for each in (example, *others))
        return of_class < MAX_HELD_OUT_PER_CLASS and size <= MAX_HELD_OUT_BYTES

    def held_out_counts(self) -> dict[Hashable, int]:
        return dict(self._held_out_counts)

    def last_edit(self) -> list[LabelledImage]:
        """The pictures that an undo would take back: all of the last one's group, whatever came between them."""
        if not self.recent:
            return []
        last = self.recent[-1]
        return [example for example in self.recent if example.group == last.group] if last.group else [last]

    def positions(self, images: Iterable[LabelledImage]) -> list[int]:
        """Where pictures stand in the history, counted from its end: what the journal keeps of an undo."""
        wanted = {id(example) for example in images}
        return [position for position, example in enumerate(reversed(self.recent)) if id(example) in wanted]

    def learned_images(self, label: Hashable) -> list[LabelledImage]:
        """The learned pictures of a class that are still at hand."""
        return [example for example in self.recent if example.label == label and not example.held_out]

    # -- changes ---------------------------------------------------------------------------------------------

    def add(self, images: Iterable[LabelledImage]) -> None:
        for example in images:
            replaced = self._release(example.content)  # what is taught no longer tests
            added = replace(example, replaced=replaced.as_replaced()) if replaced else example
            if added.held_out:
                self._hold_out(added)
            self.recent.append(added)
            self._recent_bytes += added.pixels.nbytes
        while self._recent_bytes > MAX_HISTORY_BYTES:
            self._recent_bytes -= self.recent.popleft().pixels.nbytes

    def undo(self, positions: Iterable[int]) -> list[LabelledImage]:
        """Take the pictures at these places out; those that were learned are for the caller to subtract."""
        taken = [self.recent[-1 - position] for position in positions]
        self._remove(taken)
        return [example for example in taken if not example.held_out]

    def _remove(self, leaving: Sequence[LabelledImage]) -> None:
        """Let pictures leave the history as if they had never come.

        A file may have come several times: held back for one class, then taught as another. What of it tests follows
        from those of its pictures that stay, in their order, and from what tested before the first.
        """
        gone = {id(example) for example in leaving}
        pixels = {example.content: example.pixels for example in leaving}
        tests: dict[bytes, ReplacedTest | None] = {}  # by content, as far as the history was walked through
        latest: dict[bytes, LabelledImage] = {}
        kept: deque[LabelledImage] = deque()
        for example in self.recent:
            if example.content in pixels:
                replaced = tests.setdefault(example.content, example.replaced)
                if id(example) in gone:
                    continue
                if example.replaced != replaced:
                    example = self._exchange(example, replace(example, replaced=replaced))
                tests[example.content] = example.as_replaced() if example.held_out else None
                latest[example.content] = example
            kept.append(example)
        self.recent = kept
        self._recent_bytes -= sum(example.pixels.nbytes for example in leaving)
        for content, replaced in tests.items():
            wanted = latest.get(content) if replaced else None
            if replaced and not wanted:  # it left the history long ago; the pixels of one file are the same every time
                wanted = LabelledImage(
                    replaced.label, pixels[content], replaced.digest, content, replaced.group, held_out=True
                )
            if self.held_out.get(content) is not wanted:
                self._release(content)
                if wanted and self.can_hold_out(wanted, []):
                    self._hold_out(wanted)

    def _exchange(self, old: LabelledImage, new: LabelledImage) -> LabelledImage:
        """The new picture, which also tests if the old one did."""
        if self.held_out.get(old.content) is old:
            self.held_out[old.content] = new
        return new

    def rename(self, label: Hashable, new: Hashable) -> None:
        made: dict[int, LabelledImage] = {}  # a picture that tests and is in the history stays one picture

        def renamed(example: LabelledImage) -> LabelledImage:
            replaced = example.replaced
            if replaced and replaced.label == label:
                replaced = replaced._replace(label=new)
            if example.label != label and replaced == example.replaced:
                return example
            name = new if example.label == label else example.label
            return made.setdefault(id(example), replace(example, label=name, replaced=replaced))

        self.classes = {new if each == label else each: None for each in self.classes}
        held_out, recent = (
            self.held_out,
            self.recent,
        )  # kept till the end: an id is only one while its object lives
        self.held_out = {content: renamed(example) for content, example in held_out.items()}
        self.recent = deque(renamed(example) for example in recent)
        if label in self._held_out_counts:
            self._held_out_counts[new] = self._held_out_counts.pop(label)

    def forget(self, label: Hashable) -> None:
        self.classes.pop(label, None)
        self._remove([example for example in self.recent if example.label == label])
        self.recent = deque(
            self._exchange(example, replace(example, replaced=None))
            if example.replaced and example.replaced.label == label
            else example
            for example in self.recent
        )
        for content in [content for content, example in self.held_out.items() if example.label == label]:
            self._release(content)

    def _hold_out(self, example: LabelledImage) -> None:
        self.held_out[example.content] = example
        self._held_out_bytes += example.pixels.nbytes
        self._held_out_counts[example.label] += 1

    def _release(self, content: bytes) -> LabelledImage | None:
        example = self.held_out.pop(content, None)
        if example is not None:
            self._held_out_bytes -= example.pixels.nbytes
            self._held_out_counts[example.label] -= 1
            self._held_out_counts += Counter()  # drops what became zero
        return example

    # -- files -----------------------------------------------------------------------------------------------

    def to_frame(self, identity: str, sequence: int) -> Frame:
        """The first frame of a new journal."""
        recent = {id(example) for example in self.recent}
        only_held_out = [example for example in self.held_out.values() if id(example) not in recent]
        images = [*only_held_out, *self.recent]
        current = {id(example) for example in self.held_out.values()}
        header = {
            "identity": identity,
            "sequence": sequence,
            "classes": [encode_label(label) for label in self.classes],
            "pictures": [
                {**example.header(), "bytes": example.pixels.nbytes, "tests": id(example) in current}
                for example in images
            ],
            "only_held": len(only_held_out),
        }
        return Frame(header, b"".join(example.pixels.tobytes() for example in images))

    @classmethod
    def from_frame(cls, frame: Frame, image: ImageConfig) -> EditHistory:
        """Inverse of :meth:`to_frame`."""
        edit_history = cls()
        edit_history.classes = {decode_label(text): None for text in frame.header["classes"]}
        headers = frame.header["pictures"]
        images = images_of_frame(headers, frame.blob, image)
        for index, (header, example) in enumerate(zip(headers, images, strict=True)):
            if header["tests"]:
                edit_history._hold_out(example)
            if index >= frame.header["only_held"]:
                edit_history.recent.append(example)
                edit_history._recent_bytes += example.pixels.nbytes
        return edit_history

    def state(self) -> Any:
        """Everything in it as plain data, to compare two histories by."""
        frame = self.to_frame("", 0)
        return json.dumps(frame.header, sort_keys=True), frame.blob


def images_of_frame(headers: Sequence[dict[str, Any]], blob: bytes, image: ImageConfig) -> list[LabelledImage]:
    """The pictures that heads in a frame describe."""
    parts = split(blob, [header["bytes"] for header in headers])
    return [LabelledImage.from_header(header, part, image) for header, part in zip(headers, parts, strict=True)]


def images_frame(sequence: int, images: Sequence[LabelledImage]) -> Frame:
    """The frame that keeps pictures learned or held back together."""
    headers = [{**example.header(), "bytes": example.pixels.nbytes} for example in images]
    blob = b"".join(example.pixels.tobytes() for example in images)
    return Frame({"sequence": sequence, "kind": "pictures", "pictures": headers}, blob)


def encode_label(label: Hashable) -> str:
    return encode_labels([label])


def decode_label(text: str) -> Hashable:
    return decode_labels(text)[0]
