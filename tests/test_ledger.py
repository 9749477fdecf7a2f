"""The ledger of learned images."""

from __future__ import annotations

from circle.files import Ledger


def ledger(**entries: list[int]) -> Ledger:
    result = Ledger()
    for label, numbers in entries.items():
        for number in numbers:
            result.add(label, number.to_bytes(16, "big"))
    return result


def test_remembers_by_class() -> None:
    seen = ledger(cat=[1, 2], dog=[2])
    assert ("cat", (1).to_bytes(16, "big")) in seen
    assert ("dog", (1).to_bytes(16, "big")) not in seen
    assert len(seen) == 3
    seen.discard_class("cat")
    assert len(seen) == 1


def test_tensors_and_back_whatever_the_order() -> None:
    one, other = ledger(cat=[5, 1, 3], dog=[2]), ledger(dog=[2], cat=[3, 5, 1])
    digests, counts = one.to_tensors(["bird", "cat", "dog"])
    assert digests.equal(other.to_tensors(["bird", "cat", "dog"])[0])
    assert counts.tolist() == [0, 3, 1]
    again = Ledger.from_tensors(["bird", "cat", "dog"], digests, counts)
    assert len(again) == 4
    assert ("cat", (3).to_bytes(16, "big")) in again
    assert Ledger().to_tensors([])[0].shape == (0, 16)


def test_sets() -> None:
    one, other = ledger(cat=[1, 2], dog=[1]), ledger(cat=[2, 3], cow=[1])
    assert one.overlap(other) == 1
    union = one.copy()
    union.update(other)
    assert (len(union), len(one)) == (5, 3)
    union.subtract(other)
    assert len(union) == 2


def test_a_renamed_class_keeps_its_images() -> None:
    seen = ledger(cat=[1, 2], dog=[3])
    seen.rename("cat", "kitten")
    seen.rename("cow", "calf")
    assert ("kitten", (2).to_bytes(16, "big")) in seen
    assert ("cat", (2).to_bytes(16, "big")) not in seen
    seen.discard("kitten", (2).to_bytes(16, "big"))
    seen.discard("nobody", (2).to_bytes(16, "big"))
    assert len(seen) == 2
