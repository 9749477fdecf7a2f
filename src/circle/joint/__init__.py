"""One model taught by several processes: which of them this one is, its share of the work, and how they learn together.

``processes.py`` reads the environment and imports nothing heavy, because every command asks it who may print. What the
processes tell each other is in :mod:`circle.distributed`.
"""
