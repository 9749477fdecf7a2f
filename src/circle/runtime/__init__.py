"""What every machine must compute, in NumPy alone: the specification of the portable extractors, and a light runtime.

Nothing in this room imports PyTorch or scikit-learn. Weights, windows and calibration noise are made here for the fast
extractors, too, so that there is one source of them.
"""
