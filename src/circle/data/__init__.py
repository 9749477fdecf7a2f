"""Where images come from: files, folders, archives, arrays and data sets."""

# Importing these registers the data sets that they hold.
from circle.data import cifar, digits, fashion_mnist, imagenet, omniglot, tinyimagenet, user_images

__all__ = ["cifar", "digits", "fashion_mnist", "imagenet", "omniglot", "tinyimagenet", "user_images"]
