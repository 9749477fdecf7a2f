"""Where images come from: files, folders, archives, arrays and data sets."""

# Importing these registers the data sets that they hold.
from circle.data import cifar, idx, imagenet, omniglot, sklearn_digits, tinyimagenet, user_data

__all__ = ["cifar", "idx", "imagenet", "omniglot", "sklearn_digits", "tinyimagenet", "user_data"]
