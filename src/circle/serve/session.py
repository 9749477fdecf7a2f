"""What a server remembers beside the statistics: empty classes, images held back, lessons that can be undone."""

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

HISTORY_BYTES = 8 * 2**20  # of pixels of the last lessons
HELD_BYTES = 16 * 2**20  # of pixels of images held back
HELD_PER_CLASS = 100


class Former(NamedTuple):
    """A picture that was held back until another lesson brought the same file."""

    label: Hashable
    digest: bytes
    group: str


@dataclass(frozen=True, eq=False)
class Picture:
    """One labelled image that a request brought."""

    label: Hashable
    pixels: np.ndarray  # uint8 [channels, height, width]
    digest: bytes  # of label and file, for the ledger
    content: bytes  # of the file alone
    group: str = ""  # pictures that came together are undone together
    held: bool = False
    features: list[Tensor] = field(default_factory=list)  # [1, size] per group; filled when first needed
    former: Former | None = None  # whose place it took; tests again when this one is undone

    def as_former(self) -> Former:
        return Former(self.label, self.digest, self.group)

    def head(self) -> dict[str, Any]:
        former = self.former and (encode_label(self.former.label), self.former.digest.hex(), self.former.group)
        return {
            "kind": "picture",
            "label": encode_label(self.label),
            "digest": self.digest.hex(),
            "content": self.content.hex(),
            "group": self.group,
            "held": self.held,
            **({"former": former} if former else {}),
        }

    @classmethod
    def from_head(cls, head: dict[str, Any], blob: bytes, image: ImageConfig) -> Picture:
        pixels = np.frombuffer(blob, np.uint8).reshape(image.channels, image.height, image.width).copy()
        label, digest, group = head.get("former") or (None, "", "")
        return cls(
            decode_label(head["label"]),
            pixels,
            bytes.fromhex(head["digest"]),
            bytes.fromhex(head["content"]),
            head["group"],
            head["held"],
            former=Former(decode_label(label), bytes.fromhex(digest), group) if label is not None else None,
        )


class Session:
    """Bounded, and a function of the changes that the journal lists, so that a restart finds it again."""

    def __init__(self) -> None:
        self.classes: dict[Hashable, None] = {}  # those made by hand, in the order of their making
        self.held: dict[bytes, Picture] = {}  # by content
        self.history: deque[Picture] = deque()
        self._history_bytes = 0
        self._held_bytes = 0
        self._held_counts: Counter[Hashable] = Counter()

    # -- questions -------------------------------------------------------------------------------------------

    def may_hold(self, picture: Picture, others: Sequence[Picture]) -> bool:
        """Whether there is room to hold back a picture, and ``others`` that are not in here yet."""
        of_class = self._held_counts[picture.label] + sum(other.label == picture.label for other in others)
        size = self._held_bytes + sum(each.pixels.nbytes for each in (picture, *others))
        return of_class < HELD_PER_CLASS and size <= HELD_BYTES

    def held_counts(self) -> dict[Hashable, int]:
        return dict(self._held_counts)

    def last_lesson(self) -> list[Picture]:
        """The pictures that an undo would take back: all of the last one's group, whatever came between them."""
        if not self.history:
            return []
        last = self.history[-1]
        return [picture for picture in self.history if picture.group == last.group] if last.group else [last]

    def places(self, pictures: Iterable[Picture]) -> list[int]:
        """Where pictures stand in the history, counted from its end: what the journal keeps of an undo."""
        wanted = {id(picture) for picture in pictures}
        return [place for place, picture in enumerate(reversed(self.history)) if id(picture) in wanted]

    def learned_pictures(self, label: Hashable) -> list[Picture]:
        """The learned pictures of a class that are still at hand."""
        return [picture for picture in self.history if picture.label == label and not picture.held]

    # -- changes ---------------------------------------------------------------------------------------------

    def add(self, pictures: Iterable[Picture]) -> None:
        for picture in pictures:
            former = self._release(picture.content)  # what is taught no longer tests
            added = replace(picture, former=former.as_former()) if former else picture
            if added.held:
                self._hold(added)
            self.history.append(added)
            self._history_bytes += added.pixels.nbytes
        while self._history_bytes > HISTORY_BYTES:
            self._history_bytes -= self.history.popleft().pixels.nbytes

    def undo(self, places: Iterable[int]) -> list[Picture]:
        """Take the pictures at these places out; those that were learned are for the caller to subtract."""
        taken = [self.history[-1 - place] for place in places]
        self._take_out(taken)
        return [picture for picture in taken if not picture.held]

    def _take_out(self, leaving: Sequence[Picture]) -> None:
        """Let pictures leave the history as if they had never come.

        A file may have come several times: held back for one class, then taught as another. What of it tests follows
        from those of its pictures that stay, in their order, and from what tested before the first.
        """
        gone = {id(picture) for picture in leaving}
        pixels = {picture.content: picture.pixels for picture in leaving}
        tests: dict[bytes, Former | None] = {}  # by content, as far as the history was walked through
        latest: dict[bytes, Picture] = {}
        kept: deque[Picture] = deque()
        for picture in self.history:
            if picture.content in pixels:
                former = tests.setdefault(picture.content, picture.former)
                if id(picture) in gone:
                    continue
                if picture.former != former:
                    picture = self._exchanged(picture, replace(picture, former=former))
                tests[picture.content] = picture.as_former() if picture.held else None
                latest[picture.content] = picture
            kept.append(picture)
        self.history = kept
        self._history_bytes -= sum(picture.pixels.nbytes for picture in leaving)
        for content, former in tests.items():
            wanted = latest.get(content) if former else None
            if former and not wanted:  # it left the history long ago; the pixels of one file are the same every time
                wanted = Picture(former.label, pixels[content], former.digest, content, former.group, held=True)
            if self.held.get(content) is not wanted:
                self._release(content)
                if wanted and self.may_hold(wanted, []):
                    self._hold(wanted)

    def _exchanged(self, old: Picture, new: Picture) -> Picture:
        """The new picture, which also tests if the old one did."""
        if self.held.get(old.content) is old:
            self.held[old.content] = new
        return new

    def rename(self, label: Hashable, new: Hashable) -> None:
        made: dict[int, Picture] = {}  # a picture that tests and is in the history stays one picture

        def renamed(picture: Picture) -> Picture:
            former = picture.former
            if former and former.label == label:
                former = former._replace(label=new)
            if picture.label != label and former == picture.former:
                return picture
            name = new if picture.label == label else picture.label
            return made.setdefault(id(picture), replace(picture, label=name, former=former))

        self.classes = {new if each == label else each: None for each in self.classes}
        held, history = self.held, self.history  # kept until all is done: an id is only one while its object lives
        self.held = {content: renamed(picture) for content, picture in held.items()}
        self.history = deque(renamed(picture) for picture in history)
        if label in self._held_counts:
            self._held_counts[new] = self._held_counts.pop(label)

    def forget(self, label: Hashable) -> None:
        self.classes.pop(label, None)
        self._take_out([picture for picture in self.history if picture.label == label])
        self.history = deque(
            self._exchanged(picture, replace(picture, former=None))
            if picture.former and picture.former.label == label
            else picture
            for picture in self.history
        )
        for content in [content for content, picture in self.held.items() if picture.label == label]:
            self._release(content)

    def _hold(self, picture: Picture) -> None:
        self.held[picture.content] = picture
        self._held_bytes += picture.pixels.nbytes
        self._held_counts[picture.label] += 1

    def _release(self, content: bytes) -> Picture | None:
        picture = self.held.pop(content, None)
        if picture is not None:
            self._held_bytes -= picture.pixels.nbytes
            self._held_counts[picture.label] -= 1
            self._held_counts += Counter()  # drops what became zero
        return picture

    # -- files -----------------------------------------------------------------------------------------------

    def base(self, identity: str, sequence: int) -> Frame:
        """The first frame of a new journal."""
        history = {id(picture) for picture in self.history}
        only_held = [picture for picture in self.held.values() if id(picture) not in history]
        pictures = [*only_held, *self.history]
        current = {id(picture) for picture in self.held.values()}
        head = {
            "identity": identity,
            "sequence": sequence,
            "classes": [encode_label(label) for label in self.classes],
            "pictures": [
                {**picture.head(), "bytes": picture.pixels.nbytes, "tests": id(picture) in current}
                for picture in pictures
            ],
            "only_held": len(only_held),
        }
        return Frame(head, b"".join(picture.pixels.tobytes() for picture in pictures))

    @classmethod
    def from_base(cls, frame: Frame, image: ImageConfig) -> Session:
        """Inverse of :meth:`base`."""
        session = cls()
        session.classes = {decode_label(text): None for text in frame.head["classes"]}
        heads = frame.head["pictures"]
        pictures = pictures_of(heads, frame.blob, image)
        for index, (head, picture) in enumerate(zip(heads, pictures, strict=True)):
            if head["tests"]:
                session._hold(picture)
            if index >= frame.head["only_held"]:
                session.history.append(picture)
                session._history_bytes += picture.pixels.nbytes
        return session

    def state(self) -> Any:
        """Everything in it as plain data, to compare two sessions by."""
        frame = self.base("", 0)
        return json.dumps(frame.head, sort_keys=True), frame.blob


def pictures_of(heads: Sequence[dict[str, Any]], blob: bytes, image: ImageConfig) -> list[Picture]:
    """The pictures that heads in a frame describe."""
    parts = split(blob, [head["bytes"] for head in heads])
    return [Picture.from_head(head, part, image) for head, part in zip(heads, parts, strict=True)]


def picture_frame(sequence: int, pictures: Sequence[Picture]) -> Frame:
    """The frame that keeps pictures learned or held back together."""
    heads = [{**picture.head(), "bytes": picture.pixels.nbytes} for picture in pictures]
    blob = b"".join(picture.pixels.tobytes() for picture in pictures)
    return Frame({"sequence": sequence, "kind": "pictures", "pictures": heads}, blob)


def encode_label(label: Hashable) -> str:
    return encode_labels([label])


def decode_label(text: str) -> Hashable:
    return decode_labels(text)[0]
