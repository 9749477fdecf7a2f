"""Where images come from: files, folders, archives, arrays and data sets."""
