"""Folders, zip archives and npz files alike: the same samples every time, with labels and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from places_of_images import CONFIG, IMAGES, Maker, both, image_bytes, make_folder, make_zip, message_of, pairs, save

from circle.data.folders import check_none_ignored
from circle.data.images import DuplicateFinder, Sample
from circle.data.user_images import open_images, open_unlabelled
from circle.errors import UnreadableImageError

# --- samples ------------------------------------------------------------------------------------------------


def test_sample_decodes_bytes_and_arrays() -> None:
    assert (Sample("a", "cat", image_bytes(7)).pixels(CONFIG) == 7).all()
    assert (Sample("a", 3, np.full((9, 9, 3), 7, np.uint8)).pixels(CONFIG) == 7).all()
    with pytest.raises(UnreadableImageError, match=r"^a: not a readable image"):
        Sample("a", "cat", b"rubbish").pixels(CONFIG)


def test_digest_tells_apart_what_differs_and_nothing_else() -> None:
    row = np.arange(12, dtype=np.uint8)
    samples = [
        Sample("a", "1", b"x"),
        Sample("a", 1, b"x"),
        Sample("a", None, b"x"),
        Sample("a", "1", b"y"),
        Sample("a", "1", row),
        Sample("a", "1", row.tobytes()),
        Sample("a", "1", row.reshape(3, 4)),
        Sample("a", "1", row.reshape(4, 3)),
        Sample("a", "1", row.reshape(3, 4).view(bool)),
        Sample("a", "1", row.view(np.uint16)),
        Sample("a", "1", row[::-1]),
    ]
    digests = [sample.digest() for sample in samples]
    assert len(set(digests)) == len(samples)
    assert {len(digest) for digest in digests} == {16}
    assert Sample("other name", "1", b"x").digest() == digests[0]
    strided = np.repeat(row, 2)[::2].reshape(3, 4)
    assert Sample("b", "1", strided).digest() == Sample("c", "1", row.reshape(3, 4)).digest()
    # Written down, because models remember digests: a change here makes them forget what they have seen.
    assert digests[0].hex() == "b7681d5fdb6b1e0cecdb652594b403dd"


def test_the_same_picture_in_two_classes_is_found(tmp_path: Path) -> None:
    files = {
        "ape/1.png": 1,
        "bee/2.png": 2,
        "bee/3.png": 1,
        "cow/4.png": 1,
        "cow/5.png": 2,
        "cow/6.png": 6,
        "cow/7.png": 6,
    }
    path = make_folder(tmp_path, {name: image_bytes(level) for name, level in files.items()})
    finder = DuplicateFinder()
    for sample in open_images(path):
        finder.add(sample)
    pairs = [
        (Path(one).relative_to(path).as_posix(), Path(other).relative_to(path).as_posix())
        for one, other in finder.pairs
    ]
    assert pairs == [("ape/1.png", "bee/3.png"), ("ape/1.png", "cow/4.png"), ("bee/2.png", "cow/5.png")]
    assert finder.message().startswith(f"the same picture in two classes: {path}/ape/1.png and {path}/bee/3.png, ")
    assert "--strict" in message_of(finder.check)
    DuplicateFinder().check()


# --- folders and zip archives alike -------------------------------------------------------------------------


@both
def test_classes_are_folders_and_order_is_fixed(tmp_path: Path, make: Maker) -> None:
    names = [
        "dog/b.png",
        "cat/z/deep/1.PNG",
        "cat/10.jpeg",
        "cat/2.Jpg",
        "dog/a.png",
        "cat-2/x.webp",
        "Ape/x.tif",
    ]
    source = open_images(make(tmp_path, {name: image_bytes() for name in names}))
    assert pairs(source) == [
        ("Ape", "Ape/x.tif"),
        ("cat", "cat/10.jpeg"),
        ("cat", "cat/2.Jpg"),
        ("cat", "cat/z/deep/1.PNG"),
        ("cat-2", "cat-2/x.webp"),
        ("dog", "dog/a.png"),
        ("dog", "dog/b.png"),
    ]
    assert pairs(source) == pairs(source)
    assert source.classes == ["Ape", "cat", "cat-2", "dog"] == sorted(source.classes)
    assert source.counts == {"Ape": 1, "cat": 3, "cat-2": 1, "dog": 2}
    assert len(source) == 7
    assert source.path == tmp_path / ("data.zip" if make is make_zip else "data")


def make_npz(root: Path, files: dict[str, bytes]) -> Path:
    labels = [name.split("/")[0] for name in files]
    np.savez(root / "data.npz", x=np.arange(len(files) * 16, dtype=np.uint8).reshape(-1, 4, 4), y=labels)
    return root / "data.npz"


@pytest.mark.parametrize("make", [make_folder, make_zip, make_npz])
def test_shards_make_up_the_whole_and_listings_tell_sources_apart(tmp_path: Path, make: Maker) -> None:
    files = {f"class{level % 3}/{level}.png": image_bytes(level) for level in range(7)}
    source = open_images(make(tmp_path, files))
    whole = [(sample.name, sample.label, sample.digest()) for sample in source]
    shards = [[(each.name, each.label, each.digest()) for each in source.shard(rank, 3)] for rank in range(3)]
    assert [len(shard) for shard in shards] == [3, 2, 2]
    assert [shards[position % 3][position // 3] for position in range(7)] == whole
    assert list(source.shard(8, 9)) == []
    assert source.path is not None
    assert open_images(source.path).listing() == source.listing()
    (tmp_path / "other").mkdir()
    other = open_images(make(tmp_path / "other", {**files, "class1/8.png": image_bytes()}))
    assert other.listing() != source.listing()


@both
def test_contents_belong_to_their_names(tmp_path: Path, make: Maker) -> None:
    files = {f"class{level % 3}/{level}.png": image_bytes(level) for level in range(20)}
    for sample in open_images(make(tmp_path, files)):
        level = int(Path(sample.name).stem)
        assert sample.label == f"class{level % 3}"
        assert (sample.pixels(CONFIG) == level).all()


@both
def test_hidden_and_other_files_are_ignored_and_counted(tmp_path: Path, make: Maker) -> None:
    files = {
        "cat/1.png": image_bytes(),
        "loose.png": image_bytes(),
        "cat/.hidden.png": image_bytes(),
        ".git/x.png": image_bytes(),
        ".git/y.png": image_bytes(),
        "cat/.thumbs/1.png": image_bytes(),
        "cat/notes.txt": b"tabby",
        "dog/readme.TXT": b"none yet",
        "cat/4.heic": b"\0\0\0\x18ftypheic",
        "cat/nothing": b"",
    }
    hidden = 3
    if make is make_zip:
        files |= {"__MACOSX/cat/._1.png": image_bytes(), "__MACOSX/cat/1.png": image_bytes()}
        hidden += 1
    path = make(tmp_path, files)
    images = open_images(path)
    assert pairs(images) == [("cat", "cat/1.png")]
    (note,) = images.notes
    assert note.startswith(f"{path}: {hidden + 5} files ignored: {hidden} hidden, 2 .txt, ")
    for part in ("1 .heic (no reader for this format)", "1 empty", "1 outside the class folders"):
        assert part in note
    message = message_of(lambda: check_none_ignored(images))
    assert message.startswith(f"{path}: 5 files would be ignored: 2 .txt, ")
    assert message.endswith("such as cat/4.heic; --strict expects images alone")


@both
def test_images_are_recognised_by_their_first_bytes(tmp_path: Path, make: Maker) -> None:
    files = {
        "cat/1.png": image_bytes(1),
        "cat/IMG_2": image_bytes(2, "JPEG"),
        "cat/3.dat": image_bytes(3, "GIF"),
        "cat/4.bin": image_bytes(4, "BMP"),
        "dog/5.x": image_bytes(5, "TIFF"),
        "dog/6.x": image_bytes(6, "WEBP"),
        "dog/7.x": image_bytes(7, "PPM"),
        "dog/BMW.txt": b"BM and Porsche: what they have in common",
        "dog/P1.txt": b"P1 is a player",
        "dog/wave.riff": b"RIFF\0\0\0\0WAVEfmt ",
    }
    images = open_images(make(tmp_path, files))
    assert [Path(name).name for _, name in pairs(images)] == ["1.png", "3.dat", "4.bin", "IMG_2", "5.x", "6.x", "7.x"]
    assert np.allclose(images[:][:, 0, 0, 0], [1, 3, 4, 2, 5, 6, 7], atol=2), "WebP and JPEG round"
    (note,) = images.notes
    assert "3 files ignored: 2 .txt, 1 .riff; " in note and note.endswith(": read")
    assert "1 without extension that is JPEG" in note and "1 .dat that is GIF" in note
    assert len(open_images(make_zip(tmp_path, {"cat/1.png": image_bytes(1)})).notes) == 0


@both
def test_wrapping_folders_are_stepped_into(tmp_path: Path, make: Maker) -> None:
    names = ["wrap/once/cat/1.png", "wrap/once/dog/2.png", "preview.png"]
    source = open_images(make(tmp_path, {name: image_bytes() for name in names}))
    assert pairs(source) == [("cat", "wrap/once/cat/1.png"), ("dog", "wrap/once/dog/2.png")]


@both
def test_one_class_with_images_of_its_own_is_no_wrapping(tmp_path: Path, make: Maker) -> None:
    source = open_images(make(tmp_path, {"cat/1.png": image_bytes(), "cat/more/2.png": image_bytes()}))
    assert pairs(source) == [("cat", "cat/1.png"), ("cat", "cat/more/2.png")]


@both
@pytest.mark.parametrize("wrap", ["", "wrapped/"])
@pytest.mark.parametrize("splits", [("train", "test"), ("Train", "VAL"), ("train", "validation")])
def test_one_of_two_splits_is_taken(tmp_path: Path, make: Maker, splits: tuple[str, str], wrap: str) -> None:
    names = [f"{wrap}{split}/{label}/1.png" for split in splits for label in "ab"]
    path = make(tmp_path, {**{name: image_bytes() for name in names}, f"{wrap}{splits[1]}/notes.txt": b"no image"})
    for part, split in zip(("train", "test"), splits, strict=True):
        images = open_images(path, part)
        assert pairs(images) == [(label, f"{wrap}{split}/{label}/1.png") for label in "ab"]
        assert any(note.endswith(f": taking {wrap}{split}") for note in images.notes)
        assert len(images.ignored) == (part == "test"), "what lies in the other split is not this one's matter"


@both
def test_test_wins_over_validation(tmp_path: Path, make: Maker) -> None:
    names = [f"{split}/{label}/1.png" for split in ("train", "val", "test") for label in "ab"]
    images = open_images(make(tmp_path, {name: image_bytes() for name in names}), "test")
    assert pairs(images) == [("a", "test/a/1.png"), ("b", "test/b/1.png")]


@both
def test_splits_without_one_to_learn_from_are_refused(tmp_path: Path, make: Maker) -> None:
    path = make(tmp_path, {f"{split}/{label}/1.png": image_bytes() for split in ("valid", "test") for label in "ab"})
    message = message_of(lambda: open_images(path))
    assert "holds splits (test, valid), not classes" in message and message.endswith(f"give {path / 'test'}")


@both
def test_unlabelled_test_images_beside_training_classes_are_splits_too(tmp_path: Path, make: Maker) -> None:
    path = make(
        tmp_path, {"train/cat/1.png": image_bytes(), "train/dog/1.png": image_bytes(), "test/1.png": image_bytes()}
    )
    assert open_images(path).classes == ["cat", "dog"]
    assert "test: images, but no class folders" in message_of(lambda: open_images(path, "test"))


@both
@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["1.png", "2.png", "labels.csv"], "holds 2 images and labels.csv; labels are not read from tables: expected"),
        (["images/1.png", "images/2.png", "Metadata.csv"], "holds 2 images and Metadata.csv"),
        (["photos/1.png", "photos/labels.csv"], "holds 1 image and photos/labels.csv"),
        (["train/1.png", "test/2.png", "train/metadata.csv"], "holds 2 images and train/metadata.csv"),
        (["images/1.png"], "holds images in images, but that name says nothing of their class"),
        (["all/images/1.png", "all/masks/1.png"], "all: holds images in images, but that name"),
        (["train/1.png"], "holds images in train, but"),
        (["train/1.png", "test/2.png"], "holds images in test, train, but those names say nothing of their class"),
    ],
)
def test_images_whose_classes_are_elsewhere_are_refused(
    tmp_path: Path, make: Maker, names: list[str], words: str
) -> None:
    contents = {name: b"a,b" if name.endswith(".csv") else image_bytes() for name in names}
    assert words in message_of(lambda: open_images(make(tmp_path, contents)))


@both
def test_a_table_beside_class_folders_is_ignored_like_any_other_file(tmp_path: Path, make: Maker) -> None:
    names = ["cat/1.png", "dog/2.png", "labels.csv"]
    images = open_images(
        make(tmp_path, {name: b"a,b" if "." in name[-4:-3] and "csv" in name else image_bytes() for name in names})
    )
    assert images.classes == ["cat", "dog"]
    assert [note.endswith("1 file ignored: 1 .csv") for note in images.notes] == [True]


@both
def test_a_train_may_be_a_class(tmp_path: Path, make: Maker) -> None:
    names = ["train/steam/1.png", "car/1.png"]
    assert open_images(make(tmp_path, {name: image_bytes() for name in names})).classes == ["car", "train"]


@both
def test_splits_without_classes_in_them_are_classes(tmp_path: Path, make: Maker) -> None:
    names = ["train/1.png", "test/1.png", "other/deep/1.png"]
    assert open_images(make(tmp_path, {name: image_bytes() for name in names})).classes == ["other", "test", "train"]


@both
def test_a_lone_split_is_stepped_into(tmp_path: Path, make: Maker) -> None:
    names = ["train/cat/1.png", "train/dog/1.png"]
    assert open_images(make(tmp_path, {name: image_bytes() for name in names})).classes == ["cat", "dog"]


@both
def test_nothing_usable(tmp_path: Path, make: Maker) -> None:
    path = make(tmp_path, {"cat/notes.txt": b"", ".hidden/1.png": image_bytes()})
    message = message_of(lambda: open_images(path))
    assert message.startswith(f"{path}: no images in it (2 files ignored: 1 ")
    assert (
        "1 empty" in message and "1 hidden" in message and message.endswith("; expected one folder of images per class")
    )


@both
def test_images_without_class_folders(tmp_path: Path, make: Maker) -> None:
    path = make(tmp_path, {"1.png": image_bytes(), "2.png": image_bytes()})
    assert message_of(lambda: open_images(path)).startswith(f"{path}: images, but no class folders; expected")


@both
def test_a_broken_image_does_not_end_the_stream(tmp_path: Path, make: Maker) -> None:
    path = make(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": b"", "cat/3.png": image_bytes(3)})
    samples = list(open_images(path))
    assert [int(samples[index].pixels(CONFIG)[0, 0, 0]) for index in (0, 2)] == [1, 3]
    assert message_of(lambda: samples[1].pixels(CONFIG), UnreadableImageError).startswith(f"{path}/cat/2.png: empty")


@both
def test_names_in_any_script(tmp_path: Path, make: Maker) -> None:
    source = open_images(make(tmp_path, {"猫/écran 1.png": image_bytes(5), "собака/1.png": image_bytes(6)}))
    assert source.classes == ["собака", "猫"]
    assert [int(sample.pixels(CONFIG)[0, 0, 0]) for sample in source] == [6, 5]


# --- images without labels ----------------------------------------------------------------------------------


def test_unlabelled_files_folders_and_archives_in_the_order_given(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, {"b/2.png": image_bytes(2), "1.png": image_bytes(1), "notes.txt": b""})
    archive = make_zip(tmp_path, {"z.png": image_bytes(4), "a/3.png": image_bytes(3)})
    single = tmp_path / "without extension"
    single.write_bytes(image_bytes(9, "GIF"))
    images = open_unlabelled([single, archive, folder, str(single)])
    assert len(images) == 6
    for _ in range(2):
        samples = list(images)
        assert [int(sample.pixels(CONFIG)[0, 0, 0]) for sample in samples] == [9, 3, 4, 1, 2, 9]
        assert [sample.name for sample in samples] == [
            str(single),
            f"{archive}/a/3.png",
            f"{archive}/z.png",
            f"{folder}/1.png",
            f"{folder}/b/2.png",
            str(single),
        ]
        assert {sample.label for sample in samples} == {None}


def test_unlabelled_takes_one_path_and_none(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"1.png": image_bytes()})
    assert len(open_unlabelled(path)) == len(open_unlabelled(str(path))) == 1
    assert list(open_unlabelled([])) == []


def test_unlabelled_complains_at_once(tmp_path: Path) -> None:
    here = make_folder(tmp_path, {"1.png": image_bytes()})
    gone, empty = tmp_path / "gone.png", tmp_path / "empty"
    empty.mkdir()
    assert message_of(lambda: open_unlabelled([here, gone])).startswith(f"{gone}: No such file or directory")
    assert message_of(lambda: open_unlabelled([here, empty])).startswith(f"{empty}: no images in it; expected")
    npz = save(tmp_path / "data.npz", x=IMAGES)
    assert message_of(lambda: open_unlabelled([npz])).startswith(f"{npz}: an npz file; expected image files")
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK")
    assert message_of(lambda: open_unlabelled([broken])).startswith(f"{broken}: cannot be read")


def test_unlabelled_broken_images_do_not_end_the_stream(tmp_path: Path) -> None:
    text, image = tmp_path / "text.png", tmp_path / "image.png"
    text.write_text("no picture")
    image.write_bytes(image_bytes(5))
    gone = tmp_path / "gone.png"
    gone.write_bytes(image_bytes())
    images = open_unlabelled([text, gone, image])
    gone.unlink()
    first, second, third = images
    assert "not a readable image" in message_of(lambda: first.pixels(CONFIG), UnreadableImageError)
    assert "No such file" in message_of(lambda: second.pixels(CONFIG), UnreadableImageError)
    assert (third.pixels(CONFIG) == 5).all()
