"""What can be downloaded: the official files of each data set and their checksums."""

from __future__ import annotations

from dataclasses import dataclass

_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"


@dataclass(frozen=True)
class Download:
    """A data set's official files (URL: checksum), and names under which people keep it unpacked."""

    files: dict[str, str]
    also: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [url.rpartition("/")[2] for url in self.files]


DOWNLOADS = {
    "cifar100": Download(
        {"https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"},
        also=("cifar-100-binary",),
    ),
    "tinyimagenet": Download(
        {"http://cs231n.stanford.edu/tiny-imagenet-200.zip": "md5:90528d7ca1a48142e341f4ef8d21d0de"},
        also=("tiny-imagenet-200",),
    ),
    "fashion_mnist": Download(
        {
            f"{_FASHION}train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            f"{_FASHION}train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            f"{_FASHION}t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            f"{_FASHION}t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "omniglot": Download(
        {
            f"{_OMNIGLOT}images_background.zip": "md5:68d2efa1b9178cc56df9314c21c6e718",
            f"{_OMNIGLOT}images_evaluation.zip": "md5:6b91aef0f799c5bb55b94e3f2daec811",
        },
        also=("omniglot.npz",),
    ),
}
