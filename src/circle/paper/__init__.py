"""The paper beside us: its studies, its advice on ensembles, its published values."""
