"""``python -m circle``: the command ``circle``."""

from circle.cli import main

if __name__ == "__main__":
    main()
