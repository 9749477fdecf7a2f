"""Settings chosen on a part of the training data, with the whole search on record."""
